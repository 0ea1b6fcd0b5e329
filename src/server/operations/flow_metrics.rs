//! The metrics of priority and fairness, for all planes together.
//!
//! Invariant: levels and flow schemas that every plane has are named, all others are `other`, so that
//! tenants cannot add series.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use polyplane_registry::flows::FlowClass;

use crate::operations::exposition::{Exposition, Kind};
use crate::request::flow::Flows;

/// The priority levels that every plane has, and `other`.
const LEVELS: [&str; 9] = [
    "catch-all",
    "exempt",
    "global-default",
    "leader-election",
    "node-high",
    "system",
    "workload-high",
    "workload-low",
    "other",
];
/// The flow schemas that every plane has, and `other`.
const SCHEMAS: [&str; 12] = [
    "catch-all",
    "exempt",
    "global-default",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-system-service-accounts",
    "probes",
    "service-accounts",
    "system-leader-election",
    "system-node-high",
    "system-nodes",
    "other",
];
/// Upper bounds of the buckets of waiting times, in seconds.
const WAIT_BOUNDS: [f64; 13] = [
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];
const REASONS: [&str; 4] = ["cancelled", "concurrency-limit", "queue-full", "time-out"];
const NANOS_PER_SECOND: f64 = 1e9;

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Cancelled,
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

/// The labels of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowSeries {
    level: usize,
    schema: usize,
}

#[derive(Debug)]
pub(crate) struct FlowMetrics {
    /// By level and schema.
    numbers: Box<[[Numbers; SCHEMAS.len()]; LEVELS.len()]>,
}

#[derive(Debug, Default)]
struct Numbers {
    rejected: [AtomicU64; REASONS.len()],
    dispatched: AtomicU64,
    executing: AtomicI64,
    executing_seats: AtomicI64,
    waiting: AtomicI64,
    waiting_seats: AtomicI64,
    /// Waiting times of requests that were rejected, and of those that went on.
    waits: [Waits; 2],
}

#[derive(Debug, Default)]
struct Waits {
    buckets: [AtomicU64; WAIT_BOUNDS.len()],
    nanos: AtomicU64,
    count: AtomicU64,
}

impl Default for FlowMetrics {
    fn default() -> Self {
        let numbers = std::array::from_fn(|_| std::array::from_fn(|_| Numbers::default()));
        Self {
            numbers: Box::new(numbers),
        }
    }
}

fn place(names: &[&str], name: &str) -> usize {
    let other = names.len() - 1;
    names[..other].binary_search(&name).unwrap_or(other)
}

fn add(gauge: &AtomicI64, change: i64) {
    gauge.fetch_add(change, Ordering::Relaxed);
}

impl FlowMetrics {
    /// Returns the labels of requests of a class.
    pub(crate) fn series(class: &FlowClass) -> FlowSeries {
        FlowSeries {
            level: place(&LEVELS, &class.level().name),
            schema: place(&SCHEMAS, class.schema()),
        }
    }

    fn of(&self, series: FlowSeries) -> &Numbers {
        &self.numbers[series.level][series.schema]
    }

    pub(crate) fn rejected(&self, series: FlowSeries, reason: Reason) {
        self.of(series).rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has joined a queue, with `count` 1, or has left it, with −1.
    pub(crate) fn queued(&self, series: FlowSeries, seats: u32, count: i64) {
        let numbers = self.of(series);
        add(&numbers.waiting, count);
        add(&numbers.waiting_seats, i64::from(seats) * count);
    }

    /// Counts a request that goes on.
    pub(crate) fn dispatched(&self, series: FlowSeries, seats: u32) {
        let numbers = self.of(series);
        numbers.dispatched.fetch_add(1, Ordering::Relaxed);
        add(&numbers.executing, 1);
        add(&numbers.executing_seats, i64::from(seats));
    }

    /// Counts the end of a request that went on.
    pub(crate) fn ended(&self, series: FlowSeries, seats: u32) {
        let numbers = self.of(series);
        add(&numbers.executing, -1);
        add(&numbers.executing_seats, -i64::from(seats));
    }

    /// Counts how long a request has waited.
    pub(crate) fn waited(&self, series: FlowSeries, goes_on: bool, time: Duration) {
        let waits = &self.of(series).waits[usize::from(goes_on)];
        let seconds = time.as_secs_f64();
        let bucket = WAIT_BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = waits.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        waits.nanos.fetch_add(nanos, Ordering::Relaxed);
        waits.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers that were ever counted, with their labels.
    fn seen(&self) -> impl Iterator<Item = ([(&'static str, &'static str); 2], &Numbers)> {
        let levels = self.numbers.iter().zip(LEVELS);
        let all = levels.flat_map(|(of_level, level)| {
            let schemas = of_level.iter().zip(SCHEMAS);
            schemas.map(move |(numbers, schema)| {
                let labels = [("flow_schema", schema), ("priority_level", level)];
                (labels, numbers)
            })
        });
        all.filter(|(_, numbers)| {
            let counters = numbers.rejected.iter().chain([&numbers.dispatched]);
            let waits = &numbers.waiting;
            let counted = counters.map(|counter| counter.load(Ordering::Relaxed));
            counted.sum::<u64>() > 0 || waits.load(Ordering::Relaxed) > 0
        })
    }

    fn expose(&self, out: &mut Exposition) {
        let name = "apiserver_flowcontrol_rejected_requests_total";
        let help = "Requests that priority and fairness has rejected, by the reason.";
        out.family(name, Kind::Counter, help);
        for ([schema, level], numbers) in self.seen() {
            for (counter, reason) in numbers.rejected.iter().zip(REASONS) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    out.sample(name, &[schema, level, ("reason", reason)], count);
                }
            }
        }
        let name = "apiserver_flowcontrol_dispatched_requests_total";
        let help = "Requests that priority and fairness has let go on.";
        out.family(name, Kind::Counter, help);
        for (labels, numbers) in self.seen() {
            let count = numbers.dispatched.load(Ordering::Relaxed);
            out.sample(name, &labels, count);
        }
        self.expose_gauges(out);
        let name = "apiserver_flowcontrol_request_wait_duration_seconds";
        let help = "How long requests have waited in queues of priority levels.";
        out.family(name, Kind::Histogram, help);
        for ([schema, level], numbers) in self.seen() {
            for (waits, execute) in numbers.waits.iter().zip(["false", "true"]) {
                let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
                let count = load(&waits.count);
                if count > 0 {
                    let bounds = WAIT_BOUNDS.iter().map(f64::to_string);
                    let seconds = load(&waits.nanos) as f64 / NANOS_PER_SECOND;
                    let buckets = bounds.zip(waits.buckets.iter().map(load));
                    let labels = [("execute", execute), schema, level];
                    out.histogram(name, &labels, buckets, (seconds, count));
                }
            }
        }
    }

    fn expose_gauges(&self, out: &mut Exposition) {
        type Gauge = fn(&Numbers) -> &AtomicI64;
        let gauges: [(&str, &str, Gauge); 4] = [
            (
                "apiserver_flowcontrol_current_executing_requests",
                "Requests that are carried out.",
                |numbers| &numbers.executing,
            ),
            (
                "apiserver_flowcontrol_current_executing_seats",
                "Seats of the requests that are carried out.",
                |numbers| &numbers.executing_seats,
            ),
            (
                "apiserver_flowcontrol_current_inqueue_requests",
                "Requests that wait in queues of priority levels.",
                |numbers| &numbers.waiting,
            ),
            (
                "apiserver_flowcontrol_current_inqueue_seats",
                "Seats of the requests that wait in queues of priority levels.",
                |numbers| &numbers.waiting_seats,
            ),
        ];
        for (name, help, gauge) in gauges {
            out.family(name, Kind::Gauge, help);
            for (labels, numbers) in self.seen() {
                let count = gauge(numbers).load(Ordering::Relaxed);
                out.sample(name, &labels, count);
            }
        }
    }
}

impl Flows {
    /// Writes all metrics of priority and fairness.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        if self.seats().is_none() {
            return;
        }
        self.metrics.expose(out);
        let (mut planes, mut seats) = (0_u64, [None; LEVELS.len()]);
        self.visit(|plane| {
            planes += 1;
            for (level, limits) in plane.limits() {
                let sum = &mut seats[place(&LEVELS, &level.name)];
                *sum = Some(sum.unwrap_or(0) + limits.nominal);
            }
        });
        let name = "apiserver_flowcontrol_nominal_limit_seats";
        let help = "Seats of priority levels, of all control planes that have requests now.";
        out.family(name, Kind::Gauge, help);
        for (level, seats) in LEVELS.iter().zip(seats) {
            if let Some(seats) = seats {
                out.sample(name, &[("priority_level", level)], seats);
            }
        }
        let name = "polyplane_flowcontrol_planes";
        let help = "Control planes with requests in flight or in queues of priority levels.";
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], planes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_others_are_other() {
        for names in [&LEVELS[..], &SCHEMAS[..]] {
            let known = &names[..names.len() - 1];
            assert!(known.is_sorted(), "{known:?}");
            for (at, name) in names.iter().enumerate() {
                assert_eq!(place(names, name), at);
            }
            assert_eq!(place(names, "a tenant's own"), names.len() - 1);
        }
    }
}
