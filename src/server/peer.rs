//! The connections between replicas: the listener for peers, the pool, forwarding, and the
//! protocol.
//!
//! All of them run over mutual TLS under the peer CA ([`polyplane_pki`]). They carry messages about
//! planes (`POST /peer/v1/message`, answered by a [`PeerHandler`]) and forwarded requests of
//! clients. A forwarded request passes the same pipeline as if its client had sent it directly, but
//! is never forwarded again.
//!
//! `peer/PROTOCOL.md` is the protocol in one place: frames, messages, limits, and what ends a
//! connection. It ([`channel`], [`channel::frame`]) has requests and answers as HTTP does, and many
//! streams on a connection, each with a window, trailers and cancellation of its own. HTTP/1.1 and
//! HTTP/2 were measured first. `examples/forwarding.rs` sends a bare GET of 1 KiB over TLS on
//! loopback, both ends in one process, 64 at a time, optimized, on a shared machine (two runs):
//!
//! | way | CPU of both ends per request |
//! |---|---|
//! | HTTP/1.1, a connection per request in flight | 18–22 µs |
//! | HTTP/2, 1 connection | 25–29 µs |
//! | HTTP/2, 4 connections | 28 µs |
//!
//! HTTP/1.1 needs a connection with its handshake for each client that cancels and for each of
//! thousands of watches. HTTP/2 costs more than the request itself: it encodes every header again
//! and sends every answer in two frames with a flush after each. With N replicas behind one
//! endpoint, N − 1 of N requests pay that cost. In this protocol a request is one frame, a client's
//! chain of certificates is sent once per connection, and frames are sent together ([`channel`]).
//! `bench forward` measures the whole hop.
//!
//! Invariant: headers that begin with `x-polyplane-` are read only from peer connections.

pub(crate) mod channel;
pub(crate) mod forward;
#[cfg(test)]
mod frozen;
#[cfg(test)]
mod fuzz;
mod handshakes;
pub(crate) mod headers;
pub(crate) mod listener;
#[cfg(test)]
mod measured;
pub(crate) mod pool;
pub(crate) mod proof;
#[cfg(test)]
mod tests;
pub(crate) mod transport;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::Duration;

use polyplane_ownership::PeerHandler;
use tokio::net::TcpListener;

use transport::PeerTransport;

/// The limits of connections between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Longest time to connect, handshake included.
    pub connect_time_max: Duration,
    /// Longest time until a message is answered. Each 16 MiB of payload add one second.
    pub answer_time_max: Duration,
    /// Longest payload of a message, in bytes.
    pub payload_bytes_max: usize,
    /// Connections that this replica opens to one peer.
    pub connections_per_peer_max: usize,
    /// Connections that all proven peers may have open to this replica.
    pub connections_max: usize,
    /// Longest time from the accepted socket to a proven peer. The connecting peer stops waiting
    /// after its own [`connect_time_max`](Self::connect_time_max).
    pub handshake_time_max: Duration,
    /// Handshakes in progress at a time. A further one aborts the oldest.
    pub handshakes_max: usize,
    /// Handshakes in progress from one source address. A further one aborts the oldest of that
    /// source.
    pub handshakes_per_source_max: usize,
    /// Streams that one peer connection may have open.
    pub streams_per_connection_max: u32,
    /// Requests of clients that this replica forwards at a time, watches not counted.
    pub forwards_in_flight_max: usize,
}

/// Bytes of a message for which the time to send and to answer it grows by one second. Without
/// this, a large hand-off over a slow network would time out.
const BYTES_PER_SECOND: usize = 16 * 1024 * 1024;

impl PeerLimits {
    /// Returns the longest time for which a message of this length is sent and waits for its answer.
    pub(crate) fn message_time_max(&self, bytes: usize) -> Duration {
        self.answer_time_max + Duration::from_secs((bytes / BYTES_PER_SECOND) as u64)
    }
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

/// The means by which a server reaches its peers and they reach it.
pub struct Peering {
    /// Sends to other replicas. The peer listeners use its certificates too.
    pub transport: Arc<PeerTransport>,
    /// Answers messages of other replicas.
    pub handler: Arc<dyn PeerHandler>,
    /// The listeners for peers.
    pub listeners: Vec<TcpListener>,
}
