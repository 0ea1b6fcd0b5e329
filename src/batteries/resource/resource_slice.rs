//! ResourceSlices: the devices that a driver offers.

use super::resource_claim::spec::within;
use super::validation;
use super::validation::{Declared, declared, members};
use super::{device, flat};
use crate::shared::node_selector::{self, LabelValues};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain};
use crate::shared::validation::members::present;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Value, names, quote};
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

const DEVICES_MAX: usize = 128;
/// Number of devices in a slice at most, if some have taints, counters or lists as attributes.
const ADVANCED_DEVICES_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;

/// Behaviour of the ResourceSlices of one version.
#[derive(Clone, Copy, Debug)]
pub enum ResourceSlice {
    /// A version with the form in which slices are stored.
    Stored,
    /// Version v1beta1.
    Flat,
}

impl Strategy for ResourceSlice {
    /// Conversion gives each device of v1beta1 its `basic`.
    fn converted_at_once(&self, object: &Value) -> Option<Value> {
        match self {
            Self::Stored => None,
            Self::Flat => {
                let stored = self.to_stored("", object.clone());
                Some(self.to_served("", stored))
            }
        }
    }

    fn normalize(&self, object: &mut Value, now: i64) {
        let taints: &[&str] = match self {
            Self::Stored => &["taints"],
            Self::Flat => &["basic", "taints"],
        };
        for device in flat::items_mut(object, &["spec", "devices"]) {
            flat::items_mut(device, taints).for_each(|taint| device::stamp(taint, now));
        }
    }

    fn declared_field(&self, stored: &str) -> Option<String> {
        match self {
            Self::Stored => None,
            Self::Flat => flat::device_field(stored),
        }
    }

    fn to_stored(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.get_mut("spec")) {
            flat::devices_to_stored(spec);
        }
        object
    }

    fn to_served(&self, _: &str, mut object: Value) -> Value {
        if let (Self::Flat, Some(spec)) = (self, object.get_mut("spec")) {
            flat::devices_to_served(spec);
        }
        object
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, context, &object["spec"], &Value::Null);
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate_spec(&mut errors, context, &object["spec"], &old["spec"]);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let driver = object.str_at(&["spec", "driver"]);
        if driver == driver.to_lowercase() {
            return Vec::new();
        }
        let quoted = quote::quote(driver);
        vec![format!(
            "spec.driver: driver names should be lowercase; {quoted} contains uppercase characters"
        )]
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let text = |path: &[&str]| spec.str_at(path).into();
        let (node, driver, pool) = (
            text(&["nodeName"]),
            text(&["driver"]),
            text(&["pool", "name"]),
        );
        vec![name_cell(object), node, driver, pool, age_cell(object, now)]
    }
}

fn validate_spec(errors: &mut Complaints, context: &Context<'_>, spec: &Value, old: &Value) {
    let path = Path::new("spec");
    let driver = spec.str_at(&["driver"]);
    validation::driver_name(errors, &path.child("driver"), driver);
    validate_pool(errors, &path.child("pool"), &spec["pool"]);
    if !old.is_null() {
        validate_change(errors, &path, spec, old);
    }
    validate_nodes(errors, &path, spec);
    if present(&spec["sharedCounters"]) && present(&spec["devices"]) {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid(&path, "", detail));
    }
    validate_devices(errors, context, &path.child("devices"), spec, old);
    let sets = spec.items_at(&["sharedCounters"]);
    let place = path.child("sharedCounters");
    if within(errors, &place, sets, COUNTER_SETS_MAX) {
        for (at, set) in sets.iter().enumerate() {
            let path = place.index(at);
            let name = set.str_at(&["name"]);
            declared(errors, Declared::Yes, |errors| match name {
                "" => errors.push(FieldError::required(&path.child("name"), "")),
                name => validation::label(errors, &path.child("name"), name),
            });
            device::counters(errors, &path.child("counters"), &set["counters"]);
        }
    }
    if let Some(attribute) = spec["partitionTypeAttribute"].as_str() {
        validate_partition_attribute(errors, &path, spec, attribute);
    }
    validation::skipped_operations(
        errors,
        &path.child("skipNodeOperations"),
        &spec["skipNodeOperations"],
    );
}

fn validate_pool(errors: &mut Complaints, path: &Path<'_>, pool: &Value) {
    validation::pool_name(errors, &path.child("name"), pool.str_at(&["name"]));
    let slices = pool.int_at(&["resourceSliceCount"]).unwrap_or(0);
    if slices <= 0 {
        errors.push(FieldError::invalid(
            &path.child("resourceSliceCount"),
            slices,
            "must be greater than zero",
        ));
    }
    let generation = pool.int_at(&["generation"]).unwrap_or(0);
    if generation < 0 {
        let detail = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(
            &path.child("generation"),
            generation,
            detail,
        ));
    }
}

fn validate_change(errors: &mut Complaints, path: &Path<'_>, spec: &Value, old: &Value) {
    let pool = path.child("pool");
    for (place, field) in [
        (pool.child("name"), ["pool", "name"].as_slice()),
        (path.child("driver"), ["driver"].as_slice()),
    ] {
        if spec.str_at(field) != old.str_at(field) {
            errors.push(FieldError::invalid(&place, spec.str_at(field), IMMUTABLE));
        }
    }
    if spec["nodeName"] != old["nodeName"] {
        errors.push(FieldError::invalid(
            &path.child("nodeName"),
            spec["nodeName"].clone(),
            IMMUTABLE,
        ));
    }
}

/// Checks that exactly one field says which nodes can reach the devices.
fn validate_nodes(errors: &mut Complaints, path: &Path<'_>, spec: &Value) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let mut ways = Vec::new();
    match spec["nodeName"].as_str() {
        Some("") => {
            let detail = "must be either unset or set to a non-empty string";
            errors.push(FieldError::invalid(&path.child("nodeName"), "", detail));
        }
        Some(node) => {
            ways.push("`nodeName`");
            complain(
                errors,
                &path.child("nodeName"),
                node,
                names::dns1123_subdomain(node),
            );
        }
        None => {}
    }
    let selector = &spec["nodeSelector"];
    if present(selector) {
        ways.push("`nodeSelector`");
        let place = path.child("nodeSelector");
        errors.extend(node_selector::validate(
            selector,
            LabelValues::Checked,
            &place,
        ));
        let terms = selector.items_at(&["nodeSelectorTerms"]);
        if terms.len() != 1 {
            let bad = match &selector["nodeSelectorTerms"] {
                Value::Null => Bad::Json(Value::Null),
                _ => bad_value::list("io.k8s.api.core.v1.NodeSelectorTerm", terms),
            };
            let detail = "must have exactly one node selector term";
            errors.push(FieldError::invalid(
                &place.child("nodeSelectorTerms"),
                bad,
                detail,
            ));
        }
    }
    for (field, way) in [
        ("allNodes", "`allNodes`"),
        ("perDeviceNodeSelection", "`perDeviceNodeSelection`"),
    ] {
        match spec[field].as_bool() {
            Some(true) => ways.push(way),
            Some(false) => {
                let detail = "must be either unset or set to true";
                errors.push(FieldError::invalid(&path.child(field), false, detail));
            }
            None => {}
        }
    }
    match ways.len() {
        0 => errors.push(FieldError::required(path, ONE)),
        1 => {}
        _ => {
            let detail = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(
                path,
                format!("{{{}}}", ways.join(", ")),
                detail,
            ));
        }
    }
}

fn validate_devices(
    errors: &mut Complaints,
    context: &Context<'_>,
    path: &Path<'_>,
    spec: &Value,
    old: &Value,
) {
    let devices = spec.items_at(&["devices"]);
    let max = if devices.iter().any(device::is_advanced) {
        ADVANCED_DEVICES_MAX
    } else {
        DEVICES_MAX
    };
    if devices.len() > max {
        errors.push(FieldError::too_many(path, devices.len(), max));
        return;
    }
    let selection = match spec.bool_at(&["perDeviceNodeSelection"]) {
        true => device::Selection::PerDevice,
        false => device::Selection::PerSlice,
    };
    for (at, device) in devices.iter().enumerate() {
        let known = old
            .items_at(&["devices"])
            .iter()
            .find(|old| old["name"] == device["name"]);
        device::validate(errors, context, &path.index(at), device, known, selection);
    }
    let mut seen = BTreeSet::new();
    for (at, device) in devices.iter().enumerate() {
        let name = device.str_at(&["name"]);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.index(at), name));
        }
    }
}

/// Checks `partitionTypeAttribute`: some device must consume counters, and each device that does
/// must have the attribute of that name, as text.
fn validate_partition_attribute(
    errors: &mut Complaints,
    path: &Path<'_>,
    spec: &Value,
    name: &str,
) {
    let devices = spec.items_at(&["devices"]);
    let consumes = |device: &Value| !device.items_at(&["consumesCounters"]).is_empty();
    if !devices.iter().any(consumes) {
        let detail = "may only be set on a slice which declares devices that consume counters";
        errors.push(FieldError::invalid(
            &path.child("partitionTypeAttribute"),
            name,
            detail,
        ));
        return;
    }
    let mut malformed = Complaints::default();
    validation::fully_qualified_name(&mut malformed, &Path::NIL, name);
    if !malformed.is_empty() {
        return;
    }
    let bare = name
        .strip_prefix(&format!("{}/", spec.str_at(&["driver"])))
        .unwrap_or(name);
    let place = path.child("devices");
    for (at, device) in devices
        .iter()
        .enumerate()
        .filter(|(_, device)| consumes(device))
    {
        let find = |wanted: &str| members(&device["attributes"]).find(|(key, _)| *key == wanted);
        let device_path = place.index(at);
        let attributes = device_path.child("attributes");
        match find(name).or_else(|| find(bare)) {
            None => {
                let detail = "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set";
                errors.push(FieldError::required(&attributes.key(name), detail));
            }
            Some((_, attribute)) if attribute["string"].is_null() => {
                let bad = bad_value::typed(device::ATTRIBUTE, attribute);
                let detail =
                    "must be a string value because `partitionTypeAttribute` names this attribute";
                errors.push(FieldError::invalid(&attributes.key(name), bad, detail));
            }
            Some(_) => {}
        }
    }
}
