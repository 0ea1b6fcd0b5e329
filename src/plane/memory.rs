//! The memory budget of the process, in shares with a limit each: for data that is kept for speed, data in
//! transit, what writes are prepared from, and what open watches keep of long requests. The objects of the planes
//! that are awake are not in it: serving them is what the process is for, and sleep bounds them.
//!
//! Each user of a share adds and subtracts its bytes here, in batches, so that a request costs at most
//! two atomic additions. The user also enforces the limit: logs shed their oldest events, the largest
//! logs first; caches evict; a streamed state, an answer, a write or a watch is refused.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_fairness::TIMES_FREE;

/// Bytes of the budget of a [`Memory`] that is created without a budget.
const BUDGET_DEFAULT: usize = 1 << 30;
/// When the logs exceed their share, they are shed to this many sixteenths of it, so that the next
/// append need not shed again.
const SHED_SIXTEENTHS: usize = 15;
/// Number of enrolled logs at which dropped logs are removed from the list for the first time.
const FORGET_FIRST: usize = 64;
/// As [`TIMES_FREE`], of the share of trees: a plane that is alone gets half of it. One request may take all that its plane
/// gets, until a webhook has answered. With more, it would leave others less than their large objects need.
const TIMES_FREE_OF_TREES: u64 = 1;

/// A part of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Events of all logs: the objects they replaced, and their frames.
    Logs,
    /// Rendered objects of layers.
    Rendered,
    /// The table of parts that objects share. The parts themselves count with the objects.
    Interner,
    /// States that former owners have streamed here ahead of a release.
    StreamedStates,
    /// States that are being streamed to successors.
    Exports,
    /// Lists, and initial events of watches, between the plane and the socket. Of planes of other replicas, all answers
    /// between the owner and the socket.
    Answers,
    /// Bodies of requests that are being read.
    Bodies,
    /// Long selectors of open watches.
    Selectors,
    /// Parsed bodies and objects of writes that are being prepared, if they have many values.
    Trees,
}

/// The size of a share.
struct Part {
    share: Share,
    name: &'static str,
    /// The share in hundredths of the budget.
    percent: usize,
    /// The most bytes of the share, however large the budget is: more is of no use.
    bytes_max: usize,
}

/// The sizes of all shares. The hundredths sum up to 100.
const PARTS: [Part; 9] = [
    part(Share::Logs, "logs", 32, usize::MAX),
    part(Share::Rendered, "rendered", 2, 8 << 20),
    part(Share::Interner, "interner", 1, usize::MAX),
    part(Share::StreamedStates, "streamed_states", 12, 512 << 20),
    part(Share::Exports, "exports", 8, 512 << 20),
    part(Share::Answers, "answers", 22, usize::MAX),
    part(Share::Bodies, "bodies", 15, usize::MAX),
    part(Share::Selectors, "selectors", 2, usize::MAX),
    part(Share::Trees, "trees", 6, usize::MAX),
];

const fn part(share: Share, name: &'static str, percent: usize, bytes_max: usize) -> Part {
    Part {
        share,
        name,
        percent,
        bytes_max,
    }
}

impl Share {
    /// Returns all shares.
    pub fn all() -> impl Iterator<Item = Self> {
        PARTS.iter().map(|part| part.share)
    }

    /// Returns the limit of this share in a budget of `budget` bytes.
    #[must_use]
    pub fn part_of(self, budget: usize) -> usize {
        let part = &PARTS[self as usize];
        (budget / 100 * part.percent).min(part.bytes_max)
    }

    /// Returns how many times as much of the share as is free a plane may have.
    fn times_free(self) -> u64 {
        match self {
            Self::Trees => TIMES_FREE_OF_TREES,
            Self::Logs
            | Self::Rendered
            | Self::Interner
            | Self::StreamedStates
            | Self::Exports
            | Self::Answers
            | Self::Bodies
            | Self::Selectors => TIMES_FREE,
        }
    }

    /// Returns the share's name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        PARTS[self as usize].name
    }
}

/// The bytes of a share in use. Alone in its cache line, so that shares do not slow each other.
#[derive(Debug)]
#[repr(align(64))]
struct Account {
    used: AtomicUsize,
    limit: usize,
    /// The number of times that the share was full: refusals, or rounds of shedding.
    full: AtomicU64,
}

/// The memory budget of the process.
pub struct Memory {
    accounts: [Account; PARTS.len()],
    logs: Mutex<Logs>,
}

/// A log that can drop its oldest events.
pub(crate) trait Sheds: Send + Sync {
    fn bytes(&self) -> usize;
    fn shed_to(&self, bytes_max: usize);
}

#[derive(Default)]
struct Logs {
    enrolled: Vec<Weak<dyn Sheds>>,
    /// Number of enrolled logs at which dropped logs are removed from the list.
    forget_at: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of_budget(BUDGET_DEFAULT)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shares =
            Share::all().map(|share| (share.name(), (self.used(share), self.limit(share))));
        formatter.debug_map().entries(shares).finish()
    }
}

impl Memory {
    /// Returns the shares of a budget of `budget` bytes.
    #[must_use]
    pub fn new(budget: usize) -> Arc<Self> {
        Arc::new(Self::of_budget(budget))
    }

    /// Returns shares with the given limits.
    #[must_use]
    pub fn with_limits(limit: impl Fn(Share) -> usize) -> Arc<Self> {
        Arc::new(Self::of_limits(limit))
    }

    fn of_budget(budget: usize) -> Self {
        Self::of_limits(|share| share.part_of(budget))
    }

    fn of_limits(limit: impl Fn(Share) -> usize) -> Self {
        Self {
            accounts: PARTS.map(|part| Account {
                used: AtomicUsize::new(0),
                limit: limit(part.share),
                full: AtomicU64::new(0),
            }),
            logs: Mutex::default(),
        }
    }

    fn account(&self, share: Share) -> &Account {
        &self.accounts[share as usize]
    }

    /// Returns the bytes of a share in use.
    #[must_use]
    pub fn used(&self, share: Share) -> usize {
        self.account(share).used.load(Ordering::Relaxed)
    }

    /// Returns the limit of a share in bytes.
    #[must_use]
    pub fn limit(&self, share: Share) -> usize {
        self.account(share).limit
    }

    /// Returns the number of times that the share was full: something was refused, shed or not
    /// kept.
    #[must_use]
    pub fn times_full(&self, share: Share) -> u64 {
        self.account(share).full.load(Ordering::Relaxed)
    }

    /// Returns the most bytes of a share that a plane gets while nobody else has any of it. A request that takes
    /// more counts with so many, or it would be refused for ever.
    #[must_use]
    pub fn most_for_one(&self, share: Share) -> usize {
        let times = share.times_free() as usize;
        self.limit(share) / (times + 1) * times
    }

    /// Reserves bytes of a share until the reservation is dropped; `None` if the share has fewer
    /// left.
    #[must_use]
    pub fn take(self: &Arc<Self>, share: Share, bytes: usize) -> Option<Reservation> {
        let account = self.account(share);
        let before = account.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > account.limit {
            account.used.fetch_sub(bytes, Ordering::Relaxed);
            account.full.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Reservation {
            memory: Arc::clone(self),
            share,
            bytes,
            plane: None,
        })
    }

    /// Reserves bytes of a share for a plane; `None` if the share has fewer left, or if the plane would leave
    /// too few to others.
    #[must_use]
    pub(crate) fn take_for(
        self: &Arc<Self>,
        share: Share,
        bytes: usize,
        plane: &Arc<PlaneBytes>,
    ) -> Option<Reservation> {
        let mut reservation = self.take(share, bytes)?;
        plane.of(share).fetch_add(bytes, Ordering::Relaxed);
        reservation.plane = Some(Arc::clone(plane));
        if reservation.is_over() {
            self.was_full(share);
            return None;
        }
        Some(reservation)
    }

    /// Counts bytes that are in memory already against a share, even beyond its limit.
    #[must_use]
    pub fn hold(self: &Arc<Self>, share: Share, bytes: usize) -> Reservation {
        self.add(share, bytes);
        Reservation {
            memory: Arc::clone(self),
            share,
            bytes,
            plane: None,
        }
    }

    /// Counts that something could not be kept because the share was full.
    pub fn was_full(&self, share: Share) {
        self.account(share).full.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes without a check. The caller enforces the limit.
    pub fn add(&self, share: Share, bytes: usize) {
        self.account(share).used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that [`Self::add`] counted and that are no longer in memory.
    pub fn subtract(&self, share: Share, bytes: usize) {
        self.account(share).used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Replaces the `counted` bytes of a user of a share by `now` bytes.
    pub(crate) fn correct(&self, share: Share, counted: &mut usize, now: usize) {
        if now >= *counted {
            self.add(share, now - *counted);
        } else {
            self.subtract(share, *counted - now);
        }
        *counted = now;
    }

    /// Enrols a new log. It is removed from the list once it is dropped.
    pub(crate) fn enrol(&self, log: Weak<dyn Sheds>) {
        let mut logs = self.logs.lock();
        if logs.enrolled.len() >= logs.forget_at.max(FORGET_FIRST) {
            logs.enrolled.retain(|log| log.strong_count() > 0);
            logs.forget_at = 2 * logs.enrolled.len();
        }
        logs.enrolled.push(log);
    }

    /// Makes the largest logs drop their oldest events if all together are beyond their share. Must
    /// not be called with a log locked.
    pub(crate) fn shed_logs(&self) {
        let limit = self.limit(Share::Logs);
        if self.used(Share::Logs) <= limit {
            return;
        }
        // One caller at a time: a second one would shed the same logs.
        let Some(logs) = self.logs.try_lock() else {
            return;
        };
        let logs = logs.enrolled.iter().filter_map(Weak::upgrade);
        let mut logs: Vec<_> = logs.map(|log| (log.bytes(), log)).collect();
        let total = limit / 16 * SHED_SIXTEENTHS;
        let level = level_for(logs.iter().map(|(bytes, _)| *bytes).collect(), total);
        self.was_full(Share::Logs);
        logs.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        for (bytes, log) in logs {
            // A log drops whole events, so the first logs may have freed enough for all.
            if bytes <= level || self.used(Share::Logs) <= total {
                break;
            }
            log.shed_to(level);
        }
    }
}

/// Returns the most bytes that each log may keep so that all together keep at most `total`.
fn level_for(mut sizes: Vec<usize>, total: usize) -> usize {
    sizes.sort_unstable();
    let mut left = total;
    let mut others = sizes.len();
    for size in sizes {
        let even = left / others;
        if size > even {
            return even;
        }
        left -= size;
        others -= 1;
    }
    usize::MAX
}

/// The bytes of each share that one plane holds, of shares in which planes have parts.
#[derive(Debug, Default)]
pub(crate) struct PlaneBytes([AtomicUsize; PARTS.len()]);

impl PlaneBytes {
    fn of(&self, share: Share) -> &AtomicUsize {
        &self.0[share as usize]
    }
}

/// Bytes reserved of a share, which are returned to the share when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<Memory>,
    share: Share,
    bytes: usize,
    /// The plane that holds them, if planes have parts of the share.
    plane: Option<Arc<PlaneBytes>>,
}

impl Reservation {
    /// Returns the number of reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the reservation to `bytes`, even beyond the share's limit: for bytes that are in
    /// memory already and that the next caller must see.
    pub fn resize(&mut self, bytes: usize) {
        if let Some(plane) = &self.plane {
            let held = plane.of(self.share);
            held.fetch_add(bytes, Ordering::Relaxed);
            held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.memory.correct(self.share, &mut self.bytes, bytes);
    }

    /// Returns whether the share exceeds its limit, or the plane's part of it leaves too few bytes to others.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let (used, limit) = (self.memory.used(self.share), self.memory.limit(self.share));
        let held = self.plane.as_ref();
        let held = held.map_or(0, |plane| plane.of(self.share).load(Ordering::Relaxed));
        let free = limit.saturating_sub(used) as u64;
        used > limit || held as u64 > free.saturating_mul(self.share.times_free())
    }

    /// Ties the reservation to bytes: it ends when the last handle to them is dropped.
    #[must_use]
    pub fn keep(self, bytes: impl Into<Bytes>) -> Bytes {
        Bytes::from_owner(HeldBytes {
            bytes: bytes.into(),
            _hold: self,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(plane) = &self.plane {
            plane
                .of(self.share)
                .fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.memory.subtract(self.share, self.bytes);
    }
}

struct HeldBytes {
    bytes: Bytes,
    _hold: Reservation,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_whole_budget_and_in_order() {
        assert_eq!(PARTS.iter().map(|part| part.percent).sum::<usize>(), 100);
        for (at, part) in PARTS.iter().enumerate() {
            assert_eq!(part.share as usize, at, "{}", part.name);
        }
        let memory = Memory::new(100 << 20);
        assert_eq!(memory.limit(Share::Answers), 22 << 20);
        assert_eq!(memory.limit(Share::Rendered), 2 << 20);
    }

    #[test]
    fn a_full_share_refuses_until_something_is_given_back() {
        let memory = Memory::with_limits(|_| 100);
        let first = memory.take(Share::Answers, 60).expect("there is room");
        assert!(memory.take(Share::Answers, 41).is_none());
        assert!(memory.take(Share::Bodies, 100).is_some(), "a share apart");
        assert_eq!(memory.times_full(Share::Answers), 1);
        assert_eq!(memory.used(Share::Answers), 60);
        let bytes = first.keep(vec![7; 60]);
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(memory.used(Share::Answers), 60, "a slice holds all of it");
        assert_eq!(part[0], 7);
        drop(part);
        assert_eq!(memory.used(Share::Answers), 0);
    }

    #[test]
    fn a_plane_that_holds_much_of_a_share_leaves_some_to_others() {
        let memory = Memory::with_limits(|_| 90);
        let (greedy, modest) = (Arc::default(), Arc::default());
        let take = |plane: &Arc<PlaneBytes>| memory.take_for(Share::Answers, 1, plane);
        let mut held: Vec<_> = std::iter::from_fn(|| take(&greedy)).collect();
        assert_eq!(held.len(), 80);
        assert!(take(&modest).is_some());
        held.pop();
        assert!(take(&greedy).is_some(), "a byte that came back");
        let first = held.first_mut().expect("there are some");
        first.resize(8);
        assert!(first.is_over());
        assert!(take(&modest).is_some(), "others are not over");
        let other_share = memory.take_for(Share::Selectors, 80, &greedy);
        assert!(other_share.is_some(), "a share apart");
        drop(held);
        assert_eq!(memory.used(Share::Answers), 0);
        assert!(take(&greedy).is_some());
    }

    #[test]
    fn a_plane_alone_gets_the_most_for_one_and_not_much_more() {
        for limit in [0, 1, 8, 9, 90, 97, 1 << 20] {
            let memory = Memory::with_limits(|_| limit);
            let most = memory.most_for_one(Share::Trees);
            let alone = memory.take_for(Share::Trees, most, &Arc::default());
            assert!(alone.is_some(), "{limit}");
        }
        let memory = Memory::with_limits(|_| 90);
        let most = memory.most_for_one(Share::Trees);
        let more = memory.take_for(Share::Trees, most + 1, &Arc::default());
        assert!(more.is_none());
    }

    #[test]
    fn the_most_for_one_of_the_trees_leaves_others_room_for_large_objects() {
        let memory = Memory::with_limits(|_| 96);
        let most = memory.most_for_one(Share::Trees);
        let greedy = memory.take_for(Share::Trees, most, &Arc::default());
        assert!(greedy.is_some());
        for part in [96 / 8, 96 / 16] {
            let modest = memory.take_for(Share::Trees, part, &Arc::default());
            assert!(modest.is_some(), "{part}");
        }
    }

    #[test]
    fn the_largest_give_and_the_small_keep() {
        assert_eq!(level_for(vec![10, 500, 20, 300], 230), 100);
        assert_eq!(level_for(vec![10, 20], 30), usize::MAX);
        assert_eq!(level_for(vec![10, 20], 0), 0);
        assert_eq!(level_for(Vec::new(), 0), usize::MAX);
    }
}
