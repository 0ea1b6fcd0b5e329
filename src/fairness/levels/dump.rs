//! What a dispatcher has, for dumps and metrics.

use std::sync::Arc;

use super::dispatcher::{Dispatcher, Request, State};
use super::level::{Level, SeatLimits};
use super::queues::QueueState;
use crate::Moment;

/// What a level has, for a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelUse {
    /// The level's name.
    pub name: Arc<str>,
    /// True if the plane has the level no more.
    pub is_leaving: bool,
    /// Queues in which requests wait.
    pub active_queues: usize,
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that are carried out.
    pub executing: u64,
    /// Requests that went on, since the level had none.
    pub dispatched: u64,
    /// Requests that were refused, those among them that waited in vain.
    pub rejected: u64,
    /// Requests that waited for too long.
    pub timed_out: u64,
    /// Requests whose clients went while they waited.
    pub cancelled: u64,
}

/// What a queue has, for a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUse {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that are carried out.
    pub executing: u32,
    /// The seats of these.
    pub seats_in_use: u64,
    /// The seats of those that wait.
    pub seats_waiting: u64,
    /// The progress meter at which the next one starts, in seat-nanoseconds.
    pub start: i128,
}

/// A request, for a dump.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a, T> {
    /// The number of its queue; `None` if its level has none.
    pub queue: Option<u32>,
    /// Its place in the queue; `None` if it is carried out.
    pub index: Option<usize>,
    /// When it came.
    pub arrived: Moment,
    /// Since when it is carried out.
    pub started: Option<Moment>,
    /// The seats that it takes.
    pub seats: u32,
    /// What is kept with it.
    pub kept: &'a T,
}

impl<T> Dispatcher<T> {
    /// Returns what the levels have that have requests, in no order.
    pub fn levels(&self) -> impl Iterator<Item = LevelUse> {
        self.active.iter().map(|active| {
            let queues = active.queues.iter().flat_map(|queues| queues.states());
            LevelUse {
                name: Arc::clone(&active.level.name),
                is_leaving: !active.is_wanted,
                active_queues: queues.filter(|(_, queue)| queue.waiting > 0).count(),
                waiting: active.waiting,
                executing: active.executing,
                dispatched: active.counts.dispatched,
                rejected: active.counts.rejected,
                timed_out: active.counts.timed_out,
                cancelled: active.counts.cancelled,
            }
        })
    }

    /// Returns the levels of the plane with their seats.
    pub fn limits(&self) -> impl Iterator<Item = (&Level, SeatLimits)> {
        let levels = self.config.iter();
        levels.map(|level| (&**level, self.config.limits(level, self.seats)))
    }

    /// Returns the queues of a level that have requests, by number.
    pub fn queues(&self, level: &str) -> Vec<(u32, QueueUse)> {
        let found = self
            .active
            .iter()
            .find(|active| &*active.level.name == level);
        let queues = found.and_then(|active| active.queues.as_ref());
        let states = queues.into_iter().flat_map(|queues| queues.states());
        states
            .map(|(number, state)| (number, state.into()))
            .collect()
    }

    /// Returns the requests of a level: those of each queue, first those that wait, and then those
    /// without a queue.
    pub fn requests(&self, level: &str) -> Vec<RequestView<'_, T>> {
        let Some(active) = self
            .active
            .iter()
            .find(|active| &*active.level.name == level)
        else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (number, _) in active.queues.iter().flat_map(|queues| queues.states()) {
            let waiting = active
                .queues
                .iter()
                .flat_map(|queues| queues.waiting(number));
            for (index, slot) in waiting.enumerate() {
                let request = self.requests.get(slot as usize);
                let request = request.and_then(|slot| slot.request.as_ref());
                found.extend(request.map(|request| request.view(Some(index))));
            }
            found.extend(self.executing(level, Some(number)));
        }
        found.extend(self.executing(level, None));
        found
    }

    fn executing(
        &self,
        level: &str,
        queue: Option<u32>,
    ) -> impl Iterator<Item = RequestView<'_, T>> {
        let requests = self
            .requests
            .iter()
            .filter_map(|slot| slot.request.as_ref());
        let of_queue = requests.filter(move |request| {
            let executes = request.state != State::Waiting && request.queue == queue;
            executes && &*request.level.name == level
        });
        of_queue.map(|request| request.view(None))
    }
}

impl<T> Request<T> {
    fn view(&self, index: Option<usize>) -> RequestView<'_, T> {
        RequestView {
            queue: self.queue,
            index,
            arrived: self.arrived,
            started: match self.state {
                State::Waiting => None,
                State::Executing { since, .. } => Some(since),
            },
            seats: self.seats,
            kept: &self.kept,
        }
    }
}

impl From<QueueState> for QueueUse {
    fn from(state: QueueState) -> Self {
        Self {
            waiting: state.waiting,
            executing: state.executing,
            seats_in_use: state.seats_in_use,
            seats_waiting: state.seats_waiting,
            start: state.start,
        }
    }
}
