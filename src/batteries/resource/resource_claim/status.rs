//! The status of claims: allocated devices, the pods that use them and the reports of their
//! drivers.

use super::spec::{RequestNames, within};
use crate::resource::validation;
use crate::resource::validation::{Declared, Origin, declared};
use crate::shared::node_selector::{self, LabelValues};
use crate::shared::validation::conditions::conditions;
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{cidr_sloppy, ip_text};
use polyplane_apimachinery::{Value, json, quote};
use std::collections::BTreeSet;
use std::net::IpAddr;

const RESERVATIONS_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONFIGS_MAX: usize = 64;
const CONDITIONS_MAX: usize = 8;
const DATA_BYTES_MAX: usize = 10 * 1024;
const ADDRESSES_MAX: usize = 16;

/// Drops the reports of drivers about devices that are no longer allocated.
pub fn prepare(status: &mut Value, old: &Value) {
    const RESULTS: [&str; 3] = ["allocation", "devices", "results"];
    let results = |status: &Value| -> Vec<Device> {
        status.items_at(&RESULTS).iter().map(Device::of).collect()
    };
    let mut gone: BTreeSet<Device> = results(old).into_iter().collect();
    for device in results(status) {
        gone.remove(&device);
    }
    if let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) {
        devices.retain(|device| !gone.contains(&Device::of(device)));
    }
    if status
        .get("devices")
        .is_some_and(|devices| devices.as_array().is_none_or(<[Value]>::is_empty))
    {
        drop(status.remove(&["devices"]));
    }
}

/// The identity of an allocated device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device([String; 4]);

impl Device {
    fn of(value: &Value) -> Self {
        Self(["driver", "pool", "device", "shareID"].map(|field| value.str_at(&[field]).to_owned()))
    }

    fn shown(&self) -> Bad {
        let members = ["Driver", "Pool", "Device", "ShareID"].iter().zip(&self.0);
        let members: Vec<String> = members
            .map(|(name, value)| format!("\"{name}\":{}", json::to_string(&value.as_str().into())))
            .collect();
        Bad::Shown(format!("{{{}}}", members.join(",")).into())
    }
}

/// Validates a changed status.
pub fn validate(errors: &mut Complaints, object: &Value, old: &Value) {
    let path = Path::new("status");
    let (status, before) = (&object["status"], &old["status"]);
    let names = RequestNames::of(&object["spec"]);
    let reserved = status.items_at(&["reservedFor"]);
    validate_reservations(errors, &path.child("reservedFor"), reserved);
    let allocation = &status["allocation"];
    let allocated: BTreeSet<Device> = allocation
        .items_at(&["devices", "results"])
        .iter()
        .map(Device::of)
        .collect();
    let place = path.child("devices");
    for (at, device) in status.items_at(&["devices"]).iter().enumerate() {
        validate_device(errors, &place.index(at), device, &allocated);
    }
    let place = path.child("reservedFor");
    if !reserved.is_empty() && allocation.is_null() {
        errors.push(FieldError::forbidden(
            &place,
            "may not be specified when `allocated` is not set",
        ));
    } else if present(&object["metadata"]["deletionTimestamp"]) {
        let known = before.items_at(&["reservedFor"]);
        if reserved.iter().any(|consumer| !known.contains(consumer)) {
            let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(&place, detail));
        }
    }
    // The schema declares that an allocation does not change.
    if present(allocation) && before["allocation"].is_null() {
        validate_allocation(errors, &path.child("allocation"), allocation, &names);
    }
}

fn validate_reservations(errors: &mut Complaints, path: &Path<'_>, list: &[Value]) {
    if !within(errors, path, list, RESERVATIONS_MAX) {
        return;
    }
    for (at, consumer) in list.iter().enumerate() {
        for field in ["resource", "name", "uid"] {
            if consumer.str_at(&[field]).is_empty() {
                errors.push(FieldError::required(&path.index(at).child(field), ""));
            }
        }
    }
}

fn validate_allocation(
    errors: &mut Complaints,
    path: &Path<'_>,
    allocation: &Value,
    names: &RequestNames<'_>,
) {
    let devices = path.child("devices");
    let results = allocation.items_at(&["devices", "results"]);
    let place = devices.child("results");
    if within(errors, &place, results, RESULTS_MAX) {
        for (at, result) in results.iter().enumerate() {
            validate_result(errors, &place.index(at), result, names);
        }
    }
    let configs = allocation.items_at(&["devices", "config"]);
    let place = devices.child("config");
    if within(errors, &place, configs, CONFIGS_MAX) {
        for (at, config) in configs.iter().enumerate() {
            let path = place.index(at);
            match config.str_at(&["source"]) {
                "" => errors.push(FieldError::required(&path.child("source"), "").covered()),
                source => {
                    let known = ["FromClaim", "FromClass"];
                    validation::one_of_covered(errors, &path.child("source"), source, &known);
                }
            }
            names.references(errors, &path.child("requests"), &config["requests"]);
            validation::configuration(errors, &path, config, Origin::Given);
        }
    }
    if present(&allocation["nodeSelector"]) {
        let place = path.child("nodeSelector");
        errors.extend(node_selector::validate(
            &allocation["nodeSelector"],
            LabelValues::Checked,
            &place,
        ));
    }
}

fn validate_result(
    errors: &mut Complaints,
    path: &Path<'_>,
    result: &Value,
    names: &RequestNames<'_>,
) {
    let text = |field: &str| result.str_at(&[field]);
    names.reference(errors, &path.child("request"), text("request"));
    declared(errors, Declared::Yes, |errors| {
        validation::driver_name(errors, &path.child("driver"), text("driver"));
        validation::pool_name(errors, &path.child("pool"), text("pool"));
    });
    validation::label(errors, &path.child("device"), text("device"));
    validation::binding_conditions(errors, path, result);
    validation::tolerations(
        errors,
        &path.child("tolerations"),
        result.items_at(&["tolerations"]),
    );
    validation::skipped_operations(
        errors,
        &path.child("skipNodeOperations"),
        &result["skipNodeOperations"],
    );
}

fn validate_device(
    errors: &mut Complaints,
    path: &Path<'_>,
    device: &Value,
    allocated: &BTreeSet<Device>,
) {
    let text = |field: &str| device.str_at(&[field]);
    validation::driver_name(errors, &path.child("driver"), text("driver"));
    validation::pool_name(errors, &path.child("pool"), text("pool"));
    validation::label(errors, &path.child("device"), text("device"));
    let id = Device::of(device);
    if !allocated.contains(&id) {
        errors.push(FieldError::invalid(
            path,
            id.shown(),
            "must be an allocated device in the claim",
        ));
    }
    let count = device.items_at(&["conditions"]).len();
    if count > CONDITIONS_MAX {
        errors.push(FieldError::too_many(
            &path.child("conditions"),
            count,
            CONDITIONS_MAX,
        ));
    }
    conditions(errors, &path.child("conditions"), &device["conditions"]);
    if present(&device["data"]) {
        validation::raw_object(errors, &path.child("data"), &device["data"], DATA_BYTES_MAX);
    }
    let addresses = device.items_at(&["networkData", "ips"]);
    let place = path.child("networkData");
    let place = place.child("ips");
    if within(errors, &place, addresses, ADDRESSES_MAX) {
        for (at, address) in texts(&device["networkData"]["ips"]).into_iter().enumerate() {
            validate_address(errors, &place.index(at), address);
        }
    }
}

/// Checks an interface's address with its prefix length, which must be in canonical form.
fn validate_address(errors: &mut Complaints, path: &Path<'_>, text: &str) {
    let Some((address, bits)) = cidr_sloppy(text) else {
        let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        errors.push(FieldError::invalid(path, text, detail));
        return;
    };
    let plain = address.to_canonical();
    let bits = if matches!((address, plain), (IpAddr::V6(_), IpAddr::V4(_))) {
        bits.saturating_sub(96)
    } else {
        bits
    };
    let canonical = format!("{}/{bits}", ip_text(plain));
    if text != canonical {
        let detail = format!("must be in canonical form ({})", quote::quote(&canonical));
        errors.push(FieldError::invalid(path, text, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_end_with_the_allocation() {
        let device = json!({"driver": "d", "pool": "p", "device": "x"});
        let old = json!({"allocation": {"devices": {"results": [(device.clone())]}}, "devices": [(device.clone())]});
        let mut kept = old.clone();
        prepare(&mut kept, &old);
        assert_eq!(kept, old);
        let mut freed = json!({"devices": [device]});
        prepare(&mut freed, &old);
        assert_eq!(freed, json!({}));
    }

    #[test]
    fn addresses_are_canonical() {
        let found = |text: &str| {
            let mut errors = Complaints::default();
            validate_address(&mut errors, &Path::new("x"), text);
            errors.len()
        };
        assert_eq!(
            [
                "10.9.8.7/24",
                "2001:db8::1/64",
                "10.9.8.07/24",
                "2001:DB8::1/64",
                "10.9.8.7"
            ]
            .map(found),
            [0, 0, 1, 1, 1]
        );
    }
}
