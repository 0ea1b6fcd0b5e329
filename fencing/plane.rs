//! One plane's fence at one replica: take it, commit under it, hand it off, delete under it.
//! Owns the tenure and the order in which rights begin and end: whether the plane takes writes,
//! whether a batch may be sent, what an outcome does, and when the last word may be said. It must
//! not know the plane's content, keys or the peer channel. `taking`, `settling`, `probing` and
//! `parting` hold the transitions.
//!
//! Invariant: every phase has an event that leads on, whatever became of the driver that led into
//! it. A task that died half-way leaves a machine that the next task drives on.

mod events;
#[cfg(feature = "model")]
mod naming;
mod parting;
mod probing;
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

/// Which plane it is, as far as the protocol cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// The root plane, which no directory lists.
    Root,
    /// A plane with a directory record; every acquire compares that it exists (PROTOCOL 10).
    Tenant,
}

/// The right to answer for a plane, from [`Action::OpenTenure`] to [`Action::EndTenure`]. Every
/// answer names the one it was computed under; tokens of ended tenures are worthless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenure {
    epoch: Epoch,
    opening: u32,
}

impl Tenure {
    /// The fence's epoch under this tenure.
    pub fn epoch(self) -> Epoch {
        self.epoch
    }
}

/// What a commit of the plane must compare. The committer gathers the guards of all planes of a
/// batch; the member compare of one replica is the same for all and is sent once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Guard {
    fence: Revision,
    member: Holder,
    rules: Rules,
}

impl Guard {
    /// The plane's fence at the revision this holder knows.
    pub fn fence(&self) -> Option<Compare> {
        let keep = self.rules.keep(Rule::CommitComparesFence);
        keep.then_some(Compare::FenceAt(self.fence))
    }

    /// The own member key.
    pub fn member(&self) -> Option<Compare> {
        let keep = self.rules.keep(Rule::CommitComparesOwnMember);
        keep.then(|| Compare::MemberIs(self.member.clone()))
    }
}

/// Whether a batch may be sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CommitPermit {
    /// Now, with these compares; report [`Event::CommitSent`] before it leaves.
    Granted(Guard),
    /// Not yet: a wait runs, state is being loaded, another batch is unsettled, or a hand-off is
    /// under way.
    Wait,
    /// Not under this tenure.
    Moved,
}

/// Whether the plane takes a write right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Intake {
    /// It does.
    Open,
    /// Not now: an outcome is being settled, or the plane is paused or being released. Check again after the
    /// next step of the machine.
    Wait,
    /// The store has refused several batches in a row: writes are refused until it takes one again.
    ReadOnly,
    /// Not under this tenure.
    Ended,
}

/// Whether an answer computed under a tenure may leave. The only check there is; it is made after
/// the request arrived and at the moment it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may.
    Answer,
    /// Not yet: check again after the next proof, or when the wait is over.
    Wait,
    /// Never under this tenure: compute it again at the owner.
    Moved,
}

/// The fence of one plane at one incarnation of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneFence {
    me: Holder,
    kind: PlaneKind,
    rules: Rules,
    /// Final refusals in a row that make the plane read-only.
    rejections_max: u8,
    attempts: u32,
    openings: u32,
    /// The head of a stream received and not yet used.
    incoming: Option<Revision>,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Away,
    Taking(Taking),
    Held(Held),
    Parted(Parted),
    /// The Deleted record is written.
    Deleted,
    /// The incarnation is over.
    Lost,
}

/// Final refusals in a row that make a plane read-only. One alone may be about that batch.
const REJECTIONS_MAX: u8 = 3;

/// An acquire under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Taking {
    attempt: Attempt,
    epoch: Epoch,
    serve_from: Time,
    /// The lease terms to wait out if the store's refusal shows that the fence is this replica's.
    wait: LeaseTerms,
    /// The head named by the Released record it takes from.
    released_head: Option<Revision>,
}

/// The fence is ours and a tenure is open.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    tenure: Tenure,
    fence: Revision,
    serve_from: Time,
    /// None until loaded.
    head: Option<Revision>,
    batch: Batch,
    course: Course,
    /// Final refusals by the store since it last took a batch.
    rejections: u8,
}

/// The one batch that may be in flight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Batch {
    None,
    InFlight,
    /// The batch's outcome is unknown; this attempt puts the machine's fence again to settle it.
    Barrier(Attempt),
    /// It is decided; history is being replayed.
    Replaying,
    /// No batch: the own fence is put again to find out whether the store takes writes.
    Probe {
        attempt: Attempt,
        /// An earlier try had no final reply, so the fence's revision is not known.
        unsettled: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Course {
    Serving,
    /// Writes wait and nothing is sent; what is in flight settles.
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

/// This replica has sent Released or Deleted to the store; its tenure ended before (PROTOCOL 3).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parted {
    attempt: Attempt,
    stage: PartedStage,
    goal: Goal,
    /// The tenure that ended for it. It continues if the store refused the last word.
    suspended: Tenure,
    fence: Revision,
    head: Revision,
    rejections: u8,
    /// A first send of Released or Deleted had no final reply: the store may still apply it.
    unsettled: bool,
    /// Only without [`Rule::TenureEndsBeforeReleased`].
    tenure: Option<Tenure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PartedStage {
    Sent,
    /// Held was sent again, to call the hand-off off.
    Reclaiming,
}

impl PlaneFence {
    /// A plane that this incarnation has nothing to do with yet.
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

    /// The same with another number of refusals that make it read-only, so that a model checker
    /// reaches that state with fewer.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn read_only_after(self, rejections_max: u8) -> Self {
        Self {
            rejections_max,
            ..self
        }
    }

    /// The open tenure, if there is one.
    pub fn tenure(&self) -> Option<Tenure> {
        match &self.phase {
            Phase::Held(held) => Some(held.tenure),
            Phase::Parted(parted) => parted.tenure,
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => None,
        }
    }

    /// Whether a last word was sent whose outcome is not final.
    pub fn is_parting(&self) -> bool {
        matches!(self.phase, Phase::Parted(_))
    }

    /// May an answer computed under `tenure` leave now?
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
            Phase::Parted(parted) if parted.tenure == Some(tenure) => of_lease,
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Parted(_)
            | Phase::Deleted
            | Phase::Lost => Verdict::Moved,
        }
    }

    /// May a batch prepared under `tenure` be sent now?
    pub fn commit_permit(&self, now: Time, tenure: Tenure) -> CommitPermit {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => {
                let idle = held.batch == Batch::None && held.course == Course::Serving;
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
            | Phase::Parted(_)
            | Phase::Deleted
            | Phase::Lost => CommitPermit::Moved,
        }
    }

    /// Does the plane take a write under `tenure` now?
    pub fn intake(&self, tenure: Tenure) -> Intake {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => match (&held.course, &held.batch) {
                (Course::Paused | Course::Leaving { .. }, _)
                | (Course::Serving, Batch::Barrier(_) | Batch::Replaying) => Intake::Wait,
                (Course::Serving, _) if self.read_only(held) => Intake::ReadOnly,
                (Course::Serving, Batch::None | Batch::InFlight | Batch::Probe { .. }) => {
                    Intake::Open
                }
            },
            // The last word may still turn out not to have been said.
            Phase::Parted(parted) if parted.suspended == tenure => Intake::Wait,
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Parted(_)
            | Phase::Deleted
            | Phase::Lost => Intake::Ended,
        }
    }

    /// Whether nothing is sent under `tenure` now and all that was sent is settled and published, so
    /// that the plane's head stays as it is: it is paused, or parts.
    pub fn stands_still(&self, tenure: Tenure) -> bool {
        match &self.phase {
            Phase::Held(held) if held.tenure == tenure => match (&held.course, &held.batch) {
                (Course::Paused | Course::Leaving { .. }, Batch::None | Batch::Probe { .. }) => {
                    true
                }
                (Course::Serving, _)
                | (_, Batch::InFlight | Batch::Barrier(_) | Batch::Replaying) => false,
            },
            Phase::Parted(parted) => parted.suspended == tenure,
            Phase::Away | Phase::Taking(_) | Phase::Held(_) | Phase::Deleted | Phase::Lost => false,
        }
    }

    fn read_only(&self, held: &Held) -> bool {
        held.rejections >= self.rejections_max
    }

    /// Takes one event in and says what to do, in order.
    ///
    /// # Panics
    /// The driver broke the order: a batch was sent without a permit, or an outcome reported twice.
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
            Phase::Parted(parted) if parted.attempt == attempt => {
                let parted = parted.clone();
                self.parted_done(now, parted, outcome)
            }
            // The outcome of an abandoned attempt: a later read of the fence shows it (PROTOCOL 17).
            Phase::Away
            | Phase::Taking(_)
            | Phase::Held(_)
            | Phase::Parted(_)
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

    /// The fence or the member key was found to be another's.
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

    /// Gives the plane up in memory, whatever is under way. What was sent may still land.
    fn abandon(&mut self) -> Vec<Action> {
        let tenure = self.tenure();
        self.incoming = None;
        self.phase = match self.phase {
            Phase::Lost => Phase::Lost,
            Phase::Away | Phase::Taking(_) | Phase::Held(_) | Phase::Parted(_) | Phase::Deleted => {
                Phase::Away
            }
        };
        let end = TenureEnd::Lost {
            settled_through: None,
        };
        let ended = tenure.map(|tenure| Action::EndTenure { tenure, end });
        ended.into_iter().collect()
    }

    /// Whether a refusal found the own member key.
    fn lives(&self, refusal: &Refusal) -> bool {
        refusal.own_incarnation == Some(self.me.incarnation)
    }

    fn next_attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }
}

impl Held {
    /// The wait is over and the state is there.
    fn ready(&self, now: Time) -> bool {
        now >= self.serve_from && self.head.is_some()
    }
}
