//! ControllerRevisions: snapshots of templates that never change.

use crate::shared::object_metadata;
use crate::shared::validation::numbers::non_negative;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};

/// Behaviour of ControllerRevisions.
#[derive(Debug)]
pub struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        non_negative(
            object.int_at(&["revision"]),
            &Path::new("revision"),
            &mut errors,
        );
        match &object["data"] {
            Value::Null => errors.push(FieldError::required(
                &Path::new("data"),
                "data is mandatory",
            )),
            Value::Object(_) => {}
            _ => errors.push(FieldError::required(
                &Path::new("data"),
                "data must be a valid JSON object",
            )),
        }
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        non_negative(
            object.int_at(&["revision"]),
            &Path::new("revision"),
            &mut errors,
        );
        if object["data"] != old["data"] {
            let bad = Bad::Json(object["data"].clone());
            errors.push(FieldError::invalid(
                &Path::new("data"),
                bad,
                "field is immutable",
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            object.str_at(&["metadata", "name"]).into(),
            controller(object).into(),
            object.int_at(&["revision"]).unwrap_or(0).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }
}

/// Returns the controlling owner of the object, as `kind.group/name`.
fn controller(object: &Value) -> String {
    let owners = object.items_at(&["metadata", "ownerReferences"]);
    let Some(owner) = owners.iter().find(|owner| owner.bool_at(&["controller"])) else {
        return "<none>".to_owned();
    };
    let (kind, name) = (owner.str_at(&["kind"]), owner.str_at(&["name"]));
    match owner.str_at(&["apiVersion"]).split_once('/') {
        Some((group, _)) if !group.is_empty() => {
            format!("{kind}.{group}").to_lowercase() + "/" + name
        }
        _ if kind.is_empty() => name.to_owned(),
        _ => kind.to_lowercase() + "/" + name,
    }
}
