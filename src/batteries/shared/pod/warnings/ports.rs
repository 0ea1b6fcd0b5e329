//! Warnings about ports of containers that conflict.

use super::each_container;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::quote::quote;
use std::collections::BTreeMap;

/// Ports up to which each is compared with all before it, which is faster for few.
const FEW: usize = 16;
/// Conflicts that are told. N ports can have N² conflicts, and clients get at most 4096 characters of
/// all warnings together, to which each conflict adds more than ten.
const CONFLICTS_MAX: usize = 1000;

/// Adds warnings about the ports of all containers.
pub fn warnings(spec: &Value, path: &Path<'_>, out: &mut Vec<String>) {
    let mut ports: Vec<(String, &Value)> = Vec::new();
    each_container(spec, path, |container, path| {
        let list = path.child("ports");
        for (at, port) in container.items_at(&["ports"]).iter().enumerate() {
            ports.push((list.index(at).to_string(), port));
        }
    });
    let mut told = 0;
    let mut seen = Seen::default();
    for (at, (place, port)) in ports.iter().enumerate() {
        if !host_ip(port).is_empty() && host_port(port) == 0 {
            out.push(format!(
                "{place}: hostIP set without hostPort: {}",
                go_form(port)
            ));
        }
        if told == CONFLICTS_MAX {
            continue;
        }
        let others = match ports.len() > FEW {
            true => seen.before(port),
            false => (0..at).collect(),
        };
        for (other_place, other) in others.into_iter().map(|other| &ports[other]) {
            if let Some(what) = conflict(port, other)
                && told < CONFLICTS_MAX
            {
                told += 1;
                out.push(format!(
                    "{place}: {what} port definition with {other_place}"
                ));
            }
        }
        if ports.len() > FEW {
            seen.add(port, at);
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

/// The places of ports by host port and address.
type ByHost<'p> = BTreeMap<(i64, &'p str), Vec<usize>>;

/// The places of ports by container port and protocol, and below these by host.
#[derive(Default)]
struct Seen<'p>(BTreeMap<(i64, &'p str), ByHost<'p>>);

impl<'p> Seen<'p> {
    fn add(&mut self, port: &'p Value, at: usize) {
        let alike = self.0.entry(key(port)).or_default();
        let places = alike.entry((host_port(port), host_ip(port))).or_default();
        places.push(at);
    }

    /// Returns the places of the ports with which a port is in conflict, in order.
    fn before(&self, port: &'p Value) -> Vec<usize> {
        let Some(alike) = self.0.get(&key(port)) else {
            return Vec::new();
        };
        let (host, ip) = (host_port(port), host_ip(port));
        let of_host = move |host: i64| {
            let all = alike.range((host, "")..(host.saturating_add(1), ""));
            all.flat_map(|(_, places)| places)
        };
        let mut places: Vec<usize> = match (host, ip) {
            (0, _) => alike.values().flatten().copied().collect(),
            (host, "") => of_host(0).chain(of_host(host)).copied().collect(),
            (host, ip) => {
                let same = [alike.get(&(host, ip)), alike.get(&(host, ""))];
                let same = same.into_iter().flatten().flatten();
                of_host(0).chain(same).copied().collect()
            }
        };
        places.sort_unstable();
        places
    }
}

/// Returns what is wrong with two ports, if they are in conflict.
fn conflict(port: &Value, other: &Value) -> Option<&'static str> {
    if key(port) != key(other) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn many_ports_have_the_conflicts_that_a_comparison_of_all_finds() {
        let mut ports = Vec::new();
        for at in 0..60u8 {
            let ip = ["", "", "1.1.1.1", "2.2.2.2"][usize::from(at % 4)];
            let (number, host) = (i64::from(at % 3), i64::from(at / 2 % 5));
            ports.push(json!({"containerPort": number, "hostPort": host, "hostIP": ip}));
        }
        let mut seen = Seen::default();
        for (at, port) in ports.iter().enumerate() {
            let wanted = (0..at).filter(|before| conflict(port, &ports[*before]).is_some());
            assert_eq!(seen.before(port), wanted.collect::<Vec<_>>());
            seen.add(port, at);
        }
    }

    #[test]
    fn no_more_conflicts_are_told_than_clients_can_read() {
        let ports = vec![json!({"containerPort": 1i64}); 200];
        let spec = json!({"containers": [{"ports": ports}]});
        let mut out = Vec::new();
        warnings(&spec, &Path::new("spec"), &mut out);
        assert_eq!(out.len(), CONFLICTS_MAX);
    }
}
