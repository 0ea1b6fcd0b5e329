//! One life of this replica, from joining to losing the member key: its name, its end, and a copy
//! of its read lease that each answer checks without a lock. Must not know planes.
//!
//! Invariant: the copy is taken from the [`Member`](polyplane_fencing::Member) machine; nothing
//! here decides. The clock is read for each check, and it runs while the machine is suspended
//! (PROTOCOL 11).

use crate::membership::member_record::member_key;
use crate::transactions::MemberPut;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_fencing::{
    Attempt, Holder, LeaseStatus, Member, Observed, Outcome, Proof, Rule, Rules, Terms, Time,
    member,
};
use polyplane_ring::{Incarnation, ViewNumber};
use polyplane_storage::{Clock, CommitError, Committed, LeaseId, Rejection, Revision};
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The value of `until` in a life whose read lease has not been proven yet: no answer is allowed.
const UNPROVEN: u64 = 0;

/// Returns the time of a clock as the protocol's type.
pub(crate) fn clock_time(clock: &dyn Clock) -> Time {
    let nanos = clock.now().as_nanos();
    Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// One life, shared by the member driver and the guards of all planes that were acquired in it.
pub(crate) struct OwnLife {
    holder: Holder,
    member_key: Bytes,
    put: ArcSwap<MemberPut>,
    rules: Rules,
    clock: Arc<dyn Clock>,
    machine: Arc<Mutex<Member>>,
    /// The time before which answers are allowed, in nanoseconds of the clock.
    until: AtomicU64,
    /// The newest revision of a member read that found this life.
    observed: AtomicU64,
    /// The time at which the newest member read that found this life was sent.
    read_sent: AtomicU64,
    /// Notified at each proof, and at the end.
    changed: Notify,
    ended: AtomicBool,
    over: CancellationToken,
    /// The kind of rejection that the store last gave to a fence transaction, until it applies one.
    rejected: Mutex<Option<Discriminant<Rejection>>>,
}

impl OwnLife {
    /// Creates a life that begins now.
    pub(crate) fn new(
        holder: Holder,
        put: MemberPut,
        rules: Rules,
        clock: Arc<dyn Clock>,
        machine: Arc<Mutex<Member>>,
    ) -> Arc<Self> {
        let until = AtomicU64::new(UNPROVEN);
        Arc::new(Self {
            member_key: member_key(&holder.replica),
            holder,
            put: ArcSwap::from_pointee(put),
            rules,
            clock,
            machine,
            until,
            observed: AtomicU64::new(0),
            read_sent: AtomicU64::new(0),
            changed: Notify::new(),
            ended: AtomicBool::new(false),
            over: CancellationToken::new(),
            rejected: Mutex::new(None),
        })
    }

    /// Returns the name and incarnation of this life.
    pub(crate) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns the store key of this life's member key.
    pub(crate) fn member_key(&self) -> &Bytes {
        &self.member_key
    }

    /// Returns the store's lease that the member key is attached to.
    pub(crate) fn lease(&self) -> LeaseId {
        self.put.load().lease
    }

    /// Returns the record and the store lease for a further put of the member key.
    pub(crate) fn put(&self) -> Arc<MemberPut> {
        self.put.load_full()
    }

    /// Records what the member key says now, apart from the standing.
    pub(crate) fn set_put(&self, put: MemberPut) {
        self.put.store(Arc::new(put));
    }

    /// Returns the rules in force.
    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// Returns the time on the clock, for a check that is made now.
    pub(crate) fn now(&self) -> Time {
        clock_time(&*self.clock)
    }

    /// Returns the token that is cancelled when this life ends.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// Returns the notifier of each proof and of the end of the life.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Returns the state of the read lease at a time.
    pub(crate) fn status(&self, now: Time) -> LeaseStatus {
        if self.ended.load(Ordering::Acquire) {
            return LeaseStatus::Over;
        }
        match now.as_nanos() < self.until.load(Ordering::Acquire) {
            true => LeaseStatus::Open,
            false if !self.rules.keep(Rule::AnswerNeedsLease) => LeaseStatus::Open,
            false => LeaseStatus::Lapsed,
        }
    }

    /// Returns for how long answers are still allowed, in nanoseconds.
    pub(crate) fn margin(&self) -> u64 {
        let until = self.until.load(Ordering::Acquire);
        until.saturating_sub(self.now().as_nanos())
    }

    /// Returns how long ago the read lease ran out; zero while it runs.
    pub(crate) fn silent(&self) -> Duration {
        let until = self.until.load(Ordering::Acquire);
        Duration::from_nanos(self.now().as_nanos().saturating_sub(until))
    }

    /// Returns how long ago the read lease ran out; zero while it runs, and before its first proof.
    pub(crate) fn lapsed(&self) -> Duration {
        match self.until.load(Ordering::Acquire) {
            UNPROVEN => Duration::ZERO,
            _ => self.silent(),
        }
    }

    /// Returns the newest revision of a member read that found this life.
    pub(crate) fn observed(&self) -> Revision {
        Revision(self.observed.load(Ordering::Acquire))
    }

    /// Reports that a member read, which was sent at `sent`, found this life at a revision.
    pub(crate) fn read_found(&self, sent: Time, at: Revision) {
        let found = Some(self.holder.incarnation);
        self.step_only(member::Event::MemberRead { sent, found });
        if !self.ended.load(Ordering::Acquire) {
            self.observed.fetch_max(at.0, Ordering::AcqRel);
            self.read_sent.fetch_max(sent.as_nanos(), Ordering::AcqRel);
            self.changed.notify_waiters();
        }
    }

    /// Returns the newest revision that a member read has seen, if that read was sent at `from` or
    /// later.
    pub(crate) fn observed_since(&self, from: Time) -> Option<Revision> {
        let sent = self.read_sent.load(Ordering::Acquire);
        (sent >= from.as_nanos()).then(|| self.observed())
    }

    /// Returns when the newest member read was sent that found this life, and a revision that is not
    /// older than what it saw.
    pub(crate) fn newest_read(&self) -> Option<(u64, Revision)> {
        // In this order: a read that ends in between has a later revision, which is as good.
        let sent = self.read_sent.load(Ordering::Acquire);
        (sent > 0).then(|| (sent, self.observed()))
    }

    /// Logs the store's rejection of a fence transaction, unless it rejects them for this kind of reason
    /// already: each plane of a full store tries again once a second.
    pub(crate) fn note_fence_reply(&self, reply: &Result<Committed, CommitError>) {
        let rejection = match reply {
            Ok(_) => {
                *self.rejected.lock() = None;
                return;
            }
            Err(CommitError::Rejected(rejection)) => rejection,
            Err(
                CommitError::Refused { .. }
                | CommitError::Undisclosed(..)
                | CommitError::Unknown(_),
            ) => return,
        };
        let kind = discriminant(rejection);
        if self.rejected.lock().replace(kind) == Some(kind) {
            tracing::debug!(%rejection, "the store rejected a fence transaction again");
        } else {
            tracing::warn!(%rejection, "the store rejected a fence transaction");
        }
    }

    /// Reports that a commit was acknowledged that compared this life's member key and was sent at
    /// `sent`.
    pub(crate) fn proven(&self, sent: Time) {
        self.step_only(member::Event::Proven(Proof { sent }));
    }

    /// Reports that the member key was found deleted or another life's, or that the store does not
    /// know its lease.
    pub(crate) fn lost(&self) {
        self.step_only(member::Event::LossProven);
    }

    /// Reports a peer's view with this number. `found` is the life that the view shows under this
    /// replica's name.
    pub(crate) fn observe_peer_view(&self, number: ViewNumber, found: Option<Incarnation>) {
        self.step_only(member::Event::PeerView { number, found });
    }

    /// Reports the store's record of the lease terms. The read lease follows the record at once.
    /// The caller performs the returned actions in order.
    pub(crate) fn see_terms(&self, terms: Observed<Terms>) -> Vec<member::Action> {
        self.step(member::Event::Terms(terms))
    }

    /// Reports which record of the lease terms each member follows.
    pub(crate) fn see_adopters(
        &self,
        at: ViewNumber,
        members: Vec<member::Adopter>,
    ) -> Vec<member::Action> {
        self.step(member::Event::Adopters { at, members })
    }

    /// Reports the outcome of a transaction about the lease terms.
    pub(crate) fn done(&self, attempt: Attempt, outcome: Outcome) {
        self.step_only(member::Event::Done { attempt, outcome });
    }

    /// Steps the machine with an event whose only possible action is the end of the life.
    fn step_only(&self, event: member::Event) {
        let _ = self.step(event);
    }

    /// Steps the machine and copies its read lease.
    fn step(&self, event: member::Event) -> Vec<member::Action> {
        let mut machine = self.machine.lock();
        // Once this life is over the machine belongs to a later one. After the replica has left, a
        // missing key is no loss.
        if machine.holder() != Some(&self.holder) || self.ended.load(Ordering::Acquire) {
            return Vec::new();
        }
        let actions = machine.step(self.now(), event);
        let ends = actions.contains(&member::Action::CloseAllPlanes);
        if !ends {
            // Stored under the lock, or a concurrent step could overwrite a shorter lease with a
            // longer one.
            let until = machine.lease().until().map_or(UNPROVEN, Time::as_nanos);
            self.until.store(until, Ordering::Release);
        }
        drop(machine);
        match ends {
            true => {
                tracing::warn!(
                    replica = %self.holder.replica,
                    incarnation = %self.holder.incarnation,
                    "the member key is lost; this life is over"
                );
                self.end();
            }
            false => self.changed.notify_waiters(),
        }
        actions
    }

    /// Ends this life in memory: no guard of it answers or commits from then on.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.over.cancel();
        self.changed.notify_waiters();
    }
}
