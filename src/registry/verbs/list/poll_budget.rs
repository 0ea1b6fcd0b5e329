//! The work of one poll of a list, after which other tasks have their turn.
//!
//! A list ends a piece when enough bytes are written. That bounds nothing if few of the objects are
//! selected, or if little of each is shown, so the work itself is counted too. What a row of a table
//! costs is known only to its columns; for that there is the clock.

use crate::answer::negotiate::{Representation, Shape};
use crate::kinds::table::Resource;
use crate::select::Selection;
use polyplane_plane::{ObjectRef, Prefix, Snapshot, Start};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes that one poll works through: about a millisecond of work. Every task of the same worker
/// thread waits for it, lease renewals included.
const POLL_BYTES: usize = 256 << 10;
/// The work for one object apart from its bytes, expressed in bytes.
const OBJECT_BYTES: usize = 256;
/// The longest time of one poll, for work that costs more than its bytes.
const POLL_TIME_MAX: Duration = Duration::from_millis(1);
/// Bytes of work between two looks at the clock, so that they do not cost more than the work.
const CLOCK_BYTES: usize = 8 << 10;

/// What is left of the work of one poll.
#[derive(Debug)]
pub struct PollBudget {
    left: usize,
    /// Bytes of work since the last look at the clock.
    unmeasured: usize,
    began: Instant,
}

impl Default for PollBudget {
    fn default() -> Self {
        Self {
            left: POLL_BYTES,
            unmeasured: 0,
            began: Instant::now(),
        }
    }
}

impl PollBudget {
    /// Counts an object of which this many bytes are read or written.
    pub fn spend(&mut self, bytes: usize) {
        let work = OBJECT_BYTES.saturating_add(bytes);
        self.left = self.left.saturating_sub(work);
        self.unmeasured = self.unmeasured.saturating_add(work);
        if self.unmeasured >= CLOCK_BYTES {
            self.look_at_clock();
        }
    }

    /// Counts the test whether an object is selected. Must be called before the test, which keeps what it
    /// has read.
    pub fn spend_on_test(&mut self, selection: &Selection, row: &Resource, object: &ObjectRef) {
        self.spend(selection.test_bytes(row, object));
    }

    /// Counts an object that was written as the client wants it.
    pub fn spend_on_writing(&mut self, wish: Representation, object: &ObjectRef) {
        self.spend(object.body_len());
        // Each column of a row may search the whole object.
        if matches!(wish.shape, Shape::Table(_)) {
            self.look_at_clock();
        }
    }

    fn look_at_clock(&mut self) {
        self.unmeasured = 0;
        if self.began.elapsed() >= POLL_TIME_MAX {
            self.left = 0;
        }
    }

    /// Returns true if other tasks should have their turn before there is more work.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Lets other tasks have their turn. The next poll has a budget of its own.
    pub async fn yield_now(&mut self) {
        tokio::task::yield_now().await;
        *self = Self::default();
    }
}

/// Calls `look` with the objects of a range in order, until it breaks, and returns what it breaks with. Other
/// tasks have their turn each time the budget is over, of which `look` spends what it costs.
pub async fn walk<B>(
    cut: &Snapshot,
    prefix: &Prefix,
    start: Start<'_>,
    mut look: impl FnMut(ObjectRef, &mut PollBudget) -> ControlFlow<B>,
) -> Option<B> {
    let mut budget = PollBudget::default();
    let mut next = match walk_some(cut.range(prefix, start), &mut look, &mut budget) {
        ControlFlow::Break(end) => return end,
        ControlFlow::Continue(next) => next,
    };
    loop {
        budget.yield_now().await;
        let objects = cut.range(prefix, Start::At(&next));
        next = match walk_some(objects, &mut look, &mut budget) {
            ControlFlow::Break(end) => return end,
            ControlFlow::Continue(next) => next,
        };
    }
}

/// Looks at objects until the budget is over. Returns the key of the first one that is still to be looked at.
fn walk_some<B>(
    objects: impl Iterator<Item = ObjectRef>,
    look: &mut impl FnMut(ObjectRef, &mut PollBudget) -> ControlFlow<B>,
    budget: &mut PollBudget,
) -> ControlFlow<Option<B>, Vec<u8>> {
    for object in objects {
        if budget.is_over() {
            return ControlFlow::Continue(object.key().as_bytes().to_vec());
        }
        if let ControlFlow::Break(end) = look(object, budget) {
            return ControlFlow::Break(Some(end));
        }
    }
    ControlFlow::Break(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hundred_small_objects_are_the_work_of_one_poll() {
        let mut budget = PollBudget::default();
        for _ in 0..100 {
            budget.spend(2000);
        }
        assert!(!budget.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn objects_of_which_nothing_is_read_are_work_too() {
        let mut budget = PollBudget::default();
        for _ in 0..POLL_BYTES / OBJECT_BYTES {
            assert!(!budget.is_over());
            budget.spend(0);
        }
        assert!(budget.is_over());
        budget.yield_now().await;
        assert!(!budget.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_takes_longer_than_its_bytes_is_over_by_the_clock() {
        let mut budget = PollBudget::default();
        tokio::time::advance(POLL_TIME_MAX).await;
        budget.spend(0);
        assert!(!budget.is_over(), "the clock is not read each time");
        budget.spend(CLOCK_BYTES);
        assert!(budget.is_over());
    }
}
