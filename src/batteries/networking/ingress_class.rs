//! IngressClasses: a controller and a reference to its parameters.

use crate::shared::object_metadata;
use crate::shared::table_cells::age_cell;
use crate::shared::validation::complaints::{IMMUTABLE, complain};
use crate::shared::validation::domain_names::domain_prefixed_path;
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const CONTROLLER_BYTES_MAX: usize = 250;
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

/// Behaviour of IngressClasses.
#[derive(Debug)]
pub struct IngressClass;

impl Strategy for IngressClass {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let controller = object.str_at(&["spec", "controller"]);
        if controller != old.str_at(&["spec", "controller"]) {
            let spec = Path::new("spec");
            errors.push(FieldError::invalid(
                &spec.child("controller"),
                controller,
                IMMUTABLE,
            ));
        }
        errors.extend(object_metadata::validate(
            object,
            Scope::Cluster,
            NameRule::DnsSubdomain,
        ));
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let mut name = object.str_at(&["metadata", "name"]).to_owned();
        if object.str_at(&["metadata", "annotations", DEFAULT_ANNOTATION]) == "true" {
            name.push_str(" (default)");
        }
        let parameters = &object["spec"]["parameters"];
        let mut text = "<none>".to_owned();
        if present(parameters) {
            text = parameters.str_at(&["kind"]).to_owned();
            if let Some(group) = parameters["apiGroup"].as_str() {
                text = format!("{text}.{group}");
            }
            text = format!("{text}/{}", parameters.str_at(&["name"]));
        }
        vec![
            name.into(),
            object.str_at(&["spec", "controller"]).into(),
            text.into(),
            age_cell(object, now),
        ]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let controller = spec.str_at(&["controller"]);
    if controller.len() > CONTROLLER_BYTES_MAX {
        errors.push(FieldError::too_long(
            &path.child("controller"),
            CONTROLLER_BYTES_MAX,
        ));
    }
    domain_prefixed_path(errors, &path.child("controller"), controller);
    let parameters = &spec["parameters"];
    if parameters.is_null() {
        return;
    }
    let path = path.child("parameters");
    validate_reference(errors, parameters, &path);
    let Some(scope) = parameters["scope"].as_str() else {
        errors.push(FieldError::required(&path.child("scope"), ""));
        return;
    };
    let place = path.child("namespace");
    match (scope, parameters["namespace"].as_str()) {
        ("Namespace", None) => {
            errors.push(FieldError::required(
                &place,
                "`parameters.scope` is set to 'Namespace'",
            ));
        }
        ("Namespace", Some(namespace)) => {
            complain(errors, &place, namespace, names::dns1123_label(namespace));
        }
        ("Cluster", Some(_)) => {
            errors.push(FieldError::forbidden(
                &place,
                "`parameters.scope` is set to 'Cluster'",
            ));
        }
        ("Cluster", None) => {}
        (other, _) => {
            let known = ["Cluster", "Namespace"];
            errors.push(FieldError::not_supported(
                &path.child("scope"),
                other,
                &known,
            ));
        }
    }
}

/// Validates the group, kind and name of a reference.
pub fn validate_reference(errors: &mut Complaints, reference: &Value, path: &Path<'_>) {
    if let Some(group) = reference["apiGroup"].as_str() {
        complain(
            errors,
            &path.child("apiGroup"),
            group,
            names::dns1123_subdomain(group),
        );
    }
    for field in ["kind", "name"] {
        let value = reference.str_at(&[field]);
        if value.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        } else {
            complain(
                errors,
                &path.child(field),
                value,
                names::path_segment_name(value),
            );
        }
    }
}
