//! The queues of one level, fair by seats and time.
//!
//! The progress meter says how many seat-nanoseconds each busy queue has had of the level. A queue has a
//! reading of the meter at which its next request would start if all queues were served at once, bit by
//! bit; the request that would then end first goes next. A request is taken to last [`SERVICE_NANOS`]
//! until it has ended, when what it took counts.
//!
//! Only queues with requests exist, so the number of queues that a level names costs nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::hand::Hand;
use super::level::Queueing;
use crate::Moment;

/// How long a request is taken to last before it has ended, in nanoseconds.
const SERVICE_NANOS: i128 = 3_000_000;

/// The queues of one level that have requests.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// The progress meter, in seat-nanoseconds.
    progress: i128,
    read_at: Moment,
    queues: BTreeMap<u32, Queue>,
    /// The queues with waiting requests, in the order in which they go next.
    order: BTreeSet<Place>,
    /// The requests for which a hand was dealt.
    dealt: u64,
    /// The requests that have left their queues to be carried out.
    dispatched: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) slot: u32,
    pub(super) seats: u32,
    /// The progress meter when the request came.
    arrived: i128,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    seats_waiting: u64,
    executing: u32,
    seats_in_use: u64,
    /// The progress meter at which the next request starts.
    start: i128,
    /// The number of the queue's last dispatch: of queues that are alike the one that has waited
    /// longest goes next.
    turn: u64,
    place: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    finish: i128,
    turn: u64,
    queue: u32,
}

/// What one queue has, for a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueState {
    pub(super) waiting: usize,
    pub(super) seats_waiting: u64,
    pub(super) executing: u32,
    pub(super) seats_in_use: u64,
    pub(super) start: i128,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }

    /// No request starts before it has come: else a queue that uses less than its part would collect
    /// time for a later flood.
    fn bound(&mut self) {
        if let Some(head) = self.waiting.front() {
            self.start = self.start.max(head.arrived);
        }
    }
}

fn work(seats: u32) -> i128 {
    i128::from(seats) * SERVICE_NANOS
}

impl Queues {
    /// Moves the progress meter to now, since when `seats` of the level were wanted and could be had.
    pub(super) fn advance(&mut self, now: Moment, seats: u64) {
        let elapsed = now.0.saturating_sub(self.read_at.0);
        self.read_at = self.read_at.max(now);
        if let Ok(busy) = i128::try_from(self.queues.len())
            && busy > 0
        {
            self.progress += i128::from(elapsed) * i128::from(seats) / busy;
        }
    }

    /// Returns the queue that a flow joins: the shortest of its hand.
    pub(super) fn choose(&mut self, queueing: Queueing, hash: u64) -> u32 {
        let hand = Hand::deal(hash, queueing.queues, queueing.hand_size);
        let cards = hand.cards();
        // Flows whose hands overlap do not all begin with the same queue.
        let offset = usize::try_from(self.dealt % cards.len() as u64).unwrap_or(0);
        self.dealt += 1;
        let (behind, first) = cards.split_at(offset);
        let cards = first.iter().chain(behind).copied();
        let length = |card: &u32| self.queues.get(card).map_or(0, |queue| queue.seats_waiting);
        cards.min_by_key(length).unwrap_or(0)
    }

    /// Returns the number of requests that wait in a queue.
    pub(super) fn length(&self, queue: u32) -> usize {
        self.queues
            .get(&queue)
            .map_or(0, |queue| queue.waiting.len())
    }

    /// Adds a request to a queue.
    pub(super) fn push(&mut self, queue: u32, slot: u32, seats: u32) {
        let arrived = self.progress;
        let joined = self.joined(queue);
        joined.waiting.push_back(Waiting {
            slot,
            seats,
            arrived,
        });
        joined.seats_waiting += u64::from(seats);
        self.place(queue);
    }

    /// Counts a request that does not have to wait as one of a queue.
    pub(super) fn pass(&mut self, queue: u32, seats: u32) {
        let progress = self.progress;
        self.dispatched += 1;
        let turn = self.dispatched;
        let joined = self.joined(queue);
        joined.start = joined.start.max(progress);
        joined.execute(seats, turn);
        self.place(queue);
    }

    /// Returns the request that goes next, with its queue.
    pub(super) fn first(&self) -> Option<(u32, Waiting)> {
        let queue = self.order.first()?.queue;
        let head = self.queues.get(&queue)?.waiting.front()?;
        Some((queue, *head))
    }

    /// Takes the oldest request out of a queue, to be carried out.
    pub(super) fn dispatch(&mut self, queue: u32) {
        self.dispatched += 1;
        let turn = self.dispatched;
        let Some(found) = self.queues.get_mut(&queue) else {
            return;
        };
        if let Some(head) = found.waiting.pop_front() {
            found.seats_waiting -= u64::from(head.seats);
            found.execute(head.seats, turn);
        }
        self.place(queue);
    }

    /// Counts the end of a request that took so long.
    pub(super) fn finish(&mut self, queue: u32, seats: u32, nanos: u64) {
        if let Some(found) = self.queues.get_mut(&queue) {
            found.executing = found.executing.saturating_sub(1);
            found.seats_in_use = found.seats_in_use.saturating_sub(u64::from(seats));
            found.start -= i128::from(seats) * (SERVICE_NANOS - i128::from(nanos));
        }
        self.place(queue);
    }

    /// Takes a request that still waits out of its queue.
    pub(super) fn remove(&mut self, queue: u32, slot: u32) {
        if let Some(found) = self.queues.get_mut(&queue)
            && let Some(at) = found.waiting.iter().position(|one| one.slot == slot)
            && let Some(removed) = found.waiting.remove(at)
        {
            found.seats_waiting -= u64::from(removed.seats);
        }
        self.place(queue);
    }

    /// Returns the queues that have requests, in order.
    pub(super) fn states(&self) -> impl Iterator<Item = (u32, QueueState)> {
        self.queues.iter().map(|(number, queue)| {
            let state = QueueState {
                waiting: queue.waiting.len(),
                seats_waiting: queue.seats_waiting,
                executing: queue.executing,
                seats_in_use: queue.seats_in_use,
                start: queue.start,
            };
            (*number, state)
        })
    }

    /// Returns the requests that wait in a queue, oldest first.
    pub(super) fn waiting(&self, queue: u32) -> impl Iterator<Item = u32> {
        let found = self.queues.get(&queue).into_iter();
        found.flat_map(|queue| queue.waiting.iter().map(|one| one.slot))
    }

    fn joined(&mut self, queue: u32) -> &mut Queue {
        let start = self.progress;
        self.queues.entry(queue).or_insert_with(|| Queue {
            start,
            ..Queue::default()
        })
    }

    /// Puts a queue into its place in the order, and forgets one without requests.
    fn place(&mut self, number: u32) {
        let Some(queue) = self.queues.get_mut(&number) else {
            return;
        };
        queue.bound();
        let place = queue.waiting.front().map(|head| Place {
            finish: queue.start + work(head.seats),
            turn: queue.turn,
            queue: number,
        });
        let before = std::mem::replace(&mut queue.place, place);
        let is_idle = queue.is_idle();
        if before != place {
            if let Some(before) = before {
                self.order.remove(&before);
            }
            self.order.extend(place);
        }
        if is_idle {
            self.queues.remove(&number);
        }
    }
}

impl Queue {
    fn execute(&mut self, seats: u32, turn: u64) {
        self.executing += 1;
        self.seats_in_use += u64::from(seats);
        self.start += work(seats);
        self.turn = turn;
    }
}
