//! LeaseCandidates: who could hold a lease, from whom a leader is chosen.

use super::lease::validate_strategy;
use super::semantic_version::SemanticVersion;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::IMMUTABLE;
use crate::shared::validation::object_names::own_name_rule;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of LeaseCandidates.
#[derive(Debug)]
pub struct LeaseCandidate;

impl Strategy for LeaseCandidate {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::Own)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = own_name_rule(object, |name, _| names::config_map_key(name));
        errors.extend(object_metadata::validate_finalizers(object));
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate(&mut errors, &object["spec"]);
        let name = |object: &Value| object.str_at(&["spec", "leaseName"]).to_owned();
        if name(object) != name(old) {
            let path = Path::new("spec");
            errors.push(FieldError::invalid(
                &path.child("leaseName"),
                name(object),
                IMMUTABLE,
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let text = |field: &str| object.str_at(&["spec", field]).into();
        vec![
            name_cell(object),
            text("leaseName"),
            text("binaryVersion"),
            text("emulationVersion"),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let required = |errors: &mut Complaints, field: &str, detail: &str| {
        errors.push(FieldError::required(&path.child(field), detail));
    };
    if spec.str_at(&["leaseName"]).is_empty() {
        required(errors, "leaseName", "");
    }
    let [emulation, binary] =
        ["emulationVersion", "binaryVersion"].map(|field| spec.str_at(&[field]));
    let mut read = |field: &str, text: &str| match text {
        "" => SemanticVersion::default(),
        _ => SemanticVersion::parse(text).unwrap_or_else(|| {
            let detail = "must be a valid semantic version";
            errors.push(FieldError::invalid(&path.child(field), text, detail));
            SemanticVersion::default()
        }),
    };
    let emulated = read("emulationVersion", emulation);
    let built = read("binaryVersion", binary);
    if binary.is_empty() {
        required(errors, "binaryVersion", "");
    }
    if !binary.is_empty() && !emulation.is_empty() && built < emulated {
        let detail = "must be greater than or equal to `emulationVersion`";
        let place = path.child("binaryVersion");
        errors.push(FieldError::invalid(&place, binary, detail));
    }
    let strategy = spec.str_at(&["strategy"]);
    if strategy.is_empty() {
        return required(errors, "strategy", "");
    }
    if strategy == "OldestEmulationVersion" && emulated == SemanticVersion::default() {
        let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
        required(errors, "emulationVersion", detail);
    }
    validate_strategy(errors, &path.child("strategy"), strategy);
}
