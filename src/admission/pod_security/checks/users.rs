//! As whom containers may run.

use super::super::evaluate::{Pod, Violation};
use super::{named_containers, security, setters, violation, wrong_containers};
use polyplane_apimachinery::Value;

fn is_non_root(owner: &Value) -> Option<bool> {
    security(owner, &["runAsNonRoot"])?.as_bool()
}

fn is_root(owner: &Value) -> bool {
    security(owner, &["runAsUser"]).and_then(Value::as_int) == Some(0)
}

pub(crate) fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = is_non_root(pod.spec);
    let explicit = wrong_containers(pod, |container| is_non_root(container) == Some(false));
    let implicit = wrong_containers(pod, |container| is_non_root(container).is_none());
    if of_pod == Some(false) || !explicit.is_empty() {
        let setters = setters(of_pod == Some(false), &explicit);
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return violation(REASON, detail);
    }
    if of_pod == Some(true) || implicit.is_empty() {
        return None;
    }
    let containers = named_containers(&implicit);
    violation(
        REASON,
        format!("pod or {containers} must set securityContext.runAsNonRoot=true"),
    )
}

pub(crate) fn non_root_unless_own_users(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    non_root(pod)
}

pub(crate) fn user(pod: &Pod<'_>) -> Option<Violation> {
    let (of_pod, containers) = (is_root(pod.spec), wrong_containers(pod, is_root));
    if !of_pod && containers.is_empty() {
        return None;
    }
    let setters = setters(of_pod, &containers);
    violation("runAsUser=0", format!("{setters} must not set runAsUser=0"))
}

pub(crate) fn user_unless_own_users(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    user(pod)
}
