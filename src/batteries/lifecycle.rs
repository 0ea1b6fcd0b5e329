//! Behaviour of the kinds of `lifecycle.k8s.io`.

pub mod eviction;
pub mod eviction_request;
pub mod responders;

use crate::battery::{Battery, Kind};
use crate::shared::object_metadata;
use crate::shared::validation::complaints::complain;
use crate::shared::validation::conditions::conditions;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::names;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "lifecycle.k8s.io",
    kinds: &[
        Kind::new("evictionrequests", || {
            Arc::new(eviction_request::EvictionRequest)
        }),
        Kind::new("evictions", || Arc::new(eviction::Eviction)),
    ],
    indexes: &[],
};

/// Checks the name. Upstream's declaration names an empty or changed name beside other checks.
fn validate_name(object: &Value) -> Complaints {
    let name = object.str_at(&["metadata", "name"]);
    let path = Path::new("metadata");
    let mut errors = Complaints::default();
    let complaints = names::dns1123_subdomain(name);
    complain(&mut errors, &path.child("name"), name, complaints);
    errors
}

/// Validates a new object.
fn validate_create(object: &Value) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    if object.str_at(&["metadata", "name"]).is_empty() {
        errors.extend(validate_name(object));
    }
    errors
}

/// Validates a changed object.
fn validate_update(object: &Value, old: &Value) -> Complaints {
    let mut errors = object_metadata::validate_update(object, old);
    errors.extend(validate_name(object));
    errors
}

/// Validates a changed status.
fn validate_status(object: &Value, old: &Value) -> Complaints {
    let mut errors = validate_update(object, old);
    let path = Path::new("status");
    let list = &object["status"]["conditions"];
    conditions(&mut errors, &path.child("conditions"), list);
    errors
}

/// Returns the name and the kind of what is to be evicted.
fn target(object: &Value) -> [Value; 2] {
    let pod = &object["spec"]["target"]["pod"];
    match pod.is_null() {
        true => ["<unset>".into(), "<unset>".into()],
        false => [pod.str_at(&["name"]).into(), "Pod".into()],
    }
}

/// Returns the condition of a type, if it holds.
fn conditions_hold<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let mut all = status.items_at(&["conditions"]).iter();
    let found = all.find(|condition| condition.str_at(&["type"]) == kind);
    found.filter(|condition| condition.str_at(&["status"]) == "True")
}

/// Returns how far an eviction is, by its conditions.
fn progress(object: &Value) -> String {
    let status = &object["status"];
    let holding = |kind: &str| conditions_hold(status, kind);
    match holding("TargetEvicted").or_else(|| holding("Failed")) {
        Some(condition) => format!(
            "{} ({})",
            condition.str_at(&["type"]),
            condition.str_at(&["reason"])
        ),
        None if status.int_at(&["observedGeneration"]).unwrap_or(0) > 0 => "Progressing".to_owned(),
        None => "Pending".to_owned(),
    }
}
