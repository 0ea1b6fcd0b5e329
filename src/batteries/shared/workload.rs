//! Code that the kinds which run pods from a template share.

use crate::shared::object_metadata;
use crate::shared::pod::validation::{PodOptions, validate_pod_template_spec};
use crate::shared::pod::{init_annotations, warnings};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::named;
use crate::shared::validation::numbers::non_negative_members;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::{self, Selector};
use polyplane_apimachinery::names;
use polyplane_registry::settings::Privileged;

/// The path of the template.
pub const TEMPLATE: [&str; 2] = ["spec", "template"];

/// Removes the fields that conversions of the template leave out.
pub fn drop_old(object: &mut Value) {
    init_annotations::drop_at(object, &TEMPLATE);
}

/// Sets the number of replicas of an object without content. Upstream's internal types have a number where the
/// published ones may have none.
pub fn fill_empty(object: &mut Value) {
    object.set(&["spec", "replicas"], 0i64);
}

/// Keeps the spec in a write of the status.
pub fn keep_spec(object: &mut Value, old: &Value) {
    match old.get("spec") {
        Some(spec) => object.set(&["spec"], spec.clone()),
        None => drop(object.remove(&["spec"])),
    }
}

/// Returns the warning about the name of a new object whose pods are named after it, if it is no DNS label.
pub fn name_warning(object: &Value, old: Option<&Value>) -> Option<String> {
    let complaints = names::dns1123_label(object.str_at(&["metadata", "name"]));
    (old.is_none() && !complaints.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]",
            complaints.join(" ")
        )
    })
}

/// Returns true for a new object, and for a change that `metadata.generation` counts.
pub fn has_changed(object: &Value, old: Option<&Value>) -> bool {
    let generation = |object: &Value| object.int_at(&["metadata", "generation"]);
    old.is_none_or(|old| generation(old) != generation(object))
}

/// Returns warnings about a template that is new or may have changed.
pub fn template_warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    if !has_changed(object, old) {
        return Vec::new();
    }
    let spec = Path::new("spec");
    warnings::template(&object["spec"]["template"], &spec.child("template"))
}

/// Returns a selector as a cell shows it.
pub fn shown_selector(selector: &Value) -> String {
    match Selector::from_label_selector(present(selector)) {
        Ok(selector) => match selector.to_string() {
            text if text.is_empty() => "<none>".to_owned(),
            text => text,
        },
        Err(_) => "<error>".to_owned(),
    }
}

/// Returns the value unless it is null.
pub fn present(value: &Value) -> Option<&Value> {
    (!value.is_null()).then_some(value)
}

/// Returns the number in a member; an absent one is zero.
pub fn number(object: &Value, path: &[&str]) -> i64 {
    object.int_at(path).unwrap_or(0)
}

/// Returns true if the selector is present and has no requirements.
pub fn is_empty_selector(selector: &Value) -> bool {
    let labels = selector["matchLabels"]
        .as_object()
        .is_none_or(|labels| labels.is_empty());
    !selector.is_null() && labels && selector.items_at(&["matchExpressions"]).is_empty()
}

/// Validates `spec.selector`; `empty` is the complaint about one that selects everything.
pub fn selector(spec: &Value, empty: &str, path: &Path<'_>, errors: &mut Complaints) {
    let (selector, place) = (&spec["selector"], path.child("selector"));
    errors.extend(labels::validate_label_selector(present(selector), &place));
    if selector.is_null() {
        errors.push(FieldError::required(&place, ""));
    } else if is_empty_selector(selector) {
        errors.push(FieldError::invalid(
            &place,
            bad_value::selector(selector),
            empty,
        ));
    }
}

/// Checks that the selector selects the pods of the template. Returns false if it cannot be parsed.
pub fn selects_template(spec: &Value, path: &Path<'_>, errors: &mut Complaints) -> bool {
    let Ok(selector) = Selector::from_label_selector(present(&spec["selector"])) else {
        return false;
    };
    let labels = &spec["template"]["metadata"]["labels"];
    if !selector.is_everything() && !selector.matches_value(present(labels)) {
        let (template, detail) = (
            path.child("template"),
            "`selector` does not match template `labels`",
        );
        let bad = Bad::Json(labels.clone());
        errors.push(FieldError::invalid(
            &template.child("metadata").child("labels"),
            bad,
            detail,
        ));
    }
    true
}

/// Validates the template of pods that run until they are deleted. `old` is the object before a change.
pub fn template(
    template: &Value,
    kind: &str,
    (old, privileged): (Option<&Value>, Privileged),
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let options = PodOptions::for_template(old.and_then(|old| old.at(&TEMPLATE)));
    let options = options.with(privileged);
    let path = path.child("template");
    errors.extend(validate_pod_template_spec(template, &path, &options));
    runs_forever(template, kind, &path, errors);
}

/// Validates the selector and the template of a ReplicaSet or Deployment. The complaints name the same kinds for
/// both, as upstream. `before` is the object before a change, and whether containers may be privileged.
pub fn selector_and_template(
    spec: &Value,
    before: (Option<&Value>, Privileged),
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    selector(
        spec,
        "empty selector is invalid for deployment",
        path,
        errors,
    );
    if selects_template(spec, path, errors) {
        template(&spec["template"], "ReplicaSet", before, path, errors);
    } else {
        let bad = bad_value::selector(&spec["selector"]);
        errors.push(FieldError::invalid(
            &path.child("selector"),
            bad,
            "invalid label selector",
        ));
    }
}

/// Complains about a template whose pods could end; `path` is that of the template.
pub fn runs_forever(template: &Value, kind: &str, path: &Path<'_>, errors: &mut Complaints) {
    let spec = path.child("spec");
    let policy = template.str_at(&["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.push(FieldError::not_supported(
            &spec.child("restartPolicy"),
            named(policy),
            &["Always"],
        ));
    }
    if template
        .int_at(&["spec", "activeDeadlineSeconds"])
        .is_some()
    {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(FieldError::forbidden(
            &spec.child("activeDeadlineSeconds"),
            detail,
        ));
    }
}

/// Validates the counters of a status: those that must not be negative, and those that must not
/// exceed `replicas`.
pub fn status(object: &Value, counters: &[&str], parts: &[&str], ready: &str) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (status, path) = (&object["status"], Path::new("status"));
    non_negative_members(status, counters, &path, &mut errors);
    let of = |field: &str| number(status, &[field]);
    for field in parts {
        if of(field) > of("replicas") {
            let detail = "cannot be greater than status.replicas";
            errors.push(FieldError::invalid(&path.child(field), of(field), detail));
        }
    }
    if !parts.is_empty() && of("availableReplicas") > of("readyReplicas") {
        let detail = format!("cannot be greater than {ready}");
        errors.push(FieldError::invalid(
            &path.child("availableReplicas"),
            of("availableReplicas"),
            detail,
        ));
    }
    errors
}

/// Checks that a count of collisions only grows.
pub fn collisions(object: &Value, old: &Value, errors: &mut Complaints) {
    let of = |object: &Value| object.int_at(&["status", "collisionCount"]);
    let (new, old) = (of(object), of(old));
    if old.is_some_and(|old| new.is_none_or(|new| new < old)) {
        let path = Path::new("status");
        let bad = new.unwrap_or(0);
        errors.push(FieldError::invalid(
            &path.child("collisionCount"),
            bad,
            "cannot be decremented",
        ));
    }
}

/// Checks that an update does not change the selector.
pub fn same_selector(object: &Value, old: &Value, errors: &mut Complaints) {
    let (spec, selector) = (Path::new("spec"), &object["spec"]["selector"]);
    if *selector != old["spec"]["selector"] {
        let bad = if selector.is_null() {
            Bad::Json(Value::Null)
        } else {
            bad_value::selector(selector)
        };
        errors.push(FieldError::invalid(
            &spec.child("selector"),
            bad,
            "field is immutable",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn the_name_of_a_new_object_should_be_a_label() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        assert_eq!(name_warning(&named("web"), None), None);
        let dotted = named("web.v2");
        let warning = name_warning(&dotted, None).expect("pods are named after it");
        assert!(warning.starts_with("metadata.name: "), "{warning}");
        assert_eq!(name_warning(&dotted, Some(&dotted)), None);
    }
}
