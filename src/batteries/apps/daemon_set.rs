//! DaemonSets.

use super::rolling_update;
use crate::shared::object_metadata;
use crate::shared::pod::{defaults, table_cells};
use crate::shared::validation::bad_value;
use crate::shared::validation::equality::alike_in;
use crate::shared::validation::numbers::non_negative_members;
use crate::shared::workload;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::strconv::parse_int;
use polyplane_apimachinery::{Value, labels};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

const SPEC: &str = "io.k8s.api.apps.v1.DaemonSetSpec";
const COUNTERS: [&str; 9] = [
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
    "collisionCount",
];
/// The annotation that counts changes of the template; older versions had a field for it.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Behaviour of DaemonSets.
#[derive(Debug)]
pub struct DaemonSet;

impl Strategy for DaemonSet {
    fn normalize(&self, object: &mut Value, _: i64) {
        set_template_generation(object, template_generation(object));
    }

    fn unconvertible(&self, object: &Value) -> Option<String> {
        let annotations = &object["metadata"]["annotations"];
        let text = annotations.get(TEMPLATE_GENERATION)?.as_str()?;
        Some(parse_int(text).err()?.to_string())
    }

    fn hidden_annotations(&self) -> &'static [&'static str] {
        &[TEMPLATE_GENERATION]
    }

    fn default(&self, object: &mut Value) {
        let strategy = &mut object["spec"]["updateStrategy"];
        rolling_update::default(
            strategy,
            &[("maxUnavailable", 1i64.into()), ("maxSurge", 0i64.into())],
        );
        defaults::default_template_at(object, &workload::TEMPLATE);
    }

    fn fill_empty(&self, object: &mut Value) {
        set_template_generation(object, 0);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        workload::drop_old(object);
        count_from_zero(object);
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        workload::drop_old(object);
        count_from_zero(object);
        let (spec, before) = (&object["spec"], &old["spec"]);
        let changed = !alike_in(context.schemas, SPEC, "template", spec, before);
        set_template_generation(object, template_generation(old) + i64::from(changed));
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        workload::keep_spec(object, old);
        set_template_generation(object, template_generation(old));
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        spec_errors(object, (None, context.settings.privileged))
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = Complaints::default();
        workload::same_selector(object, old, &mut errors);
        errors.extend(spec_errors(
            object,
            (Some(old), context.settings.privileged),
        ));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = workload::status(object, &COUNTERS, &[], "");
        workload::collisions(object, old, &mut errors);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        warnings(object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let pods = &object["spec"]["template"]["spec"];
        let (names, images) = table_cells::containers(pods);
        let mut cells = vec![object.str_at(&["metadata", "name"]).into()];
        let counts = [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
        ];
        cells.extend(counts.map(|field| Value::from(workload::number(object, &["status", field]))));
        cells.extend([
            table_cells::labels(&pods["nodeSelector"]).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
            workload::shown_selector(&object["spec"]["selector"]).into(),
        ]);
        cells
    }
}

/// Sets numbers of a rolling update that does not apply to zero, as upstream stores them.
fn count_from_zero(object: &mut Value) {
    if let Some(rolling) = object
        .at_mut(&["spec", "updateStrategy", "rollingUpdate"])
        .and_then(Value::as_object_mut)
    {
        for field in ["maxUnavailable", "maxSurge"] {
            let member = rolling.entry(field);
            *member = rolling_update::or_zero(member);
        }
    }
}

fn template_generation(object: &Value) -> i64 {
    object["metadata"]["annotations"]
        .str_at(&[TEMPLATE_GENERATION])
        .parse()
        .unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    object["metadata"]["annotations"]
        .make_object()
        .insert(TEMPLATE_GENERATION, generation.to_string());
}

/// Returns warnings about the template, if it is new or has changed.
fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    match old {
        Some(old) if template_generation(old) == template_generation(object) => Vec::new(),
        _ => workload::template_warnings(object, None),
    }
}

fn spec_errors(object: &Value, before: (Option<&Value>, Privileged)) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    let (selector, place) = (&spec["selector"], path.child("selector"));
    errors.extend(labels::validate_label_selector(
        workload::present(selector),
        &place,
    ));
    workload::selects_template(spec, &path, &mut errors);
    if workload::is_empty_selector(selector) {
        let detail = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid(
            &place,
            bad_value::selector(selector),
            detail,
        ));
    }
    workload::template(&spec["template"], "DaemonSet", before, &path, &mut errors);
    non_negative_members(spec, &["minReadySeconds"], &path, &mut errors);
    strategy(
        &spec["updateStrategy"],
        &path.child("updateStrategy"),
        &mut errors,
    );
    non_negative_members(spec, &["revisionHistoryLimit"], &path, &mut errors);
    errors
}

fn strategy(strategy: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (rolling, place) = (&strategy["rollingUpdate"], path.child("rollingUpdate"));
    match strategy.str_at(&["type"]) {
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => errors.push(FieldError::required(&place, "")),
        "RollingUpdate" => {
            let fields = ["maxUnavailable", "maxSurge"];
            for field in fields {
                rolling_update::non_negative(&rolling[field], &place.child(field), errors);
            }
            for field in fields {
                rolling_update::at_most_all(&rolling[field], &place.child(field), errors);
            }
            match fields.map(|field| rolling_update::amount(&rolling[field]) != 0) {
                [true, true] => {
                    let bad = Bad::Json(rolling["maxSurge"].clone());
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&place.child("maxSurge"), bad, detail));
                }
                [false, false] => {
                    let detail = "cannot be 0 when maxSurge is 0";
                    errors.push(FieldError::required(&place.child("maxUnavailable"), detail));
                }
                _ => {}
            }
        }
        _ => {
            let bad = bad_value::typed("io.k8s.api.apps.v1.DaemonSetUpdateStrategy", strategy);
            errors.push(FieldError::not_supported(
                path,
                bad,
                &["RollingUpdate", "OnDelete"],
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_template_is_warned_about_when_it_changes_and_not_when_the_rest_does() {
        let daemon_set = |generation: i64, template_generation: i64| {
            let pods = json!({"terminationGracePeriodSeconds": (-1i64)});
            let metadata = json!({"generation": generation});
            let mut object = json!({"metadata": metadata, "spec": {"template": {"spec": pods}}});
            set_template_generation(&mut object, template_generation);
            object
        };
        let old = daemon_set(1, 1);
        let count = |object: &Value, old| warnings(object, old).len();
        assert_eq!(count(&old, None), 1);
        assert_eq!(count(&daemon_set(2, 1), Some(&old)), 0);
        assert_eq!(count(&daemon_set(2, 2), Some(&old)), 1);
    }
}
