//! Annotations that older clients use instead of fields.

use super::{Leniency, PodOptions, containers_of, each_container, projected, tolerations};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, json};

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// The prefix of the annotations that name a container's seccomp profile.
pub const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The prefix of the annotations that name a container's AppArmor profile.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The warning about such an annotation.
pub const APP_ARMOR_IS_DEPRECATED: &str =
    r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;

fn pairs(annotations: &Value) -> impl Iterator<Item = (&str, &str)> {
    let members = annotations
        .as_object()
        .into_iter()
        .flat_map(|members| members.iter());
    members.map(|(key, value)| (key, value.as_str().unwrap_or("")))
}

/// Returns true if there are annotations with this prefix. Few pods have those of containers, whose
/// names need not be made without them.
pub fn has_prefixed(annotations: &Value, prefix: &str) -> bool {
    pairs(annotations).any(|(key, _)| key.starts_with(prefix))
}

/// Returns true for a pod that a node has made from a file.
pub fn is_mirror(pod: &Value) -> bool {
    pod.at(&["metadata", "annotations", MIRROR]).is_some()
}

/// Returns true if the cost of deleting the pod is a number or absent.
pub fn deletion_cost_is_valid(annotations: &Value) -> bool {
    let Some(cost) = annotations.get(DELETION_COST).and_then(Value::as_str) else {
        return true;
    };
    let first = cost.bytes().next();
    let canonical =
        cost == "0" || first.is_some_and(|byte| byte == b'-' || (b'1'..=b'9').contains(&byte));
    canonical && cost.parse::<i32>().is_ok()
}

/// Validates the annotations of a pod or a template.
pub fn validate(
    annotations: &Value,
    spec: &Value,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    if let Some(mirror) = annotations.get(MIRROR).and_then(Value::as_str)
        && spec.str_at(&["nodeName"]).is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&path.key(MIRROR), mirror, detail));
    }
    let given = annotations.str_at(&[TOLERATIONS]);
    if !given.is_empty() {
        validate_tolerations(given, path, options, errors);
    }
    if !options.allows(Leniency::DeletionCost) && !deletion_cost_is_valid(annotations) {
        let cost = annotations.str_at(&[DELETION_COST]);
        errors.push(FieldError::invalid(
            &path.key(DELETION_COST),
            cost,
            "must be a 32bit integer",
        ));
    }
    if let Some(profile) = annotations.get(SECCOMP_POD).and_then(Value::as_str) {
        validate_seccomp(profile, &path.child(SECCOMP_POD), errors);
    }
    for (key, profile) in pairs(annotations).filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER)) {
        validate_seccomp(profile, &path.child(key), errors);
    }
    for (key, profile) in pairs(annotations) {
        let Some(container) = key.strip_prefix(APP_ARMOR) else {
            continue;
        };
        if !containers_of(spec).any(|one| one.str_at(&["name"]) == container) {
            errors.push(FieldError::invalid(
                &path.key(key),
                container,
                "container not found",
            ));
        }
        let known = ["", "runtime/default", "unconfined"].contains(&profile)
            || profile.starts_with("localhost/");
        if !known {
            let detail = format!(
                "invalid AppArmor profile name: {}",
                polyplane_apimachinery::quote::quote(profile)
            );
            errors.push(FieldError::invalid(&path.key(key), profile, detail));
        }
    }
}

fn validate_tolerations(
    text: &str,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    match json::parse(text.as_bytes(), &json::Limits::default()) {
        Ok(parsed) => {
            let list = parsed.value.as_array().unwrap_or(&[]);
            tolerations::validate(list, &path.child(TOLERATIONS), options, errors);
        }
        Err(error) => errors.push(FieldError::invalid(path, TOLERATIONS, error.to_string())),
    }
}

fn validate_seccomp(profile: &str, path: &Path<'_>, errors: &mut Complaints) {
    if ["runtime/default", "docker/default", "unconfined"].contains(&profile) {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) => projected::validate_descending_path(file, path, errors),
        None => errors.push(FieldError::invalid(
            path,
            profile,
            "must be a valid seccomp profile",
        )),
    }
}

/// Returns the AppArmor field that is equivalent to an annotation.
pub fn app_armor_profile(text: &str) -> Option<Value> {
    match text {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let file = text
                .strip_prefix("localhost/")
                .filter(|file| !file.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": file}))
        }
    }
}

/// Returns the name of the part of a profile's field that differs from its annotation.
fn mismatch(annotation: &str, profile: &Value, defaults: &[&str]) -> Option<&'static str> {
    let fits = match profile.str_at(&["type"]) {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => defaults.contains(&annotation),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(file) if profile.get("localhostProfile").and_then(Value::as_str) == Some(file) => {
                true
            }
            Some(_) => return Some("localhostProfile"),
            None => false,
        },
        _ => true,
    };
    (!fits).then_some("type")
}

fn complain_of_mismatch(what: &str, field: Option<&str>, path: &Path<'_>, errors: &mut Complaints) {
    if let Some(field) = field {
        let part = if field == "type" { "type" } else { "profile" };
        let detail = format!("{what} {part} in annotation and field must match");
        errors.push(FieldError::forbidden(&path.child(field), detail));
    }
}

/// Checks that annotations and fields of seccomp are equivalent.
pub fn seccomp_matches_fields(
    annotations: &Value,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let defaults = ["runtime/default", "docker/default"];
    let field = "seccompProfile";
    let check = |key: &str, context: &Value, path: &Path<'_>, errors: &mut Complaints| {
        let profile = &context[field];
        if let Some(text) = annotations
            .get(key)
            .and_then(Value::as_str)
            .filter(|_| !profile.is_null())
        {
            let context_path = path.child("securityContext");
            complain_of_mismatch(
                "seccomp",
                mismatch(text, profile, &defaults),
                &context_path.child(field),
                errors,
            );
        }
    };
    check(SECCOMP_POD, &spec["securityContext"], path, errors);
    if !has_prefixed(annotations, SECCOMP_CONTAINER) {
        return;
    }
    each_container(spec, path, |container, path| {
        let key = format!("{SECCOMP_CONTAINER}{}", container.str_at(&["name"]));
        check(&key, &container["securityContext"], path, errors);
    });
}

/// Checks that annotations and fields of AppArmor are equivalent.
pub fn app_armor_matches_fields(
    annotations: &Value,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    if spec.str_at(&["os", "name"]) == "windows" || !has_prefixed(annotations, APP_ARMOR) {
        return;
    }
    let field = "appArmorProfile";
    let of_pod = &spec["securityContext"][field];
    each_container(spec, path, |container, path| {
        let own = &container["securityContext"][field];
        let profile = if own.is_null() { of_pod } else { own };
        let key = format!("{APP_ARMOR}{}", container.str_at(&["name"]));
        if let Some(text) = annotations
            .get(&key)
            .and_then(Value::as_str)
            .filter(|_| !profile.is_null())
        {
            let context = path.child("securityContext");
            let wrong = mismatch(text, profile, &["runtime/default"]);
            complain_of_mismatch("apparmor", wrong, &context.child(field), errors);
        }
    });
}

/// Complains about changes of annotations that an update may not make.
pub fn validate_update(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for (key, value) in pairs(old) {
        if new.get(key).and_then(Value::as_str) == Some(value) {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            let detail = "may not remove or update AppArmor annotations";
            errors.push(FieldError::forbidden(&path.key(key), detail));
        }
        if key == MIRROR {
            let detail = "may not remove or update mirror pod annotation";
            errors.push(FieldError::forbidden(&path.key(key), detail));
        }
    }
    for (key, _) in pairs(new).filter(|(key, _)| old.get(key).is_none()) {
        if key.starts_with(APP_ARMOR) {
            errors.push(FieldError::forbidden(
                &path.key(key),
                "may not add AppArmor annotations",
            ));
        }
        if key == MIRROR {
            errors.push(FieldError::forbidden(
                &path.key(key),
                "may not add mirror pod annotation",
            ));
        }
    }
}
