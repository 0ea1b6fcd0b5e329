//! The HTTP server: from a socket to a request that the registry understands, and back.
//!
//! Owns TLS, routing, the stages a request passes, negotiation of what is made here, discovery,
//! OpenAPI, health, metrics and how all of it stops. `pipeline` is the place to start reading; it
//! follows one request from top to bottom. What stands behind the server is the [`Backend`].
//!
//! Invariant: nothing here knows a kind, a key or a store; kinds come as a table, planes as trait
//! objects.
//!
//! A watch may be asked for over a WebSocket (`websocket`): it ends at the replica the client is
//! connected to, in the task of its connection, and behind it is a watch like any other.

mod audit_id;
mod authorize;
pub mod backend;
mod body;
mod budget;
mod chains;
mod connection;
mod discovery;
mod documents;
mod door;
mod drain;
mod exposition;
mod forward;
mod gather;
mod guard;
mod health;
mod impersonate;
mod inbound;
pub mod kubeconfig;
mod limits;
mod local;
mod metrics;
mod negotiate;
mod observe;
mod openapi;
pub mod options;
mod paths;
mod peer;
mod pipeline;
pub mod pki;
mod prove;
mod relay;
mod request_info;
mod resolve;
mod respond;
mod route;
mod server;
mod session;
mod shared;
pub mod tls;
mod verdicts;
mod version;
mod warnings;
mod watch_query;
mod websocket;

pub use backend::{
    Backend, BoxFuture, CheckScope, HealthCheck, LocateError, Peer, Place, PlaneApi, PlaneRecord,
};
pub use exposition::{Exposition, Kind};
pub use limits::Limits;
pub use local::DrainRequested;
pub use options::{CompletedOptions, Config, Options, StopPolicy};
pub use peer::transport::PeerTransport;
pub use peer::{PeerLimits, Peering};
pub use pki::peer::PeerTls;
pub use pki::role::Unmarked;
pub use pki::{Identity, Pki, PkiError};
pub use route::PlaneReference;
pub use server::{PeerService, Server, StopHandle, Stopped};
pub use version::{VERSION, Version};
