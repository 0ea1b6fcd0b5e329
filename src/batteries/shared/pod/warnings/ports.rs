//! Warnings about ports of containers that conflict.

use super::each_container;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::quote::quote;
use std::collections::BTreeMap;

/// Adds warnings about the ports of all containers.
pub fn warnings(spec: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let mut ports: Vec<(String, &Value)> = Vec::new();
    each_container(spec, path, |container, path| {
        let list = path.child("ports");
        for (at, port) in container.items_at(&["ports"]).iter().enumerate() {
            ports.push((list.index(at).to_string(), port));
        }
    });
    for (at, (place, port)) in ports.iter().enumerate() {
        if !host_ip(port).is_empty() && host_port(port) == 0 {
            out.push(format!(
                "{place}: hostIP set without hostPort: {}",
                go_form(port)
            ));
        }
        for (other_place, other) in ports[..at]
            .iter()
            .filter(|(_, other)| key(other) == key(port))
        {
            if let Some(what) = conflict(port, other) {
                out.push(format!(
                    "{place}: {what} port definition with {other_place}"
                ));
            }
        }
    }
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (place, port) in &ports {
        let name = port.str_at(&["name"]);
        if name.is_empty() {
            continue;
        }
        match names.get(name) {
            Some(other) => out.push(format!(
                "{place}: duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                quote(name)
            )),
            None => drop(names.insert(name, place)),
        }
    }
}

fn key(port: &Value) -> (i64, &str) {
    (
        port.int_at(&["containerPort"]).unwrap_or(0),
        port.str_at(&["protocol"]),
    )
}

fn host_ip(port: &Value) -> &str {
    port.str_at(&["hostIP"])
}

fn host_port(port: &Value) -> i64 {
    port.int_at(&["hostPort"]).unwrap_or(0)
}

fn conflict(port: &Value, other: &Value) -> Option<&'static str> {
    let same_host = host_port(port) == host_port(other);
    if same_host && host_ip(port) == host_ip(other) {
        Some("duplicate")
    } else if host_port(port) == 0 || host_port(other) == 0 {
        Some("overlapping")
    } else if same_host && host_ip(port).is_empty() != host_ip(other).is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}

/// Returns a port as Go prints a structure.
fn go_form(port: &Value) -> String {
    let (number, protocol) = key(port);
    format!(
        "{{Name:{} HostPort:{} ContainerPort:{number} Protocol:{protocol} HostIP:{}}}",
        port.str_at(&["name"]),
        host_port(port),
        host_ip(port)
    )
}
