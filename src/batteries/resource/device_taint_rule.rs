//! DeviceTaintRules: taints for all devices that a selector selects.

use super::device;
use super::validation;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::conditions::conditions;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::time::Timestamp;
use polyplane_registry::strategy::{Context, Strategy, age};

const CONDITIONS_MAX: usize = 8;

/// Behaviour of DeviceTaintRules.
#[derive(Debug)]
pub struct DeviceTaintRule;

impl Strategy for DeviceTaintRule {
    fn normalize(&self, object: &mut Value, now: i64) {
        if let Some(taint) = object.at_mut(&["spec", "taint"]) {
            device::stamp(taint, now);
        }
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        // The time says since when the taint has had its effect.
        let (taint, before) = (&object["spec"]["taint"], &old["spec"]["taint"]);
        let same = |field: &str| taint[field] == before[field];
        if !same("effect") && same("timeAdded") {
            object.set(
                &["spec", "taint", "timeAdded"],
                Timestamp::from_seconds(context.now).to_rfc3339(),
            );
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"], &Value::Null);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate_spec(&mut errors, &object["spec"], &old["spec"]);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let path = Path::new("status");
        let place = path.child("conditions");
        conditions(&mut errors, &place, &object["status"]["conditions"]);
        let count = object.items_at(&["status", "conditions"]).len();
        if count > CONDITIONS_MAX {
            errors.push(FieldError::too_many(&place, count, CONDITIONS_MAX));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let taint = &object["spec"]["taint"];
        let text = |field: &str| taint.str_at(&[field]).into();
        let added = match taint["timeAdded"].as_str() {
            Some(time) => age(time, now),
            None => "".into(),
        };
        vec![
            name_cell(object),
            text("key"),
            text("value"),
            text("effect"),
            added,
            age_cell(object, now),
        ]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value, old: &Value) {
    let root = Path::new("spec");
    let path = root.child("deviceSelector");
    let selector = &spec["deviceSelector"];
    if let Some(driver) = selector["driver"].as_str() {
        validation::driver_name(errors, &path.child("driver"), driver);
    }
    if let Some(pool) = selector["pool"].as_str() {
        validation::pool_name(errors, &path.child("pool"), pool);
    }
    if let Some(device) = selector["device"].as_str() {
        validation::label(errors, &path.child("device"), device);
    }
    validation::taint(errors, &root.child("taint"), &spec["taint"], &old["taint"]);
}
