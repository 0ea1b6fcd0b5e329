//! What a request may take: time, bytes and a seat among those in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::options::OptionProblem;
use crate::request::budget::{Exhausted, Reservation};
use crate::request::inbound::{Inbound, InboundError};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use polyplane_apimachinery::status::ApiError;
use tokio::time::timeout;

/// The bounds a server holds requests and connections to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request body.
    pub body_bytes_max: usize,
    /// Bytes of request bodies that requests of one plane may hold in memory at a time.
    pub plane_body_bytes_max: usize,
    /// The same of all planes together.
    pub bodies_bytes_max: usize,
    /// Longest time a request may take that is not long-running.
    pub request_time_max: Duration,
    /// Reading requests in flight at a time, watches not counted.
    pub reads_in_flight_max: usize,
    /// Changing requests in flight at a time.
    pub writes_in_flight_max: usize,
    /// Connections at a time that have proven somebody.
    pub connections_max: usize,
    /// Connections at a time that have proven nobody, health checks among them. Above it the oldest
    /// is cut off for the newest.
    pub unproven_connections_max: usize,
    /// Longest time a connection may take to prove somebody.
    pub unproven_time_max: Duration,
    /// A connection ends when it has had no request under way for this long; it is looked at so
    /// often only, so at most twice this.
    pub idle_time_max: Duration,
    /// Streams that one HTTP/2 connection may have open.
    pub streams_per_connection_max: u32,
    /// Longest time a handshake may take.
    pub handshake_time_max: Duration,
    /// Longest time an HTTP/1 connection may take to send a request's head, idle time included.
    pub head_time_max: Duration,
    /// Longest time a finite answer may take to be fetched.
    pub answer_time_max: Duration,
    /// Longest time in which a client may fetch nothing of a finite answer.
    pub answer_stall_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 3 * 1024 * 1024,
            plane_body_bytes_max: 64 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            request_time_max: Duration::from_secs(60),
            reads_in_flight_max: 4000,
            writes_in_flight_max: 2000,
            connections_max: 50_000,
            unproven_connections_max: 5000,
            unproven_time_max: Duration::from_secs(30),
            idle_time_max: Duration::from_secs(90),
            streams_per_connection_max: 2000,
            handshake_time_max: Duration::from_secs(10),
            head_time_max: Duration::from_secs(90),
            answer_time_max: Duration::from_secs(60),
            answer_stall_max: Duration::from_secs(10),
        }
    }
}

/// Above it a time is no bound any more.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Limits {
    /// Everything that is wrong with them.
    pub(crate) fn problems(&self) -> Vec<OptionProblem> {
        let numbers = [
            ("body_bytes_max", self.body_bytes_max),
            ("plane_body_bytes_max", self.plane_body_bytes_max),
            ("bodies_bytes_max", self.bodies_bytes_max),
            ("reads_in_flight_max", self.reads_in_flight_max),
            ("writes_in_flight_max", self.writes_in_flight_max),
            ("connections_max", self.connections_max),
            ("unproven_connections_max", self.unproven_connections_max),
            (
                "streams_per_connection_max",
                self.streams_per_connection_max as usize,
            ),
        ];
        let times = [
            ("request_time_max", self.request_time_max),
            ("handshake_time_max", self.handshake_time_max),
            ("unproven_time_max", self.unproven_time_max),
            ("head_time_max", self.head_time_max),
            ("idle_time_max", self.idle_time_max),
            ("answer_time_max", self.answer_time_max),
            ("answer_stall_max", self.answer_stall_max),
        ];
        // A bound above the next larger one would never count.
        let bytes = [
            (
                "body_bytes_max",
                self.body_bytes_max,
                "plane_body_bytes_max",
                self.plane_body_bytes_max,
            ),
            (
                "plane_body_bytes_max",
                self.plane_body_bytes_max,
                "bodies_bytes_max",
                self.bodies_bytes_max,
            ),
        ];
        let spans = [
            (
                "handshake_time_max",
                self.handshake_time_max,
                "unproven_time_max",
                self.unproven_time_max,
            ),
            (
                "answer_stall_max",
                self.answer_stall_max,
                "answer_time_max",
                self.answer_time_max,
            ),
        ];
        let bytes = bytes.iter().filter(|(_, less, _, more)| less > more);
        let spans = spans.iter().filter(|(_, less, _, more)| less > more);
        let above = (bytes.map(|(less, _, more, _)| (less, more)))
            .chain(spans.map(|(less, _, more, _)| (less, more)));
        let zero = |name, is_zero: bool| is_zero.then_some(OptionProblem::Zero(name));
        let zeros = numbers
            .iter()
            .filter_map(|(name, value)| zero(*name, *value == 0));
        let no_times = times
            .iter()
            .filter_map(|(name, time)| zero(*name, time.is_zero()));
        let too_long = times.iter().filter(|(_, time)| *time > TIME_MAX);
        zeros
            .chain(no_times)
            .chain(too_long.map(|(name, _)| OptionProblem::TooLong(name)))
            .chain(above.map(|(less, more)| OptionProblem::Above(less, more)))
            .collect()
    }
}

/// Why a body was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// It is longer than allowed.
    #[error("the body is longer than allowed")]
    TooLong,
    /// Other bodies take all the room there is.
    #[error("there is no room for the body")]
    NoRoom(Exhausted),
    /// The connection failed while it was read.
    #[error("the body could not be read")]
    Broken(#[source] InboundError),
}

/// Reads a whole body, and reserves room for it as it comes. One frame, the common case, is not
/// copied.
pub(crate) async fn read_body(
    body: &mut Inbound,
    bytes_max: usize,
    reservation: &mut Reservation,
) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLong);
    }
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(BodyError::Broken)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len() + joined.len() + data.len() > bytes_max {
            return Err(BodyError::TooLong);
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

/// What is read of a body that nobody wants, at most.
const DISCARDED_BYTES_MAX: usize = 256 << 10;
/// How long an answer waits for the rest of such a body.
const DISCARD_PATIENCE: Duration = Duration::from_millis(500);

/// Reads on to the end of a body that is not wanted any more, within bounds. Some clients (curl
/// among them) take an answer that overtakes their body for a broken stream and never show it, and
/// a connection of HTTP/1.1 can only be used on if its body was read.
pub(crate) async fn discard_rest(body: &mut Inbound) {
    if body.is_end_stream() {
        return;
    }
    let reading = async {
        let mut left = DISCARDED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // A client that is slower is answered all the same.
    let _ = timeout(DISCARD_PATIENCE, reading).await;
}

/// Counts what is in flight against a bound.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: AtomicUsize,
    seats_max: usize,
    /// Requests that have left their seat while others are asked. As many may wait as may sit.
    waiting: AtomicUsize,
}

/// A seat; given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
}

impl Seats {
    pub(crate) fn new(seats_max: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            seats_max,
            waiting: AtomicUsize::new(0),
        })
    }

    /// A seat, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Seat {
            seats: Arc::clone(self),
        })
    }

    /// A seat, free or not.
    pub(crate) fn take_anyway(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Seat {
            seats: Arc::clone(self),
        }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl polyplane_registry::Seats for Seats {
    fn leave(&self) -> Result<(), ApiError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many());
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn return_to(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The refusal of a request for which there is no room.
pub(crate) fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_for_others_leaves_its_seat_to_one_more() {
        use polyplane_registry::Seats as _;

        let seats = Seats::new(1);
        let waiter = seats.take().expect("it is free");
        assert!(seats.take().is_none());
        seats.leave().expect("nobody waits yet");
        let asked = seats.take().expect("the waiter has left it");
        assert!(seats.leave().is_err(), "as many may wait as may sit");
        drop(asked);
        seats.return_to();
        assert_eq!(seats.taken(), 1);
        drop(waiter);
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn seats_are_given_back() {
        let seats = Seats::new(1);
        let first = seats.take();
        assert!(first.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
        assert_eq!(seats.taken(), 0);
    }
}
