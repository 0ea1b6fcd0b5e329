//! Who of a plane's requests goes on, who waits, and who is refused.

use std::sync::Arc;

use super::level::{Level, LevelKind, Levels, Queueing, SeatLimits, Totals};
use super::queues::Queues;
use super::retry_after::RetryAfter;
use crate::Moment;

/// Requests of one plane that wait at a time, at most. The queues of a plane's levels could hold
/// any number.
const WAITING_MAX: usize = 10_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The requests of one plane that are in flight or wait, by level. `T` is what the caller keeps with
/// each.
#[derive(Debug)]
pub struct Dispatcher<T> {
    /// The seats of the plane.
    pub(super) seats: u32,
    pub(super) config: Arc<Levels>,
    totals: Totals,
    /// The levels that have requests. One that the plane has no more stays until it has none.
    pub(super) active: Vec<Active>,
    pub(super) requests: Vec<Slot<T>>,
    free: Vec<u32>,
    waiting: usize,
}

/// A request of a [`Dispatcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: u32,
    /// Tells requests apart that had one slot at different times.
    generation: u32,
}

/// A request that comes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The levels of the plane.
    pub config: &'a Arc<Levels>,
    /// The level of the request.
    pub level: &'a Arc<Level>,
    /// A hash of the request's flow.
    pub hash: u64,
    /// The seats that the request takes.
    pub seats: u32,
}

/// Why a request is refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// The level has no seat and no queues.
    ConcurrencyLimit,
    /// The level has no seat and the request's queue is full.
    QueueFull,
}

/// The refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: RejectionReason,
    /// After how many seconds the client may retry.
    pub retry_after_seconds: u32,
}

/// Why a request that waited does so no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It has waited for as long as it may.
    TimedOut,
    /// Its client has gone.
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Slot<T> {
    generation: u32,
    pub(super) request: Option<Request<T>>,
}

#[derive(Debug)]
pub(super) struct Request<T> {
    pub(super) level: Arc<Level>,
    pub(super) queue: Option<u32>,
    pub(super) seats: u32,
    pub(super) arrived: Moment,
    pub(super) state: State,
    pub(super) kept: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Executing {
        since: Moment,
        /// False while the request has returned its seats to wait for others.
        is_seated: bool,
    },
}

/// A level that has requests.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) level: Arc<Level>,
    pub(super) limits: SeatLimits,
    /// False if the plane has the level no more.
    pub(super) is_wanted: bool,
    pub(super) executing: u64,
    seats_in_use: u64,
    pub(super) waiting: u64,
    seats_waiting: u64,
    pub(super) queues: Option<Box<Queues>>,
    pub(super) counts: Counts,
    retry: RetryAfter,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    pub(super) timed_out: u64,
    pub(super) cancelled: u64,
}

impl Active {
    fn new(level: &Arc<Level>, config: &Levels, seats: u32) -> Self {
        Self {
            limits: config.limits(level, seats),
            level: Arc::clone(level),
            is_wanted: config.get(&level.name).is_some(),
            executing: 0,
            seats_in_use: 0,
            waiting: 0,
            seats_waiting: 0,
            queues: None,
            counts: Counts::default(),
            retry: RetryAfter::default(),
        }
    }

    fn is_idle(&self) -> bool {
        self.executing == 0 && self.waiting == 0
    }

    /// Returns the seats that no other level gets: those in use, and of the level's own those that it
    /// does not lend or needs now.
    fn reserved(&self) -> u64 {
        let needed = self.seats_in_use + self.seats_waiting;
        let own = self.limits.min.max(self.limits.nominal.min(needed));
        self.seats_in_use.max(own)
    }

    /// Returns whether a request finds its seats below a limit. A request that is wider than the limit
    /// waits until it is alone.
    fn seats_fit(&self, seats: u32, limit: u64) -> bool {
        let seats = u64::from(seats);
        if self.level.kind == LevelKind::Exempt {
            return true;
        }
        if seats > limit {
            return self.executing == 0;
        }
        self.seats_in_use + seats <= limit
    }

    /// Returns whether a request goes on at once: nobody waits, and there are seats for it.
    fn has_seats_for(&self, seats: u32, limit: u64) -> bool {
        self.waiting == 0 && self.seats_in_use < limit && self.seats_fit(seats, limit)
    }
}

impl<T> Dispatcher<T> {
    /// Creates the state of a plane with so many seats.
    #[must_use]
    pub fn new(seats: u32) -> Self {
        let config = Arc::<Levels>::default();
        Self {
            seats,
            totals: config.totals(seats),
            config,
            active: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            waiting: 0,
        }
    }

    /// Returns whether the plane has no request in flight and none that waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns the number of requests for which there is memory.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.requests.capacity()
    }

    /// Takes in a request. Returns its ticket, and whether it may go on at once; if not, `wake` is called
    /// with what is kept with it when it may. `wake` is called for other requests too, because the levels
    /// may have changed.
    ///
    /// # Errors
    /// Returns the refusal, if the level has no seats for the request and no room in its queue.
    pub fn enter(
        &mut self,
        now: Moment,
        arrival: Arrival<'_>,
        kept: T,
        wake: &mut impl FnMut(&mut T),
    ) -> Result<(Ticket, bool), Rejection> {
        self.configure(now, arrival.config, wake);
        let at = self.activate(arrival.level);
        let limit = self.limit(at);
        let seats = arrival.seats.max(1);
        let (queue, goes_on) = match self.active[at].level.kind {
            LevelKind::Exempt => (None, true),
            LevelKind::Reject => {
                if !self.active[at].seats_fit(seats, limit) {
                    return Err(self.reject(now, at, RejectionReason::ConcurrencyLimit));
                }
                (None, true)
            }
            LevelKind::Queue(queueing) => {
                let queue = self.queue_for(now, at, (queueing, arrival.hash));
                let goes_on = self.active[at].has_seats_for(seats, limit);
                if !goes_on && !self.has_room(at, queue, queueing) {
                    return Err(self.reject(now, at, RejectionReason::QueueFull));
                }
                (Some(queue), goes_on)
            }
        };
        let active = &mut self.active[at];
        let state = match goes_on {
            true => State::Executing {
                since: now,
                is_seated: true,
            },
            false => State::Waiting,
        };
        let request = Request {
            level: Arc::clone(&active.level),
            queue,
            seats,
            arrived: now,
            state,
            kept,
        };
        let ticket = self.keep(request);
        let active = &mut self.active[at];
        if goes_on {
            active.executing += 1;
            active.seats_in_use += u64::from(seats);
            active.counts.dispatched += 1;
            if let (Some(queues), Some(queue)) = (&mut active.queues, queue) {
                queues.pass(queue, seats);
            }
            return Ok((ticket, true));
        }
        active.waiting += 1;
        active.seats_waiting += u64::from(seats);
        self.waiting += 1;
        if let (Some(queues), Some(queue)) = (&mut active.queues, queue) {
            queues.push(queue, ticket.slot, seats);
        }
        self.dispatch(now, wake);
        Ok((ticket, !self.is_waiting(ticket)))
    }

    /// Takes out a request that has ended.
    pub fn finish(&mut self, now: Moment, ticket: Ticket, wake: &mut impl FnMut(&mut T)) {
        self.leave(now, ticket, Left::Cancelled, wake);
    }

    /// Takes out a request, whether it has ended or not. Returns after how many seconds its client may retry, if the request has
    /// waited in vain.
    pub fn leave(
        &mut self,
        now: Moment,
        ticket: Ticket,
        why: Left,
        wake: &mut impl FnMut(&mut T),
    ) -> Option<u32> {
        let request = self.release(ticket)?;
        let at = self.position(&request.level)?;
        self.advance(now, at);
        let active = &mut self.active[at];
        let mut retry_after = None;
        match request.state {
            State::Waiting => {
                active.waiting -= 1;
                active.seats_waiting -= u64::from(request.seats);
                self.waiting -= 1;
                if let (Some(queues), Some(queue)) = (&mut active.queues, request.queue) {
                    queues.remove(queue, ticket.slot);
                }
                active.counts.rejected += 1;
                match why {
                    Left::TimedOut => active.counts.timed_out += 1,
                    Left::Cancelled => active.counts.cancelled += 1,
                }
                retry_after = Some(active.retry.refused(now.0 / NANOS_PER_SECOND));
            }
            State::Executing { since, is_seated } => {
                active.executing -= 1;
                if is_seated {
                    active.seats_in_use -= u64::from(request.seats);
                }
                if let (Some(queues), Some(queue)) = (&mut active.queues, request.queue) {
                    let nanos = now.0.saturating_sub(since.0);
                    queues.finish(queue, request.seats, nanos);
                }
            }
        }
        if active.is_idle() {
            self.active.swap_remove(at);
        }
        self.dispatch(now, wake);
        retry_after
    }

    /// Returns whether a request still waits for its seats.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        self.request(ticket)
            .is_some_and(|request| request.state == State::Waiting)
    }

    /// Returns what is kept with a request.
    pub fn kept_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        Some(&mut self.request_mut(ticket)?.kept)
    }

    /// Returns the seats of a request that waits for others, such as webhooks, whose own requests may
    /// need them.
    pub fn stand(&mut self, now: Moment, ticket: Ticket, wake: &mut impl FnMut(&mut T)) {
        self.seat(now, ticket, false);
        self.dispatch(now, wake);
    }

    /// Takes the seats again, even if none is free.
    pub fn sit(&mut self, now: Moment, ticket: Ticket) {
        self.seat(now, ticket, true);
    }

    fn seat(&mut self, now: Moment, ticket: Ticket, sits: bool) {
        let Some(request) = self.request_mut(ticket) else {
            return;
        };
        let State::Executing { is_seated, .. } = &mut request.state else {
            return;
        };
        if std::mem::replace(is_seated, sits) == sits {
            return;
        }
        let (level, seats) = (Arc::clone(&request.level), u64::from(request.seats));
        if let Some(at) = self.position(&level) {
            self.advance(now, at);
            let in_use = &mut self.active[at].seats_in_use;
            *in_use = match sits {
                true => *in_use + seats,
                false => *in_use - seats,
            };
        }
    }

    /// Lets the levels be those of `config` from now on.
    fn configure(&mut self, now: Moment, config: &Arc<Levels>, wake: &mut impl FnMut(&mut T)) {
        if Arc::ptr_eq(&self.config, config) {
            return;
        }
        for at in 0..self.active.len() {
            self.advance(now, at);
        }
        self.config = Arc::clone(config);
        self.totals = config.totals(self.seats);
        for active in &mut self.active {
            let found = config.get(&active.level.name);
            active.is_wanted = found.is_some();
            if let Some(level) = found {
                active.level = Arc::clone(level);
                active.limits = config.limits(level, self.seats);
            }
        }
        self.dispatch(now, wake);
    }

    /// Returns the place of a level among the active ones.
    fn activate(&mut self, level: &Arc<Level>) -> usize {
        if let Some(at) = self.position(level) {
            return at;
        }
        let active = Active::new(level, &self.config, self.seats);
        self.active.push(active);
        self.active.len() - 1
    }

    fn position(&self, level: &Arc<Level>) -> Option<usize> {
        let mut active = self.active.iter();
        active.position(|one| Arc::ptr_eq(&one.level, level) || one.level.name == level.name)
    }

    /// Returns the seats that a level may use now: all that no other level has or keeps for itself, but
    /// no less than it does not lend, and no more than it may borrow.
    fn limit(&self, at: usize) -> u64 {
        self.limit_of(at, self.reserved())
    }

    fn limit_of(&self, at: usize, reserved: u64) -> u64 {
        let limits = self.active[at].limits;
        let others = reserved - self.active[at].reserved();
        let most = limits.max.max(limits.min);
        let free = self.totals.nominal.saturating_sub(others);
        free.clamp(limits.min, most)
    }

    /// Returns the seats that are reserved in all levels.
    fn reserved(&self) -> u64 {
        let idle = self.totals.min;
        let active = self.active.iter();
        // A level that the plane has no more is in no sum over its levels.
        let (added, taken) = active.fold((0, 0), |(added, taken), one| {
            let min = if one.is_wanted { one.limits.min } else { 0 };
            (added + one.reserved(), taken + min)
        });
        idle.saturating_sub(taken) + added
    }

    /// Moves the progress meter of a level to now.
    fn advance(&mut self, now: Moment, at: usize) {
        if self.active[at].queues.is_none() {
            return;
        }
        let limit = self.limit(at);
        let active = &mut self.active[at];
        let wanted = active.seats_in_use + active.seats_waiting;
        if let Some(queues) = &mut active.queues {
            queues.advance(now, wanted.min(limit));
        }
    }

    /// Returns the queue for a request of a level.
    fn queue_for(&mut self, now: Moment, at: usize, (queueing, hash): (Queueing, u64)) -> u32 {
        self.advance(now, at);
        let queues = self.active[at].queues.get_or_insert_default();
        queues.choose(queueing, hash)
    }

    /// Returns whether one more request may wait in a queue. A seat that is free makes no room: the first of
    /// those that wait may need more seats than that, and would let the queue grow behind it.
    fn has_room(&self, at: usize, queue: u32, queueing: Queueing) -> bool {
        let queues = self.active[at].queues.as_ref();
        let length = queues.map_or(0, |queues| queues.length(queue));
        let length_max = usize::try_from(queueing.length_max).unwrap_or(usize::MAX);
        self.waiting < WAITING_MAX && length < length_max
    }

    fn reject(&mut self, now: Moment, at: usize, reason: RejectionReason) -> Rejection {
        let active = &mut self.active[at];
        active.counts.rejected += 1;
        let retry_after_seconds = active.retry.refused(now.0 / NANOS_PER_SECOND);
        if active.is_idle() {
            self.active.swap_remove(at);
        }
        Rejection {
            reason,
            retry_after_seconds,
        }
    }

    /// Lets requests go on that wait, while there are seats: first those of the level that has the least
    /// of its own seats.
    fn dispatch(&mut self, now: Moment, wake: &mut impl FnMut(&mut T)) {
        while self.waiting > 0 {
            let mut next: Option<(usize, u32, u32)> = None;
            let reserved = self.reserved();
            for at in 0..self.active.len() {
                let active = &self.active[at];
                let head = active.queues.as_ref().and_then(|queues| queues.first());
                let Some((queue, head)) = head else {
                    continue;
                };
                let limit = self.limit_of(at, reserved);
                if active.seats_in_use >= limit || !active.seats_fit(head.seats, limit) {
                    continue;
                }
                if next.is_none_or(|(best, ..)| active.has_less_than(&self.active[best])) {
                    next = Some((at, queue, head.slot));
                }
            }
            let Some((at, queue, slot)) = next else {
                return;
            };
            self.advance(now, at);
            let active = &mut self.active[at];
            if let Some(queues) = &mut active.queues {
                queues.dispatch(queue);
            }
            let slot = self.requests.get_mut(slot as usize);
            if let Some(request) = slot.and_then(|slot| slot.request.as_mut()) {
                let seats = u64::from(request.seats);
                request.state = State::Executing {
                    since: now,
                    is_seated: true,
                };
                wake(&mut request.kept);
                active.executing += 1;
                active.seats_in_use += seats;
                active.seats_waiting -= seats;
                active.counts.dispatched += 1;
            }
            active.waiting -= 1;
            self.waiting -= 1;
        }
    }

    fn keep(&mut self, request: Request<T>) -> Ticket {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.requests.push(Slot {
                generation: 0,
                request: None,
            });
            u32::try_from(self.requests.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.requests[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        place.request = Some(request);
        Ticket {
            slot,
            generation: place.generation,
        }
    }

    fn release(&mut self, ticket: Ticket) -> Option<Request<T>> {
        let slot = self.requests.get_mut(ticket.slot as usize)?;
        if slot.generation != ticket.generation {
            return None;
        }
        let request = slot.request.take()?;
        self.free.push(ticket.slot);
        Some(request)
    }

    fn request_mut(&mut self, ticket: Ticket) -> Option<&mut Request<T>> {
        let slot = self.requests.get_mut(ticket.slot as usize)?;
        let is_same = slot.generation == ticket.generation;
        slot.request.as_mut().filter(|_| is_same)
    }

    fn request(&self, ticket: Ticket) -> Option<&Request<T>> {
        let slot = self.requests.get(ticket.slot as usize)?;
        let is_same = slot.generation == ticket.generation;
        slot.request.as_ref().filter(|_| is_same)
    }
}

impl Active {
    /// Returns whether the level has a smaller part of its own seats in use than another.
    fn has_less_than(&self, other: &Self) -> bool {
        let part = |one: &Self, of: &Self| {
            u128::from(one.seats_in_use) * u128::from(of.limits.nominal.max(1))
        };
        part(self, other) < part(other, self)
    }
}
