//! The body of a request: read once, within limits, and kept until no attempt can need it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::EXPECT;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use polyplane_apimachinery::status::ApiError;
use tokio::time::timeout;

use crate::answer::respond::{Refusal, RepliedTo, Reply};
use crate::connection::Connection;
use crate::pipeline::Pipeline;
use crate::request::budget::{Exhausted, Reservation};
use crate::request::charge::Charge;
use crate::request::inbound::{Inbound, InboundError};
use crate::request::prove::Located;
use crate::server_state::ServerState;

/// A request's body. Once read, it is kept, because the request may be sent to several replicas.
pub(crate) enum RequestBody {
    /// The body is not read yet.
    Coming(Inbound),
    /// The body was read. Its reservation is released when the request is answered.
    Read {
        bytes: Bytes,
        _room: Option<Reservation>,
    },
    /// The body is longer than the limit. What was read of it is gone, and the rest is never read.
    Cut,
}

/// Marks a reply to a client that may still be sending the body of its request, because the rest of it is never
/// read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyUnread;

impl RequestBody {
    /// Returns the body of a request that has none.
    pub(crate) fn empty() -> Self {
        Self::Read {
            bytes: Bytes::new(),
            _room: None,
        }
    }
}

/// Reads a body that no stage has read to its end, within limits. Marks the reply if there is more of it.
pub(crate) async fn discard_unread(
    state: &ServerState,
    connection: &Connection,
    parts: &Parts,
    body: &mut RequestBody,
    reply: &mut Reply,
    charge: &Charge<'_>,
) {
    let is_whole = match body {
        RequestBody::Read { .. } => true,
        RequestBody::Cut => false,
        RequestBody::Coming(rest) if rest.is_end_stream() => true,
        // The client waits with its body for `100 Continue`. The server has not sent that, because
        // no stage has read the body.
        RequestBody::Coming(_) if parts.headers.contains_key(EXPECT) => true,
        RequestBody::Coming(rest) => {
            let by = (connection, charge);
            let seat = match RepliedTo::of(reply) {
                RepliedTo::Stranger => Some(state.metrics.discards.take()),
                RepliedTo::Anybody => None,
            };
            // Without the limit, unproven clients could make the server read any number of bodies.
            !matches!(seat, Some(None))
                && discard(rest, DISCARDED_BYTES_MAX, DISCARD_PATIENCE, by).await
        }
    };
    if !is_whole {
        reply.extensions_mut().insert(BodyUnread);
    }
}

impl Pipeline<'_> {
    /// Returns the whole body. It is read once, even if the request is forwarded several times.
    pub(crate) async fn body(&mut self, located: &Located) -> Result<Bytes, Refusal> {
        let bytes_max = self.state.limits.body_bytes_max;
        let too_long = || ApiError::request_entity_too_large(format!("limit is {bytes_max}"));
        let coming = match self.body {
            RequestBody::Read { bytes, .. } => return Ok(bytes.clone()),
            RequestBody::Cut => return Err(too_long().into()),
            RequestBody::Coming(coming) => coming,
        };
        let mut reservation = self.state.metrics.bodies.reserve(located.record());
        match read_body(coming, bytes_max, &mut reservation, self.charge).await {
            Ok(bytes) => {
                *self.body = RequestBody::Read {
                    bytes: bytes.clone(),
                    _room: Some(reservation),
                };
                Ok(bytes)
            }
            Err(BodyError::NoRoom(whose)) => {
                let whose = match whose {
                    Exhausted::Process => "this server",
                    Exhausted::Plane => "this control plane",
                };
                let message = format!(
                    "Request bodies in flight take all the memory that {whose} has for them, \
                     please try again later."
                );
                Err(ApiError::too_many_requests(message, 1).into())
            }
            Err(BodyError::TooLong { read }) => {
                // Nothing is kept of the body from here on.
                drop(reservation);
                let read_max = bytes_max + OVERRUN_BYTES_MAX;
                let awaits_continue = read == 0 && self.parts.headers.contains_key(EXPECT);
                // The client of a body that is announced as longer would still be sending.
                if !awaits_continue && coming.size_hint().lower() <= read_max as u64 {
                    let rest = read_max.saturating_sub(read);
                    let by = (&*self.caller.connection, self.charge);
                    let is_whole = discard(coming, rest, OVERRUN_PATIENCE, by).await;
                    // Otherwise `discard_unread` would read and wait again.
                    *self.body = match is_whole {
                        true => RequestBody::empty(),
                        false => RequestBody::Cut,
                    };
                }
                Err(too_long().into())
            }
            Err(BodyError::Broken(source)) => {
                Err(ApiError::bad_request(format!("error reading the body: {source}")).into())
            }
        }
    }
}

/// The reason why a body was refused.
#[derive(Debug, thiserror::Error)]
enum BodyError {
    /// The body is longer than the limit.
    #[error("the body is longer than allowed")]
    TooLong {
        /// Bytes read of it; none if the head announces more than the limit.
        read: usize,
    },
    /// Other bodies use all the memory for bodies.
    #[error("other bodies use all the memory for bodies")]
    NoRoom(Exhausted),
    /// The connection failed before the end of the body.
    #[error("the body could not be read")]
    Broken(#[source] InboundError),
}

/// Reads a whole body, and reserves memory for it as it arrives. A single frame, the common case,
/// is not copied. What is read is charged, also of a body that is refused.
async fn read_body(
    body: &mut Inbound,
    bytes_max: usize,
    reservation: &mut Reservation,
    charge: &Charge<'_>,
) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLong { read: 0 });
    }
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(BodyError::Broken)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        charge.receive(data.len());
        let read = first.len() + joined.len() + data.len();
        if read > bytes_max {
            return Err(BodyError::TooLong { read });
        }
        reservation.grow(data.len()).map_err(BodyError::NoRoom)?;
        if joined.is_empty() && first.is_empty() {
            first = data;
            continue;
        }
        if joined.is_empty() {
            joined.extend_from_slice(&first);
            first = Bytes::new();
        }
        joined.extend_from_slice(&data);
    }
    Ok(if joined.is_empty() {
        first
    } else {
        joined.freeze()
    })
}

/// Bytes read beyond the limit of a body that is too long: the room that a client of HTTP/2 has on a
/// stream. With less, the client would still be sending when it is refused; more would let a client
/// keep the server busy.
const OVERRUN_BYTES_MAX: usize = 1 << 20;
/// How long the refusal of a body that is too long waits for it. With less, a client with a slow
/// line would lose the refusal; more would delay it to a client that sends nothing.
const OVERRUN_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes read of a body that no stage needs. More would let a client keep the server busy with it.
const DISCARDED_BYTES_MAX: usize = 256 << 10;
/// How long a reply waits for the rest of a body that no stage needs. More would delay the answer
/// to a slow client.
const DISCARD_PATIENCE: Duration = Duration::from_millis(500);

/// Reads a body to its end without keeping it, within limits, and charges what is read. Returns false if there is
/// more of it. Some clients (curl among them) report a broken stream and never show a reply that arrives before they
/// have sent their body, and a connection of HTTP/1.1 can only be used again if the body was read.
async fn discard(
    body: &mut Inbound,
    bytes_max: usize,
    patience: Duration,
    (connection, charge): (&Connection, &Charge<'_>),
) -> bool {
    if body.is_end_stream() {
        return true;
    }
    let reading = async {
        let mut left = bytes_max;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            charge.receive(length);
            connection.return_room(length);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return false,
            }
        }
        true
    };
    // On a time-out, answer a slow client all the same.
    timeout(patience, reading).await.unwrap_or(false)
}
