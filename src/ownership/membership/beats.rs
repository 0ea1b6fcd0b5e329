//! Whether the executor of the planes makes progress: a replica that is alive but stuck counts as dead
//! (PROTOCOL 18). Owns the tasks that find this out; must not know what follows.

use polyplane_fencing::member::Progress;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::runtime::Handle;

/// Detects whether tasks of the plane executor make progress.
pub(crate) struct Beats {
    planes: Handle,
    count: Arc<AtomicU64>,
    seen: u64,
    /// True while a task was spawned and has not run yet.
    under_way: Arc<AtomicBool>,
}

impl Beats {
    /// Creates a detector for the tasks of this executor.
    pub(crate) fn new(planes: Handle) -> Self {
        Self {
            planes,
            count: Arc::default(),
            seen: 0,
            under_way: Arc::default(),
        }
    }

    /// Returns the executor of the planes.
    pub(crate) fn planes(&self) -> &Handle {
        &self.planes
    }

    /// Returns whether a task has run since the last call, and spawns the next one.
    pub(crate) fn progress(&mut self) -> Progress {
        let count = self.count.load(Ordering::Acquire);
        let made = count != self.seen;
        self.seen = count;
        if !self.under_way.swap(true, Ordering::AcqRel) {
            let (count, under_way) = (Arc::clone(&self.count), Arc::clone(&self.under_way));
            self.planes.spawn(async move {
                count.fetch_add(1, Ordering::AcqRel);
                under_way.store(false, Ordering::Release);
            });
        }
        match made {
            true => Progress::Made,
            false => Progress::Stuck,
        }
    }
}
