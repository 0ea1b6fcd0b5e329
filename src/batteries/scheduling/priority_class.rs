//! PriorityClasses: names for priorities of pods.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{IMMUTABLE, named};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_registry::strategy::{Context, Strategy};

const USER_VALUE_MAX: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
/// The classes of the system and their values; none of them may be the default.
const SYSTEM_CLASSES: [(&str, i64); 2] = [
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

/// Behaviour of PriorityClasses.
#[derive(Debug)]
pub struct PriorityClass;

impl Strategy for PriorityClass {
    fn counts_generation(&self, _: &Value, _: &Value) -> Option<bool> {
        Some(false)
    }

    fn prepare_update(&self, _: &Context<'_>, _: &mut Value, _: &Value) {}

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        if object.int_at(&["value"]).unwrap_or(0) != old.int_at(&["value"]).unwrap_or(0) {
            errors.push(FieldError::forbidden(
                &Path::new("value"),
                "may not be changed in an update.",
            ));
        }
        let (now, then) = (&object["preemptionPolicy"], &old["preemptionPolicy"]);
        if now != then {
            let bad = Bad::Json(now.clone());
            errors.push(FieldError::invalid(
                &Path::new("preemptionPolicy"),
                bad,
                IMMUTABLE,
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            object.int_at(&["value"]).unwrap_or(0).into(),
            object.bool_at(&["globalDefault"]).into(),
            age_cell(object, now),
            object.str_at(&["preemptionPolicy"]).into(),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    let name = object.str_at(&["metadata", "name"]);
    let value = object.int_at(&["value"]).unwrap_or(0);
    if name.starts_with(SYSTEM_PREFIX) {
        if let Some(reason) = system_complaint(name, value, object) {
            let metadata = Path::new("metadata");
            let detail = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {reason}"
            );
            errors.push(FieldError::forbidden(&metadata.child("name"), detail));
        }
    } else if value > USER_VALUE_MAX {
        let detail =
            format!("maximum allowed value of a user defined priority is {USER_VALUE_MAX}");
        errors.push(FieldError::forbidden(&Path::new("value"), detail));
    }
    let path = Path::new("preemptionPolicy");
    match object["preemptionPolicy"].as_str() {
        None | Some("PreemptLowerPriority" | "Never") => {}
        Some("") => errors.push(FieldError::required(&path, "")),
        Some(other) => {
            let known = ["PreemptLowerPriority", "Never"];
            errors.push(FieldError::not_supported(&path, named(other), &known));
        }
    }
}

fn system_complaint(name: &str, value: i64, object: &Value) -> Option<String> {
    let Some((_, wanted)) = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) else {
        return Some(format!("{name} is not a known system priority class"));
    };
    if value != *wanted {
        return Some(format!("value of {name} PriorityClass must be {wanted}"));
    }
    object
        .bool_at(&["globalDefault"])
        .then(|| format!("globalDefault of {name} PriorityClass must be false"))
}
