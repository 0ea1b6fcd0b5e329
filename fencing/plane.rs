//! One plane's fence at one replica: acquiring it, committing under it, handing it off, and
//! deleting under it. Owns the tenure and the order in which rights begin and end: whether the
//! plane accepts writes, whether a batch may be sent, what an outcome changes, and when Released or
//! Deleted may be sent. It must not know the plane's content, keys or the peer channel. `taking`,
//! `settling`, `probing` and `relinquishing` hold the transitions.
//!
//! Invariant: every phase has an event that leads out of it, whatever happened to the driver that
//! led into it. If a task dies half-way, the next task continues with the machine as it is.

mod events;
#[cfg(feature = "model")]
mod naming;
mod probing;
mod relinquishing;
mod settling;
mod taking;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use polyplane_ring::ReplicaId;

pub use events::{Action, Event, Load, NotTaken, Streaming, TenureEnd};

use crate::read_lease::{LeaseStatus, ReadLease};
use crate::record::{Epoch, Holder, Revision};
use crate::rules::{Rule, Rules};
use crate::terms::LeaseTerms;
use crate::time::Time;
use crate::transaction::{Attempt, Compare, Outcome, Refusal};

/// The kind of a plane, as far as the protocol distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// The root plane, which no directory lists.
    Root,
    /// A plane with a directory record; every acquire compares that it exists (PROTOCOL 10).
    Tenant,
}

/// The right to answer for a plane, from [`Action::OpenTenure`] to [`Action::EndTenure`]. Every
/// answer names the tenure that it was computed under; an ended tenure allows no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenure {
    epoch: Epoch,
    opening: u32,
}

impl Tenure {
    /// Returns the fence's epoch under this tenure.
    pub fn epoch(self) -> Epoch {
        self.epoch
    }
}

/// The compares that a commit of the plane must contain. The committer collects the guards of all
/// planes of a batch; the compare of the member key is the same for all of them and is sent once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Guard {
    fence: Revision,
    member: Holder,
    rules: Rules,
}

impl Guard {
    /// Returns the compare of the plane's fence at the revision that this holder knows.
    pub fn fence(&self) -> Option<Compare> {
        let keep = self.rules.keep(Rule::CommitComparesFence);
        keep.then_some(Compare::FenceAt(self.fence))
    }

    /// Returns the compare of this replica's member key.
    pub fn member(&self) -> Option<Compare> {
        let keep = self.rules.keep(Rule::CommitComparesOwnMember);
        keep.then(|| Compare::MemberIs(self.member.clone()))
    }
}

/// The answer to whether a batch may be sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CommitPermit {
    /// Now, with these compares. Report [`Event::CommitSent`] before the batch is sent.
    Granted(Guard),
    /// Not yet: a wait is not over, state is being loaded, another batch is unsettled, or a
    /// hand-off is under way.
    Wait,
    /// Not under this tenure.
    Moved,
}

/// The answer to whether the plane accepts a write right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Intake {
    /// It does.
    Open,
    /// Not now: an outcome is being settled, or the plane is paused or being released. Check again after the
    /// next step of the machine.
    Wait,
    /// The store has refused several batches in a row: writes are refused until the store accepts
    /// one again.
    ReadOnly,
    /// Not under this tenure.
    Ended,
}

/// The answer to whether an answer that was computed under a tenure may be sent. This is the only
/// such check; it is made after the request arrived, at the moment when it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may be sent.
    Answer,
    /// Not yet: check again after the next proof, or when the wait is over.
    Wait,
    /// Never under this tenure: the owner must compute the answer.
    Moved,
}

/// The fence of one plane at one incarnation of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneFence {
    me: Holder,
    kind: PlaneKind,
    rules: Rules,
    /// Number of final refusals in a row that make the plane read-only.
    rejections_max: u8,
    attempts: u32,
    openings: u32,
    /// The head of a streamed state that was received and is not used yet.
    incoming: Option<Revision>,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Away,
    Taking(Taking),
    Held(Held),
    Relinquishing(Relinquishing),
    /// The fence is put to Deleted.
    Deleted,
    /// The incarnation is over.
    Lost,
}

/// Number of final refusals in a row that make a plane read-only. A single one may be caused by
/// that batch alone.
const REJECTIONS_MAX: u8 = 3;

/// An acquire under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Taking {
    attempt: Attempt,
    epoch: Epoch,
    serve_from: Time,
    /// The lease terms to wait out if the store's refusal shows that the fence is this replica's.
    wait: LeaseTerms,
    /// The head in the Released record that the fence is acquired from.
    released_head: Option<Revision>,
}

/// The fence is held and a tenure is open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    tenure: Tenure,
    fence: Revision,
    serve_from: Time,
    /// The plane's head; `None` until the plane is loaded.
    head: Option<Revision>,
    batch: Batch,
    mode: TenureMode,
    /// Number of final refusals since the store last accepted a batch.
    rejections: u8,
}

/// The one batch that may be in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Batch {
    None,
    InFlight,
    /// The batch's outcome is unknown; this attempt puts the fence again to settle it.
    Barrier(Attempt),
    /// The batch is decided; the driver replays the history.
    Replaying,
    /// No batch is in flight: the fence is put again to find out whether the store accepts writes.
    Probe {
        attempt: Attempt,
        /// True if an earlier attempt had no final reply, so that the fence's revision is not
        /// known.
        unsettled: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TenureMode {
    Serving,
    /// Writes wait and nothing is sent; a batch in flight is still settled.
    Paused,
    /// As in `Paused`; once all is settled and streamed, the machine sends Released or Deleted.
    Leaving {
        goal: Goal,
        stream: StreamStage,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Goal {
    Release { successor: Option<ReplicaId> },
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum StreamStage {
    Pending(ReplicaId),
    Running,
    Done,
}

/// The state after Released or Deleted was sent to the store. The tenure ended before that
/// (PROTOCOL 3).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Relinquishing {
    attempt: Attempt,
    stage: RelinquishStage,
    goal: Goal,
    /// The tenure that ended for it. It continues if the store refused Released or Deleted.
    suspended: Tenure,
    fence: Revision,
    head: Revision,
    rejections: u8,
    /// True if an earlier sending of Released or Deleted had no final reply, so that the store may
    /// still apply it.
    unsettled: bool,
    /// The tenure, which is still open only without [`Rule::TenureEndsBeforeReleased`].
    tenure: Option<Tenure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RelinquishStage {
    Sent,
    /// Held was sent again, to call the hand-off off.
    Reclaiming,
}

impl PlaneFence {
    /// Creates the machine of a plane that this incarnation does not hold.
    pub fn new(me: Holder, kind: PlaneKind, rules: Rules) -> Self {
        let phase = Phase::Away;
        Self {
            me,
            kind,
            rules,
            rejections_max: REJECTIONS_MAX,
            attempts: 0,
            openings: 0,
            incoming: None,
            phase,
        }
    }

    /// Returns the machine with another number of refusals that make the plane read-only, so that a
    /// model checker reaches that state with fewer.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn read_only_after(self, rejections_max: u8) -> Self {
        Self {
            rejections_max,
            ..self
        }
    }

    /// Returns the open tenure, if there is one.
    pub fn tenure(&self) -> Option<Tenure> {
        match &self.phase {
            Phase::Held(held) => Some(held.tenure),
            Phase::Relinquishing(relinquishing) => relinquishing.tenure,
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => None,
        }
    }

    /// Returns whether Released or Deleted was sent and its outcome is not final.
    pub fn is_relinquishing(&self) -> bool {
        matches!(self.phase, Phase::Relinquishing(_))
    }

    /// Returns whether an answer computed under `tenure` may be sent now.
    pub fn answer(&self, now: Time, lease: &ReadLease, tenure: Tenure) -> Verdict {
        let of_lease = match lease.status(now) {
            LeaseStatus::Open => Verdict::Answer,
            LeaseStatus::Lapsed => Verdict::Wait,
            LeaseStatus::Over => return Verdict::Moved,
        };
        if !self.rules.keep(Rule::AnswerNeedsTenure) {
            return of_lease;
        }
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => match held.ready(now) {
                true => of_lease,
                false => Verdict::Wait,
            },
            Phase::Relinquishing(relinquishing) if relinquishing.tenure == Some(tenure) => of_lease,
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted
            | Phase::Lost => Verdict::Moved,
        }
    }

    /// Returns whether a batch prepared under `tenure` may be sent now.
    pub fn commit_permit(&self, now: Time, tenure: Tenure) -> CommitPermit {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => {
                let idle = held.batch == Batch::None && held.mode == TenureMode::Serving;
                match idle && !self.read_only(held) && held.ready(now) {
                    true => CommitPermit::Granted(Guard {
                        fence: held.fence,
                        member: self.me.clone(),
                        rules: self.rules,
                    }),
                    false => CommitPermit::Wait,
                }
            }
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted
            | Phase::Lost => CommitPermit::Moved,
        }
    }

    /// Returns whether the plane accepts a write under `tenure` now.
    pub fn intake(&self, tenure: Tenure) -> Intake {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => match (&held.mode, &held.batch) {
                (TenureMode::Paused | TenureMode::Leaving { .. }, _)
                | (TenureMode::Serving, Batch::Barrier(_) | Batch::Replaying) => Intake::Wait,
                (TenureMode::Serving, _) if self.read_only(held) => Intake::ReadOnly,
                (TenureMode::Serving, Batch::None | Batch::InFlight | Batch::Probe { .. }) => {
                    Intake::Open
                }
            },
            // The store may still refuse Released or Deleted, and then the tenure continues.
            Phase::Relinquishing(relinquishing) if relinquishing.suspended == tenure => {
                Intake::Wait
            }
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted
            | Phase::Lost => Intake::Ended,
        }
    }

    /// Returns whether nothing is sent under `tenure` now and every batch that was sent is settled
    /// and published, so that the plane's head stays as it is: the plane is paused or being
    /// released.
    pub fn is_quiescent(&self, tenure: Tenure) -> bool {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => match (&held.mode, &held.batch) {
                (
                    TenureMode::Paused | TenureMode::Leaving { .. },
                    Batch::None | Batch::Probe { .. },
                ) => true,
                (TenureMode::Serving, _)
                | (_, Batch::InFlight | Batch::Barrier(_) | Batch::Replaying) => false,
            },
            Phase::Relinquishing(relinquishing) => relinquishing.suspended == tenure,
            Phase::Away | Phase::Taking(_) | Phase::Held(_) | Phase::Deleted | Phase::Lost => false,
        }
    }

    fn read_only(&self, held: &Held) -> bool {
        held.rejections >= self.rejections_max
    }

    /// Applies one event and returns the actions to perform, in order.
    ///
    /// # Panics
    /// Panics if the driver broke the order: a batch was sent without a permit, or an outcome was
    /// reported twice.
    pub fn step(&mut self, now: Time, event: Event) -> Vec<Action> {
        match event {
            Event::Acquire(sighting) => self.acquire(now, &sighting),
            Event::Looked(sighting) => self.looked(now, &sighting),
            Event::Done { attempt, outcome } => self.done(now, attempt, outcome),
            Event::Loaded { head } => self.loaded(head),
            Event::Published { head } => self.published(head),
            Event::CommitSent => self.commit_sent(now),
            Event::CommitDone(outcome) => self.commit_done(outcome),
            Event::Landed { at } => self.landed(at),
            Event::Replayed { head } => self.replayed(head),
            Event::Probe => self.probe(),
            Event::StoreWritable => self.store_writable(),
            Event::Pause => self.pause(),
            Event::StreamReceived { head } => {
                self.incoming = Some(head);
                Vec::new()
            }
            Event::StreamDropped => {
                self.incoming = None;
                Vec::new()
            }
            Event::HandOff {
                successor,
                streaming,
            } => self.hand_off(now, successor, streaming),
            Event::StreamEnded => self.stream_ended(),
            Event::CallOff => self.call_off(),
            Event::Delete => self.delete(now),
            Event::Abandon => self.abandon(),
            Event::MemberLost => self.lose(None),
        }
    }

    fn done(&mut self, now: Time, attempt: Attempt, outcome: Outcome) -> Vec<Action> {
        match &self.phase {
            Phase::Taking(taking) if taking.attempt == attempt => {
                let taking = taking.clone();
                self.taking_done(now, taking, outcome)
            }
            Phase::Held(held) if held.batch == Batch::Barrier(attempt) => {
                self.barrier_done(outcome)
            }
            Phase::Held(Held {
                batch:
                    Batch::Probe {
                        attempt: sent,
                        unsettled,
                    },
                ..
            }) if *sent == attempt => {
                let unsettled = *unsettled;
                self.probe_done(outcome, unsettled)
            }
            Phase::Relinquishing(relinquishing) if relinquishing.attempt == attempt => {
                let relinquishing = relinquishing.clone();
                self.parted_done(now, relinquishing, outcome)
            }
            // The outcome of an abandoned attempt changes nothing: a later read of the fence shows
            // it (PROTOCOL 17).
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted
            | Phase::Lost => Vec::new(),
        }
    }

    fn loaded(&mut self, head: Revision) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase {
            held.head.get_or_insert(head);
        }
        Vec::new()
    }

    fn published(&mut self, head: Revision) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase
            && let Some(known) = &mut held.head
        {
            *known = head.max(*known);
        }
        Vec::new()
    }

    /// Ends the tenure, because the fence or the member key was found to be another's.
    fn lose(&mut self, refusal: Option<&Refusal>) -> Vec<Action> {
        let member_lost = refusal.is_none_or(|refusal| !self.lives(refusal));
        let next = match member_lost {
            true => Phase::Lost,
            false => Phase::Away,
        };
        self.incoming = None;
        let tenure = self.tenure();
        let settled_through = refusal.map(|refusal| refusal.at);
        self.phase = next;
        let end = TenureEnd::Lost { settled_through };
        tenure
            .map(|tenure| Action::EndTenure { tenure, end })
            .into_iter()
            .collect()
    }

    /// Gives the plane up in memory, whatever is under way. Transactions that were sent may still
    /// be applied.
    fn abandon(&mut self) -> Vec<Action> {
        let tenure = self.tenure();
        self.incoming = None;
        self.phase = match self.phase {
            Phase::Lost => Phase::Lost,
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted => Phase::Away,
        };
        let end = TenureEnd::Lost {
            settled_through: None,
        };
        let ended = tenure.map(|tenure| Action::EndTenure { tenure, end });
        ended.into_iter().collect()
    }

    /// Returns whether a refusal found this replica's member key.
    fn lives(&self, refusal: &Refusal) -> bool {
        refusal.own_incarnation == Some(self.me.incarnation)
    }

    fn next_attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }
}

impl Held {
    /// Returns whether the wait is over and the state is loaded.
    fn ready(&self, now: Time) -> bool {
        now >= self.serve_from && self.head.is_some()
    }
}
