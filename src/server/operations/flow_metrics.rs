//! The metrics of priority and fairness, for all planes together.
//!
//! Invariant: levels and flow schemas that every plane has are named, all others are `other`, so that
//! tenants cannot add series. A server with one plane names all, up to a bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polyplane_fairness::levels::Levels;
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
/// Pairs of a level and a flow schema that a server with one plane names beside those that every plane has.
const NAMED_MAX: usize = 1000;

/// The seats of levels.
pub(crate) const NOMINAL_LIMIT: &str = "apiserver_flowcontrol_nominal_limit_seats";
/// What requests of a class have at the moment: carried out, their seats, waiting, their seats.
pub(crate) const GAUGES: [(&str, &str); 4] = [
    (
        "apiserver_flowcontrol_current_executing_requests",
        "Requests that are carried out.",
    ),
    (
        "apiserver_flowcontrol_current_executing_seats",
        "Seats of the requests that are carried out.",
    ),
    (
        "apiserver_flowcontrol_current_inqueue_requests",
        "Requests that wait in queues of priority levels.",
    ),
    (
        "apiserver_flowcontrol_current_inqueue_seats",
        "Seats of the requests that wait in queues of priority levels.",
    ),
];

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Cancelled,
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

/// The labels of a request.
#[derive(Clone, Debug)]
pub(crate) enum FlowSeries {
    Known { level: usize, schema: usize },
    Named(Arc<Numbers>),
}

#[derive(Debug)]
pub(crate) struct FlowMetrics {
    /// By level and schema.
    numbers: Box<[[Numbers; SCHEMAS.len()]; LEVELS.len()]>,
    /// `None` where there are many planes.
    named: Option<Named>,
}

/// The names of a level and of a schema.
type ClassNames = (Arc<str>, Arc<str>);

/// The numbers of the levels and schemas of a server with one plane.
#[derive(Debug, Default)]
struct Named {
    numbers: Mutex<BTreeMap<ClassNames, Arc<Numbers>>>,
    /// The levels that the plane has, as far as known.
    levels: Mutex<Option<Arc<Levels>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Numbers {
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

fn place(names: &[&str], name: &str) -> usize {
    let other = names.len() - 1;
    names[..other].binary_search(&name).unwrap_or(other)
}

fn add(gauge: &AtomicI64, change: i64) {
    gauge.fetch_add(change, Ordering::Relaxed);
}

impl FlowMetrics {
    /// Creates the metrics of a server with one plane, or with many.
    pub(crate) fn new(is_single: bool) -> Self {
        let numbers = std::array::from_fn(|_| std::array::from_fn(|_| Numbers::default()));
        Self {
            numbers: Box::new(numbers),
            named: is_single.then(Named::default),
        }
    }

    /// Returns the labels of requests of a class.
    pub(crate) fn series(&self, class: &FlowClass) -> FlowSeries {
        let level = place(&LEVELS, &class.level().name);
        let schema = place(&SCHEMAS, class.schema());
        let is_other = level + 1 == LEVELS.len() || schema + 1 == SCHEMAS.len();
        let named = self.named.as_ref().filter(|_| is_other);
        match named.and_then(|named| named.numbers(class)) {
            Some(numbers) => FlowSeries::Named(numbers),
            None => FlowSeries::Known { level, schema },
        }
    }

    /// Notes the levels of a server's only plane.
    pub(crate) fn note_levels(&self, levels: &Arc<Levels>) {
        if let Some(named) = &self.named {
            *named.levels.lock() = Some(Arc::clone(levels));
        }
    }

    fn of<'a>(&'a self, series: &'a FlowSeries) -> &'a Numbers {
        match series {
            FlowSeries::Known { level, schema } => &self.numbers[*level][*schema],
            FlowSeries::Named(numbers) => numbers,
        }
    }

    pub(crate) fn rejected(&self, series: &FlowSeries, reason: Reason) {
        self.of(series).rejected[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has joined a queue, with `count` 1, or has left it, with −1.
    pub(crate) fn queued(&self, series: &FlowSeries, seats: u32, count: i64) {
        let numbers = self.of(series);
        add(&numbers.waiting, count);
        add(&numbers.waiting_seats, i64::from(seats) * count);
    }

    /// Counts a request that goes on.
    pub(crate) fn dispatched(&self, series: &FlowSeries, seats: u32) {
        let numbers = self.of(series);
        numbers.dispatched.fetch_add(1, Ordering::Relaxed);
        add(&numbers.executing, 1);
        add(&numbers.executing_seats, i64::from(seats));
    }

    /// Counts the end of a request that went on.
    pub(crate) fn ended(&self, series: &FlowSeries, seats: u32) {
        let numbers = self.of(series);
        add(&numbers.executing, -1);
        add(&numbers.executing_seats, -i64::from(seats));
    }

    /// Counts how long a request has waited.
    pub(crate) fn waited(&self, series: &FlowSeries, goes_on: bool, time: Duration) {
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

    /// Calls `visit` with the labels of all numbers that were ever counted.
    fn visit(&self, mut visit: impl FnMut([(&str, &str); 2], &Numbers)) {
        let labels = |level, schema| [("flow_schema", schema), ("priority_level", level)];
        for (of_level, level) in self.numbers.iter().zip(LEVELS) {
            for (numbers, schema) in of_level.iter().zip(SCHEMAS) {
                if numbers.were_counted() {
                    visit(labels(level, schema), numbers);
                }
            }
        }
        if let Some(named) = &self.named {
            for ((level, schema), numbers) in &*named.numbers.lock() {
                if numbers.were_counted() {
                    visit(labels(level, schema), numbers);
                }
            }
        }
    }

    fn expose(&self, out: &mut Exposition) {
        let name = "apiserver_flowcontrol_rejected_requests_total";
        let help = "Requests that priority and fairness has rejected, by the reason.";
        out.family(name, Kind::Counter, help);
        self.visit(|[schema, level], numbers| {
            for (counter, reason) in numbers.rejected.iter().zip(REASONS) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    out.sample(name, &[schema, level, ("reason", reason)], count);
                }
            }
        });
        let name = "apiserver_flowcontrol_dispatched_requests_total";
        let help = "Requests that priority and fairness has let go on.";
        out.family(name, Kind::Counter, help);
        self.visit(|labels, numbers| {
            let count = numbers.dispatched.load(Ordering::Relaxed);
            out.sample(name, &labels, count);
        });
        for (at, (name, help)) in GAUGES.into_iter().enumerate() {
            out.family(name, Kind::Gauge, help);
            self.visit(|labels, numbers| {
                let gauge = numbers.gauges()[at].load(Ordering::Relaxed);
                out.sample(name, &labels, gauge);
            });
        }
        let name = "apiserver_flowcontrol_request_wait_duration_seconds";
        let help = "How long requests have waited in queues of priority levels.";
        out.family(name, Kind::Histogram, help);
        self.visit(|[schema, level], numbers| {
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
        });
    }
}

impl Numbers {
    fn were_counted(&self) -> bool {
        let counters = self.rejected.iter().chain([&self.dispatched]);
        let counted = counters.map(|counter| counter.load(Ordering::Relaxed));
        counted.sum::<u64>() > 0 || self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the gauges in the order of [`GAUGES`].
    fn gauges(&self) -> [&AtomicI64; GAUGES.len()] {
        [
            &self.executing,
            &self.executing_seats,
            &self.waiting,
            &self.waiting_seats,
        ]
    }
}

impl Named {
    /// Returns the numbers of a class; `None` if there are too many classes.
    fn numbers(&self, class: &FlowClass) -> Option<Arc<Numbers>> {
        let key = (Arc::clone(&class.level().name), class.schema().into());
        let mut numbers = self.numbers.lock();
        if numbers.len() >= NAMED_MAX && !numbers.contains_key(&key) {
            return None;
        }
        Some(Arc::clone(numbers.entry(key).or_default()))
    }
}

impl Flows {
    /// Writes all metrics of priority and fairness.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        if self.seats().is_none() {
            return;
        }
        self.metrics.expose(out);
        let (mut planes, mut seats) = (0_u64, BTreeMap::new());
        let named = self.metrics.named.as_ref();
        let known = named.and_then(|named| named.levels.lock().clone());
        self.visit(|plane| {
            planes += 1;
            for (level, limits) in plane.limits() {
                let name = LEVELS[place(&LEVELS, &level.name)];
                *seats.entry(name).or_insert(0) += limits.nominal;
            }
        });
        let help = "Seats of priority levels, of all control planes that have requests now.";
        out.family(NOMINAL_LIMIT, Kind::Gauge, help);
        match &known {
            Some(levels) => expose_limits(levels, self.seats().unwrap_or(0), out),
            None => {
                for (level, seats) in seats {
                    out.sample(NOMINAL_LIMIT, &[("priority_level", level)], seats);
                }
            }
        }
        let name = "polyplane_flowcontrol_planes";
        let help = "Control planes with requests in flight or in queues of priority levels.";
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], planes);
    }
}

/// Writes the seats of a plane's levels.
pub(crate) fn expose_limits(levels: &Levels, seats: u32, out: &mut Exposition) {
    for level in levels.iter() {
        let nominal = levels.limits(level, seats).nominal;
        out.sample(NOMINAL_LIMIT, &[("priority_level", &level.name)], nominal);
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
