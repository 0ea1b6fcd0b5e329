//! Metrics about the commits of one store and about the events that its planes no longer have. Owns
//! only what is counted.

use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts};

use crate::history::expired_cause::ExpiredCause;
use polyplane_storage::CommitError;
use std::time::Duration;

/// Upper bounds of the buckets for the number of planes or writes in one transaction.
const SIZE_BOUNDS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Upper bounds of the buckets for the store's reply times, in seconds.
const DURATION_BOUNDS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.5, 1.0, 5.0,
];

/// The outcomes of transactions. All of them are shown from the start, so that the first
/// transaction of an outcome shows as a step.
const OUTCOMES: [&str; 4] = ["applied", "refused", "rejected", "unknown"];

/// The outcomes and sizes of transactions.
pub(crate) struct CommitMetrics {
    planes: Histogram,
    writes: Histogram,
    took: Histogram,
    outcomes: IntCounterVec,
    again: IntCounter,
    expired: IntCounterVec,
}

impl Default for CommitMetrics {
    fn default() -> Self {
        let histogram = |name, help, bounds: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
            Histogram::with_opts(options).expect("the name and the bounds are sound")
        };
        let outcomes = Opts::new(
            "polyplane_commits_total",
            "Transactions of control planes, by what the store said.",
        );
        let outcomes = IntCounterVec::new(outcomes, &["outcome"]).expect("the names are sound");
        for outcome in OUTCOMES {
            outcomes.with_label_values(&[outcome]);
        }
        let expired = Opts::new(
            "polyplane_expired_versions_total",
            "Lists and watches of versions that are no longer kept, by why they are not.",
        );
        let expired = IntCounterVec::new(expired, &["cause"]).expect("the names are sound");
        for cause in ExpiredCause::ALL {
            expired.with_label_values(&[cause.name()]);
        }
        Self {
            expired,
            planes: histogram(
                "polyplane_commit_planes",
                "Control planes whose writes share a transaction.",
                &SIZE_BOUNDS,
            ),
            writes: histogram(
                "polyplane_commit_writes",
                "Writes in a transaction.",
                &SIZE_BOUNDS,
            ),
            took: histogram(
                "polyplane_commit_duration_seconds",
                "Time from a transaction to the store's answer.",
                &DURATION_BOUNDS,
            ),
            outcomes,
            again: IntCounter::new(
                "polyplane_commit_parts_sent_again_total",
                "Parts of transactions that went again after it was proven that they were not done.",
            )
            .expect("the name is sound"),
        }
    }
}

impl CommitMetrics {
    /// Counts a transaction that is about to be sent.
    pub(crate) fn sends(&self, planes: usize, writes: usize) {
        self.planes.observe(count(planes));
        self.writes.observe(count(writes));
    }

    /// Counts the reply of the store, or its absence.
    pub(crate) fn answered<T>(&self, took: Duration, answer: &Result<T, CommitError>) {
        self.took.observe(took.as_secs_f64());
        let outcome = match answer {
            Ok(_) => 0,
            Err(CommitError::Refused { .. }) => 1,
            Err(CommitError::Rejected(_)) => 2,
            Err(CommitError::Undisclosed(..) | CommitError::Unknown(_)) => 3,
        };
        self.outcomes.with_label_values(&[OUTCOMES[outcome]]).inc();
    }

    /// Counts a part of unknown outcome that proved not to be applied and is sent again.
    pub(crate) fn resent(&self) {
        self.again.inc();
    }

    /// Counts a client's request for an expired version.
    pub(crate) fn expired(&self, cause: ExpiredCause) {
        self.expired.with_label_values(&[cause.name()]).inc();
    }

    /// Returns all metrics.
    pub(crate) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.planes.collect();
        families.extend(self.writes.collect());
        families.extend(self.took.collect());
        families.extend(self.outcomes.collect());
        families.extend(self.again.collect());
        families.extend(self.expired.collect());
        families
    }
}

fn count(things: usize) -> f64 {
    f64::from(u32::try_from(things).unwrap_or(u32::MAX))
}
