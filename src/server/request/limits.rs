//! The limits of a server, as options set them.

use std::num::NonZeroU32;
use std::time::Duration;

use polyplane_fairness::LimitDefaults;

use crate::option_problems::OptionProblem;

/// The limits on requests and connections of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request body, in bytes.
    pub body_bytes_max: usize,
    /// Bytes of request bodies in memory at a time, for one plane.
    pub plane_body_bytes_max: usize,
    /// Bytes of request bodies of all planes that may be in memory at a time.
    pub bodies_bytes_max: usize,
    /// Longest time of a request that is not long-running.
    pub request_time_max: Duration,
    /// Reading requests in flight at a time, not counting watches.
    pub reads_in_flight_max: usize,
    /// Changing requests in flight at a time.
    pub writes_in_flight_max: usize,
    /// Seats of one plane, which its priority levels share: upstream's limit of requests in flight.
    /// `None` without priority and fairness.
    pub plane_seats: Option<NonZeroU32>,
    /// Connections at a time whose client is proven.
    pub connections_max: usize,
    /// Connections at a time whose client is not proven, health checks among them. A further one
    /// aborts the oldest.
    pub unproven_connections_max: usize,
    /// Longest time until the client of a connection is proven.
    pub unproven_time_max: Duration,
    /// A connection without a request in flight ends after this time, or at the latest after twice
    /// this time, because it is checked only once per interval.
    pub idle_time_max: Duration,
    /// Streams that one HTTP/2 connection may have open.
    pub streams_per_connection_max: u32,
    /// Longest time a handshake may take.
    pub handshake_time_max: Duration,
    /// Longest time that an HTTP/1 connection may take to send a request's head, idle time
    /// included.
    pub head_time_max: Duration,
    /// Longest time that a client may take to read a finite answer.
    pub answer_time_max: Duration,
    /// Longest time in which a client may read nothing of a finite answer.
    pub answer_stall_max: Duration,
    /// The limits of each plane whose record does not say others.
    pub plane: LimitDefaults,
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
            plane_seats: NonZeroU32::new(600),
            connections_max: 50_000,
            unproven_connections_max: 5000,
            unproven_time_max: Duration::from_secs(30),
            idle_time_max: Duration::from_secs(90),
            streams_per_connection_max: 2000,
            handshake_time_max: Duration::from_secs(10),
            head_time_max: Duration::from_secs(90),
            answer_time_max: Duration::from_secs(60),
            answer_stall_max: Duration::from_secs(10),
            plane: LimitDefaults::NONE,
        }
    }
}

/// Longest time to which a limit may be set. A longer one would limit nothing.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Limits {
    /// Returns all problems with these values.
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
        // A limit above another one that contains it would never be reached.
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
