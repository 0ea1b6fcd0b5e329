//! ReplicaSets.

use crate::shared::object_metadata;
use crate::shared::pod::{defaults, table_cells};
use crate::shared::validation::numbers::non_negative_members;
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::{Str, Value};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

const COUNTERS: [&str; 6] = [
    "replicas",
    "fullyLabeledReplicas",
    "readyReplicas",
    "availableReplicas",
    "observedGeneration",
    "terminatingReplicas",
];
const PARTS: [&str; 3] = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];

/// Behaviour of ReplicaSets.
#[derive(Debug)]
pub struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn default(&self, object: &mut Value) {
        defaults::default_template_at(object, &workload::TEMPLATE);
    }

    fn fill_empty(&self, object: &mut Value) {
        workload::fill_empty(object);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        workload::drop_old(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        workload::drop_old(object);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        workload::keep_spec(object, old);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        spec_errors(object, (None, context.settings.privileged))
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = spec_errors(object, (Some(old), context.settings.privileged));
        workload::same_selector(object, old, &mut errors);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        workload::status(object, &COUNTERS, &PARTS, "readyReplicas")
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings: Vec<String> = workload::name_warning(object, old).into_iter().collect();
        warnings.extend(workload::template_warnings(object, old));
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let number = |path: &[&str]| Value::from(workload::number(object, path));
        let (names, images) = table_cells::containers(&object["spec"]["template"]["spec"]);
        vec![
            object.str_at(&["metadata", "name"]).into(),
            number(&["spec", "replicas"]),
            number(&["status", "replicas"]),
            number(&["status", "readyReplicas"]),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
            workload::shown_selector(&object["spec"]["selector"]).into(),
        ]
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let replicas = || object.int_at(&["status", "replicas"]).unwrap_or(0);
        (name == "status.replicas").then(|| replicas().to_string().into())
    }
}

fn spec_errors(object: &Value, before: (Option<&Value>, Privileged)) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    non_negative_members(spec, &["replicas", "minReadySeconds"], &path, &mut errors);
    workload::selector_and_template(spec, before, &path, &mut errors);
    errors
}
