//! Whose writes go into the next transaction, and how many of them.
//!
//! Everything here is under the committer's lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyplane_fairness::fair_limit;
use polyplane_storage::Limits;

use crate::plane::Plane;

/// Time for which the store counts as shared after a plane has written that is not the one before.
const SHARED_FOR: Duration = Duration::from_secs(2);
/// Writes that a plane may have in a transaction however many planes write.
pub(crate) const SHARED_WRITES_MIN: usize = 16;
/// Time of a transaction for each write of a plane: where even the quickest transactions take long, as on a
/// slow disk, they may have more writes.
const SHARED_WRITE_TIME: Duration = Duration::from_micros(50);
/// The quickest of about this many transactions counts. The others may have waited for a core, which more
/// writes would only make worse.
const QUICKEST_OF: u32 = 64;

/// How a worker comes to take a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// It was started for it.
    Started,
    /// It has handled the answer to its last one.
    Again,
    /// It was counted as about to take one before it handled the answer to its last one.
    Next,
}

/// The planes that wait for a transaction, and the slots for transactions.
#[derive(Default)]
pub(crate) struct Ready {
    /// Planes with queued writes and none under way, in the order in which they are served.
    pub(crate) planes: VecDeque<Arc<Plane>>,
    pub(crate) workers: usize,
    /// Workers whose transaction is with the store, or is being settled.
    pub(crate) sending: usize,
    /// Workers that have an answer of the store and are about to take the next transaction. While
    /// there is one, a plane that becomes ready needs no further worker.
    pub(crate) about_to_take: usize,
    /// The plane of the newest write sent, by its address, which is only compared.
    newest: Option<usize>,
    /// The time at which a plane wrote that was not the one before; `None` if there was none.
    changed: Option<Instant>,
    /// The time of the quickest of the last transactions.
    quickest: Duration,
}

impl Ready {
    /// Counts a further worker, unless there are as many as the store wants.
    pub(crate) fn add_worker(&mut self, limits: &Limits) -> bool {
        let has_room = self.workers < limits.transactions_max.max(1);
        self.workers += usize::from(has_room);
        has_room
    }

    /// Notes that a worker comes for a transaction.
    pub(crate) fn comes(&mut self, takes: Takes) {
        self.about_to_take -= usize::from(takes == Takes::Next);
        self.sending -= usize::from(takes != Takes::Started);
    }

    /// Notes that a transaction with writes of these planes goes to the store.
    pub(crate) fn sends<'a>(&mut self, planes: impl Iterator<Item = &'a Arc<Plane>>) {
        self.sending += 1;
        for plane in planes {
            let plane = Arc::as_ptr(plane).addr();
            let before = self.newest.replace(plane);
            if before.is_some_and(|before| before != plane) {
                self.changed = Some(Instant::now());
            }
        }
    }

    /// Notes how long a transaction took.
    pub(crate) fn note_took(&mut self, took: Duration) {
        self.quickest = match took.checked_sub(self.quickest) {
            Some(more) => self.quickest + more / QUICKEST_OF,
            None => took,
        };
    }

    /// Returns whether more than one plane has written lately.
    fn is_shared(&self) -> bool {
        let changed = self.changed;
        changed.is_some_and(|changed| changed.elapsed() < SHARED_FOR)
    }

    /// Returns how many writes of one plane the next transaction takes at most, if a transaction takes
    /// `ops_max` operations.
    pub(crate) fn writes_each(&self, limits: &Limits, ops_max: usize) -> usize {
        self.shared_part(limits)
            .min(self.fair_part(limits, ops_max))
    }

    /// Returns how many writes of one plane a transaction takes at most, so that the others need not wait
    /// much longer for it than for one of their own.
    fn shared_part(&self, limits: &Limits) -> usize {
        if !limits.is_serial || !self.is_shared() {
            return usize::MAX;
        }
        let worth = self.quickest.as_micros() / SHARED_WRITE_TIME.as_micros();
        usize::try_from(worth).map_or(usize::MAX, |worth| worth.max(SHARED_WRITES_MIN))
    }

    /// Returns how many writes each plane has in the next transaction if they are divided fairly.
    fn fair_part(&self, limits: &Limits, ops_max: usize) -> usize {
        if self.planes.len() < 2 {
            return usize::MAX;
        }
        let free = limits.transactions_max.saturating_sub(self.sending).max(1);
        let room = free * ops_max;
        if self.planes.len() >= room {
            return 1;
        }
        let queued = self.planes.iter().map(|plane| plane.queued());
        fair_limit(&mut queued.collect::<Vec<usize>>(), room)
    }
}
