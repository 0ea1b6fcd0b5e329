//! Sends requests for a given time, in a closed loop or at a fixed rate, and times each of them.
//!
//! A closed loop keeps a number of streams busy. The open loop sends on a schedule; latency counts
//! from the scheduled moment, so a stall of the server counts for every request that had to wait.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lane::{Ask, Lane};
use crate::report::Latencies;

/// Makes the request for a stream's turn.
pub type Maker = Arc<dyn Fn(&Lane, Turn) -> Result<Ask> + Send + Sync>;

/// The place of a request in a load.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The number of the stream, from zero.
    pub stream: u64,
    /// The number of the request on its stream, from zero.
    pub count: u64,
}

/// The rule by which streams send their next requests.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each stream sends when its last answer is complete.
    Closed,
    /// All streams together send this many requests a second.
    Open {
        /// The number of requests a second.
        per_second: f64,
    },
}

/// A load on a server.
#[derive(Clone)]
pub struct Load {
    /// Makes the requests.
    pub maker: Maker,
    /// The only status that does not count as an error.
    pub expected: StatusCode,
    /// The number of streams over all connections.
    pub streams: u64,
    /// The rule by which streams send their next requests.
    pub pace: Pace,
    /// The time in which new requests are sent.
    pub time: Duration,
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The latency of each answered request.
    pub latencies: Latencies,
    /// The bytes of all bodies.
    pub bytes: u64,
    /// The number of requests that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// The time from the first request to the last answer.
    pub wall: Duration,
}

/// Runs the load over the lanes.
pub async fn run(lanes: &[Arc<Lane>], load: &Load) -> Outcome {
    let begin = Instant::now();
    let mut streams = JoinSet::new();
    for stream in 0..load.streams {
        let lane = Arc::clone(&lanes[stream as usize % lanes.len()]);
        let load = load.clone();
        streams.spawn(async move { run_stream(&lane, &load, stream, begin).await });
    }
    let mut total = Outcome::default();
    while let Some(joined) = streams.join_next().await {
        let one = joined.expect("a stream's task neither panics nor is cancelled");
        total.latencies.append(one.latencies);
        total.bytes += one.bytes;
        total.errors += one.errors;
        total.first_error = total.first_error.or(one.first_error);
    }
    total.wall = begin.elapsed();
    total
}

async fn run_stream(lane: &Lane, load: &Load, stream: u64, begin: Instant) -> Outcome {
    let mut outcome = Outcome::default();
    for count in 0.. {
        let turn = Turn { stream, count };
        let start = match load.pace {
            Pace::Closed => Instant::now(),
            Pace::Open { per_second } => {
                let place = (count * load.streams + stream) as f64;
                let moment = begin + Duration::from_secs_f64(place / per_second);
                tokio::time::sleep_until(moment).await;
                moment
            }
        };
        if start.duration_since(begin) >= load.time {
            break;
        }
        let answer = match (load.maker)(lane, turn) {
            Ok(request) => lane.exchange(request, load.expected).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(bytes) => {
                outcome.bytes += bytes;
                outcome.latencies.add(start.elapsed());
            }
            Err(error) => {
                outcome.errors += 1;
                outcome
                    .first_error
                    .get_or_insert_with(|| format!("{error:#}"));
                // Requests on a broken connection fail at once: pause, so as not to spin.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    outcome
}
