//! Between replicas: the peer listener, the way to other replicas, and what travels in headers.
//!
//! Everything here runs over mutual TLS under the peer CA ([`polyplane_pki`]). Two things use
//! it: messages about planes (`POST /peer/v1/message`, answered by a [`PeerHandler`]) and requests
//! of clients that another replica received, which pass the same pipeline as if they had come
//! directly, except that they are never forwarded again.
//!
//! One protocol of our own ([`channel`], [`channel::frame`]): requests and answers as HTTP has them, many
//! streams on a connection, each with its own window, cancelled alone, with trailers. HTTP's own
//! protocols were measured first. `examples/forwarding.rs` sends a bare GET of 1 KiB over TLS on
//! loopback, both ends in one process, 64 at a time, optimized, on a shared machine (two runs):
//!
//! | way | CPU of both ends per request |
//! |---|---|
//! | HTTP/1.1, a connection per request in flight | 18–22 µs |
//! | HTTP/2, 1 connection | 25–29 µs |
//! | HTTP/2, 4 connections | 28 µs |
//!
//! HTTP/1.1 costs a connection with its handshake for each client that goes away and for each of
//! thousands of watches; HTTP/2 costs more than the request itself, for it says every header
//! anew in its own coding and every answer in two frames with a flush behind each. With N replicas
//! behind one endpoint, N − 1 of N requests pay for it. Frames say a request in one piece, a
//! client's chain of certificates once per connection, and leave together ([`channel`]).
//! `bench forward` measures the whole hop.
//!
//! Invariant: headers that begin with `x-polyplane-` mean something on a peer connection only.

pub(crate) mod channel;
pub(crate) mod forward;
#[cfg(test)]
mod frozen;
mod handshakes;
pub(crate) mod headers;
pub(crate) mod listener;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod transport;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use polyplane_ownership::PeerHandler;
use tokio::net::TcpListener;

use transport::PeerTransport;

/// The bounds of the channel between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Longest time until a connection stands, its handshake included.
    pub connect_time_max: Duration,
    /// Longest time a message may wait for its answer. Large payloads get a second for each
    /// 16 MiB on top.
    pub answer_time_max: Duration,
    /// Longest payload of a message.
    pub payload_bytes_max: usize,
    /// Connections to one peer.
    pub connections_per_peer_max: usize,
    /// Connections that proven peers may have open to this replica together.
    pub connections_max: usize,
    /// Longest time from the accepted socket to a proven peer. Whoever needs longer has given up
    /// by then: [`connect_time_max`](Self::connect_time_max) is its own bound.
    pub handshake_time_max: Duration,
    /// Handshakes under way at a time. One more ends the oldest.
    pub handshakes_max: usize,
    /// Of these, from one source address. One more ends the source's oldest.
    pub handshakes_per_source_max: usize,
    /// Streams that one peer connection may have open.
    pub streams_per_connection_max: u32,
    /// Requests of clients that this replica forwards at a time, watches not counted.
    pub forwards_in_flight_max: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            connect_time_max: Duration::from_secs(1),
            answer_time_max: Duration::from_secs(5),
            payload_bytes_max: 256 * 1024 * 1024,
            connections_per_peer_max: 32,
            connections_max: 4096,
            handshake_time_max: Duration::from_secs(1),
            handshakes_max: 512,
            handshakes_per_source_max: 64,
            streams_per_connection_max: 4096,
            forwards_in_flight_max: 8000,
        }
    }
}

/// What makes a server one of several: how it reaches peers, and how they reach it.
pub struct Peering {
    /// The way to other replicas. Its certificates also serve the peer listeners.
    pub transport: Arc<PeerTransport>,
    /// Who answers messages of other replicas.
    pub handler: Arc<dyn PeerHandler>,
    /// Where peers connect.
    pub listeners: Vec<TcpListener>,
}
