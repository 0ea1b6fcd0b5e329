//! The subresources of pods, services and nodes that connect to another server: a node's kubelet, or a
//! pod. This module finds the server in the objects of the plane. It does not connect: that does the
//! replica to which the client is connected.
//!
//! The errors of a request are checked in upstream's order, because clients show these messages to
//! people.

mod kubelet_query;
mod target;

use std::net::IpAddr;

use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Key, Prefix, Snapshot, Start};

use crate::request::call::Call;
use crate::request::parameters::CONTAINER;
use crate::service_ranges::IpFamily;
use kubelet_query::LogOptions;
use target::NodeServer;

pub use target::{ConnectMode, ConnectTarget, NodeAddress, TargetServer, no_address};

/// The label of an EndpointSlice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// What a subresource connects to.
pub enum Connection {
    /// The empty log of a pod that no node runs yet.
    EmptyLog,
    /// A server.
    To(Box<ConnectTarget>),
}

/// Handles the subresource `sub`.
///
/// # Errors
/// Returns 404 if the object does not exist, else the reason why there is nothing to connect to.
pub async fn connect(call: &Call<'_>, sub: &str) -> Result<Connection, ApiError> {
    let cut = call.newest().await?;
    let name = call.name()?;
    let target = match (call.row.name.as_str(), sub) {
        ("pods", "proxy") => pod_proxy(call, &cut, name)?,
        ("pods", _) => return container(call, &cut, name, sub),
        ("services", _) => service_proxy(call, &cut, name)?,
        _ => node_proxy(call, &cut, name)?,
    };
    Ok(Connection::To(Box::new(target)))
}

/// The target of a proxy request: `name`, `name:port` or `scheme:name:port`.
struct Target<'a> {
    is_tls: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Target<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let is_sound = !name.is_empty() && matches!(scheme, "" | "http" | "https");
        let is_tls = scheme == "https";
        is_sound.then_some(Self { is_tls, name, port })
    }
}

impl Target<'_> {
    /// Returns the target for a server that gets the client's own request.
    fn to(&self, server: TargetServer) -> ConnectTarget {
        ConnectTarget {
            name: self.name.to_owned(),
            server,
            mode: ConnectMode::Proxy,
            path: None,
            query: None,
        }
    }

    /// Returns the number of the port that the request names; `None` if it names none.
    fn number(&self) -> Result<Option<u16>, ApiError> {
        if self.port.is_empty() {
            return Ok(None);
        }
        let number = self.port.parse().ok().filter(|port| *port > 0);
        let message = || format!("the port {:?} is not a number", self.port);
        number
            .map(Some)
            .ok_or_else(|| ApiError::bad_request(message()))
    }
}

fn found(call: &Call<'_>, cut: &Snapshot, name: &str) -> Result<Value, ApiError> {
    let object = cut.get(&call.key(name));
    let object = object.ok_or_else(|| call.not_found(name))?;
    call.stored_tree(&object)
}

/// Handles logs, and streams to and from a pod.
fn container(
    call: &Call<'_>,
    cut: &Snapshot,
    name: &str,
    sub: &str,
) -> Result<Connection, ApiError> {
    let query = &call.request.query;
    let log = match sub {
        "log" => Some(LogOptions::read(query, name, &call.row.features)?),
        _ => None,
    };
    // Before the pod is looked for, as with the options of a log.
    let ports = match sub {
        "portforward" => Some(kubelet_query::of_ports(query)?),
        _ => None,
    };
    let pod = found(call, cut, name)?;
    let container = match sub {
        "portforward" => "",
        _ => check_container(&pod, name, CONTAINER.read(query))?,
    };
    let node = pod.str_at(&["spec", "nodeName"]);
    match (node, &log) {
        ("", Some(_)) => return Ok(Connection::EmptyLog),
        ("", None) => {
            let message = format!("pod {name} does not have a host assigned");
            return Err(ApiError::bad_request(message));
        }
        _ => {}
    }
    let server = node_server(call, cut, node)?;
    let mode = match log {
        Some(_) => ConnectMode::Log,
        None => ConnectMode::Stream,
    };
    let is_verified = log.as_ref().is_none_or(|log| log.is_verified);
    let namespace = call.namespace();
    let (path, query) = match (log, ports) {
        (Some(log), _) => (
            format!("/containerLogs/{namespace}/{name}/{container}"),
            log.query,
        ),
        (None, Some(ports)) => (format!("/portForward/{namespace}/{name}"), ports),
        (None, None) => {
            let path = format!("/{sub}/{namespace}/{name}/{container}");
            (path, kubelet_query::of_container(query, sub == "exec"))
        }
    };
    Ok(Connection::To(Box::new(ConnectTarget {
        name: node.to_owned(),
        server: TargetServer::Kubelet {
            addresses: server.addresses,
            port: server.kubelet_port,
            is_verified,
        },
        mode,
        path: Some(path),
        query: Some(query),
    })))
}

/// Returns the container that a request means: the one that it names, or the only one of the pod.
fn check_container<'v>(pod: &'v Value, name: &str, asked: &'v str) -> Result<&'v str, ApiError> {
    let names = |field: &str| {
        let containers = pod.items_at(&["spec", field]);
        containers
            .iter()
            .map(|container| container.str_at(&["name"]))
    };
    let all = || {
        names("initContainers")
            .chain(names("containers"))
            .chain(names("ephemeralContainers"))
    };
    let message = if asked.is_empty() {
        match names("containers").count() {
            1 => return Ok(names("containers").next().unwrap_or_default()),
            0 => format!("a container name must be specified for pod {name}"),
            _ => {
                let all: Vec<&str> = all().collect();
                let all = all.join(" ");
                format!("a container name must be specified for pod {name}, choose one of: [{all}]")
            }
        }
    } else if all().any(|container| container == asked) {
        return Ok(asked);
    } else {
        format!("container {asked} is not valid for pod {name}")
    };
    Err(ApiError::bad_request(message))
}

fn pod_proxy(call: &Call<'_>, cut: &Snapshot, text: &str) -> Result<ConnectTarget, ApiError> {
    let Some(target) = Target::parse(text) else {
        let message = format!("invalid pod request {text:?}");
        return Err(ApiError::bad_request(message));
    };
    let pod = found(call, cut, target.name)?;
    let first = pod.items_at(&["status", "podIPs"]).first();
    let address = first.map_or("", |first| first.str_at(&["ip"]));
    let address = address.parse().ok().filter(|ip| is_global_unicast(*ip));
    let address = address.ok_or_else(|| ApiError::bad_request("address not allowed"))?;
    let port = target.number()?.or_else(|| {
        let mut containers = pod.items_at(&["spec", "containers"]).iter();
        let first = containers.find_map(|container| container.items_at(&["ports"]).first());
        let port = first.and_then(|port| port.int_at(&["containerPort"]));
        port.and_then(|port| u16::try_from(port).ok())
    });
    let is_tls = target.is_tls;
    Ok(target.to(TargetServer::Pod {
        address,
        port,
        is_tls,
    }))
}

fn service_proxy(call: &Call<'_>, cut: &Snapshot, text: &str) -> Result<ConnectTarget, ApiError> {
    let Some(target) = Target::parse(text) else {
        let message = format!("invalid service request {text:?}");
        return Err(ApiError::bad_request(message));
    };
    let name = target.name;
    // A port number must be one of the service's; a port name is searched for among its endpoints.
    let mut wanted = target.port.to_owned();
    if let Ok(number) = target.port.parse::<i64>() {
        let service = found(call, cut, name)?;
        let mut ports = service.items_at(&["spec", "ports"]).iter();
        let port = ports.find(|port| port.int_at(&["port"]) == Some(number));
        let port = port.ok_or_else(|| {
            let message = format!("no service port {number} found for service {name:?}");
            ApiError::service_unavailable(message)
        })?;
        port.str_at(&["name"]).clone_into(&mut wanted);
    }
    let endpoint = endpoint(call, cut, name, &wanted)?;
    let (address, port) = endpoint.ok_or_else(|| {
        ApiError::service_unavailable(format!("no endpoints available for service {name:?}"))
    })?;
    let is_tls = target.is_tls;
    let port = Some(port);
    Ok(target.to(TargetServer::Pod {
        address,
        port,
        is_tls,
    }))
}

/// Returns a ready endpoint of a service's port, chosen at random among those of the primary family if
/// there are any. Only addresses of pods count, so that an EndpointSlice does not reach further than the
/// pods of its namespace.
fn endpoint(
    call: &Call<'_>,
    cut: &Snapshot,
    service: &str,
    port: &str,
) -> Result<Option<(IpAddr, u16)>, ApiError> {
    let slices = Prefix::namespaced("discovery.k8s.io", "endpointslices", call.namespace());
    let mut found = Vec::new();
    for slice in cut.range(&slices, Start::First) {
        let slice = call.stored_tree(&slice)?;
        if slice.str_at(&["metadata", "labels", SERVICE_NAME]) != service {
            continue;
        }
        let mut ports = slice.items_at(&["ports"]).iter();
        let number = ports.find(|one| one.str_at(&["name"]) == port);
        let number = number.and_then(|one| one.int_at(&["port"]));
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            continue;
        };
        for one in slice.items_at(&["endpoints"]) {
            let ready = one.at(&["conditions", "ready"]).and_then(Value::as_bool);
            if ready.unwrap_or(true)
                && let Some(address) = pod_address(call, cut, one)?
            {
                found.push((address, number));
            }
        }
    }
    let primary = call.tenant.settings.service_ranges.primary().family();
    prefer(&mut found, primary);
    let mut bytes = [0; 8];
    call.services.environment.random(&mut bytes);
    let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
    let at = u64::from_le_bytes(bytes).checked_rem(count).unwrap_or(0);
    Ok(usize::try_from(at)
        .ok()
        .and_then(|at| found.get(at).copied()))
}

/// Drops the endpoints of the other family, unless it is the only one.
fn prefer(endpoints: &mut Vec<(IpAddr, u16)>, family: IpFamily) {
    let is_preferred = |(address, _): &(IpAddr, u16)| IpFamily::of(*address) == family;
    if endpoints.iter().any(is_preferred) {
        endpoints.retain(is_preferred);
    }
}

/// Returns the address of an endpoint, if it is one of the pod that the endpoint names.
fn pod_address(
    call: &Call<'_>,
    cut: &Snapshot,
    endpoint: &Value,
) -> Result<Option<IpAddr>, ApiError> {
    let namespace = call.namespace();
    let first = endpoint.items_at(&["addresses"]).first();
    let address = first.and_then(Value::as_str).unwrap_or("");
    if endpoint.str_at(&["targetRef", "namespace"]) != namespace {
        return Ok(None);
    }
    let name = endpoint.str_at(&["targetRef", "name"]);
    let Some(pod) = cut.get(&Key::new("", "pods", Some(namespace), name)) else {
        return Ok(None);
    };
    let pod = call.stored_tree(&pod)?;
    let mut addresses = pod.items_at(&["status", "podIPs"]).iter();
    let is_its_own = addresses.any(|one| one.str_at(&["ip"]) == address);
    let address = address.parse().ok().filter(|_| is_its_own);
    Ok(address.filter(|ip| is_global_unicast(*ip)))
}

fn node_proxy(call: &Call<'_>, cut: &Snapshot, text: &str) -> Result<ConnectTarget, ApiError> {
    let Some(target) = Target::parse(text) else {
        let message = format!("invalid node request {text:?}");
        return Err(ApiError::bad_request(message));
    };
    let NodeServer {
        addresses,
        kubelet_port,
    } = node_server(call, cut, target.name)?;
    let port = target.number()?.unwrap_or(kubelet_port);
    let server = if port == kubelet_port {
        TargetServer::Kubelet {
            addresses,
            port,
            is_verified: true,
        }
    } else {
        let is_tls = target.is_tls;
        TargetServer::NodePort {
            addresses,
            port,
            is_tls,
        }
    };
    Ok(target.to(server))
}

fn node_server(call: &Call<'_>, cut: &Snapshot, name: &str) -> Result<NodeServer, ApiError> {
    let node = cut.get(&Key::new("", "nodes", None, name));
    // Upstream reports the missing object as one of the requested kind.
    let node = node.ok_or_else(|| call.not_found(name))?;
    NodeServer::of(&call.stored_tree(&node)?)
}

/// Returns whether upstream connects to an address. Whether this installation does is decided by the
/// replica that connects.
fn is_global_unicast(address: IpAddr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_special && !is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_the_primary_family_come_first() {
        let of = |text: &str| (text.parse().expect("an address"), 80);
        let (four, six) = (of("192.0.2.1"), of("2001:db8::1"));
        for (mut given, family, wanted) in [
            (vec![four, six], IpFamily::V4, four),
            (vec![four, six], IpFamily::V6, six),
            (vec![six], IpFamily::V4, six),
        ] {
            prefer(&mut given, family);
            assert_eq!(given, [wanted]);
        }
    }
}
