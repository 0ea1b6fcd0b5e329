//! The settings of connections of HTTP/2.

use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::TokioTimer;

use crate::connection::requests::BeginsRequests;
use crate::request::limits::Limits;

/// Bytes of a request body that a client may send on one stream before the server reads them. More
/// would cost memory per stream; less would make uploads wait for round trips.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of request bodies that a client may send on all streams of one connection before the
/// server reads them, once a request of it was proven. More would cost memory per connection.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Bytes of answers that one stream may buffer. Less would make the source of a large answer wait
/// for each round trip.
const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// Streams that a client may reset before the server has begun their requests, on one connection at a time.
/// One more ends the connection. With more, a client could have heads parsed without a limit on its streams; the
/// library's own limit.
const UNBEGUN_RESETS_MAX: usize = 20;
/// Streams of one connection that the server may reset because of a client's faults. One more ends the
/// connection. With more, a client could make the server send resets for as long as it likes; the library's
/// own limit.
const FAULTY_STREAMS_MAX: usize = 1024;
/// Longest head of a request over HTTP/2, in bytes as that protocol counts them. No share of the memory budget counts
/// heads, each stream may have one, and many short headers take several times as much memory as they count: with more,
/// a client could fill the memory. `strange_heads.rs` bounds those of clients without a credential.
const HEADER_LIST_BYTES: u32 = 256 * 1024;
/// A silent HTTP/2 client gets a ping after this time; without it, clients behind a broken network
/// would keep their connections.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long a client may take to answer a ping before its connection is closed. Less would
/// disconnect clients on slow networks.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns what makes a connection of HTTP/2 whose requests `begins` begins.
pub(crate) fn http2_settings(
    begins: BeginsRequests,
    limits: &Limits,
) -> http2::Builder<BeginsRequests> {
    let mut settings = http2::Builder::new(begins);
    settings
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection_max)
        .max_pending_accept_reset_streams(UNBEGUN_RESETS_MAX)
        .max_local_error_reset_streams(FAULTY_STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    settings
}
