//! The metrics of requests and watches.
//!
//! Series are kept in shards and keyed by a hash of borrowed labels, so that counting a request
//! allocates and formats nothing. A request for `/metrics` merges the shards.
//!
//! Invariant: the number of series is bounded; no label is a plane, a user or an object, or what users of
//! a plane beside the root have named.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_plane::Memory;

use crate::connection::open_connections::OpenConnections;
use crate::connection::reset_delay::STREAMS_MAX;
use crate::documents::version::VERSION;
use crate::operations::access_metrics::AccessMetrics;
use crate::operations::exposition::{Exposition, Kind};
use crate::peer::forward::Forwarding;
use crate::request::budget::BodyBudget;
use crate::request::limits::Limits;
use crate::request::plane_limits::LimitRefusals;
use crate::request::seats::Seats;

/// Counts in place of a status that HTTP does not define. A node or a pod behind a proxy chooses it, and each
/// of the 900 possible ones would be a series.
const OTHER_CODE: u16 = 0;
/// Number of shards of the series. With fewer, threads would wait for each other.
const SHARDS: usize = 16;
/// Unproven clients whose bodies the server reads to their end at a time. It answers others at
/// once, and some clients then report a broken stream. Without the limit, strangers could make it
/// read any number of bodies.
const DISCARDS_MAX: usize = 256;
/// Distinct label sets of custom kinds, in all shards together. Requests with further ones count as `other`,
/// so that memory and one scrape are bounded.
const SERIES_MAX: usize = 4096;

/// Upper bounds of the duration buckets in seconds.
const DURATION_BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
/// Upper bounds of the buckets of durations without the time in queues: those of upstream, which are the
/// greater ones of [`DURATION_BOUNDS`].
const UNQUEUED_BOUNDS: [f64; 21] = {
    let mut bounds = [0.0; 21];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = DURATION_BOUNDS[at + 2];
        at += 1;
    }
    bounds
};
/// Upper bounds of the size buckets in bytes.
const SIZE_BOUNDS: [u64; 7] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

/// The labels under which a request is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Labels<'a> {
    pub verb: &'static str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub scope: &'static str,
    pub dry_run: &'static str,
    /// True if an object defines the kind. There may be any number of such kinds.
    pub is_custom: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnedLabels {
    verb: &'static str,
    group: Str,
    version: Str,
    resource: Str,
    subresource: Str,
    scope: &'static str,
    dry_run: &'static str,
}

impl Labels<'_> {
    fn to_owned(self) -> OwnedLabels {
        OwnedLabels {
            verb: self.verb,
            group: self.group.into(),
            version: self.version.into(),
            resource: self.resource.into(),
            subresource: self.subresource.into(),
            scope: self.scope,
            dry_run: self.dry_run,
        }
    }

    pub(super) fn other(self) -> Labels<'static> {
        Labels {
            verb: self.verb,
            group: "other",
            version: "other",
            resource: "other",
            subresource: "",
            scope: self.scope,
            dry_run: self.dry_run,
            is_custom: false,
        }
    }
}

impl OwnedLabels {
    fn is(&self, labels: Labels<'_>) -> bool {
        self.verb == labels.verb
            && self.group == labels.group
            && self.version == labels.version
            && self.resource == labels.resource
            && self.subresource == labels.subresource
            && self.scope == labels.scope
            && self.dry_run == labels.dry_run
    }
}

#[derive(Clone, Debug, Default)]
struct Series {
    codes: Vec<(u16, u64)>,
    duration_buckets: [u64; DURATION_BOUNDS.len()],
    duration_count: u64,
    duration_seconds: f64,
    /// What the buckets of durations gain or lose if requests are counted without their time in a queue.
    queued_shift: [i64; DURATION_BOUNDS.len()],
    queued_seconds: f64,
    size_buckets: [u64; SIZE_BOUNDS.len()],
    size_count: u64,
    size_bytes: u64,
    running: i64,
}

impl Series {
    fn add(&mut self, other: &Self) {
        for (code, count) in &other.codes {
            self.count_code(*code, *count);
        }
        for (own, more) in self.duration_buckets.iter_mut().zip(other.duration_buckets) {
            *own += more;
        }
        for (own, more) in self.queued_shift.iter_mut().zip(other.queued_shift) {
            *own += more;
        }
        for (own, more) in self.size_buckets.iter_mut().zip(other.size_buckets) {
            *own += more;
        }
        self.queued_seconds += other.queued_seconds;
        self.duration_count += other.duration_count;
        self.duration_seconds += other.duration_seconds;
        self.size_count += other.size_count;
        self.size_bytes += other.size_bytes;
        self.running += other.running;
    }

    fn count_code(&mut self, code: u16, count: u64) {
        match self.codes.iter_mut().find(|(known, _)| *known == code) {
            Some((_, total)) => *total += count,
            None => self.codes.push((code, count)),
        }
    }

    /// Counts a request that has taken `duration`, of which `queued` in a queue.
    fn observe_duration(&mut self, duration: Duration, queued: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = |seconds: f64| DURATION_BOUNDS.partition_point(|bound| *bound < seconds);
        let whole = bucket(seconds);
        if let Some(count) = self.duration_buckets.get_mut(whole) {
            *count += 1;
        }
        self.duration_count += 1;
        self.duration_seconds += seconds;
        if queued.is_zero() {
            return;
        }
        if let Some(shift) = self.queued_shift.get_mut(whole) {
            *shift -= 1;
        }
        if let Some(shift) = self
            .queued_shift
            .get_mut(bucket(duration.saturating_sub(queued).as_secs_f64()))
        {
            *shift += 1;
        }
        self.queued_seconds += queued.min(duration).as_secs_f64();
    }

    /// Returns the buckets of durations without the time in queues: the first for all up to the first of
    /// [`UNQUEUED_BOUNDS`].
    fn unqueued_buckets(&self) -> [u64; UNQUEUED_BOUNDS.len()] {
        let mut buckets = [0; UNQUEUED_BOUNDS.len()];
        let all = self.duration_buckets.iter().zip(self.queued_shift);
        for (at, (whole, shift)) in all.enumerate() {
            let at = at.saturating_sub(DURATION_BOUNDS.len() - UNQUEUED_BOUNDS.len());
            buckets[at] += whole.saturating_add_signed(shift);
        }
        buckets
    }

    fn observe_size(&mut self, bytes: u64) {
        let bucket = SIZE_BOUNDS.partition_point(|bound| *bound < bytes);
        if let Some(count) = self.size_buckets.get_mut(bucket) {
            *count += 1;
        }
        self.size_count += 1;
        self.size_bytes += bytes;
    }
}

type Shard = HashMap<u64, (OwnedLabels, Series)>;

/// Counts the events of all watches of one kind.
pub(crate) type EventCounter = Arc<AtomicU64>;

/// Event counters by group, version and resource.
type EventCounters = BTreeMap<[Str; 3], EventCounter>;

/// All numbers that the server counts.
pub(crate) struct Metrics {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// Hashes of the label sets of custom kinds that have series in any shard.
    custom_series: Mutex<HashSet<u64>>,
    watch_events: Mutex<EventCounters>,
    /// Authentication and authorization of requests.
    pub access: AccessMetrics,
    pub reads: Arc<Seats>,
    pub writes: Arc<Seats>,
    /// Handshakes that failed or timed out.
    pub failed_handshakes: AtomicU64,
    /// Open connections.
    pub connections: Arc<OpenConnections>,
    /// Bytes of request bodies.
    pub bodies: Arc<BodyBudget>,
    /// Unproven clients whose bodies are read to their end.
    pub discards: Arc<Seats>,
    /// Streams whose clients still send bodies that nobody reads, and which are kept for a moment.
    pub kept_streams: Arc<Seats>,
    /// Requests refused because too many were in flight, or too many callers waited to be judged.
    pub rejected: AtomicU64,
    /// Requests refused because their plane was at a limit of its own.
    pub limits: LimitRefusals,
    /// Requests that panicked.
    pub panics: AtomicU64,
    /// Outcomes of requests that this replica sent to other replicas.
    pub forwarding: Forwarding,
    /// Requests in flight that wait for another replica.
    pub forwards: Arc<Seats>,
    /// Watches in flight that another replica answers.
    pub forwarded_watches: Arc<Seats>,
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

fn own_shard() -> usize {
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

impl Metrics {
    pub(crate) fn new(limits: &Limits, forwards_max: usize, memory: Arc<Memory>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            hasher: RandomState::new(),
            custom_series: Mutex::default(),
            watch_events: Mutex::default(),
            access: AccessMetrics::default(),
            reads: Seats::new(limits.reads_in_flight_max),
            writes: Seats::new(limits.writes_in_flight_max),
            connections: OpenConnections::new(
                limits.connections_max,
                limits.unproven_connections_max,
            ),
            bodies: BodyBudget::new(limits.bodies_bytes_max, limits.plane_body_bytes_max, memory),
            discards: Seats::new(DISCARDS_MAX),
            kept_streams: Seats::new(STREAMS_MAX),
            failed_handshakes: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            limits: LimitRefusals::default(),
            panics: AtomicU64::new(0),
            forwarding: Forwarding::default(),
            forwards: Seats::new(forwards_max),
            // No limit here, because streams and connections limit them.
            forwarded_watches: Seats::new(usize::MAX),
        }
    }

    fn with(&self, labels: Labels<'_>, change: impl FnOnce(&mut Series)) {
        let mut shard = self.shards[own_shard()].lock();
        let mut labels = labels;
        let mut hash = self.hasher.hash_one(labels);
        if labels.is_custom && !shard.contains_key(&hash) && !self.may_have_series(hash) {
            labels = labels.other();
            hash = self.hasher.hash_one(labels);
        }
        loop {
            let (known, series) = shard
                .entry(hash)
                .or_insert_with(|| (labels.to_owned(), Series::default()));
            if known.is(labels) {
                change(series);
                return;
            }
            // Two label sets have this hash: use the next free number.
            hash = hash.wrapping_add(1);
        }
    }

    /// Returns whether the label set of a custom kind with this hash is one of the [`SERIES_MAX`] that have series,
    /// or becomes one.
    fn may_have_series(&self, hash: u64) -> bool {
        let mut known = self.custom_series.lock();
        known.contains(&hash) || (known.len() < SERIES_MAX && known.insert(hash))
    }

    /// Counts an answered request, which has taken so long, and of that so long in a queue of its plane.
    pub(crate) fn request(
        &self,
        labels: Labels<'_>,
        code: u16,
        (duration, queued): (Duration, Duration),
        bytes: Option<u64>,
    ) {
        let code = counted_code(code);
        self.with(labels, |series| {
            series.count_code(code, 1);
            series.observe_duration(duration, queued);
            if let Some(bytes) = bytes {
                series.observe_size(bytes);
            }
        });
    }

    /// Returns the counter for the events of a watch. Callers keep it for the whole watch, because
    /// looking it up costs more than counting an event.
    pub(crate) fn watch_events(&self, labels: Labels<'_>) -> EventCounter {
        let mut counters = self.watch_events.lock();
        let full = labels.is_custom && counters.len() >= SERIES_MAX;
        let key =
            |labels: Labels<'_>| [labels.group, labels.version, labels.resource].map(Str::from);
        let labels = match key(labels) {
            known if !full || counters.contains_key(&known) => known,
            _ => key(labels.other()),
        };
        Arc::clone(counters.entry(labels).or_default())
    }

    /// Changes the number of long-running requests: by 1 at a start, by -1 at an end.
    pub(crate) fn running(&self, labels: Labels<'_>, change: i64) {
        self.with(labels, |series| series.running += change);
    }

    fn merged(&self) -> BTreeMap<OwnedLabels, Series> {
        let mut merged: BTreeMap<OwnedLabels, Series> = BTreeMap::new();
        for shard in &self.shards {
            for (labels, series) in shard.lock().values() {
                merged.entry(labels.clone()).or_default().add(series);
            }
        }
        merged
    }

    /// Writes all metrics of this struct.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        let merged = self.merged();
        expose_requests(&merged, out);
        expose_running(&merged, out);
        out.families(&self.access.families());
        self.expose_watch_events(out);
        self.expose_server(out);
        self.connections.expose(out);
        self.bodies.expose(out);
        self.limits.expose(out);
    }

    fn expose_watch_events(&self, out: &mut Exposition) {
        let name = "apiserver_watch_events_total";
        out.family(name, Kind::Counter, "Events sent to watches.");
        for ([group, version, resource], counter) in &*self.watch_events.lock() {
            let count = counter.load(Ordering::Relaxed);
            if count > 0 {
                let labels = [
                    ("group", group.as_str()),
                    ("resource", resource),
                    ("version", version),
                ];
                out.sample(name, &labels, count);
            }
        }
    }

    fn expose_server(&self, out: &mut Exposition) {
        out.family(
            "apiserver_current_inflight_requests",
            Kind::Gauge,
            "Requests in flight.",
        );
        for (kind, seats) in [("mutating", &self.writes), ("readOnly", &self.reads)] {
            let labels = [("request_kind", kind)];
            out.sample(
                "apiserver_current_inflight_requests",
                &labels,
                seats.taken(),
            );
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            (
                "apiserver_tls_handshake_errors_total",
                Kind::Counter,
                "Handshakes that failed or took too long.",
                load(&self.failed_handshakes),
            ),
            (
                "polyplane_rejected_requests_total",
                Kind::Counter,
                "Requests refused because too many were in flight, or too many callers waited to be judged, or for lack of room for heads.",
                load(&self.rejected),
            ),
            (
                "polyplane_request_panics_total",
                Kind::Counter,
                "Requests that ended in a panic.",
                load(&self.panics),
            ),
        ] {
            out.family(name, kind, help);
            out.sample(name, &[], value);
        }
        out.family(
            "kubernetes_build_info",
            Kind::Gauge,
            "What is running, as labels.",
        );
        let labels = [
            ("build_date", VERSION.build_date),
            ("compiler", VERSION.compiler),
            ("git_commit", VERSION.git_commit),
            ("git_tree_state", VERSION.git_tree_state),
            ("git_version", VERSION.git_version),
            ("go_version", VERSION.go_version),
            ("major", VERSION.major),
            ("minor", VERSION.minor),
            ("platform", VERSION.platform),
        ];
        out.sample("kubernetes_build_info", &labels, 1);
    }
}

/// Returns the status under which an answer is counted.
fn counted_code(code: u16) -> u16 {
    let known = StatusCode::from_u16(code).ok();
    match known.and_then(|status| status.canonical_reason()) {
        Some(_) => code,
        None => OTHER_CODE,
    }
}

fn expose_requests(merged: &BTreeMap<OwnedLabels, Series>, out: &mut Exposition) {
    let name = "apiserver_request_total";
    out.family(
        name,
        Kind::Counter,
        "Requests by what they asked for and how they ended.",
    );
    for (labels, series) in merged {
        for (code, count) in &series.codes {
            let code = match *code {
                OTHER_CODE => "other".to_owned(),
                code => code.to_string(),
            };
            let mut all = vec![("code", code.as_str()), ("component", "apiserver")];
            all.extend(labels.all());
            out.sample(name, &all, *count);
        }
    }
    let name = "apiserver_request_duration_seconds";
    out.family(
        name,
        Kind::Histogram,
        "Time from a request's head to its answer's head.",
    );
    for (labels, series) in merged
        .iter()
        .filter(|(_, series)| series.duration_count > 0)
    {
        let mut all = vec![("component", "apiserver")];
        all.extend(labels.all());
        let bounds = DURATION_BOUNDS.iter().map(f64::to_string);
        let totals = (series.duration_seconds, series.duration_count);
        out.histogram(name, &all, bounds.zip(series.duration_buckets), totals);
    }
    expose_unqueued(merged, out);
    let name = "apiserver_response_sizes";
    out.family(name, Kind::Histogram, "Length of answers in bytes.");
    for (labels, series) in merged.iter().filter(|(_, series)| series.size_count > 0) {
        let mut all = vec![("component", "apiserver")];
        all.extend(labels.without_dry_run());
        if !labels.dry_run.is_empty() {
            continue;
        }
        let bounds = SIZE_BOUNDS.iter().map(u64::to_string);
        let totals = (series.size_bytes, series.size_count);
        out.histogram(name, &all, bounds.zip(series.size_buckets), totals);
    }
}

/// Shows the durations by which service levels are judged: without the time that a request has waited for
/// a seat of its priority level. As upstream, dry runs are left out.
fn expose_unqueued(merged: &BTreeMap<OwnedLabels, Series>, out: &mut Exposition) {
    let name = "apiserver_request_sli_duration_seconds";
    out.family(
        name,
        Kind::Histogram,
        "Time from a request's head to its answer's head without that in the queues of priority levels.",
    );
    let is_shown = |labels: &OwnedLabels, series: &Series| {
        labels.dry_run.is_empty() && series.duration_count > 0
    };
    for (labels, series) in merged
        .iter()
        .filter(|(labels, series)| is_shown(labels, series))
    {
        let mut all = vec![("component", "apiserver")];
        all.extend(labels.without_dry_run());
        let bounds = UNQUEUED_BOUNDS.iter().map(f64::to_string);
        let seconds = (series.duration_seconds - series.queued_seconds).max(0.0);
        let totals = (seconds, series.duration_count);
        out.histogram(name, &all, bounds.zip(series.unqueued_buckets()), totals);
    }
}

fn expose_running(merged: &BTreeMap<OwnedLabels, Series>, out: &mut Exposition) {
    let name = "apiserver_longrunning_requests";
    out.family(name, Kind::Gauge, "Watches and tunnels that are open.");
    let long = |labels: &OwnedLabels| matches!(labels.verb, "WATCH" | "CONNECT");
    for (labels, series) in merged.iter().filter(|(labels, _)| long(labels)) {
        let mut all = vec![("component", "apiserver")];
        all.extend(labels.without_dry_run());
        out.sample(name, &all, series.running);
    }
}

impl OwnedLabels {
    fn all(&self) -> [(&'static str, &str); 7] {
        [
            ("dry_run", self.dry_run),
            ("group", &self.group),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ]
    }

    fn without_dry_run(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.all().into_iter().skip(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::observe::KindOrigin;

    fn pods(verb: &'static str) -> Labels<'static> {
        Labels {
            verb,
            version: "v1",
            resource: "pods",
            scope: "namespace",
            ..Labels::default()
        }
    }

    #[test]
    fn shards_are_merged_and_buckets_are_cumulative() {
        let metrics = Metrics::new(&Limits::default(), 10, Arc::default());
        std::thread::scope(|scope| {
            for millis in [1, 30, 90_000] {
                let metrics = &metrics;
                scope.spawn(move || {
                    let took = (Duration::from_millis(millis), Duration::from_millis(25));
                    metrics.request(pods("GET"), 200, took, Some(2000));
                });
            }
        });
        let mut out = Exposition::default();
        metrics.expose(&mut out);
        let text = out.into_text();
        let labels = r#"component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="GET",version="v1""#;
        let unqueued = labels.replace("dry_run=\"\",", "");
        for line in [
            format!("apiserver_request_total{{code=\"200\",{labels}}} 3\n"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"0.005\"}} 1\n"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"60\"}} 2\n"),
            format!("apiserver_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 3\n"),
            format!("apiserver_request_duration_seconds_count{{{labels}}} 3\n"),
            format!("apiserver_request_sli_duration_seconds_bucket{{{unqueued},le=\"0.05\"}} 2\n"),
            format!("apiserver_request_sli_duration_seconds_bucket{{{unqueued},le=\"60\"}} 2\n"),
            format!("apiserver_request_sli_duration_seconds_count{{{unqueued}}} 3\n"),
            // The first has waited for no longer than it took.
            format!("apiserver_request_sli_duration_seconds_sum{{{unqueued}}} 89.9"),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        assert!(text.contains("apiserver_response_sizes_sum"));
        assert!(
            text.contains("apiserver_current_inflight_requests{request_kind=\"mutating\"} 0\n")
        );
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = Metrics::new(&Limits::default(), 10, Arc::default());
        for number in 0..SERIES_MAX + 100 {
            let resource = format!("r{number}");
            let labels = Labels {
                resource: &resource,
                is_custom: true,
                ..pods("GET")
            };
            metrics.request(labels, 200, Default::default(), None);
        }
        assert!(metrics.merged().len() <= SERIES_MAX + 1);
        let other = metrics
            .merged()
            .into_iter()
            .find(|(labels, _)| labels.resource == "other");
        assert_eq!(other.map(|(_, series)| series.duration_count), Some(100));
    }

    /// Counts requests and watches of `number` custom kinds in each of several shards, and returns the number of
    /// resources that the metrics then name.
    fn named_by(number: usize, origin: KindOrigin) -> usize {
        let metrics = Metrics::new(&Limits::default(), 10, Arc::default());
        let names: Vec<String> = (0..number).map(|at| format!("r{at}.example.com")).collect();
        std::thread::scope(|scope| {
            for shard in 0..4 {
                let (metrics, names) = (&metrics, &names);
                scope.spawn(move || {
                    // Each shard sees other kinds first.
                    for at in 0..number {
                        let resource = names[(at + shard * number / 4) % number].as_str();
                        let labels = Labels {
                            resource,
                            ..pods("GET")
                        };
                        let labels = labels.of_kind(origin);
                        metrics.request(labels, 200, Default::default(), None);
                        metrics.watch_events(labels).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        // A built-in kind keeps its name, whatever was there before it.
        let built_in = pods("GET").of_kind(KindOrigin::BuiltIn);
        metrics.request(built_in, 200, Default::default(), None);
        metrics
            .watch_events(built_in)
            .fetch_add(1, Ordering::Relaxed);
        let mut out = Exposition::default();
        metrics.expose(&mut out);
        let text = out.into_text();
        let totals = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        let requested = totals("apiserver_request_total{");
        assert_eq!(requested, totals("apiserver_watch_events_total{"));
        assert!(text.contains("resource=\"pods\""));
        assert!(text.contains("resource=\"other\"") || number < SERIES_MAX);
        assert_eq!(
            text.contains("example.com"),
            origin == KindOrigin::CustomOfRoot
        );
        requested
    }

    #[test]
    fn custom_kinds_of_planes_add_no_series_and_those_of_the_root_up_to_the_total() {
        for number in [1, 1000] {
            assert_eq!(named_by(number, KindOrigin::CustomOfPlane), 2);
        }
        assert_eq!(named_by(1000, KindOrigin::CustomOfRoot), 1001);
        let all = SERIES_MAX + 1000;
        assert_eq!(named_by(all, KindOrigin::CustomOfRoot), SERIES_MAX + 2);
    }

    #[test]
    fn statuses_that_http_does_not_define_are_one_series() {
        let metrics = Metrics::new(&Limits::default(), 10, Arc::default());
        for code in (100..1000).chain([404]) {
            metrics.request(pods("GET"), code, Default::default(), None);
        }
        let mut out = Exposition::default();
        metrics.expose(&mut out);
        let text = out.into_text();
        assert!(text.matches("apiserver_request_total{").count() < 100);
        assert!(text.contains("apiserver_request_total{code=\"404\","));
        assert!(text.contains("apiserver_request_total{code=\"other\","));
        assert!(!text.contains("code=\"0\""));
    }
}
