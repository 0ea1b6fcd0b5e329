//! The server at which a connection ends, as the owner of a plane finds it in the plane's objects.
//!
//! A replica that is not the owner may open the connection, so a target travels between replicas as
//! JSON. A field that is added later must have a default.

use std::net::IpAddr;

use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::{ApiError, Reason};
use serde::{Deserialize, Serialize};

/// Addresses of a node that are considered. A node's status is tenant data, and a target must fit
/// into the head of an answer between replicas.
const ADDRESSES_MAX: usize = 16;
/// Longest address of a node, in bytes: that of a host name.
const ADDRESS_BYTES_MAX: usize = 253;
/// The port of a kubelet whose node names none.
const KUBELET_PORT: u16 = 10_250;

/// A server to connect to, and the request to send to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectTarget {
    /// The name of the pod, service or node, for refusals.
    pub name: String,
    /// The server.
    pub server: TargetServer,
    /// The way in which client and server are connected.
    pub mode: ConnectMode,
    /// The path at the server; `None` for what follows `proxy` in the path of the client's request.
    pub path: Option<String>,
    /// The query, escaped; `None` for that of the client's request.
    pub query: Option<String>,
}

/// The server of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetServer {
    /// The kubelet of a node.
    Kubelet {
        /// The node's addresses, in its order.
        addresses: Vec<NodeAddress>,
        /// The kubelet's port.
        port: u16,
        /// False if the client does not want the kubelet's certificate to be verified.
        is_verified: bool,
    },
    /// Another port of a node.
    NodePort {
        /// The node's addresses, in its order.
        addresses: Vec<NodeAddress>,
        /// The port.
        port: u16,
        /// True for HTTPS. Nobody knows the server's CA, so its certificate is not verified.
        is_tls: bool,
    },
    /// An address of a pod.
    Pod {
        /// The address.
        address: IpAddr,
        /// The port; `None` for that of the scheme.
        port: Option<u16>,
        /// True for HTTPS. Nobody knows the server's CA, so its certificate is not verified.
        is_tls: bool,
    },
}

/// An address of a node with its type, such as `InternalIP`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address: a host name or an IP address.
    pub address: String,
}

/// The way in which client and server are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectMode {
    /// The client gets the server's answer as a text.
    Log,
    /// The connection is upgraded, and its bytes are passed on in both directions.
    Stream,
    /// The request is passed on, and upgraded if the client wants that.
    Proxy,
}

/// The node of a connection.
pub(super) struct NodeServer {
    pub addresses: Vec<NodeAddress>,
    pub kubelet_port: u16,
}

impl NodeServer {
    /// Reads the addresses and the port of a node's kubelet.
    ///
    /// # Errors
    /// Returns 500 with upstream's text if the node has no address.
    pub fn of(node: &Value) -> Result<Self, ApiError> {
        let all = node.items_at(&["status", "addresses"]).iter();
        let all = all.map(|address| NodeAddress {
            kind: address.str_at(&["type"]).to_owned(),
            address: address.str_at(&["address"]).to_owned(),
        });
        let usable = all.filter(|one| (1..=ADDRESS_BYTES_MAX).contains(&one.address.len()));
        let addresses: Vec<NodeAddress> = usable.take(ADDRESSES_MAX).collect();
        if addresses.is_empty() {
            return Err(no_address(&[]));
        }
        let port = node.int_at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]);
        let port = port.and_then(|port| u16::try_from(port).ok());
        Ok(Self {
            addresses,
            kubelet_port: port.filter(|port| *port > 0).unwrap_or(KUBELET_PORT),
        })
    }
}

/// Returns the error for a node that has no address of a preferred type.
pub fn no_address(known: &[NodeAddress]) -> ApiError {
    let known: Vec<String> = known
        .iter()
        .map(|one| format!("{{{} {}}}", one.kind, one.address))
        .collect();
    let known = known.join(" ");
    let message = format!("no preferred addresses found; known addresses: [{known}]");
    ApiError::new(Reason::Unknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replicas of different releases send targets to each other.
    #[test]
    fn the_form_of_a_target_is_frozen() {
        let target = ConnectTarget {
            name: "n".to_owned(),
            server: TargetServer::Kubelet {
                addresses: vec![NodeAddress {
                    kind: "InternalIP".to_owned(),
                    address: "10.0.0.1".to_owned(),
                }],
                port: 10_250,
                is_verified: true,
            },
            mode: ConnectMode::Stream,
            path: Some("/exec/a/b/c".to_owned()),
            query: Some("command=ls".to_owned()),
        };
        let text = r#"{"name":"n","server":{"Kubelet":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],"port":10250,"is_verified":true}},"mode":"Stream","path":"/exec/a/b/c","query":"command=ls"}"#;
        assert_eq!(serde_json::to_string(&target).expect("encoded"), text);
        let back: ConnectTarget = serde_json::from_str(text).expect("decoded");
        assert_eq!(back, target);
        let pod = r#"{"name":"p","server":{"Pod":{"address":"fd00::1","port":null,"is_tls":false}},"mode":"Proxy","path":null,"query":null,"later":1}"#;
        let back: ConnectTarget = serde_json::from_str(pod).expect("decoded");
        assert_eq!((back.mode, back.path), (ConnectMode::Proxy, None));
    }
}
