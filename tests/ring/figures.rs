//! The numbers of a run: requests by outcome, latencies, gaps.
//!
//! This module counts, and formats the lines that are printed. It does not judge.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::history::{Failure, History, Moment, Outcome, SessionEnd};

/// The numbers of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests that succeeded, or were refused because of the object's state.
    pub answered: usize,
    /// Requests that failed, by reason. The word says whether they may have taken effect.
    pub failed: BTreeMap<(&'static str, Failure), usize>,
    /// Requests that were not sent because too many were in flight.
    pub left_out: u64,
    /// The latencies of answered requests.
    pub latency: Spread,
    /// The sessions of watches by their ends.
    pub sessions: BTreeMap<&'static str, usize>,
    /// The number of watch events.
    pub events: usize,
}

/// Times in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread(Vec<Duration>);

impl Spread {
    /// Sorts times.
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self(times)
    }

    /// Returns the time that `percent` percent of all times do not exceed.
    pub fn at(&self, percent: usize) -> Duration {
        let last = self.0.len().saturating_sub(1);
        let place = (self.0.len() * percent / 100).min(last);
        self.0.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |percent| self.at(percent).as_secs_f64() * 1e3;
        let (p50, p99, most) = (millis(50), millis(99), millis(100));
        write!(to, "p50 {p50:.1} ms, p99 {p99:.1} ms, most {most:.1} ms")
    }
}

impl Figures {
    /// Counts a run.
    pub fn of(history: &History, left_out: u64) -> Self {
        let mut figures = Self::between(history, Moment(0)..Moment(u64::MAX));
        figures.left_out = left_out;
        figures
    }

    /// Counts the requests and sessions that began in a part of a run.
    pub fn between(history: &History, span: Range<Moment>) -> Self {
        let mut figures = Self::default();
        let mut times = Vec::new();
        for operation in &history.operations {
            if !span.contains(&operation.start) {
                continue;
            }
            let took = Duration::from_nanos(operation.end.0 - operation.start.0);
            match &operation.outcome {
                Outcome::Failed(failure) => figures.fail("refused", failure),
                Outcome::Unknown(failure) => figures.fail("unknown", failure),
                Outcome::Object { .. } | Outcome::Deleted | Outcome::Refused(_) => {
                    times.push(took);
                }
            }
        }
        for listing in &history.listings {
            if !span.contains(&listing.start) {
                continue;
            }
            match &listing.outcome {
                Ok(_) => times.push(Duration::from_nanos(listing.end.0 - listing.start.0)),
                Err(failure) => figures.fail("list", failure),
            }
        }
        for session in history.watches.iter().flat_map(|watch| &watch.sessions) {
            if !span.contains(&session.start) {
                continue;
            }
            figures.events += session.events.len();
            let end = match session.end {
                SessionEnd::Closed => "closed",
                SessionEnd::Broken => "broken",
                SessionEnd::Unanswered => "unanswered",
                SessionEnd::Refused(_) => "refused",
                SessionEnd::Expired => "expired (410)",
                SessionEnd::Error(_) => "error",
                SessionEnd::Finished => "finished",
            };
            *figures.sessions.entry(end).or_default() += 1;
        }
        figures.answered = times.len();
        figures.latency = Spread::of(times);
        figures
    }

    fn fail(&mut self, how: &'static str, failure: &Failure) {
        *self.failed.entry((how, failure.clone())).or_default() += 1;
    }

    /// Returns the number of requests that failed.
    pub fn failures(&self) -> usize {
        self.failed.values().sum()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answered, failures) = (self.answered, self.failures());
        write!(
            to,
            "{answered} requests answered, {}; {failures} failed",
            self.latency
        )?;
        for ((how, failure), count) in &self.failed {
            write!(to, ", {count} {how}: {failure}")?;
        }
        if self.left_out > 0 {
            write!(to, "; {} left out by the generator", self.left_out)?;
        }
        write!(to, "; {} watch events, sessions:", self.events)?;
        for (end, count) in &self.sessions {
            write!(to, " {count} {end}")?;
        }
        Ok(())
    }
}
