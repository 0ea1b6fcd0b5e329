//! Whose writes go into the next transaction, and how many of them.
//!
//! Everything here is under the committer's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use polyplane_fairness::fair_limit;
use polyplane_storage::Limits;

use crate::plane::Plane;

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

    /// Returns how many writes of one plane the next transaction takes at most, if a transaction takes
    /// `ops_max` operations.
    pub(crate) fn writes_each(&self, limits: &Limits, ops_max: usize) -> usize {
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
