//! Counters and histograms about planes and their moves. Must not decide anything.

use parking_lot::Mutex;
use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, HistogramVec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Metrics of the planes that this replica holds and moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanesStats {
    /// Number of planes whose fence is held.
    pub owned: usize,
    /// Number of planes in memory.
    pub awake: usize,
    /// The highest epoch of a fence that is held, which is the number of times that its plane was
    /// acquired.
    pub epoch_max: u64,
    /// Number of hand-offs that ended with a released fence.
    pub hand_offs_done: u64,
    /// Number of hand-offs that were called off.
    pub hand_offs_failed: u64,
    /// Number of planes that were acquired and loaded.
    pub taken: u64,
    /// Number of planes among [`Self::taken`] that had to wait for a dead holder's read lease.
    pub taken_after_wait: u64,
    /// Number of acquires and commits that found the fence to be another's.
    pub fence_conflicts: u64,
    /// Number of fences that were released because their planes fell asleep.
    pub released_asleep: u64,
}

/// Upper bounds of the buckets for moves of planes, in seconds. A hand-off takes some milliseconds;
/// acquiring a plane after a crash takes at least the read lease and its margin.
const MOVE_BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// The values of the label, all of which are shown from the start.
const WAITED: [&str; 2] = ["false", "true"];

/// The counters behind [`PlanesStats`], and the durations of moves.
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
    /// Counts a plane that was acquired and loaded.
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

    /// Counts a hand-off that ended with a released fence.
    pub(crate) fn handed_off(&self, took: Duration) {
        self.stats.lock().hand_offs_done += 1;
        self.hand_off_took.observe(took.as_secs_f64());
    }

    /// Counts a hand-off that was called off.
    pub(crate) fn kept(&self) {
        self.stats.lock().hand_offs_failed += 1;
    }

    /// Counts fences of asleep planes that were released.
    pub(crate) fn released(&self, fences: usize) {
        self.stats.lock().released_asleep += fences as u64;
    }

    /// Counts a fence that was found to be another's.
    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns metrics of how long moves took.
    pub(crate) fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.hand_off_took.collect();
        families.extend(self.take_took.collect());
        families
    }

    /// Returns the counters, and the numbers of planes that are held right now.
    pub(crate) fn stats(&self, owned: usize, awake: usize, epoch_max: u64) -> PlanesStats {
        let mut stats = *self.stats.lock();
        stats.owned = owned;
        stats.awake = awake;
        stats.epoch_max = epoch_max;
        stats.fence_conflicts = self.conflicts.load(Ordering::Relaxed);
        stats
    }
}
