//! The subresources of pods, services and nodes that need a node. Upstream's errors are returned if
//! it could not connect either, and otherwise the error that no node can be reached.
//!
//! No plane has nodes that answer, so nothing here ever connects. But the errors of a request are
//! checked in upstream's order, because clients show these messages to people.

use std::net::IpAddr;

use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_plane::{Key, Snapshot};

use crate::request::call::Call;
use crate::request::parameters::CONTAINER;

/// The empty log of a pod that no node runs yet, the only answer that needs no node.
pub struct EmptyLog;

/// Handles the subresource `sub`.
///
/// # Errors
/// Returns 404 if the object does not exist, else the reason why there is nothing to connect to.
pub async fn connect(call: &Call<'_>, sub: &str) -> Result<EmptyLog, ApiError> {
    let cut = call.newest().await?;
    let name = call.name()?;
    match (call.row.name.as_str(), sub) {
        ("pods", "proxy") => Err(pod_proxy(call, &cut, name)),
        ("pods", _) => container(call, &cut, name, sub),
        ("services", _) => Err(service_proxy(call, &cut, name)),
        _ => Err(match Target::parse(name) {
            Some(target) => unreachable_node(call, &cut, target.name),
            None => ApiError::bad_request(format!("invalid node request {name:?}")),
        }),
    }
}

/// The target of a proxy request: `name`, `name:port` or `scheme:name:port`.
struct Target<'a> {
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
        is_sound.then_some(Self { name, port })
    }
}

fn found(call: &Call<'_>, cut: &Snapshot, name: &str) -> Result<Value, ApiError> {
    let object = cut.get(&call.key(name));
    let object = object.ok_or_else(|| call.not_found(name))?;
    call.stored_tree(&object)
}

/// Handles logs, and streams to and from a container.
fn container(call: &Call<'_>, cut: &Snapshot, name: &str, sub: &str) -> Result<EmptyLog, ApiError> {
    let pod = found(call, cut, name)?;
    if sub != "portforward" {
        check_container(&pod, name, CONTAINER.read(&call.request.query))?;
    }
    match (pod.str_at(&["spec", "nodeName"]), sub) {
        ("", "log") => Ok(EmptyLog),
        ("", _) => {
            let message = format!("pod {name} does not have a host assigned");
            Err(ApiError::bad_request(message))
        }
        (node, _) => Err(unreachable_node(call, cut, node)),
    }
}

fn check_container(pod: &Value, name: &str, asked: &str) -> Result<(), ApiError> {
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
            1 => return Ok(()),
            0 => format!("a container name must be specified for pod {name}"),
            _ => {
                let all: Vec<&str> = all().collect();
                let all = all.join(" ");
                format!("a container name must be specified for pod {name}, choose one of: [{all}]")
            }
        }
    } else if all().any(|container| container == asked) {
        return Ok(());
    } else {
        format!("container {asked} is not valid for pod {name}")
    };
    Err(ApiError::bad_request(message))
}

fn pod_proxy(call: &Call<'_>, cut: &Snapshot, text: &str) -> ApiError {
    let Some(target) = Target::parse(text) else {
        return ApiError::bad_request(format!("invalid pod request {text:?}"));
    };
    let pod = match found(call, cut, target.name) {
        Ok(pod) => pod,
        Err(error) => return error,
    };
    let first = pod.items_at(&["status", "podIPs"]).first();
    let address = first.map_or("", |first| first.str_at(&["ip"]));
    if address.parse().is_ok_and(is_global_unicast) {
        unreachable(target.name)
    } else {
        ApiError::bad_request("address not allowed")
    }
}

fn service_proxy(call: &Call<'_>, cut: &Snapshot, text: &str) -> ApiError {
    let Some(target) = Target::parse(text) else {
        return ApiError::bad_request(format!("invalid service request {text:?}"));
    };
    let name = target.name;
    // A port number must be one of the service's; a port name is searched for among its endpoints.
    if let Ok(number) = target.port.parse::<i64>() {
        let service = match found(call, cut, name) {
            Ok(service) => service,
            Err(error) => return error,
        };
        let mut ports = service.items_at(&["spec", "ports"]).iter();
        if !ports.any(|port| port.int_at(&["port"]) == Some(number)) {
            let message = format!("no service port {number} found for service {name:?}");
            return ApiError::service_unavailable(message);
        }
    }
    ApiError::service_unavailable(format!("no endpoints available for service {name:?}"))
}

/// Returns the error about a node that cannot be reached or does not exist.
fn unreachable_node(call: &Call<'_>, cut: &Snapshot, name: &str) -> ApiError {
    let Some(node) = cut.get(&Key::new("", "nodes", None, name)) else {
        // Upstream reports the missing object as one of the requested kind.
        return call.not_found(name);
    };
    match call.stored_tree(&node) {
        Ok(node) if node.items_at(&["status", "addresses"]).is_empty() => {
            let message = "no preferred addresses found; known addresses: []";
            ApiError::new(Reason::Unknown, message)
        }
        Ok(_) => unreachable(name),
        Err(error) => error,
    }
}

fn unreachable(name: &str) -> ApiError {
    let message = format!("no node of this control plane can be reached for {name:?}");
    ApiError::service_unavailable(message)
}

fn is_global_unicast(address: IpAddr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_special && !is_local
}
