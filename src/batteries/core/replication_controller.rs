//! ReplicationControllers.

use crate::shared::object_metadata;
use crate::shared::pod::validation::{PodOptions, validate_pod_template_spec};
use crate::shared::pod::{defaults, init_annotations, table_cells, warnings};
use crate::shared::validation::complaints::named;
use crate::shared::validation::numbers::non_negative_members;
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, FieldErrorKind, Path};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::{Str, Value};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

const NON_CONVERTIBLE: &str = "non-convertible.kubernetes.io";

/// Behaviour of ReplicationControllers.
#[derive(Debug)]
pub struct ReplicationController;

const TEMPLATE: [&str; 2] = ["spec", "template"];

/// Gives an object without a selector or labels those of its template.
fn default_labels(object: &mut Value) {
    let Some(labels) = object.at(&TEMPLATE).and_then(defaults::template_labels) else {
        return;
    };
    for path in [["spec", "selector"], ["metadata", "labels"]] {
        let present = object.at(&path).and_then(Value::as_object);
        if present.is_none_or(|labels| labels.is_empty()) {
            object.set(&path, labels.clone());
        }
    }
}

impl Strategy for ReplicationController {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::GeneratedSubdomain)
    }

    fn default(&self, object: &mut Value) {
        default_labels(object);
        defaults::default_template_at(object, &TEMPLATE);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        init_annotations::drop_at(object, &["spec", "template"]);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        init_annotations::drop_at(object, &["spec", "template"]);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
        // Upstream's defaults are also those of a stored object that is read.
        default_labels(object);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(spec_errors(object, None, context.settings.privileged));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(spec_errors(object, Some(old), context.settings.privileged));
        errors.extend(conversion_errors(object, old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate_status(&object["status"], &Path::new("status"), &mut errors);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let spec = Path::new("spec");
        let path = spec.child("template");
        let mut warnings: Vec<String> = workload::name_warning(object, old).into_iter().collect();
        if workload::has_changed(object, old) {
            // As upstream does, which tests the template as it was before.
            let template = &old.unwrap_or(object)["spec"]["template"];
            warnings.extend(warnings::template(template, &path));
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let number = |path: &[&str]| Value::Int(object.int_at(path).unwrap_or(0));
        let (names, images) = table_cells::containers(&object["spec"]["template"]["spec"]);
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            number(&["spec", "replicas"]),
            number(&["status", "replicas"]),
            number(&["status", "readyReplicas"]),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            Value::from(names),
            Value::from(images),
            Value::from(table_cells::labels(&object["spec"]["selector"])),
        ]
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let replicas = || object.int_at(&["status", "replicas"]).unwrap_or(0);
        (name == "status.replicas").then(|| replicas().to_string().into())
    }
}

fn spec_errors(object: &Value, old: Option<&Value>, privileged: Privileged) -> Complaints {
    let mut errors = Complaints::default();
    let (spec, path) = (&object["spec"], Path::new("spec"));
    non_negative_members(spec, &["minReadySeconds"], &path, &mut errors);
    let selector = spec["selector"]
        .as_object()
        .filter(|selector| !selector.is_empty());
    if selector.is_none() {
        errors.push(FieldError::required(&path.child("selector"), ""));
    }
    match spec.int_at(&["replicas"]) {
        None => errors.push(FieldError::required(&path.child("replicas"), "")),
        Some(_) => non_negative_members(spec, &["replicas"], &path, &mut errors),
    }
    let template = &spec["template"];
    let path = path.child("template");
    if template.is_null() {
        errors.push(FieldError::required(&path, ""));
        return errors;
    }
    let labels = &template["metadata"]["labels"];
    let selects = |(key, value): (&str, &Value)| labels.get(key) == Some(value);
    if selector.is_some_and(|selector| !selector.iter().all(selects)) {
        let metadata = path.child("metadata");
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(
            &metadata.child("labels"),
            Bad::Json(labels.clone()),
            detail,
        ));
    }
    let options = PodOptions::for_template(old.map(|old| &old["spec"]["template"]));
    let options = options.with(privileged);
    errors.extend(validate_pod_template_spec(template, &path, &options));
    let spec_path = path.child("spec");
    let policy = template.str_at(&["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.push(FieldError::not_supported(
            &spec_path.child("restartPolicy"),
            named(policy),
            &["Always"],
        ));
    }
    if template
        .int_at(&["spec", "activeDeadlineSeconds"])
        .is_some()
    {
        let detail = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.push(FieldError::forbidden(
            &spec_path.child("activeDeadlineSeconds"),
            detail,
        ));
    }
    errors
}

/// Complains about changes of fields that could not be converted from another kind.
fn conversion_errors(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let annotations = old
        .at(&["metadata", "annotations"])
        .and_then(Value::as_object);
    for (key, value) in annotations
        .into_iter()
        .flat_map(|annotations| annotations.iter())
    {
        if !key.starts_with(NON_CONVERTIBLE) {
            continue;
        }
        let parts: Vec<&str> = key.split('/').collect();
        let [_, field] = parts.as_slice() else {
            continue;
        };
        if field.contains("selector") {
            let selector = &object["spec"]["selector"];
            if *selector != old["spec"]["selector"] {
                let spec = Path::new("spec");
                let detail = "cannot update non-convertible selector";
                errors.push(FieldError::invalid(
                    &spec.child("selector"),
                    Bad::Json(selector.clone()),
                    detail,
                ));
            }
        } else {
            let detail = "unknown non-convertible field";
            errors.push(FieldError::new(
                FieldErrorKind::NotFound,
                &Path::new(field),
                value.clone(),
                detail,
            ));
        }
    }
    errors
}

fn validate_status(status: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let counts = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
    ];
    non_negative_members(status, &counts, path, errors);
    let of = |field: &str| status.int_at(&[field]).unwrap_or(0);
    for field in &counts[1..4] {
        if of(field) > of("replicas") {
            let detail = "cannot be greater than status.replicas";
            errors.push(FieldError::invalid(&path.child(field), of(field), detail));
        }
    }
    if of("availableReplicas") > of("readyReplicas") {
        let detail = "cannot be greater than readyReplicas";
        errors.push(FieldError::invalid(
            &path.child("availableReplicas"),
            of("availableReplicas"),
            detail,
        ));
    }
}
