//! What containers may do: capabilities, privileges, the view of `/proc`.

use super::super::evaluate::{Pod, Violation};
use super::{Values, named_containers, quoted, security, violation, wrong_containers};
use polyplane_apimachinery::Value;

/// The capabilities that a container may add.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Returns the capabilities in one of a container's lists.
fn capabilities<'a>(container: &'a Value, list: &str) -> impl Iterator<Item = &'a str> {
    let names = security(container, &["capabilities", list]).and_then(Value::as_array);
    let names = names.unwrap_or_default().iter();
    names.filter_map(Value::as_str)
}

/// Returns the containers that add capabilities which are not allowed, with these capabilities.
fn adding<'a>(pod: &Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, Values<'a>) {
    let mut forbidden = Values::new();
    let wrong = wrong_containers(pod, |container| {
        let added = capabilities(container, "add");
        let added: Vec<&str> = added.filter(|name| !allowed.contains(name)).collect();
        forbidden.extend(&added);
        !added.is_empty()
    });
    (wrong, forbidden)
}

fn must_not_add(containers: &[&str], forbidden: &Values<'_>) -> String {
    format!(
        "{} must not include {} in securityContext.capabilities.add",
        named_containers(containers),
        quoted(forbidden)
    )
}

pub(crate) fn capabilities_baseline(pod: &Pod<'_>) -> Option<Violation> {
    let (wrong, forbidden) = adding(pod, &CAPABILITIES);
    if wrong.is_empty() {
        return None;
    }
    violation("non-default capabilities", must_not_add(&wrong, &forbidden))
}

pub(crate) fn capabilities_restricted(pod: &Pod<'_>) -> Option<Violation> {
    let keeping = wrong_containers(pod, |container| {
        !capabilities(container, "drop").any(|name| name == "ALL")
    });
    let (wrong, forbidden) = adding(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        let containers = named_containers(&keeping);
        details.push(format!(
            r#"{containers} must set securityContext.capabilities.drop=["ALL"]"#
        ));
    }
    if !wrong.is_empty() {
        details.push(must_not_add(&wrong, &forbidden));
    }
    if details.is_empty() {
        return None;
    }
    violation("unrestricted capabilities", details.join("; "))
}

pub(crate) fn capabilities_restricted_unless_windows(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    capabilities_restricted(pod)
}

pub(crate) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let wrong = wrong_containers(pod, |container| {
        security(container, &["privileged"]).and_then(Value::as_bool) == Some(true)
    });
    if wrong.is_empty() {
        return None;
    }
    let containers = named_containers(&wrong);
    violation(
        "privileged",
        format!("{containers} must not set securityContext.privileged=true"),
    )
}

pub(crate) fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let wrong = wrong_containers(pod, |container| {
        let allowed = security(container, &["allowPrivilegeEscalation"]);
        allowed.and_then(Value::as_bool) != Some(false)
    });
    if wrong.is_empty() {
        return None;
    }
    let containers = named_containers(&wrong);
    violation(
        "allowPrivilegeEscalation != false",
        format!("{containers} must set securityContext.allowPrivilegeEscalation=false"),
    )
}

pub(crate) fn escalation_unless_windows(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    escalation(pod)
}

pub(crate) fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mut forbidden = Values::new();
    let wrong = wrong_containers(pod, |container| {
        let mount = security(container, &["procMount"]).and_then(Value::as_str);
        let mount = mount.filter(|mount| *mount != "Default");
        forbidden.extend(mount);
        mount.is_some()
    });
    if wrong.is_empty() {
        return None;
    }
    let (containers, forbidden) = (named_containers(&wrong), quoted(&forbidden));
    violation(
        "procMount",
        format!("{containers} must not set securityContext.procMount to {forbidden}"),
    )
}

pub(crate) fn proc_mount_unless_own_users(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    proc_mount(pod)
}
