//! Whose turn it is: start-time fair queueing of requests, with the planes as flows.
//!
//! Each plane has a *finish*, the virtual time at which everything that it was given is paid for. A
//! request starts at the later of the plane's finish and about the present virtual time, and moves the
//! finish by what it is expected to cost; when it has ended, the difference to what it did cost is
//! added, and may be a debt. The request that starts earliest goes next, and virtual time is the
//! latest start of a request that went. So planes that want more than there is get equal CPU time
//! however many requests they make and however dear each is, and one that has waited for nothing
//! goes first when it comes: it may start a little before virtual time, because its clients may only have
//! been slow for a moment. A debt needs no timer: it is what the finish is ahead of virtual time,
//! which goes on with every request of anybody.
//!
//! What all planes need, such as the proofs of their callers, has a reserved flow. The more planes compete,
//! the less its costs count, so it always has a part of the time.
//!
//! The queue has an entry for a plane only while it has requests that wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::meter::PlaneMeter;

/// The cost that a plane's first request is expected to have, in nanoseconds: that of a GET.
const FIRST_COST: u64 = 30_000;
/// The expected cost is an average in which the newest request counts this part. With a larger one, a
/// single dear request would make the cheap ones after it wait.
const NEWEST_PART: u64 = 8;
/// Requests by which a plane that has had less than its share may be ahead of the others. With fewer, a
/// plane whose few clients are slow for a moment loses to one with many requests what that one is given
/// meanwhile. With more, planes that come back from a rest would hold up those that have worked.
const CREDIT_REQUESTS: u64 = 16;
/// CPU time that such a plane may be ahead, in nanoseconds, however dear its requests are.
const CREDIT_MAX: u64 = 10_000_000;
/// CPU time that a plane may be behind the others when it begins to wait, in nanoseconds. What it costs beside its turns
/// grows for weeks if the replica only forwards for it, and virtual time stands still while no plane takes turns. When
/// such a plane is then served here, it must not wait until the others want nothing more.
const DEBT_MAX: u64 = 1_000_000_000;
/// The part of the time that a reserved flow may have is one in this many. With a larger part, a flood of
/// bad credentials takes more from the planes; with a smaller one, newcomers wait longer for their proof.
const RESERVED_PART: u64 = 8;

/// The account of one plane in virtual time.
#[derive(Debug)]
pub struct Flow {
    /// The virtual time at which everything that the plane was given is paid for.
    finish: AtomicU64,
    /// What was charged beside turns since the last one, which alone may be dropped: the rest is what turns have cost
    /// or what requests in flight will give back.
    beside: AtomicU64,
    /// What a request of the plane is expected to cost.
    expected: AtomicU64,
    /// What a turn of the plane is expected to cost. A request costs as much, or more: it is read and
    /// answered outside of its turn.
    expected_of_turn: AtomicU64,
    /// True if the flow has a part of the time to itself, however many planes compete.
    is_reserved: AtomicBool,
    /// How many times a plane's share the flow has.
    weight: AtomicU64,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            finish: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            expected: AtomicU64::new(FIRST_COST),
            expected_of_turn: AtomicU64::new(FIRST_COST),
            is_reserved: AtomicBool::new(false),
            weight: AtomicU64::new(1),
        }
    }
}

/// The virtual time of one replica, in nanoseconds of CPU time that each plane was given.
#[derive(Debug, Default)]
pub struct VirtualTime {
    now: AtomicU64,
    /// Planes that wait for their turns.
    competing: AtomicU64,
}

impl VirtualTime {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Notes how many planes wait for their turns.
    pub fn note_competing(&self, planes: usize) {
        let planes = u64::try_from(planes).unwrap_or(u64::MAX);
        self.competing.store(planes, Ordering::Relaxed);
    }

    /// Returns how many planes waited for their turns when that was noted last.
    #[must_use]
    pub fn competing(&self) -> usize {
        usize::try_from(self.competing.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Returns how many times a plane's share a flow needs to have its part of the time.
    fn reserved_weight(&self) -> u64 {
        let competing = self.competing.load(Ordering::Relaxed);
        (competing / (RESERVED_PART - 1)).max(1)
    }
}

/// A request that was given its turn, with what was charged for it.
#[derive(Debug)]
#[must_use]
pub struct Started {
    expected: u64,
    weight: u64,
}

impl Started {
    /// Returns what was charged in advance, in virtual time.
    fn charged(&self) -> u64 {
        self.expected / self.weight
    }
}

impl Flow {
    /// Gives the flow an eighth of the time where many planes compete. With the share of one plane, what all
    /// planes need, such as the proofs of their callers, would hardly go on beside very many busy planes.
    pub fn reserve(&self) {
        self.is_reserved.store(true, Ordering::Relaxed);
    }

    /// Returns how many times a plane's share the flow has now.
    fn weigh(&self, time: &VirtualTime) -> u64 {
        if !self.is_reserved.load(Ordering::Relaxed) {
            return 1;
        }
        let weight = time.reserved_weight();
        self.weight.store(weight, Ordering::Relaxed);
        weight
    }

    /// Gives a request of the plane its turn.
    pub fn start(&self, time: &VirtualTime) -> Started {
        let expected = self.expected.load(Ordering::Relaxed);
        let started = Started {
            expected,
            weight: self.weigh(time),
        };
        let now = time.now();
        let earliest = self.earliest_start(now);
        let mut finish = self.finish.load(Ordering::Relaxed);
        loop {
            let start = finish.max(earliest);
            let next = start.saturating_add(started.charged());
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let swapped = self
                .finish
                .compare_exchange_weak(finish, next, success, failure);
            match swapped {
                Ok(_) => {
                    self.beside.store(0, Ordering::Relaxed);
                    if start > now {
                        time.now.fetch_max(start, Ordering::Relaxed);
                    }
                    return started;
                }
                Err(found) => finish = found,
            }
        }
    }

    /// Returns what a turn of the plane is expected to cost, in nanoseconds.
    #[must_use]
    pub fn expected_of_turn(&self) -> u64 {
        self.expected_of_turn.load(Ordering::Relaxed)
    }

    /// Notes what a turn cost, from which the cost of the next ones is expected. Charges nothing.
    pub fn end_turn(&self, cost: u64) {
        average(&self.expected_of_turn, cost);
    }

    /// Replaces what was charged in advance for a request by what it cost.
    pub fn charge_actual(&self, started: Started, cost: u64) {
        let (charged, due) = (started.charged(), cost / started.weight);
        if due >= charged {
            self.finish.fetch_add(due - charged, Ordering::Relaxed);
        } else {
            self.finish.fetch_sub(charged - due, Ordering::Relaxed);
        }
        average(&self.expected, cost);
    }

    /// Takes back what was charged for a turn that nobody used, or whose cost is charged otherwise. It says
    /// nothing of what a request of the plane costs.
    pub fn give_back(&self, started: Started) {
        self.finish.fetch_sub(started.charged(), Ordering::Relaxed);
    }

    /// Adds a cost that no request waits for, such as that of a long answer while it is sent.
    pub fn charge(&self, cost: u64) {
        let due = cost / self.weight.load(Ordering::Relaxed);
        self.finish.fetch_add(due, Ordering::Relaxed);
        self.beside.fetch_add(due, Ordering::Relaxed);
    }

    /// Drops of what the plane was charged beside turns what is beyond [`DEBT_MAX`], as it begins to wait.
    fn limit_debt(&self, time: &VirtualTime) {
        let latest = time.now().saturating_add(DEBT_MAX);
        let beyond = self.finish.load(Ordering::Relaxed).saturating_sub(latest);
        if beyond > 0 {
            let beside = self.beside.swap(0, Ordering::Relaxed);
            self.finish.fetch_sub(beyond.min(beside), Ordering::Relaxed);
        }
    }

    /// Returns the virtual time at which the plane's next request starts.
    fn next_start(&self, time: &VirtualTime) -> u64 {
        let now = time.now();
        let finish = self.finish.load(Ordering::Relaxed);
        finish.max(self.earliest_start(now))
    }

    /// Returns the virtual time before which no request of the plane starts, however little it has used.
    fn earliest_start(&self, now: u64) -> u64 {
        let expected = self.expected.load(Ordering::Relaxed);
        let credit = expected.saturating_mul(CREDIT_REQUESTS).min(CREDIT_MAX);
        now.saturating_sub(credit)
    }
}

/// Adds a cost to an average.
fn average(average: &AtomicU64, cost: u64) {
    // Two requests that end at once may lose one of both costs, which only an average needs.
    let old = average.load(Ordering::Relaxed);
    let new = old - old / NEWEST_PART + cost / NEWEST_PART;
    average.store(new.max(1), Ordering::Relaxed);
}

/// The requests that wait for their turn.
#[derive(Debug)]
pub struct Turns<T> {
    waiting: HashMap<usize, Waiting<T>>,
    order: BTreeSet<Turn>,
    /// Requests that have come, and planes that were put behind the others, so far.
    arrivals: u64,
    length: usize,
}

/// The place of a plane among those that wait.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Turn {
    /// The virtual time at which the plane's next request starts.
    start: u64,
    /// Of planes that start at the same time, the one that has waited longest goes first.
    arrival: u64,
    /// The plane's key in `waiting`.
    key: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    meter: Arc<PlaneMeter>,
    requests: VecDeque<T>,
    /// The plane's place in `order`.
    turn: Turn,
    /// Requests of the plane that nobody waits for any more.
    gone: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: BTreeSet::new(),
            arrivals: 0,
            length: 0,
        }
    }
}

impl<T> Turns<T> {
    /// Returns the number of requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of planes with requests that wait.
    #[must_use]
    pub fn planes(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds a request of a plane behind the plane's others.
    pub fn push(&mut self, meter: &Arc<PlaneMeter>, request: T, time: &VirtualTime) {
        self.length += 1;
        let (key, order) = (key(meter), &mut self.order);
        if !self.waiting.contains_key(&key) {
            meter.flow().limit_debt(time);
        }
        let start = meter.flow().next_start(time);
        self.arrivals += 1;
        let turn = Turn {
            start,
            arrival: self.arrivals,
            key,
        };
        let waiting = self.waiting.entry(key).or_insert_with(|| {
            order.insert(turn);
            Waiting {
                meter: Arc::clone(meter),
                requests: VecDeque::new(),
                turn,
                gone: 0,
            }
        });
        // A request of the plane may have cost less than expected since.
        if start < waiting.turn.start {
            order.remove(&waiting.turn);
            waiting.turn.start = start;
            order.insert(waiting.turn);
        }
        waiting.requests.push_back(request);
    }

    /// Notes that nobody waits any more for one of a plane's requests. As soon as these are more than half
    /// of the plane's, those are removed that `is_wanted` does not return true for. So a plane whose
    /// clients have gone leaves nothing, and one whose clients come and go while it pays for what it had
    /// has no queue that grows.
    pub fn leave(&mut self, meter: &Arc<PlaneMeter>, is_wanted: impl Fn(&T) -> bool) {
        let key = key(meter);
        let Some(waiting) = self.waiting.get_mut(&key) else {
            return;
        };
        waiting.gone += 1;
        let before = waiting.requests.len();
        if waiting.gone * 2 <= before {
            return;
        }
        waiting.requests.retain(is_wanted);
        waiting.gone = 0;
        self.length -= before - waiting.requests.len();
        if waiting.requests.is_empty() {
            self.order.remove(&waiting.turn);
            self.waiting.remove(&key);
        }
    }

    /// Removes the request that goes next, and gives it its turn. Returns it with its plane.
    pub fn pop(&mut self, time: &VirtualTime) -> Option<(Arc<PlaneMeter>, T, Started)> {
        loop {
            let turn = self.order.pop_first()?;
            let waiting = self.waiting.get_mut(&turn.key)?;
            // A request of the plane may have cost more than expected since.
            let next = waiting.meter.flow().next_start(time);
            if next > turn.start && self.order.first().is_some_and(|other| other.start < next) {
                waiting.turn.start = next;
                self.order.insert(waiting.turn);
                continue;
            }
            return self.give_turn(turn.key, time);
        }
    }

    /// As [`Self::pop`], among the planes that `may_go`. Looks at all planes that wait.
    pub fn pop_among(
        &mut self,
        time: &VirtualTime,
        may_go: impl Fn(&PlaneMeter) -> bool,
    ) -> Option<(Arc<PlaneMeter>, T, Started)> {
        let waiting = self.waiting.values();
        let may_go = waiting.filter(|waiting| may_go(&waiting.meter));
        let next = may_go.min_by_key(|waiting| {
            let start = waiting.meter.flow().next_start(time);
            (start, waiting.turn.arrival)
        });
        let turn = next?.turn;
        self.order.remove(&turn);
        self.give_turn(turn.key, time)
    }

    /// Gives its turn to the first request of a plane that is not in `order`.
    fn give_turn(
        &mut self,
        key: usize,
        time: &VirtualTime,
    ) -> Option<(Arc<PlaneMeter>, T, Started)> {
        let waiting = self.waiting.get_mut(&key)?;
        let request = waiting.requests.pop_front()?;
        self.length -= 1;
        let meter = Arc::clone(&waiting.meter);
        let started = meter.flow().start(time);
        if waiting.requests.is_empty() {
            self.waiting.remove(&key);
        } else {
            self.arrivals += 1;
            waiting.turn = Turn {
                start: meter.flow().next_start(time),
                arrival: self.arrivals,
                key,
            };
            self.order.insert(waiting.turn);
        }
        Some((meter, request, started))
    }
}

/// Returns a number that no other plane of the queue has: the queue holds the meter, so that its
/// address is not used again.
fn key(meter: &Arc<PlaneMeter>) -> usize {
    Arc::as_ptr(meter).addr()
}

#[cfg(test)]
mod tests;
