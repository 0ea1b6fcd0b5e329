//! Connections to nodes and pods: logs, exec, attach, port-forward, and proxies.
//!
//! The owner of a plane authorizes the request, records it, and finds the server in the objects of the
//! plane ([`polyplane_registry::ConnectTarget`]). The replica to which the client is connected then opens the connection
//! and passes the bytes on. So no tunnel crosses the connection between two replicas, and a tunnel goes
//! on when its plane moves or its owner dies. A replica says in the head of a request that it forwards
//! that it connects by itself, and gets the target as the answer. To a replica of an earlier release,
//! which does not say so, the owner answers itself: logs and proxies work, upgrades do not.
//!
//! | file | |
//! |---|---|
//! | `stage.rs` | the stage of the pipeline, at the owner and at the replica with the client |
//! | `exchange.rs` | the request for the server and the reply from its answer |
//! | `dial.rs` | from a name or an address to a socket |
//! | `trust.rs` | TLS: who the server must be, and who this server is for it |
//! | `upgrade.rs`, `tunnel.rs` | an upgraded connection, passed on byte by byte |
//! | `seats.rs` | how many connections a plane has |
//!
//! Targets are tenant data: who may write the status of a node or of a pod names any address. So a host
//! is resolved once, each of its addresses must be reachable in public or be in a network that the
//! operator lists ([`Reach`]), and the address that was checked is the one that is connected. An
//! operator who gives all planes one client certificate trusts all of them with all kubelets that accept
//! it; with [`KubeletIdentity::OfPlane`] a kubelet must have a certificate of the plane's own CA, and
//! gets one of it, so that no plane can name the kubelet of another.
//!
//! A tunnel passes bytes and knows no protocol in it. Upstream speaks SPDY to kubelets that do not
//! declare `ExtendWebSocketsToKubelet` for clients that speak WebSocket. Here such a kubelet refuses the
//! WebSocket, and kubectl then uses SPDY by itself.
//!
//! A tunnel ends when one side closes, when its caller may not use the plane any more, when the server
//! drains, after [`IDLE_MAX`] without a byte, and after [`TOTAL_MAX`].

mod dial;
mod exchange;
mod seats;
mod stage;
mod trust;
mod tunnel;
pub(crate) mod upgrade;

use std::time::Duration;

use polyplane_outbound::Reach;
use polyplane_registry::NodeAddress;

pub(crate) use seats::Nodes;

pub use trust::{KubeletIdentity, KubeletTls, KubeletTlsError};

/// Longest time without a byte in either direction. Kubelets have the same limit; without it, clients
/// that vanished would keep their connections.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4 * 60 * 60);
/// Longest time of a connection. Without it, a connection that always sends would never be checked
/// against new limits and certificates.
pub(crate) const TOTAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How this server reaches the nodes and pods of its planes.
#[derive(Clone, Debug)]
pub struct NodeAccess {
    /// The certificates for kubelets.
    pub identity: KubeletIdentity,
    /// The types of a node's addresses, the preferred one first.
    pub address_types: Vec<String>,
    /// The addresses that may be connected to.
    pub reach: Reach,
    /// Connections of all planes at a time.
    pub connections_max: usize,
    /// Connections of one plane at a time.
    pub plane_connections_max: usize,
}

impl NodeAccess {
    /// Returns the preferred one of a node's addresses.
    fn preferred<'a>(&self, addresses: &'a [NodeAddress]) -> Option<&'a str> {
        self.address_types.iter().find_map(|kind| {
            let found = addresses.iter().find(|one| one.kind == *kind);
            found.map(|one| one.address.as_str())
        })
    }
}
