//! Validation of pod updates: an update may change images, shorten a deadline, add tolerations,
//! remove gates, and change the fields that gates leave open.

use super::{PodOptions, annotations, tolerations};
use crate::shared::pod::defaults;
use crate::shared::validation::equality::alike;
use crate::shared::validation::{bad_value, text_diff};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Value, names};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// The type of a pod's spec.
pub const SPEC: &str = "io.k8s.api.core.v1.PodSpec";

/// Validates a changed pod, without the common rules of metadata.
pub fn validate(schemas: &Schemas, new: &Value, old: &Value, options: &PodOptions) -> Complaints {
    let mut errors = Complaints::default();
    super::validate_pod(new, options, &mut errors);
    validate_annotations(new, old, options, &mut errors);
    let path = Path::new("spec");
    let (new, old) = (&new["spec"], &old["spec"]);
    for list in ["containers", "initContainers"] {
        if !same_length(
            new.items_at(&[list]),
            old.items_at(&[list]),
            &path.child(list),
            &mut errors,
        ) {
            return errors;
        }
    }
    if !validate_deadline(new, old, &path.child("activeDeadlineSeconds"), &mut errors) {
        return errors;
    }
    let lists = (
        new.items_at(&["tolerations"]),
        old.items_at(&["tolerations"]),
    );
    tolerations::validate_update(
        lists.0,
        lists.1,
        &path.child("tolerations"),
        options,
        &mut errors,
    );
    validate_gates(new, old, &path.child("schedulingGates"), &mut errors);
    if !alike(schemas, SPEC, new, old) {
        validate_rest(schemas, new, old, &path, &mut errors);
    }
    errors
}

/// Validates a change of annotations.
pub fn validate_annotations(
    new: &Value,
    old: &Value,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let metadata = Path::new("metadata");
    let path = metadata.child("annotations");
    let (given, before) = (
        &new["metadata"]["annotations"],
        &old["metadata"]["annotations"],
    );
    annotations::validate_update(given, before, &path, errors);
    annotations::validate(given, &new["spec"], &path, options, errors);
}

fn same_length(new: &[Value], old: &[Value], path: &Path<'_>, errors: &mut Complaints) -> bool {
    if new.len() != old.len() {
        errors.push(FieldError::forbidden(
            path,
            "pod updates may not add or remove containers",
        ));
        return false;
    }
    for (at, container) in new.iter().enumerate() {
        let path = path.index(at);
        if container.str_at(&["image"]).is_empty() {
            errors.push(FieldError::required(&path.child("image"), ""));
        }
        super::containers::validate_image_of_pod(container, &path, errors);
    }
    true
}

/// Checks that a deadline is only added or shortened. Returns false if the checks must end.
fn validate_deadline(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) -> bool {
    let most = i64::from(i32::MAX);
    match (
        new.int_at(&["activeDeadlineSeconds"]),
        old.int_at(&["activeDeadlineSeconds"]),
    ) {
        (Some(seconds), _) if !(0..=most).contains(&seconds) => {
            errors.push(FieldError::invalid(
                path,
                seconds,
                names::inclusive_range(0, most),
            ));
            return false;
        }
        (Some(seconds), Some(before)) if before < seconds => {
            let detail = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(path, seconds, detail));
            return false;
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, Value::Null, detail));
        }
        _ => {}
    }
    true
}

fn validate_gates(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let before: Vec<&str> = old
        .items_at(&["schedulingGates"])
        .iter()
        .map(|gate| gate.str_at(&["name"]))
        .collect();
    let gates = new.items_at(&["schedulingGates"]);
    for (at, gate) in gates.iter().enumerate() {
        let name = gate.str_at(&["name"]);
        let last = !gates[at + 1..]
            .iter()
            .any(|later| later.str_at(&["name"]) == name);
        if last && !before.contains(&name) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&path.index(at).child("name"), detail));
        }
    }
}

fn take(spec: &mut Value, from: &Value, path: &[&str]) {
    match from.at(path) {
        Some(value) => spec.set(path, value.clone()),
        None => drop(spec.remove(path)),
    }
}

/// Sets everything that may change to its old value, and checks that the rest is equal.
fn validate_rest(
    schemas: &Schemas,
    new: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mut rest = new.clone();
    for list in ["containers", "initContainers"] {
        let before = old.items_at(&[list]);
        for (container, before) in defaults::items_mut(&mut rest, list).zip(before) {
            take(container, before, &["image"]);
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        take(&mut rest, old, &[field]);
    }
    let grace = "terminationGracePeriodSeconds";
    if old.int_at(&[grace]).is_some_and(|seconds| seconds < 0) && rest.int_at(&[grace]) == Some(1) {
        take(&mut rest, old, &[grace]);
    }
    if !old.items_at(&["schedulingGates"]).is_empty() {
        validate_gated(&mut rest, old, path, errors);
    }
    if alike(schemas, SPEC, &rest, old) {
        return;
    }
    let difference = text_diff::texts(
        &schemas.internal_text(SPEC, old),
        &schemas.internal_text(SPEC, &rest),
    );
    let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{difference}");
    errors.push(FieldError::forbidden(path, detail));
}

/// Checks that a pod which is held back by gates only gets narrower scheduling requirements.
fn validate_gated(rest: &mut Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let before = old["nodeSelector"].as_object();
    let lost = before.is_some_and(|labels| {
        labels
            .iter()
            .any(|(key, value)| rest["nodeSelector"].get(key) != Some(value))
    });
    if lost {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        let bad = Bad::Json(rest["nodeSelector"].clone());
        errors.push(FieldError::invalid(
            &path.child("nodeSelector"),
            bad,
            detail,
        ));
    }
    take(rest, old, &["nodeSelector"]);
    let old_nodes = &old["affinity"]["nodeAffinity"];
    if rest["affinity"]["nodeAffinity"] == *old_nodes {
        return;
    }
    validate_node_affinity(&rest["affinity"]["nodeAffinity"], old_nodes, path, errors);
    let only_nodes = ["podAffinity", "podAntiAffinity"]
        .iter()
        .all(|field| rest["affinity"][*field].is_null());
    if old["affinity"].is_null() && only_nodes {
        drop(rest.remove(&["affinity"]));
    } else {
        take(rest, old, &["affinity", "nodeAffinity"]);
    }
}

fn validate_node_affinity(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if old[REQUIRED].is_null() {
        return;
    }
    let terms = |affinity: &Value| affinity.items_at(&[REQUIRED, "nodeSelectorTerms"]).to_vec();
    let (new, old) = (terms(new), terms(old));
    let affinity = path.child("affinity");
    let nodes = affinity.child("nodeAffinity");
    let required = nodes.child(REQUIRED);
    let path = required.child("nodeSelectorTerms");
    const TERM: &str = "io.k8s.api.core.v1.NodeSelectorTerm";
    if !old.is_empty() && old.len() != new.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let bad = if new.is_empty() {
            Bad::Plain(Value::Null)
        } else {
            bad_value::list(TERM, &new)
        };
        errors.push(FieldError::invalid(&path, bad, detail));
        return;
    }
    for (at, (new, old)) in new.iter().zip(&old).enumerate() {
        if !only_adds(new, old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(
                &path.index(at),
                bad_value::typed(TERM, new),
                detail,
            ));
        }
    }
}

fn only_adds(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    if lists.iter().all(|list| old.items_at(&[list]).is_empty()) {
        return lists.iter().all(|list| new.items_at(&[list]).is_empty());
    }
    lists
        .iter()
        .all(|list| new.items_at(&[list]).starts_with(old.items_at(&[list])))
}
