//! The profiles of the kernel's security modules: AppArmor, SELinux, seccomp.

use super::super::evaluate::{Pod, Violation};
use super::{
    Values, named_containers, plural, quoted, security, setters, violation, wrong_containers,
};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Returns the type of a profile that is neither the runtime's default nor one of the node's, if an
/// object sets such a one.
fn wrong_profile<'a>(owner: &'a Value, profile: &str) -> Option<&'a str> {
    let kind = security(owner, &[profile])?.str_at(&["type"]);
    (!matches!(kind, "RuntimeDefault" | "Localhost")).then_some(kind)
}

/// Returns whether the pod sets a wrong profile, the containers that do, and the types.
fn wrong_profiles<'a>(pod: &Pod<'a>, profile: &str) -> (bool, Vec<&'a str>, Values<'a>) {
    let of_pod = wrong_profile(pod.spec, profile);
    let mut types = Values::from_iter(of_pod);
    let containers = wrong_containers(pod, |container| {
        let found = wrong_profile(container, profile);
        types.extend(found);
        found.is_some()
    });
    (of_pod.is_some(), containers, types)
}

/// Returns the annotations of AppArmor that name a forbidden profile, with their values.
fn app_armor_annotations(pod: &Pod<'_>) -> Vec<String> {
    let annotations = pod.annotations.as_object().into_iter();
    let mut forbidden: Vec<String> = annotations
        .flat_map(|annotations| annotations.iter())
        .filter_map(|(name, value)| {
            let value = value.as_str().unwrap_or("");
            let is_allowed =
                value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
            let is_wrong = name.starts_with(APP_ARMOR_ANNOTATION) && !is_allowed;
            is_wrong.then(|| format!("{name}={}", quote(value)))
        })
        .collect();
    forbidden.sort();
    forbidden
}

pub(crate) fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let (of_pod, containers, types) = wrong_profiles(pod, "appArmorProfile");
    let annotations = app_armor_annotations(pod);
    let mut who = setters(of_pod, &containers);
    if !annotations.is_empty() {
        if !who.is_empty() {
            who.push_str(" and ");
        }
        who.push_str(plural(annotations.len(), "annotation", "annotations"));
    }
    if who.is_empty() {
        return None;
    }
    let reason = plural(
        types.len() + annotations.len(),
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
    );
    let of_annotations = annotations.iter().map(String::as_str);
    let values = quoted(types.into_iter().chain(of_annotations));
    violation(
        reason,
        format!("{who} must not set AppArmor profile type to {values}"),
    )
}

/// The types that a pod may set, the newest last.
const SE_LINUX_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

pub(crate) fn se_linux_0(pod: &Pod<'_>) -> Option<Violation> {
    se_linux(pod, &SE_LINUX_TYPES[..4])
}

pub(crate) fn se_linux_31(pod: &Pod<'_>) -> Option<Violation> {
    se_linux(pod, &SE_LINUX_TYPES)
}

fn se_linux(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut sets_user, mut sets_role) = (Values::new(), false, false);
    let mut is_wrong = |options: Option<&_>| {
        let Some((kind, has_user, has_role)) = options.copied() else {
            return false;
        };
        let wrong_kind = !allowed.contains(&kind);
        types.extend(wrong_kind.then_some(kind));
        sets_user |= has_user;
        sets_role |= has_role;
        wrong_kind || has_user || has_role
    };
    let of_pod = is_wrong(se_linux_options(pod.spec).as_ref());
    let containers = wrong_containers(pod, |container| {
        is_wrong(se_linux_options(container).as_ref())
    });
    if !of_pod && containers.is_empty() {
        return None;
    }
    let mut wrong = Vec::new();
    if !types.is_empty() {
        let word = plural(types.len(), "type", "types");
        wrong.push(format!("{word} {}", quoted(&types)));
    }
    if sets_user {
        wrong.push("user may not be set".to_owned());
    }
    if sets_role {
        wrong.push("role may not be set".to_owned());
    }
    let (setters, wrong) = (setters(of_pod, &containers), wrong.join("; "));
    violation(
        "seLinuxOptions",
        format!("{setters} set forbidden securityContext.seLinuxOptions: {wrong}"),
    )
}

/// Returns the type that an object sets, and whether it sets a user and a role.
fn se_linux_options(owner: &Value) -> Option<(&str, bool, bool)> {
    let options = security(owner, &["seLinuxOptions"])?;
    let has = |field| !options.str_at(&[field]).is_empty();
    Some((options.str_at(&["type"]), has("user"), has("role")))
}

const SECCOMP: &str = "seccompProfile";
const SECCOMP_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(crate) fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let of_containers = pod.containers().map(|container| {
        let name = container.str_at(&["name"]);
        format!("{SECCOMP_CONTAINER_ANNOTATION}{name}")
    });
    let names = std::iter::once(SECCOMP_ANNOTATION.to_owned()).chain(of_containers);
    let mut forbidden: Vec<String> = names
        .filter_map(|name| {
            let value = pod.annotations.get(&name)?.as_str().unwrap_or("");
            let is_allowed = matches!(value, "runtime/default" | "docker/default")
                || value.starts_with("localhost/");
            (!is_allowed).then(|| format!("{name}={}", quote(value)))
        })
        .collect();
    forbidden.sort();
    forbidden.dedup();
    if forbidden.is_empty() {
        return None;
    }
    let word = plural(forbidden.len(), "annotation", "annotations");
    violation(
        SECCOMP,
        format!("forbidden {word} {}", forbidden.join(", ")),
    )
}

pub(crate) fn seccomp_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let (of_pod, containers, types) = wrong_profiles(pod, SECCOMP);
    if !of_pod && containers.is_empty() {
        return None;
    }
    let (setters, types) = (setters(of_pod, &containers), quoted(&types));
    violation(
        SECCOMP,
        format!("{setters} must not set securityContext.seccompProfile.type to {types}"),
    )
}

pub(crate) fn seccomp_restricted(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(found) = seccomp_baseline(pod) {
        return Some(found);
    }
    let of_pod = security(pod.spec, &[SECCOMP]).is_some();
    let implicit = wrong_containers(pod, |container| security(container, &[SECCOMP]).is_none());
    if of_pod || implicit.is_empty() {
        return None;
    }
    let containers = named_containers(&implicit);
    violation(
        SECCOMP,
        format!(
            r#"pod or {containers} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#
        ),
    )
}

pub(crate) fn seccomp_restricted_unless_windows(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    seccomp_restricted(pod)
}
