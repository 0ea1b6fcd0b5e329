//! Figures about planes and their moves, for a metric. Owns counters only.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How planes are held and moved at this replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanesStats {
    /// Planes whose fence is held.
    pub owned: usize,
    /// Planes in memory.
    pub awake: usize,
    /// Hand-offs that ended with a released fence.
    pub hand_offs_done: u64,
    /// Hand-offs that were called off.
    pub hand_offs_failed: u64,
    /// The time all done hand-offs took together, from the pause to the release.
    pub hand_offs_took: Duration,
    /// Fences taken and loaded.
    pub taken: u64,
    /// The time all of them took together.
    pub taken_took: Duration,
    /// Those among them that had to wait for a dead holder's read lease.
    pub taken_after_wait: u64,
    /// Acquires and commits that found the fence to be another's.
    pub fence_conflicts: u64,
    /// Fences released because their planes were asleep.
    pub released_asleep: u64,
}

/// The counters behind [`PlanesStats`].
#[derive(Default)]
pub(crate) struct Measures {
    stats: Mutex<PlanesStats>,
    conflicts: AtomicU64,
}

impl Measures {
    /// A plane was taken and loaded.
    pub(crate) fn taken(&self, took: Duration, waited: bool) {
        let mut stats = self.stats.lock();
        stats.taken += 1;
        stats.taken_took += took;
        stats.taken_after_wait += u64::from(waited);
    }

    /// A hand-off ended with a released fence.
    pub(crate) fn handed_off(&self, took: Duration) {
        let mut stats = self.stats.lock();
        stats.hand_offs_done += 1;
        stats.hand_offs_took += took;
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

    /// The figures, with what is held right now.
    pub(crate) fn stats(&self, owned: usize, awake: usize) -> PlanesStats {
        let mut stats = *self.stats.lock();
        stats.owned = owned;
        stats.awake = awake;
        stats.fence_conflicts = self.conflicts.load(Ordering::Relaxed);
        stats
    }
}
