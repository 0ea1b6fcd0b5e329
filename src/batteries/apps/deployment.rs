//! Deployments.

use super::rolling_update;
use crate::shared::object_metadata;
use crate::shared::pod::{defaults, table_cells};
use crate::shared::validation::bad_value;
use crate::shared::validation::numbers::{non_negative, non_negative_members};
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::strconv::parse_int;
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

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

/// The annotation that requests a rollback; older versions had a field for it.
const ROLLBACK: &str = "deprecated.deployment.rollback.to";
const ROLLBACK_PATH: [&str; 3] = ["metadata", "annotations", ROLLBACK];

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

    fn normalize(&self, object: &mut Value, _: i64) {
        normalize_rollback(object);
    }

    fn unconvertible(&self, object: &Value) -> Option<String> {
        let text = object.str_at(&ROLLBACK_PATH);
        let error = parse_int(text).err().filter(|_| !text.is_empty())?;
        Some(format!(
            "failed to parse annotation[{ROLLBACK}]={text} as int64: {error}"
        ))
    }

    fn hidden_annotations(&self) -> &'static [&'static str] {
        &[ROLLBACK]
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
        keep_from(object, old);
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

/// Keeps what a write of the status may not change.
fn keep_from(object: &mut Value, old: &Value) {
    workload::keep_spec(object, old);
    for path in [&["metadata", "labels"][..], &ROLLBACK_PATH] {
        match old.at(path) {
            Some(value) => object.set(path, value.clone()),
            None => drop(object.remove(path)),
        }
    }
}

/// Writes the number of the revision as upstream does, which drops the annotation if it is empty.
fn normalize_rollback(object: &mut Value) {
    let Some(text) = object.at(&ROLLBACK_PATH).and_then(Value::as_str) else {
        return;
    };
    if text.is_empty() {
        drop(object.remove(&ROLLBACK_PATH));
        if annotations(object).is_none() {
            drop(object.remove(&["metadata", "annotations"]));
        }
    } else if let Ok(revision) = parse_int(text) {
        object.set(&ROLLBACK_PATH, revision.to_string());
    }
}

fn spec_errors(object: &Value, before: (Option<&Value>, Privileged)) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    non_negative_members(spec, &["replicas"], &path, &mut errors);
    workload::selector_and_template(spec, before, &path, &mut errors);
    strategy(&spec["strategy"], &path.child("strategy"), &mut errors);
    let counts = ["minReadySeconds", "revisionHistoryLimit"];
    non_negative_members(spec, &counts, &path, &mut errors);
    let (revision, rollback) = (
        parse_int(object.str_at(&ROLLBACK_PATH)).ok(),
        path.child("rollback"),
    );
    non_negative(revision, &rollback.child("version"), &mut errors);
    non_negative_members(spec, &["progressDeadlineSeconds"], &path, &mut errors);
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

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn with(revision: &str) -> Value {
        let mut object = json!({"metadata": {"name": "a"}});
        object.set(&ROLLBACK_PATH, revision);
        object
    }

    #[test]
    fn the_revision_of_a_rollback_is_a_number_that_is_not_negative() {
        let refused = |revision: &str| {
            let errors = spec_errors(&with(revision), (None, Privileged::Allowed));
            errors
                .iter()
                .any(|error| error.field == "spec.rollback.version")
        };
        assert!(refused("-1"));
        assert!(!refused("0"));
        let normalized = |revision: &str| {
            let mut object = with(revision);
            normalize_rollback(&mut object);
            object
        };
        assert_eq!(normalized("+03"), with("3"));
        assert_eq!(normalized(""), json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn a_write_of_the_status_keeps_the_rollback() {
        let mut object = with("1");
        keep_from(&mut object, &with("2"));
        assert_eq!(object, with("2"));
    }
}
