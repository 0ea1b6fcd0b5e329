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

mod answer;
pub mod backend;
mod connection;
mod documents;
mod operations;
pub mod options;
mod peer;
mod pipeline;
mod request;
mod server;
mod server_state;
mod watch;

pub use backend::{
    Backend, BoxFuture, CheckScope, HealthCheck, LocateError, Location, Peer, PlaneApi, PlaneRecord,
};
pub use documents::version::{VERSION, Version};
pub use operations::exposition::{Exposition, Kind};
pub use operations::local::DrainRequested;
pub use options::{CompletedOptions, Config, Options, StopPolicy};
pub use peer::transport::PeerTransport;
pub use peer::{PeerLimits, Peering};
pub use request::limits::Limits;
pub use request::route::PlaneReference;
pub use server::{PeerService, Server, StopHandle, Stopped};
