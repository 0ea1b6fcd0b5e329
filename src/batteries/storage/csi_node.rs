//! CSINodes: the drivers that run on a node.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, count_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain, one_of, one_of_if_set};
use crate::shared::validation::domain_names::csi_driver_name;
use crate::shared::validation::members::texts;
use crate::shared::validation::numbers::non_negative;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{Scope, metadata};
use std::collections::BTreeSet;

const DRIVER: &str = "io.k8s.api.storage.v1.CSINodeDriver";
const NODE_ID_BYTES_MAX: usize = 256;
const HEALTH_CONDITIONS_MAX: usize = 16;
const REASON_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 1024;

/// Behaviour of CSINodes.
#[derive(Debug)]
pub struct CsiNode;

impl Strategy for CsiNode {
    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        let health = object.remove(&["status", "storageHealth"]);
        metadata::keep_all_but_managers(object, old.clone());
        match health {
            Some(health) => object.set(&["status", "storageHealth"], health),
            None => drop(object.remove(&["status", "storageHealth"])),
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_drivers(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate_drivers(&mut errors, object);
        let path = Path::new("spec");
        let path = path.child("drivers");
        for before in old.items_at(&["spec", "drivers"]) {
            for driver in object.items_at(&["spec", "drivers"]) {
                if driver["name"] == before["name"] && fixed(driver) != fixed(before) {
                    let mut kept = driver.clone();
                    drop(kept.remove(&["allocatable"]));
                    let bad = bad_value::typed(DRIVER, &kept);
                    errors.push(FieldError::invalid(&path, bad, IMMUTABLE));
                }
            }
        }
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let path = Path::new("status");
        let path = path.child("storageHealth");
        let mut seen = BTreeSet::new();
        for (at, health) in object
            .items_at(&["status", "storageHealth"])
            .iter()
            .enumerate()
        {
            let path = path.index(at);
            let name = health.str_at(&["name"]);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path, name));
            }
            validate_health(&mut errors, health, &path);
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            count_cell(&object["spec"]["drivers"]),
            age_cell(object, now),
        ]
    }
}

/// Returns the part of a driver that must not change: all but the limits of the node, with empty
/// lists removed.
fn fixed(driver: &Value) -> Value {
    let members = driver.as_object().into_iter().flat_map(Map::iter);
    let kept = members.filter(|(key, value)| {
        *key != "allocatable"
            && !value.is_null()
            && value.as_array().is_none_or(|items| !items.is_empty())
    });
    Value::Object(kept.map(|(key, value)| (key, value.clone())).collect())
}

fn validate_drivers(errors: &mut Complaints, object: &Value) {
    let path = Path::new("spec");
    let path = path.child("drivers");
    let mut seen = BTreeSet::new();
    for (at, driver) in object.items_at(&["spec", "drivers"]).iter().enumerate() {
        let path = path.index(at);
        let name = driver.str_at(&["name"]);
        csi_driver_name(name, &path.child("name"), errors);
        let id = driver.str_at(&["nodeID"]);
        if id.is_empty() {
            errors.push(FieldError::required(&path.child("nodeID"), ""));
        }
        if id.len() > NODE_ID_BYTES_MAX {
            let detail = format!("must be {NODE_ID_BYTES_MAX} characters or less");
            errors.push(FieldError::invalid(&path.child("nodeID"), id, detail));
        }
        let count = driver.int_at(&["allocatable", "count"]);
        non_negative(count, &path.child("allocatable").child("count"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        validate_topology_keys(errors, &driver["topologyKeys"], &path);
    }
}

/// Validates the keys of the topology; complaints are about the driver.
fn validate_topology_keys(errors: &mut Complaints, keys: &Value, path: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for key in texts(keys) {
        if key.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(path, key));
        }
        complain(errors, path, key, names::qualified_name(key));
    }
}

fn validate_health(errors: &mut Complaints, health: &Value, path: &Path<'_>) {
    csi_driver_name(health.str_at(&["name"]), &path.child("name"), errors);
    let conditions = health.items_at(&["healthConditions"]);
    let path = path.child("healthConditions");
    if conditions.len() > HEALTH_CONDITIONS_MAX {
        errors.push(FieldError::too_many(
            &path,
            conditions.len(),
            HEALTH_CONDITIONS_MAX,
        ));
        return;
    }
    for (at, condition) in conditions.iter().enumerate() {
        let path = path.index(at);
        let status = condition.str_at(&["status"]);
        one_of(
            errors,
            &path.child("status"),
            status,
            &["StorageDegraded", "StorageUnreachable"],
        );
        let reason = condition.str_at(&["reason"]);
        if reason.is_empty() {
            errors.push(FieldError::required(&path.child("reason"), ""));
        } else {
            complain(
                errors,
                &path.child("reason"),
                reason,
                names::condition_reason(reason),
            );
            if reason.len() > REASON_BYTES_MAX {
                errors.push(FieldError::too_long(
                    &path.child("reason"),
                    REASON_BYTES_MAX,
                ));
            }
        }
        if condition.str_at(&["message"]).len() > MESSAGE_BYTES_MAX {
            errors.push(FieldError::too_long(
                &path.child("message"),
                MESSAGE_BYTES_MAX,
            ));
        }
        let modes = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        one_of_if_set(
            errors,
            &path.child("accessMode"),
            &condition["accessMode"],
            &modes,
        );
        let modes = ["Filesystem", "Block"];
        one_of_if_set(
            errors,
            &path.child("volumeMode"),
            &condition["volumeMode"],
            &modes,
        );
    }
}
