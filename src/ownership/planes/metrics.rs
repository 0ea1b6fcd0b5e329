//! Counters and histograms about planes and their moves. Must not decide anything.

use parking_lot::Mutex;
use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How planes are held and moved at this replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanesStats {
    /// Planes whose fence is held.
    pub owned: usize,
    /// Planes in memory.
    pub awake: usize,
    /// The highest epoch of a fence that is held: how often that plane was taken since it was born.
    pub epoch_max: u64,
    /// Hand-offs that ended with a released fence.
    pub hand_offs_done: u64,
    /// Hand-offs that were called off.
    pub hand_offs_failed: u64,
    /// Fences taken and loaded.
    pub taken: u64,
    /// Those among them that had to wait for a dead holder's read lease.
    pub taken_after_wait: u64,
    /// Acquires and commits that found the fence to be another's.
    pub fence_conflicts: u64,
    /// Fences released because their planes were asleep.
    pub released_asleep: u64,
}

/// Upper bounds of the buckets for moves of planes, in seconds. A hand-off takes some milliseconds,
/// a take after a crash the read lease and its margin.
const MOVE_BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// Values of the label, shown from the start.
const WAITED: [&str; 2] = ["false", "true"];

/// The counters behind [`PlanesStats`], and how long moves take.
pub(crate) struct PlaneMetrics {
    stats: Mutex<PlanesStats>,
    conflicts: AtomicU64,
    hand_off_took: Histogram,
    take_took: HistogramVec,
}

impl Default for PlaneMetrics {
    fn default() -> Self {
        let options = |name, help| HistogramOpts::new(name, help).buckets(MOVE_BOUNDS.to_vec());
        let hand_off = options(
            "polyplane_hand_off_duration_seconds",
            "Time from the pause to the released fence, of hand-offs that were done.",
        );
        let take = options(
            "polyplane_plane_take_duration_seconds",
            "Time from the first need of a control plane to the loaded one, by whether it waited for a dead holder's read lease.",
        );
        let take_took = HistogramVec::new(take, &["waited"]).expect("the names are sound");
        for waited in WAITED {
            take_took.with_label_values(&[waited]);
        }
        Self {
            stats: Mutex::default(),
            conflicts: AtomicU64::new(0),
            hand_off_took: Histogram::with_opts(hand_off).expect("the name is sound"),
            take_took,
        }
    }
}

impl PlaneMetrics {
    /// A plane was taken and loaded.
    pub(crate) fn taken(&self, took: Duration, waited: bool) {
        let mut stats = self.stats.lock();
        stats.taken += 1;
        stats.taken_after_wait += u64::from(waited);
        drop(stats);
        let took_of = self
            .take_took
            .with_label_values(&[WAITED[usize::from(waited)]]);
        took_of.observe(took.as_secs_f64());
    }

    /// A hand-off ended with a released fence.
    pub(crate) fn handed_off(&self, took: Duration) {
        self.stats.lock().hand_offs_done += 1;
        self.hand_off_took.observe(took.as_secs_f64());
    }

    /// A hand-off was called off.
    pub(crate) fn kept(&self) {
        self.stats.lock().hand_offs_failed += 1;
    }

    /// Fences of asleep planes were released.
    pub(crate) fn released(&self, fences: usize) {
        self.stats.lock().released_asleep += fences as u64;
    }

    /// A fence was found to be another's.
    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// How long moves took.
    pub(crate) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.hand_off_took.collect();
        families.extend(self.take_took.collect());
        families
    }

    /// The figures, with what is held right now.
    pub(crate) fn stats(&self, owned: usize, awake: usize, epoch_max: u64) -> PlanesStats {
        let mut stats = *self.stats.lock();
        stats.owned = owned;
        stats.awake = awake;
        stats.epoch_max = epoch_max;
        stats.fence_conflicts = self.conflicts.load(Ordering::Relaxed);
        stats
    }
}
