//! The flags that limit what clients may use, and the limit of open files that the system sets.
//! This module does not know how the server enforces them.

use clap::Args;
use polyplane_fairness::PlaneLimits;
use polyplane_plane::{Memory, Share};
use polyplane_server::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZeroU32;
use std::time::Duration;

/// Open files that a process needs for its store, its peers and its log, beside its clients'
/// connections. With fewer, a full server could not open the store's files.
const OTHER_FILES: u64 = 1024;
/// The longest time that a flag may set, in seconds: a day. A longer one would limit nothing.
const SECONDS_MAX: u64 = 24 * 60 * 60;

/// Limits on what clients may use. The defaults suit a replica with a few GiB of memory.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitOptions {
    /// Longest request body in bytes. A longer one is refused with 413.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = default().body_bytes_max,
        env = "POLYPLANE_BODY_BYTES_MAX"
    )]
    pub body_bytes_max: usize,
    /// Memory for the bodies of requests in flight to one control plane. A request that needs more
    /// is refused with 429 and Retry-After.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = default().plane_body_bytes_max,
        env = "POLYPLANE_PLANE_BODY_BYTES_MAX"
    )]
    pub plane_body_bytes_max: usize,
    /// Memory for the bodies of requests in flight to all control planes; at most 15 % of
    /// --memory-budget is used.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = default().bodies_bytes_max,
        env = "POLYPLANE_BODIES_BYTES_MAX"
    )]
    pub bodies_bytes_max: usize,
    /// Longest time a request may take, unless its client sets a shorter one with ?timeout=. A
    /// watch must begin within this time, and then lasts as long as its client wants.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().request_time_max.as_secs(),
        env = "POLYPLANE_REQUEST_TIME_MAX",
        value_parser = seconds()
    )]
    pub request_time_max: u64,
    /// Reading requests in flight, at most, not counting watches. One more is refused with 429.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().reads_in_flight_max,
        env = "POLYPLANE_READS_IN_FLIGHT_MAX"
    )]
    pub reads_in_flight_max: usize,
    /// Changing requests in flight, at most. One more is refused with 429.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().writes_in_flight_max,
        env = "POLYPLANE_WRITES_IN_FLIGHT_MAX"
    )]
    pub writes_in_flight_max: usize,
    /// Seats of one control plane, which its PriorityLevelConfigurations share: a request takes one, a
    /// long list several. Upstream's --max-requests-inflight and --max-mutating-requests-inflight together.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().plane_seats.map_or(1, NonZeroU32::get),
        env = "POLYPLANE_PLANE_SEATS",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub plane_seats: u32,
    /// Connections of clients that have shown a valid credential, at most. A request on one more
    /// connection is refused with 429, unless it is about the replica itself, such as /metrics and
    /// /drain.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().connections_max,
        env = "POLYPLANE_CONNECTIONS_MAX"
    )]
    pub connections_max: usize,
    /// Connections that have not shown a valid credential, at most, beside --connections-max.
    /// Health checks are among them. When one more is opened, the oldest one is closed. Each may take
    /// 128 KiB of memory for requests that wait, and all of them 128 MiB more, beside --memory-budget.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().unproven_connections_max,
        env = "POLYPLANE_UNPROVEN_CONNECTIONS_MAX"
    )]
    pub unproven_connections_max: usize,
    /// Seconds after which a connection is closed if it has not shown a valid credential.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().unproven_time_max.as_secs(),
        env = "POLYPLANE_UNPROVEN_TIME_MAX",
        value_parser = seconds()
    )]
    pub unproven_time_max: u64,
    /// Seconds without any request or watch after which a connection is closed. The server checks
    /// at this interval, so it may take up to twice as long.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().idle_time_max.as_secs(),
        env = "POLYPLANE_IDLE_TIME_MAX",
        value_parser = seconds()
    )]
    pub idle_time_max: u64,
    /// Requests and watches on one HTTP/2 connection, at most.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = default().streams_per_connection_max,
        env = "POLYPLANE_STREAMS_PER_CONNECTION_MAX"
    )]
    pub streams_per_connection_max: u32,
    /// Longest time a TLS handshake may take.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().handshake_time_max.as_secs(),
        env = "POLYPLANE_HANDSHAKE_TIME_MAX",
        value_parser = seconds()
    )]
    pub handshake_time_max: u64,
    /// Longest time between two requests on an HTTP/1.1 connection; it ends when the headers of the
    /// second one have arrived.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().head_time_max.as_secs(),
        env = "POLYPLANE_HEAD_TIME_MAX",
        value_parser = seconds()
    )]
    pub head_time_max: u64,
    /// Longest time a client may take to read a whole answer. Watches are not limited.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().answer_time_max.as_secs(),
        env = "POLYPLANE_ANSWER_TIME_MAX",
        value_parser = seconds()
    )]
    pub answer_time_max: u64,
    /// Longest time for which a client may read nothing of an answer. An answer that its connection
    /// holds already is cut after three such times, a watch after six.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = default().answer_stall_max.as_secs(),
        env = "POLYPLANE_ANSWER_STALL_MAX",
        value_parser = seconds()
    )]
    pub answer_stall_max: u64,
    /// Limits of one control plane.
    #[command(flatten)]
    pub plane: PlaneLimitOptions,
}

/// Limits of each control plane whose `spec.limits` does not say otherwise. Without a flag there is no
/// limit.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Limits of a control plane")]
pub struct PlaneLimitOptions {
    /// Requests in a second to one control plane, unless its spec.limits.requestsPerSecond says
    /// otherwise. Beyond it they are refused with 429 and Retry-After.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "POLYPLANE_PLANE_REQUESTS_PER_SECOND",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub plane_requests_per_second: Option<u64>,
    /// Changing requests in a second to one control plane, unless its spec.limits.writesPerSecond
    /// says otherwise. Beyond it they are refused with 429 and Retry-After.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "POLYPLANE_PLANE_WRITES_PER_SECOND",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub plane_writes_per_second: Option<u64>,
    /// Open watches of one control plane, unless its spec.limits.watches says otherwise. One more is
    /// refused with 429 and Retry-After.
    #[arg(long, value_name = "NUMBER", env = "POLYPLANE_PLANE_WATCHES_MAX")]
    pub plane_watches_max: Option<u64>,
    /// Objects of one control plane, unless its spec.limits.objects says otherwise. Those that each
    /// control plane has from the start do not count. One more is refused with 403.
    #[arg(long, value_name = "NUMBER", env = "POLYPLANE_PLANE_OBJECTS_MAX")]
    pub plane_objects_max: Option<u64>,
    /// Bytes, such as 256Mi, that one control plane may store, unless its spec.limits.bytes says
    /// otherwise. Beyond it writes are refused with 403, unless they make objects smaller.
    #[arg(
        long,
        value_name = "BYTES",
        env = "POLYPLANE_PLANE_BYTES_MAX",
        value_parser = crate::cli::memory::bytes
    )]
    pub plane_bytes_max: Option<u64>,
}

impl PlaneLimitOptions {
    fn limits(self) -> PlaneLimits {
        PlaneLimits {
            requests_per_second: self.plane_requests_per_second,
            writes_per_second: self.plane_writes_per_second,
            watches: self.plane_watches_max,
            objects: self.plane_objects_max,
            bytes: self.plane_bytes_max,
        }
    }
}

fn default() -> Limits {
    Limits::default()
}

fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::builder::RangedU64ValueParser::new().range(1..=SECONDS_MAX)
}

impl LimitOptions {
    /// Converts the flags to the server's limits. Bodies get no more than their share of the memory
    /// budget.
    pub fn limits(&self, memory: &Memory) -> Limits {
        let bodies_bytes_max = self.bodies_bytes_max.min(memory.limit(Share::Bodies));
        // Every field is named, so that a new limit without a flag does not compile.
        Limits {
            body_bytes_max: self.body_bytes_max,
            plane_body_bytes_max: self.plane_body_bytes_max.min(bodies_bytes_max),
            bodies_bytes_max,
            request_time_max: Duration::from_secs(self.request_time_max),
            reads_in_flight_max: self.reads_in_flight_max,
            writes_in_flight_max: self.writes_in_flight_max,
            plane_seats: NonZeroU32::new(self.plane_seats),
            connections_max: self.connections_max,
            unproven_connections_max: self.unproven_connections_max,
            unproven_time_max: Duration::from_secs(self.unproven_time_max),
            idle_time_max: Duration::from_secs(self.idle_time_max),
            streams_per_connection_max: self.streams_per_connection_max,
            handshake_time_max: Duration::from_secs(self.handshake_time_max),
            head_time_max: Duration::from_secs(self.head_time_max),
            answer_time_max: Duration::from_secs(self.answer_time_max),
            answer_stall_max: Duration::from_secs(self.answer_stall_max),
            plane: self.plane.limits(),
        }
    }
}

/// An error: the system allows fewer open files than the allowed connections need.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the limit of open files is {files}, but --connections-max and --unproven-connections-max need \
     {needed}; raise the limit (ulimit -n, LimitNOFILE) or lower these flags"
)]
pub struct TooFewFiles {
    files: u64,
    needed: u64,
}

/// Raises the limit of open files as far as the system allows. Most systems start a process with
/// 1024, because some old programs cannot handle larger numbers.
///
/// # Errors
/// Returns an error if the limit is still too low for the connections that may be open.
pub fn raise_open_files(limits: &Limits, replicas: u64) -> Result<(), TooFewFiles> {
    let found = getrlimit(Resource::Nofile);
    // A system without a maximum allows any number.
    let allowed = found.maximum.unwrap_or(u64::MAX);
    let mut files = found.current.unwrap_or(u64::MAX);
    if files < allowed {
        let raised = Rlimit {
            current: found.maximum,
            maximum: found.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => {
                tracing::info!(from = files, to = allowed, "raised the limit of open files");
                files = allowed;
            }
            Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
        }
    }
    let needed = needed_files(limits, replicas);
    match files < needed {
        true => Err(TooFewFiles { files, needed }),
        false => Ok(()),
    }
}

fn needed_files(limits: &Limits, replicas: u64) -> u64 {
    let connections = limits
        .connections_max
        .saturating_add(limits.unproven_connections_max);
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    connections
        .saturating_mul(replicas)
        .saturating_add(OTHER_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        limits: LimitOptions,
    }

    fn typed(words: &[&str]) -> Result<Limits, String> {
        let words = std::iter::once("test").chain(words.iter().copied());
        let typed = Typed::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(typed.limits.limits(&Memory::with_limits(|_| usize::MAX)))
    }

    #[test]
    fn what_nobody_typed_is_the_servers_default() {
        assert_eq!(typed(&[]), Ok(Limits::default()));
    }

    #[test]
    fn bodies_keep_to_the_memory_budget() {
        let options = Typed::try_parse_from(["test"]).expect("sound").limits;
        let limits = options.limits(&Memory::with_limits(|_| 10 << 20));
        assert_eq!(limits.bodies_bytes_max, 10 << 20);
        assert_eq!(limits.plane_body_bytes_max, 10 << 20);
    }

    #[test]
    fn nonsense_is_refused_with_the_flag_it_stands_in() {
        for words in [
            ["--idle-time-max", "0"],
            ["--request-time-max", "86401"],
            ["--answer-time-max", "18446744073709551615"],
            ["--connections-max", "many"],
            ["--body-bytes-max", "3MiB"],
            ["--streams-per-connection-max", "4294967296"],
        ] {
            let error = typed(&words).expect_err("nonsense");
            assert!(error.contains(words[0]), "{words:?}: {error}");
        }
        let limits = typed(&["--idle-time-max", "7", "--connections-max", "12"]);
        let limits = limits.expect("sound");
        assert_eq!(limits.idle_time_max, Duration::from_secs(7));
        assert_eq!(needed_files(&limits, 1), 12 + 5000 + OTHER_FILES);
    }
}
