//! Bindings of admission policies: where a policy applies, and with which parameters.

use super::admission_policy::AdmissionPolicy;
use super::match_rules;
use super::match_rules::{
    param_ref_cell, validate_match_resources, validate_mutating_operations, validate_param_ref,
};
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::texts;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{Scope, metadata};
use std::collections::BTreeSet;

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

/// Behaviour of bindings.
#[derive(Debug)]
pub struct AdmissionBinding {
    /// The kind of policies that are bound.
    pub policy: AdmissionPolicy,
}

impl Strategy for AdmissionBinding {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = Complaints::default();
        self.validate(&mut errors, &object["spec"]);
        match_rules::validate_name(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        self.validate(&mut errors, &object["spec"]);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        match_rules::name_warnings(object)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_cell(object),
            spec.str_at(&["policyName"]).into(),
            param_ref_cell(&spec["paramRef"]),
            age_cell(object, now),
        ]
    }
}

impl AdmissionBinding {
    fn validate(&self, errors: &mut Complaints, spec: &Value) {
        let path = Path::new("spec");
        let (name, place) = (spec.str_at(&["policyName"]), path.child("policyName"));
        if name.is_empty() {
            let error = FieldError::required(&place, "");
            errors.push(match self.policy {
                AdmissionPolicy::Validating => error.covered(),
                AdmissionPolicy::Mutating => error,
            });
        } else {
            complain(errors, &place, name, names::dns1123_subdomain(name));
        }
        validate_param_ref(errors, &spec["paramRef"], &path.child("paramRef"));
        let place = path.child("matchResources");
        validate_match_resources(errors, &spec["matchResources"], &place);
        match self.policy {
            AdmissionPolicy::Mutating => {
                validate_mutating_operations(errors, &spec["matchResources"], &place)
            }
            AdmissionPolicy::Validating => {
                validate_actions(
                    errors,
                    &spec["validationActions"],
                    &path.child("validationActions"),
                );
            }
        }
    }
}

fn validate_actions(errors: &mut Complaints, actions: &Value, list: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (at, action) in texts(actions).into_iter().enumerate() {
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(
                &list.index(at),
                named(action),
                &ACTIONS,
            ));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(&list.index(at), named(action)));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(
            list,
            Bad::Json(actions.clone()),
            detail,
        ));
    }
    if seen.is_empty() {
        errors.push(
            FieldError::required(list, "at least one validation action is required").covered(),
        );
    }
}
