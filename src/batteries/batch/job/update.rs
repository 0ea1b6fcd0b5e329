//! Validation of a whole Job, and of a change of its spec.

use super::{NAME_LABELS, Owner, UID_LABELS, is_true, spec};
use crate::shared::object_metadata;
use crate::shared::validation::bad_value;
use crate::shared::validation::equality::{alike, alike_in};
use crate::shared::validation::members::has;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::{self, Selector};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Value, names};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::Context;

/// The type of a Job's spec.
pub const SPEC: &str = "io.k8s.api.batch.v1.JobSpec";
const TEMPLATE: &str = "io.k8s.api.core.v1.PodTemplateSpec";
const POD: &str = "io.k8s.api.core.v1.PodSpec";
const FAILURE_POLICY: &str = "io.k8s.api.batch.v1.PodFailurePolicy";
const SUCCESS_POLICY: &str = "io.k8s.api.batch.v1.SuccessPolicy";

fn present(value: &Value) -> Option<&Value> {
    (!value.is_null()).then_some(value)
}

/// Validates the selector and the labels that the server sets.
pub fn generated_selector(object: &Value) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let spec = &object["spec"];
    if spec.bool_at(&["manualSelector"]) || !has(spec, "selector") {
        return errors;
    }
    let (name, uid) = (
        object.str_at(&["metadata", "name"]),
        object.str_at(&["metadata", "uid"]),
    );
    let given = &spec["template"]["metadata"]["labels"];
    let path = Path::new("spec.template.metadata.labels");
    let wanted = [
        (UID_LABELS[0], uid),
        (NAME_LABELS[0], name),
        (UID_LABELS[1], uid),
        (NAME_LABELS[1], name),
    ];
    for (key, value) in wanted {
        match given[key].as_str() {
            Some(found) if found == value => {}
            Some(_) => {
                let bad = Bad::Json(given.clone());
                errors.push(FieldError::invalid(
                    &path.key(key),
                    bad,
                    format!("must be '{value}'"),
                ));
            }
            None => errors.push(FieldError::required(
                &path.key(key),
                format!("must be '{value}'"),
            )),
        }
    }
    let mut expected = Value::object();
    for (key, value) in wanted {
        expected.set(&[key], value);
    }
    let selector = Selector::from_label_selector(present(&spec["selector"]));
    if selector.is_ok_and(|selector| !selector.matches_value(Some(&expected))) {
        let bad = bad_value::selector(&spec["selector"]);
        errors.push(FieldError::invalid(
            &Path::new("spec.selector"),
            bad,
            "`selector` not auto-generated",
        ));
    }
    errors
}

/// Validates the spec of a Job, its selector included.
pub fn whole_spec(object: &Value, old: Option<&Value>, privileged: Privileged) -> Complaints {
    let mut errors = Complaints::default();
    let (given, path) = (&object["spec"], Path::new("spec"));
    spec::validate(
        given,
        (old.map(|old| &old["spec"]), privileged),
        Owner::Job,
        &path,
        &mut errors,
    );
    let (selector, place) = (&given["selector"], path.child("selector"));
    if selector.is_null() {
        errors.push(FieldError::required(&place, ""));
    }
    errors.extend(labels::validate_label_selector(present(selector), &place));
    let labels = &given["template"]["metadata"]["labels"];
    let read = Selector::from_label_selector(present(selector));
    if read.is_ok_and(|selector| !selector.matches_value(present(labels))) {
        let path = Path::new("spec.template.metadata.labels");
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(
            &path,
            Bad::Json(labels.clone()),
            detail,
        ));
    }
    errors
}

/// Checks that the host name of the Pod with the greatest index is valid.
pub fn name_allows_completions(object: &Value, errors: &mut Complaints) {
    let completions = object.int_at(&["spec", "completions"]).unwrap_or(0);
    if object.str_at(&["spec", "completionMode"]) != "Indexed" || completions <= 0 {
        return;
    }
    let name = object.str_at(&["metadata", "name"]);
    let host = format!("{name}-{}", completions - 1);
    if !names::dns1123_label(&host).is_empty() {
        let path = Path::new("metadata");
        let detail = format!("will not able to create pod with invalid DNS label: {host}");
        errors.push(FieldError::invalid(&path.child("name"), name, detail));
    }
}

/// Validates a changed Job.
pub fn validate(context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
    let (schemas, privileged) = (context.schemas, context.settings.privileged);
    let mut errors = object_metadata::validate_finalizers(object);
    errors.extend(whole_spec(object, Some(old), privileged));
    let (new, before, path) = (&object["spec"], &old["spec"], Path::new("spec"));
    completions(new, before, &path, &mut errors);
    let fixed = |field: &str, bad: fn(&Value) -> Bad, errors: &mut Complaints| {
        if !alike_in(schemas, SPEC, field, new, before) {
            let (place, bad) = (path.child(field), bad(&new[field]));
            errors.push(FieldError::invalid(&place, bad, "field is immutable"));
        }
    };
    fixed("selector", bad_value::selector, &mut errors);
    template(schemas, object, old, &path, &mut errors);
    let json = |value: &Value| Bad::Json(value.clone());
    fixed("completionMode", json, &mut errors);
    let failure_policy = |value: &Value| bad_value::typed(FAILURE_POLICY, value);
    fixed("podFailurePolicy", failure_policy, &mut errors);
    fixed("backoffLimitPerIndex", json, &mut errors);
    fixed("managedBy", json, &mut errors);
    let success_policy = |value: &Value| bad_value::typed(SUCCESS_POLICY, value);
    fixed("successPolicy", success_policy, &mut errors);
    name_allows_completions(object, &mut errors);
    errors
}

fn completions(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (given, place) = (&new["completions"], path.child("completions"));
    if *given == old["completions"] {
        return;
    }
    if new.str_at(&["completionMode"]) != "Indexed" {
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(given.clone()),
            "field is immutable",
        ));
    } else if !given.is_null() && *given != new["parallelism"] {
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid(&place, given.clone(), detail));
    }
}

/// Checks changes of the template: a suspended Job that is not running may change where its Pods
/// are scheduled and which resources they request.
fn template(
    schemas: &Schemas,
    object: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let (new, mut before) = (&object["spec"]["template"], old["spec"]["template"].clone());
    let suspended = old.bool_at(&["spec", "suspend"]);
    let not_started = !has(&old["status"], "startTime");
    let active = old.int_at(&["status", "active"]).unwrap_or(0);
    let mutable = suspended && (not_started || is_true(old, "Suspended")) && active == 0;
    let take = |before: &mut Value, path: &[&str]| match new.at(path) {
        Some(value) => before.set(path, value.clone()),
        None => drop(before.remove(path)),
    };
    if !mutable {
        if !alike(schemas, TEMPLATE, new, &before) {
            let bad = bad_value::typed(TEMPLATE, new);
            errors.push(FieldError::invalid(
                &path.child("template"),
                bad,
                "field is immutable",
            ));
        }
        return;
    }
    if has(&new["spec"], "affinity") && !has(&before["spec"], "affinity") {
        before.set(&["spec", "affinity"], Value::object());
    }
    take(&mut before, &["spec", "affinity", "nodeAffinity"]);
    if before["spec"]["affinity"]
        .as_object()
        .is_some_and(|affinity| affinity.is_empty())
        && !has(&new["spec"], "affinity")
    {
        drop(before.remove(&["spec", "affinity"]));
    }
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        take(&mut before, &["spec", field]);
    }
    for list in ["containers", "initContainers"] {
        let given = new["spec"].items_at(&[list]);
        let Some(had) = before.at_mut(&["spec", list]).and_then(Value::as_array_mut) else {
            continue;
        };
        if given.len() != had.len() {
            continue;
        }
        for (had, given) in had.iter_mut().zip(given) {
            if had["name"] == given["name"] {
                match given.get("resources") {
                    Some(resources) => had.set(&["resources"], resources.clone()),
                    None => drop(had.remove(&["resources"])),
                }
            }
        }
    }
    if !alike(schemas, POD, &new["spec"], &before["spec"]) {
        let bad = bad_value::typed(POD, &new["spec"]);
        errors.push(FieldError::invalid(
            &path.child("template.spec"),
            bad,
            "field is immutable",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_tables::schemas;
    use polyplane_apimachinery::json;

    #[test]
    fn a_suspended_job_may_change_its_node_affinity_and_no_other_affinity() {
        let with = |affinity: Value| {
            let mut job = json!({"spec": {"suspend": true, "template": {"spec": {}}}});
            if !affinity.is_null() {
                job.set(&["spec", "template", "spec", "affinity"], affinity);
            }
            job
        };
        let none = || with(Value::Null);
        let empty = || with(json!({}));
        let of_nodes = || with(json!({"nodeAffinity": {}}));
        let of_pods = || with(json!({"podAffinity": {}}));
        for (old, new, refused) in [
            (none(), empty(), false),
            (none(), of_nodes(), false),
            (none(), of_pods(), true),
            (empty(), none(), false),
            (of_nodes(), none(), false),
            (of_pods(), none(), true),
            (of_pods(), of_nodes(), true),
        ] {
            let mut errors = Complaints::default();
            template(&schemas(), &new, &old, &Path::new("spec"), &mut errors);
            assert_eq!(!errors.is_empty(), refused, "{old:?} to {new:?}");
        }
    }
}
