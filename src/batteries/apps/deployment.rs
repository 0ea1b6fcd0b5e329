//! Deployments.

use super::rolling_update;
use crate::shared::object_metadata;
use crate::shared::pod::{defaults, table_cells};
use crate::shared::validation::bad_value;
use crate::shared::validation::numbers::non_negative_members;
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::strategy::{Context, Privileged, Strategy, age};

const COUNTERS: [&str; 8] = [
    "observedGeneration",
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "unavailableReplicas",
    "terminatingReplicas",
    "collisionCount",
];
const PARTS: [&str; 3] = ["updatedReplicas", "readyReplicas", "availableReplicas"];

/// Behaviour of Deployments.
#[derive(Debug)]
pub struct Deployment;

impl Strategy for Deployment {
    fn default(&self, object: &mut Value) {
        let share = || Value::from("25%");
        let strategy = &mut object["spec"]["strategy"];
        rolling_update::default(
            strategy,
            &[("maxUnavailable", share()), ("maxSurge", share())],
        );
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

    fn counts_generation(&self, object: &Value, old: &Value) -> Option<bool> {
        (annotations(object) != annotations(old)).then_some(true)
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        workload::keep_spec(object, old);
        match old.at(&["metadata", "labels"]) {
            Some(labels) => object.set(&["metadata", "labels"], labels.clone()),
            None => drop(object.remove(&["metadata", "labels"])),
        }
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        spec_errors(object, (None, context.settings.privileged))
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = spec_errors(object, (Some(old), context.settings.privileged));
        workload::same_selector(object, old, &mut errors);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = workload::status(object, &COUNTERS, &PARTS, "readyReplicas");
        workload::collisions(object, old, &mut errors);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings: Vec<String> = workload::name_warning(object, old).into_iter().collect();
        warnings.extend(workload::template_warnings(object, old));
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let number = |path: &[&str]| workload::number(object, path);
        let (names, images) = table_cells::containers(&object["spec"]["template"]["spec"]);
        let selector =
            Selector::from_label_selector(workload::present(&object["spec"]["selector"]));
        let selector = selector.map_or("<invalid>".to_owned(), |selector| selector.to_string());
        vec![
            object.str_at(&["metadata", "name"]).into(),
            format!(
                "{}/{}",
                number(&["status", "readyReplicas"]),
                number(&["spec", "replicas"])
            )
            .into(),
            number(&["status", "updatedReplicas"]).into(),
            number(&["status", "availableReplicas"]).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
            selector.into(),
        ]
    }
}

/// Returns the annotations of an object, if it has any.
fn annotations(object: &Value) -> Option<&Map> {
    let annotations = object["metadata"]["annotations"].as_object();
    annotations.filter(|annotations| !annotations.is_empty())
}

fn spec_errors(object: &Value, before: (Option<&Value>, Privileged)) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    non_negative_members(spec, &["replicas"], &path, &mut errors);
    workload::selector_and_template(spec, before, &path, &mut errors);
    strategy(&spec["strategy"], &path.child("strategy"), &mut errors);
    let counts = [
        "minReadySeconds",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ];
    non_negative_members(spec, &counts, &path, &mut errors);
    if let Some(seconds) = spec.int_at(&["progressDeadlineSeconds"])
        && seconds <= workload::number(spec, &["minReadySeconds"])
    {
        let detail = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid(
            &path.child("progressDeadlineSeconds"),
            seconds,
            detail,
        ));
    }
    errors
}

fn strategy(strategy: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (rolling, place) = (&strategy["rollingUpdate"], path.child("rollingUpdate"));
    match strategy.str_at(&["type"]) {
        "Recreate" if !rolling.is_null() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&place, detail));
        }
        "Recreate" => {}
        "RollingUpdate" if rolling.is_null() => {
            errors.push(FieldError::required(
                &place,
                "this should be defaulted and never be nil",
            ));
        }
        "RollingUpdate" => {
            let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
            let first = place.child("maxUnavailable");
            rolling_update::non_negative(unavailable, &first, errors);
            rolling_update::non_negative(surge, &place.child("maxSurge"), errors);
            if rolling_update::amount(unavailable) == 0 && rolling_update::amount(surge) == 0 {
                let bad = Bad::Json(rolling_update::or_zero(unavailable));
                errors.push(FieldError::invalid(
                    &first,
                    bad,
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            rolling_update::at_most_all(unavailable, &first, errors);
        }
        _ => {
            let bad = bad_value::typed("io.k8s.api.apps.v1.DeploymentStrategy", strategy);
            errors.push(FieldError::not_supported(
                path,
                bad,
                &["Recreate", "RollingUpdate"],
            ));
        }
    }
}
