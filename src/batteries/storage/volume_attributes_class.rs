//! VolumeAttributesClasses: parameters of volumes, which a volume changes by naming another class;
//! the class itself cannot change.

use super::provisioner::{Parameters, validate_driver, validate_parameters};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of VolumeAttributesClasses.
#[derive(Debug)]
pub struct VolumeAttributesClass;

impl Strategy for VolumeAttributesClass {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        for field in ["driverName", "parameters"] {
            if object[field] != old[field] {
                let detail = format!("updates to {field} are forbidden.");
                errors.push(FieldError::forbidden(&Path::new(field), detail));
            }
        }
        errors.extend(object_metadata::validate(
            object,
            Scope::Cluster,
            NameRule::DnsSubdomain,
        ));
        validate(&mut errors, object);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            object.str_at(&["driverName"]).into(),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    validate_driver(
        errors,
        object.str_at(&["driverName"]),
        &Path::new("driverName"),
    );
    validate_parameters(
        errors,
        &object["parameters"],
        Parameters::Needed,
        &Path::new("parameters"),
    );
}
