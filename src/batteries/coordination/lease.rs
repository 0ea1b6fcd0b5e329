//! Leases: the holder of something, and until when.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{complain, named, one_of};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of Leases.
#[derive(Debug)]
pub struct Lease;

impl Strategy for Lease {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            object.str_at(&["spec", "holderIdentity"]).into(),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    if let Some(seconds) = spec
        .int_at(&["leaseDurationSeconds"])
        .filter(|seconds| *seconds <= 0)
    {
        let place = path.child("leaseDurationSeconds");
        errors.push(FieldError::invalid(
            &place,
            seconds,
            "must be greater than 0",
        ));
    }
    if let Some(count) = spec
        .int_at(&["leaseTransitions"])
        .filter(|count| *count < 0)
    {
        let place = path.child("leaseTransitions");
        errors.push(FieldError::invalid(
            &place,
            count,
            "must be greater than or equal to 0",
        ));
    }
    let strategy = spec["strategy"].as_str();
    if let Some(strategy) = strategy {
        validate_strategy(errors, &path.child("strategy"), strategy);
    }
    if !spec.str_at(&["preferredHolder"]).is_empty() && strategy.unwrap_or("").is_empty() {
        let detail = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden(
            &path.child("preferredHolder"),
            detail,
        ));
    }
}

/// Validates the name of the way in which a leader is chosen. As upstream, errors name a field of the
/// same name below the field.
pub fn validate_strategy(errors: &mut Complaints, path: &Path<'_>, strategy: &str) {
    const KNOWN: [&str; 1] = ["OldestEmulationVersion"];
    let place = path.child("strategy");
    if strategy.contains('/') {
        let complaints = names::qualified_name(strategy);
        complain(errors, &place, named(strategy), complaints);
    } else {
        one_of(errors, &place, strategy, &KNOWN);
    }
}
