//! One plane's account at one replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::Moment;
use crate::cpu_time::Spent;
use crate::limits::PlaneLimits;
use crate::rate_limit::RateLimit;
use crate::turns::Flow;

/// Stands for "without limit" in an atomic.
const UNLIMITED: u64 = u64::MAX;
/// Longest time for which a replica remembers that a plane's owner has refused, in nanoseconds.
/// Longer, and a plane whose limit was raised would still be refused.
const REMEMBERED_MAX: u64 = 1_000_000_000;

/// Part of a rate that a plane has beyond it for renewals, and at least one in a second. Without it a burst of others
/// would make nodes count as dead and leaders stand down.
const RENEWALS_PART: u64 = 10;
/// Renewals in a second that a replica forwards to an owner that has just refused requests: the owner knows the limits.
const RENEWALS_FORWARDED: u64 = 10;

/// What a request does, as far as its head tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It reads.
    Read,
    /// It changes something.
    Write,
    /// It changes what somebody renews in time or loses: a lease, or what a node says of itself.
    Renewal,
    /// It reads that, as a kubelet does before it renews it.
    RenewalRead,
}

impl Asked {
    /// Returns whether the request changes something.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::Write | Self::Renewal => true,
            Self::Read | Self::RenewalRead => false,
        }
    }

    /// Returns whether the request may have a part of what is beyond the rates.
    fn is_of_renewal(self) -> bool {
        match self {
            Self::Renewal | Self::RenewalRead => true,
            Self::Read | Self::Write => false,
        }
    }
}

/// Counts what one plane uses of a replica, and holds the plane's limits.
#[derive(Debug)]
pub struct PlaneMeter {
    requests: AtomicU64,
    writes: AtomicU64,
    refused: AtomicU64,
    cpu_nanos: AtomicU64,
    watches: AtomicU64,
    in_flight: AtomicU64,
    connections: AtomicU64,
    forwarded_bytes: AtomicUsize,
    flow: Flow,
    limits: AtomicLimits,
    request_rate: RateLimit,
    write_rate: RateLimit,
    /// The renewals beyond these rates.
    renewal_rate: RateLimit,
    /// The times until which the plane's owner refuses requests, and changing requests.
    refused_until: [AtomicU64; 2],
    /// The time until which the plane's work is done aside.
    aside_until: AtomicU64,
    /// The time until which its work is measured exactly, because some of it seemed to take long.
    suspect_until: AtomicU64,
}

#[derive(Debug)]
struct AtomicLimits {
    requests_per_second: AtomicU64,
    writes_per_second: AtomicU64,
    watches: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// CPU time from which on a piece of work is long, in nanoseconds. Those of ordinary requests take a twentieth of it.
const LONG_NANOS: u64 = 16_000_000;
/// How many times as long as a long piece of work the plane's work is done aside. So a plane holds up worker threads
/// for one fiftieth of the time at most, or twice that if it is not sure at first how long its work takes.
const ASIDE_FACTOR: u64 = 50;

/// What a plane has used of a replica, since it was first named there or woke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that were carried out or forwarded, the refused ones not among them.
    pub requests: u64,
    /// Those of them that change something.
    pub writes: u64,
    /// Requests that were refused because the plane was at a limit of its own.
    pub refused: u64,
    /// CPU time of requests, of watches, and of the connections that carry them, in nanoseconds.
    pub cpu_nanos: u64,
    /// Open watches.
    pub watches: u64,
}

/// The limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests in this second.
    Requests {
        /// The plane's limit; `None` if only its owner knows it.
        per_second: Option<u64>,
        /// Nanoseconds until there is room for one.
        wait_nanos: u64,
    },
    /// Too many changing requests in this second.
    Writes {
        /// The plane's limit; `None` if only its owner knows it.
        per_second: Option<u64>,
        /// Nanoseconds until there is room for one.
        wait_nanos: u64,
    },
    /// Too many open watches.
    Watches {
        /// The plane's limit.
        watches: u64,
    },
}

impl Default for PlaneMeter {
    fn default() -> Self {
        let unlimited = || AtomicU64::new(UNLIMITED);
        Self {
            requests: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cpu_nanos: AtomicU64::new(0),
            watches: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            forwarded_bytes: AtomicUsize::new(0),
            flow: Flow::default(),
            limits: AtomicLimits {
                requests_per_second: unlimited(),
                writes_per_second: unlimited(),
                watches: unlimited(),
                objects: unlimited(),
                bytes: unlimited(),
            },
            request_rate: RateLimit::default(),
            write_rate: RateLimit::default(),
            renewal_rate: RateLimit::default(),
            refused_until: [AtomicU64::new(0), AtomicU64::new(0)],
            aside_until: AtomicU64::new(0),
            suspect_until: AtomicU64::new(0),
        }
    }
}

impl PlaneMeter {
    /// Notes what a piece of the plane's work took of a thread without a pause. If that is long, all its work is done
    /// aside for a while: nobody can tell before which requests take long, and whatever waits in the queue of a worker
    /// thread waits for them.
    ///
    /// If it is not sure that the work was long, the next of its kind is measured exactly. A machine that takes the CPU
    /// away for a moment would otherwise let planes with short work wait behind those with long work.
    pub fn note_stretch(&self, spent: Spent, now: Moment) {
        if spent.cpu_nanos >= LONG_NANOS {
            let until = now.plus(spent.cpu_nanos.saturating_mul(ASIDE_FACTOR)).0;
            let time = match spent.is_exact {
                true => &self.aside_until,
                false => &self.suspect_until,
            };
            time.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Returns whether the plane's work is to be measured exactly, because some of it seemed to take long.
    #[must_use]
    pub fn is_suspect(&self, now: Moment) -> bool {
        now.0 < self.suspect_until.load(Ordering::Relaxed)
    }

    /// Returns whether the plane's work is to be done aside, because some of it took long.
    #[must_use]
    pub fn works_aside(&self, now: Moment) -> bool {
        now.0 < self.aside_until.load(Ordering::Relaxed)
    }

    /// Replaces the limits. What was taken from a rate stays taken.
    pub fn set_limits(&self, limits: &PlaneLimits) {
        let own = &self.limits;
        for (place, limit) in [
            (&own.requests_per_second, limits.requests_per_second),
            (&own.writes_per_second, limits.writes_per_second),
            (&own.watches, limits.watches),
            (&own.objects, limits.objects),
            (&own.bytes, limits.bytes),
        ] {
            place.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
        }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> PlaneLimits {
        let own = &self.limits;
        PlaneLimits {
            requests_per_second: limit(&own.requests_per_second),
            writes_per_second: limit(&own.writes_per_second),
            watches: limit(&own.watches),
            objects: limit(&own.objects),
            bytes: limit(&own.bytes),
        }
    }

    /// Counts a request at the plane's owner against the plane's rates.
    ///
    /// # Errors
    /// Returns the limit that the request would exceed.
    pub fn admit(&self, now: Moment, asked: Asked) -> Result<(), Refusal> {
        let writes = asked.writes();
        if let Err(refusal) = self.take_rates(now, writes)
            && !(asked.is_of_renewal() && self.takes_renewal(now))
        {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        self.count(writes);
        Ok(())
    }

    /// Takes one renewal from what a plane has beyond its rates. That is a part of the lower one: a part of a high rate
    /// of requests would be more than all writes that the plane may make.
    fn takes_renewal(&self, now: Moment) -> bool {
        let own = &self.limits;
        let rates = [&own.requests_per_second, &own.writes_per_second];
        // A rate of zero is a plane that nobody is to write to.
        let lowest = rates.into_iter().filter_map(limit).min();
        lowest.filter(|rate| *rate > 0).is_some_and(|rate| {
            let part = (rate / RENEWALS_PART).max(1);
            self.renewal_rate.take(now, part).is_ok()
        })
    }

    /// Counts a request without a limit: one of the root plane, or one that this replica forwards.
    pub fn count(&self, writes: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if writes {
            self.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take_rates(&self, now: Moment, writes: bool) -> Result<(), Refusal> {
        if let Some(per_second) = limit(&self.limits.requests_per_second) {
            let taken = self.request_rate.take(now, per_second);
            taken.map_err(|wait_nanos| Refusal::Requests {
                per_second: Some(per_second),
                wait_nanos,
            })?;
        }
        match writes {
            true => self.take_write_rate(now),
            false => Ok(()),
        }
    }

    fn take_write_rate(&self, now: Moment) -> Result<(), Refusal> {
        let Some(per_second) = limit(&self.limits.writes_per_second) else {
            return Ok(());
        };
        let taken = self.write_rate.take(now, per_second);
        taken.map_err(|wait_nanos| Refusal::Writes {
            per_second: Some(per_second),
            wait_nanos,
        })
    }

    /// Counts one more write of a request that was admitted already, against the rate of writes alone.
    ///
    /// # Errors
    /// Returns the limit that the write would exceed.
    pub fn admit_write(&self, now: Moment) -> Result<(), Refusal> {
        let taken = self.take_write_rate(now);
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Remembers, at a replica that forwards, that the owner has refused a request.
    pub fn remember_refusal(&self, now: Moment, writes_only: bool, wait_nanos: u64) {
        let until = now.plus(wait_nanos.min(REMEMBERED_MAX));
        self.refused_until[usize::from(writes_only)].fetch_max(until.0, Ordering::Relaxed);
    }

    /// Returns whether the owner would refuse a request, as far as this replica remembers.
    ///
    /// # Errors
    /// Returns the refusal that is remembered.
    pub fn remembered(&self, now: Moment, asked: Asked) -> Result<(), Refusal> {
        let left = |kind: usize| {
            let until = self.refused_until[kind].load(Ordering::Relaxed);
            until.checked_sub(now.0).filter(|left| *left > 0)
        };
        let refusal = match (left(0), left(1)) {
            (Some(wait_nanos), _) => Refusal::Requests {
                per_second: None,
                wait_nanos,
            },
            (None, Some(wait_nanos)) if asked.writes() => Refusal::Writes {
                per_second: None,
                wait_nanos,
            },
            (None, _) => return Ok(()),
        };
        let has_part = asked.is_of_renewal();
        if has_part && self.renewal_rate.take(now, RENEWALS_FORWARDED).is_ok() {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(refusal)
    }

    /// Counts a watch from now on.
    ///
    /// # Errors
    /// Returns the limit, if as many watches are open.
    pub fn open_watch(self: &Arc<Self>) -> Result<CountedWatch, Refusal> {
        let open = self.watches.fetch_add(1, Ordering::Relaxed);
        let watch = CountedWatch(Arc::clone(self));
        match limit(&self.limits.watches) {
            Some(watches) if open >= watches => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(Refusal::Watches { watches })
            }
            _ => Ok(watch),
        }
    }

    /// Counts a request as in flight, unless the plane has so many that little would be left for
    /// others: at most `times` as many as `free`. So a plane that is alone gets nearly everything,
    /// and there is always room for one more plane.
    #[must_use]
    pub fn enter(self: &Arc<Self>, free: usize, times: u64) -> Option<InFlight> {
        let free = u64::try_from(free).unwrap_or(u64::MAX);
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(Arc::clone(self));
        (before < free.saturating_mul(times)).then_some(entered)
    }

    /// Counts a connection of a client, within the share that [`Self::enter`] gives of requests.
    #[must_use]
    pub fn connect(self: &Arc<Self>, free: usize, times: u64) -> Option<Connected> {
        let free = u64::try_from(free).unwrap_or(u64::MAX);
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let connected = Connected(Arc::clone(self));
        (before < free.saturating_mul(times)).then_some(connected)
    }

    /// Counts bytes of answers that the plane's owner has sent and that wait here for clients.
    pub fn add_forwarded(&self, bytes: usize) {
        self.forwarded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that [`Self::add_forwarded`] counted and that are no longer in memory.
    pub fn remove_forwarded(&self, bytes: usize) {
        self.forwarded_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of answers that the plane's owner has sent and that wait here for clients.
    #[must_use]
    pub fn forwarded_bytes(&self) -> usize {
        self.forwarded_bytes.load(Ordering::Relaxed)
    }

    /// Returns the plane's account among the planes that take turns.
    #[must_use]
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Charges CPU time to the plane.
    pub fn charge(&self, nanos: u64) {
        self.cpu_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns what the plane has used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            requests: load(&self.requests),
            writes: load(&self.writes),
            refused: load(&self.refused),
            cpu_nanos: load(&self.cpu_nanos),
            watches: load(&self.watches),
        }
    }
}

fn limit(place: &AtomicU64) -> Option<u64> {
    let limit = place.load(Ordering::Relaxed);
    (limit != UNLIMITED).then_some(limit)
}

/// An open watch, which counts until this is dropped.
#[derive(Debug)]
pub struct CountedWatch(Arc<PlaneMeter>);

impl CountedWatch {
    /// Returns the meter that counts the watch.
    #[must_use]
    pub fn meter(&self) -> &Arc<PlaneMeter> {
        &self.0
    }
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in flight, which counts until this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<PlaneMeter>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An open connection of a client, which counts until this is dropped.
#[derive(Debug)]
pub struct Connected(Arc<PlaneMeter>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that took so many nanoseconds.
    fn spent(cpu_nanos: u64, is_exact: bool) -> Spent {
        Spent {
            wall_nanos: cpu_nanos,
            cpu_nanos,
            is_exact,
        }
    }

    #[test]
    fn a_plane_whose_work_took_long_works_aside_for_a_while() {
        let (meter, now) = (PlaneMeter::default(), Moment(1_000));
        meter.note_stretch(spent(LONG_NANOS - 1, true), now);
        assert!(!meter.works_aside(now));
        meter.note_stretch(spent(LONG_NANOS, true), now);
        meter.note_stretch(spent(1, true), now);
        let end = now.plus(LONG_NANOS * ASIDE_FACTOR);
        assert!(meter.works_aside(Moment(end.0 - 1)) && !meter.works_aside(end));
    }

    #[test]
    fn a_plane_whose_thread_may_have_rested_is_measured_again_before_it_works_aside() {
        let (meter, now) = (PlaneMeter::default(), Moment(1_000));
        meter.note_stretch(spent(LONG_NANOS - 1, false), now);
        assert!(!meter.is_suspect(now));
        meter.note_stretch(spent(LONG_NANOS, false), now);
        let end = now.plus(LONG_NANOS * ASIDE_FACTOR);
        assert!(meter.is_suspect(Moment(end.0 - 1)) && !meter.is_suspect(end));
        assert!(!meter.works_aside(now));
        meter.note_stretch(spent(LONG_NANOS, true), now);
        assert!(meter.works_aside(now));
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn writes_count_as_requests_and_have_a_rate_of_their_own() {
        let meter = PlaneMeter::default();
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(5),
            writes_per_second: Some(2),
            ..PlaneLimits::NONE
        });
        let now = Moment(SECOND);
        assert_eq!(meter.admit(now, Asked::Write), Ok(()));
        assert_eq!(meter.admit(now, Asked::Write), Ok(()));
        let refused = meter.admit(now, Asked::Write).expect_err("a third write");
        let wait_nanos = SECOND / 2;
        let per_second = Some(2);
        assert_eq!(
            refused,
            Refusal::Writes {
                per_second,
                wait_nanos
            }
        );
        assert_eq!(meter.admit(now, Asked::Read), Ok(()));
        assert_eq!(meter.admit(now, Asked::Read), Ok(()));
        assert!(matches!(
            meter.admit(now, Asked::Read),
            Err(Refusal::Requests { .. })
        ));
        let usage = meter.usage();
        assert_eq!((usage.requests, usage.writes, usage.refused), (4, 2, 2));
    }

    #[test]
    fn renewals_have_a_tenth_beyond_the_rate_that_is_used_up() {
        let meter = PlaneMeter::default();
        meter.set_limits(&PlaneLimits {
            writes_per_second: Some(30),
            ..PlaneLimits::NONE
        });
        let now = Moment(SECOND);
        let taken = |asked: Asked| (0..100).filter(|_| meter.admit(now, asked).is_ok()).count();
        assert_eq!((taken(Asked::Write), taken(Asked::Renewal)), (30, 3));
        assert_eq!((taken(Asked::Write), taken(Asked::Renewal)), (0, 0));
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(1),
            ..PlaneLimits::NONE
        });
        let later = Moment(3 * SECOND);
        let taken = |asked: Asked| (0..9).filter(|_| meter.admit(later, asked).is_ok()).count();
        assert_eq!((taken(Asked::Read), taken(Asked::Renewal)), (1, 1));
        meter.set_limits(&PlaneLimits {
            writes_per_second: Some(0),
            ..PlaneLimits::NONE
        });
        assert!(meter.admit(Moment(9 * SECOND), Asked::Renewal).is_err());
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(100),
            writes_per_second: Some(0),
            ..PlaneLimits::NONE
        });
        let last = Moment(12 * SECOND);
        let taken = |asked: Asked| {
            (0..200)
                .filter(|_| meter.admit(last, asked).is_ok())
                .count()
        };
        assert_eq!((taken(Asked::Read), taken(Asked::Renewal)), (100, 0));
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(100),
            writes_per_second: Some(20),
            ..PlaneLimits::NONE
        });
        assert_eq!((taken(Asked::Read), taken(Asked::Renewal)), (0, 2));
        let forwarding = PlaneMeter::default();
        forwarding.remember_refusal(now, true, SECOND);
        assert!(forwarding.remembered(now, Asked::Write).is_err());
        let forwarded = (0..99).filter(|_| forwarding.remembered(now, Asked::Renewal).is_ok());
        assert_eq!(forwarded.count(), 10);
    }

    #[test]
    fn reads_for_renewals_share_the_part_of_renewals_and_are_no_writes() {
        let meter = PlaneMeter::default();
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(20),
            writes_per_second: Some(20),
            ..PlaneLimits::NONE
        });
        let now = Moment(SECOND);
        let taken = |asked: Asked| (0..50).filter(|_| meter.admit(now, asked).is_ok()).count();
        assert_eq!(taken(Asked::Read), 20);
        assert_eq!(meter.admit(now, Asked::RenewalRead), Ok(()));
        assert_eq!((taken(Asked::Renewal), taken(Asked::RenewalRead)), (1, 0));
        assert_eq!(meter.usage().writes, 1);
        let forwarding = PlaneMeter::default();
        forwarding.remember_refusal(now, true, SECOND);
        assert_eq!(forwarding.remembered(now, Asked::RenewalRead), Ok(()));
        forwarding.remember_refusal(now, false, SECOND);
        let forwarded = (0..99).filter(|_| {
            let remembered = forwarding.remembered(now, Asked::RenewalRead);
            remembered.is_ok()
        });
        assert_eq!(forwarded.count(), 10);
    }

    #[test]
    fn further_writes_of_a_request_take_from_the_rate_of_writes_alone() {
        let meter = PlaneMeter::default();
        let now = Moment(SECOND);
        assert_eq!(meter.admit_write(now), Ok(()), "there is no limit");
        meter.set_limits(&PlaneLimits {
            requests_per_second: Some(2),
            writes_per_second: Some(3),
            ..PlaneLimits::NONE
        });
        assert_eq!(meter.admit(now, Asked::Write), Ok(()));
        assert_eq!(meter.admit_write(now), Ok(()));
        assert_eq!(meter.admit_write(now), Ok(()));
        let refused = meter.admit_write(now);
        assert!(matches!(refused, Err(Refusal::Writes { .. })));
        assert_eq!(meter.admit(now, Asked::Read), Ok(()));
        let usage = meter.usage();
        assert_eq!((usage.requests, usage.writes, usage.refused), (2, 1, 1));
    }

    #[test]
    fn a_refusal_is_remembered_for_a_second_at_most() {
        let meter = PlaneMeter::default();
        meter.remember_refusal(Moment(0), true, 20 * SECOND);
        assert_eq!(meter.remembered(Moment(5), Asked::Read), Ok(()));
        assert!(meter.remembered(Moment(SECOND - 1), Asked::Write).is_err());
        assert_eq!(meter.remembered(Moment(SECOND), Asked::Write), Ok(()));
    }

    #[test]
    fn watches_are_given_back() {
        let meter = Arc::new(PlaneMeter::default());
        let limits = PlaneLimits {
            watches: Some(1),
            ..PlaneLimits::NONE
        };
        meter.set_limits(&limits);
        let first = meter.open_watch().expect("the first");
        assert!(meter.open_watch().is_err());
        assert_eq!(meter.usage().watches, 1);
        drop(first);
        assert!(meter.open_watch().is_ok());
        assert_eq!(meter.limits(), limits);
    }

    #[test]
    fn a_greedy_plane_leaves_room_for_each_further_one() {
        let (greedy, modest) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
        let (seats, mut taken) = (100, Vec::new());
        while let Some(entered) = greedy.enter(seats - taken.len(), 8) {
            taken.push(entered);
        }
        assert!((80..95).contains(&taken.len()), "{}", taken.len());
        assert!(modest.enter(seats - taken.len(), 8).is_some());
    }
}
