//! The devices of a slice: attributes, capacities, taints and counters.

pub mod capacity_policy;

use super::resource_claim::spec::within;
use super::validation;
use super::validation::{Declared, declared, members, shown_key};
use crate::shared::node_selector::{self, LabelValues};
use crate::shared::resource_names::{amount, is_huge_pages};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::equality::alike_in;
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, names};
use polyplane_registry::strategy::Context;

/// The name of the definition of an attribute.
pub const ATTRIBUTE: &str = "io.k8s.api.resource.v1.DeviceAttribute";
const DEVICE: &str = "io.k8s.api.resource.v1.Device";
const ENTRIES_MAX: usize = 32;
const VALUES_MAX: usize = 48;
const VALUE_BYTES_MAX: usize = 64;
const TAINTS_MAX: usize = 16;
const COUNTER_SETS_MAX: usize = 2;
const COUNTERS_MAX: usize = 32;
/// The mark in the generated defaults for the time of the request.
const NOW: &str = "<time>";
/// The members of an attribute that have a list of values.
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

/// Sets the time of a taint that has none but the mark that defaults leave.
pub fn stamp(taint: &mut Value, now: i64) {
    if taint.str_at(&["timeAdded"]) == NOW {
        let now = Timestamp::from_seconds(now).to_rfc3339();
        taint.set(&["timeAdded"], now);
    }
}

/// The choice where the nodes that reach a device are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Each device names its own.
    PerDevice,
    /// The slice names them for all its devices.
    PerSlice,
}

fn has_lists(device: &Value) -> bool {
    members(&device["attributes"])
        .any(|(_, attribute)| LISTS.iter().any(|list| present(&attribute[*list])))
}

/// Returns true for a device with features of which a slice may have only few devices.
pub fn is_advanced(device: &Value) -> bool {
    let some = |field: &str| !device.items_at(&[field]).is_empty();
    some("taints") || some("consumesCounters") || has_lists(device)
}

/// Validates a device; `old` is the device of the same name before the update.
pub fn validate(
    errors: &mut Complaints,
    context: &Context<'_>,
    path: &Path<'_>,
    device: &Value,
    old: Option<&Value>,
    selection: Selection,
) {
    validation::label(errors, &path.child("name"), device.str_at(&["name"]));
    validate_sizes(errors, path, device);
    let attributes = path.child("attributes");
    for (key, attribute) in members(&device["attributes"]) {
        validation::qualified_name(errors, &attributes, key);
        validate_attribute(errors, &attributes.key(&shown_key(key)), attribute);
    }
    let changed =
        |field: &str| old.is_none_or(|old| !alike_in(context.schemas, DEVICE, field, old, device));
    if changed("capacity") {
        let place = path.child("capacity");
        for (key, capacity) in members(&device["capacity"]) {
            validation::qualified_name(errors, &place, key);
            let key = shown_key(key);
            let inner = place.key(&key);
            let policy = inner.child("requestPolicy");
            if !present(&capacity["requestPolicy"]) {
                continue;
            }
            if device.bool_at(&["allowMultipleAllocations"]) {
                capacity_policy::validate(errors, context.features, &policy, capacity);
            } else {
                errors.push(FieldError::forbidden(
                    &policy,
                    "allowMultipleAllocations must be true",
                ));
            }
        }
    }
    if changed("taints") {
        let taints = device.items_at(&["taints"]);
        let place = path.child("taints");
        if taints.len() > TAINTS_MAX {
            errors.push(FieldError::too_many(&place, taints.len(), TAINTS_MAX));
        } else {
            for (at, taint) in taints.iter().enumerate() {
                validation::taint(errors, &place.index(at), taint, &Value::Null);
            }
        }
    }
    validate_consumption(
        errors,
        &path.child("consumesCounters"),
        device.items_at(&["consumesCounters"]),
    );
    match selection {
        Selection::PerDevice => validate_nodes(errors, path, device),
        Selection::PerSlice => {
            if ["nodeName", "nodeSelector", "allNodes"]
                .iter()
                .any(|field| present(&device[*field]))
            {
                let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
                errors.push(FieldError::invalid(path, Value::Null, detail));
            }
        }
    }
    validation::binding_conditions(errors, path, device);
    validate_node_resources(errors, &path.child("nodeAllocatableResources"), device);
}

fn validate_sizes(errors: &mut Complaints, path: &Path<'_>, device: &Value) {
    let count = members(&device["attributes"]).count() + members(&device["capacity"]).count();
    if count > ENTRIES_MAX {
        let detail =
            format!("the total number of attributes and capacities must not exceed {ENTRIES_MAX}");
        errors.push(FieldError::invalid(path, count as i64, detail));
    }
    let values = |attribute: &Value| {
        LISTS
            .iter()
            .map(|list| attribute.items_at(&[list]).len())
            .sum::<usize>()
            .max(1)
    };
    let count: usize = members(&device["attributes"])
        .map(|(_, attribute)| values(attribute))
        .sum();
    if count > VALUES_MAX {
        let detail = format!("the total number of attribute values must not exceed {VALUES_MAX}");
        errors.push(FieldError::invalid(path, count as i64, detail));
    }
}

fn validate_attribute(errors: &mut Complaints, path: &Path<'_>, attribute: &Value) {
    if let Some(text) = attribute["string"].as_str() {
        value_length(errors, &path.child("string"), text);
    }
    if let Some(version) = attribute["version"].as_str() {
        validate_version(errors, &path.child("version"), version);
    }
    for list in LISTS.iter().filter(|list| {
        attribute[**list]
            .as_array()
            .is_some_and(<[Value]>::is_empty)
    }) {
        let bad = Bad::Json(attribute[*list].clone());
        errors.push(FieldError::invalid(
            &path.child(list),
            bad,
            "must not be empty if specified",
        ));
    }
    let place = path.child("strings");
    for (at, text) in texts(&attribute["strings"]).into_iter().enumerate() {
        value_length(errors, &place.index(at), text);
    }
    let place = path.child("versions");
    for (at, version) in texts(&attribute["versions"]).into_iter().enumerate() {
        validate_version(errors, &place.index(at), version);
    }
}

fn value_length(errors: &mut Complaints, path: &Path<'_>, text: &str) {
    if text.len() > VALUE_BYTES_MAX {
        errors.push(FieldError::too_long(path, VALUE_BYTES_MAX));
    }
}

fn validate_version(errors: &mut Complaints, path: &Path<'_>, version: &str) {
    if !is_semantic_version(version) {
        let detail = "must be a string compatible with semver.org spec 2.0.0";
        errors.push(FieldError::invalid(path, version, detail));
    }
    value_length(errors, path, version);
}

/// Returns true for three numbers between dots, with an optional pre-release and build behind them.
fn is_semantic_version(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (text, build) = text
        .split_once('+')
        .map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, release) = text
        .split_once('-')
        .map_or((text, None), |(core, release)| (core, Some(release)));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && release.is_none_or(|parts| {
            parts
                .split('.')
                .all(|part| word(part) && (!digits(part) || number(part)))
        })
        && build.is_none_or(|parts| parts.split('.').all(word))
}

/// Validates counters by name. The schema declares that there must be some and what their names may
/// be.
pub fn counters(errors: &mut Complaints, path: &Path<'_>, counters: &Value) {
    let count = members(counters).count();
    if count > COUNTERS_MAX {
        errors.push(FieldError::too_many(path, count, COUNTERS_MAX));
        return;
    }
    declared(errors, Declared::Yes, |errors| {
        if count == 0 {
            errors.push(FieldError::required(path, ""));
        }
        members(counters).for_each(|(name, _)| validation::label(errors, path, name));
    });
}

fn validate_consumption(errors: &mut Complaints, path: &Path<'_>, list: &[Value]) {
    if !within(errors, path, list, COUNTER_SETS_MAX) {
        return;
    }
    for (at, consumption) in list.iter().enumerate() {
        let path = path.index(at);
        let set = consumption.str_at(&["counterSet"]);
        declared(errors, Declared::Yes, |errors| match set {
            "" => errors.push(FieldError::required(&path.child("counterSet"), "")),
            set => validation::label(errors, &path.child("counterSet"), set),
        });
        counters(errors, &path.child("counters"), &consumption["counters"]);
    }
}

/// Checks that exactly one field says which nodes can reach the device.
fn validate_nodes(errors: &mut Complaints, path: &Path<'_>, device: &Value) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    let mut ways = Vec::new();
    let place = path.child("nodeName");
    match device["nodeName"].as_str() {
        Some("") => errors.push(FieldError::invalid(&place, "", "must not be empty")),
        Some(node) => {
            ways.push("`nodeName`");
            complain(errors, &place, node, names::dns1123_subdomain(node));
        }
        None => {}
    }
    if present(&device["nodeSelector"]) {
        ways.push("`nodeSelector`");
        let place = path.child("nodeSelector");
        errors.extend(node_selector::validate(
            &device["nodeSelector"],
            LabelValues::Checked,
            &place,
        ));
    }
    match device["allNodes"].as_bool() {
        Some(true) => ways.push("`allNodes`"),
        Some(false) => {
            let detail = "must be either unset or set to true";
            errors.push(FieldError::invalid(&path.child("allNodes"), false, detail));
        }
        None => {}
    }
    match ways.len() {
        0 => errors.push(FieldError::required(path, ONE)),
        1 => {}
        _ => errors.push(FieldError::invalid(
            path,
            format!("{{{}}}", ways.join(", ")),
            ONE,
        )),
    }
}

/// Validates what the device uses of the resources of its node.
fn validate_node_resources(errors: &mut Complaints, path: &Path<'_>, device: &Value) {
    for (name, resource) in members(&device["nodeAllocatableResources"]) {
        let path = path.key(name);
        if !["cpu", "memory"].contains(&name) && !is_huge_pages(name) {
            let bad = Bad::Json(name.into());
            errors.push(FieldError::invalid(
                &path,
                bad,
                "must be a node allocatable resource name",
            ));
        }
        let (mapping, overhead) = (&resource["mapping"], &resource["overhead"]);
        if mapping.is_null() && overhead.is_null() {
            errors.push(FieldError::required(
                &path,
                "at least one of mapping or overhead must be set",
            ));
        }
        if present(mapping) {
            validate_mapping(errors, &path.child("mapping"), mapping, &device["capacity"]);
        }
        if present(overhead) {
            validate_overhead(errors, &path.child("overhead"), overhead);
        }
    }
}

fn validate_mapping(errors: &mut Complaints, path: &Path<'_>, mapping: &Value, capacities: &Value) {
    let place = path.child("capacityKey");
    let multiplier = path.child("capacityMultiplier");
    let positive = |errors: &mut Complaints, path: &Path<'_>, field: &str| {
        let value = amount(Some(&mapping[field]));
        if present(&mapping[field]) && value.sign() <= 0 {
            errors.push(FieldError::invalid(
                path,
                value.to_string(),
                "must be positive",
            ));
        }
    };
    match mapping["capacityKey"].as_str() {
        Some("") => errors.push(FieldError::invalid(
            &place,
            "",
            "capacityKey must not be an empty string",
        )),
        Some(key) if capacities.get(key).is_none() => {
            errors.push(FieldError::not_found(&place, Bad::Json(key.into())));
        }
        _ => {}
    }
    if present(&mapping["capacityKey"]) {
        if mapping["capacityMultiplier"].is_null() {
            let detail = "capacityMultiplier is required when capacityKey is set";
            errors.push(FieldError::required(&multiplier, detail).covered());
        }
        positive(errors, &multiplier, "capacityMultiplier");
    }
    positive(errors, &path.child("deviceMultiplier"), "deviceMultiplier");
    if present(&mapping["capacityMultiplier"]) && mapping["capacityKey"].is_null() {
        let detail = "capacityKey is required when capacityMultiplier is set";
        errors.push(FieldError::required(&place, detail).covered());
    }
}

fn validate_overhead(errors: &mut Complaints, path: &Path<'_>, overhead: &Value) {
    let fields = ["perPod", "perContainer"];
    if fields.iter().all(|field| overhead[*field].is_null()) {
        let detail = "at least one of perPod or perContainer must be set";
        errors.push(FieldError::invalid(path, "", detail));
    }
    for field in fields {
        let value = amount(overhead.get(field));
        if value.sign() < 0 {
            errors.push(FieldError::invalid(
                &path.child(field),
                value.to_string(),
                "must be non-negative",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_semantic() {
        for good in [
            "1.2.3",
            "0.0.0",
            "1.2.3-alpha.1",
            "1.2.3-0a",
            "1.2.3+build.007",
            "1.2.3-rc-1+b",
        ] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in [
            "1.2",
            "01.2.3",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            "v1.2.3",
            "1.2.3-a..b",
            "1.2.3+a+b",
        ] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }
}
