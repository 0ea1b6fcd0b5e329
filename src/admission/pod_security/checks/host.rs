//! What pods may share with their node.

use super::super::evaluate::{Pod, Violation};
use super::{
    Values, named_containers, plural, quoted, security, setters, violation, wrong_containers,
};
use polyplane_apimachinery::Value;
use std::collections::BTreeSet;

pub(crate) fn namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.spec.bool_at(&[field]))
        .map(|field| format!("{field}=true"))
        .collect();
    if shared.is_empty() {
        return None;
    }
    violation("host namespaces", shared.join(", "))
}

pub(crate) fn ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut forbidden = BTreeSet::new();
    let wrong = wrong_containers(pod, |container| {
        let ports = container.items_at(&["ports"]).iter();
        let ports = ports.filter_map(|port| port.int_at(&["hostPort"]));
        let ports: Vec<String> = ports
            .filter(|port| *port != 0)
            .map(|port| port.to_string())
            .collect();
        let uses_one = !ports.is_empty();
        forbidden.extend(ports);
        uses_one
    });
    if wrong.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {}",
        named_containers(&wrong),
        plural(wrong.len(), "uses", "use"),
        plural(forbidden.len(), "hostPort", "hostPorts"),
        Vec::from_iter(forbidden).join(", ")
    );
    violation("hostPort", detail)
}

pub(crate) fn probes_and_lifecycle(pod: &Pod<'_>) -> Option<Violation> {
    let mut hosts = Values::new();
    let mut wrong = wrong_containers(pod, |container| {
        let found: Vec<&str> = handlers(container).flat_map(hosts_of).collect();
        hosts.extend(&found);
        !found.is_empty()
    });
    if wrong.is_empty() {
        return None;
    }
    wrong.sort_unstable();
    wrong.dedup();
    let detail = format!(
        "{} {} {} {}",
        named_containers(&wrong),
        plural(wrong.len(), "uses", "use"),
        plural(
            hosts.len(),
            "probe or lifecycle host",
            "probe or lifecycle hosts"
        ),
        quoted(&hosts)
    );
    violation("probe or lifecycle host", detail)
}

fn handlers(container: &Value) -> impl Iterator<Item = &Value> {
    let paths: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    paths.into_iter().filter_map(|path| container.at(path))
}

fn hosts_of(handler: &Value) -> impl Iterator<Item = &str> {
    let hosts = ["httpGet", "tcpSocket"].map(|how| handler.str_at(&[how, "host"]));
    hosts.into_iter().filter(|host| !host.is_empty())
}

/// The kernel parameters that affect only the pod, in the order in which releases came to allow
/// them: each version allows the first so many.
const SYSCTLS: [&str; 14] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
];

pub(crate) fn sysctls_0(pod: &Pod<'_>) -> Option<Violation> {
    sysctls(pod, &SYSCTLS[..5])
}

pub(crate) fn sysctls_27(pod: &Pod<'_>) -> Option<Violation> {
    sysctls(pod, &SYSCTLS[..6])
}

pub(crate) fn sysctls_29(pod: &Pod<'_>) -> Option<Violation> {
    sysctls(pod, &SYSCTLS[..10])
}

pub(crate) fn sysctls_32(pod: &Pod<'_>) -> Option<Violation> {
    sysctls(pod, &SYSCTLS[..12])
}

pub(crate) fn sysctls_37(pod: &Pod<'_>) -> Option<Violation> {
    sysctls(pod, &SYSCTLS)
}

fn sysctls(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let set = pod.spec.items_at(&["securityContext", "sysctls"]).iter();
    let names = set.map(|sysctl| sysctl.str_at(&["name"]));
    let forbidden: Vec<&str> = names.filter(|name| !allowed.contains(name)).collect();
    if forbidden.is_empty() {
        return None;
    }
    violation("forbidden sysctls", forbidden.join(", "))
}

fn is_host_process(owner: &Value) -> bool {
    let path = ["windowsOptions", "hostProcess"];
    security(owner, &path).and_then(Value::as_bool) == Some(true)
}

pub(crate) fn windows_process(pod: &Pod<'_>) -> Option<Violation> {
    let of_pod = is_host_process(pod.spec);
    let containers = wrong_containers(pod, is_host_process);
    if !of_pod && containers.is_empty() {
        return None;
    }
    let setters = setters(of_pod, &containers);
    violation(
        "hostProcess",
        format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    )
}
