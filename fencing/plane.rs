//! One plane's fence at one replica: take it, commit under it, hand it off, delete under it.
//! Owns the tenure and the order in which rights begin and end: whether the plane takes writes,
//! whether a batch may be sent, what an outcome does, and when the last word may be said. It must
//! not know the plane's content, keys or the peer channel. `taking`, `settling`, `probing` and
//! `parting` hold the transitions.
//!
//! Invariant: every phase has an event that leads on, whatever became of the driver that led into
//! it. A task that died half-way leaves a machine that the next task drives on.

mod parting;
mod probing;
mod settling;
mod taking;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use polyplane_ring::ReplicaId;

use crate::read_lease::{LeaseStatus, ReadLease};
use crate::record::{Epoch, Fence, Holder, Observed, Revision};
use crate::rules::{Rule, Rules};
use crate::time::{LeaseTerms, Time};
use crate::transaction::{Attempt, Compare, Outcome, Refusal, Transaction};
use crate::witness::Sighting;

/// Which plane it is, as far as the protocol cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// The root plane, which no directory lists.
    Root,
    /// A plane with a directory record; every acquire compares that it exists (FENCING 10).
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
    /// Not now: an outcome is being settled, or the plane is paused or parting. Ask again after the
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
    /// Not yet: ask again after the next proof, or when the wait is over.
    Wait,
    /// Never under this tenure: compute it again at the owner.
    Moved,
}

/// Where the state of a new tenure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Load {
    /// The store, read at this revision or later.
    Store {
        /// The acquire's revision.
        not_before: Revision,
    },
    /// The state streamed by the predecessor is exactly the released one.
    Streamed {
        /// Its head.
        head: Revision,
    },
    /// The state in memory: the hand-off was called off and nobody was in between.
    Kept {
        /// Its head.
        head: Revision,
    },
}

/// Whether a hand-off carries the plane's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Streaming {
    /// Stream state and history to this replica first.
    To(ReplicaId),
    /// An asleep plane, or no successor: release only.
    Nothing,
}

/// What happens to a plane's fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// This replica is designated, or needs the plane: take the fence if the rules allow it.
    Acquire(Sighting),
    /// The fence was looked at for another reason. Only an own forgotten fence is acted on.
    Looked(Sighting),
    /// The outcome of an [`Action::Transact`].
    Done {
        /// Which sending.
        attempt: Attempt,
        /// What became of it.
        outcome: Outcome,
    },
    /// The state asked for by [`Action::OpenTenure`] is in memory, up to this head.
    Loaded {
        /// The revision of the plane's last commit in it.
        head: Revision,
    },
    /// Writes of others have been published in the plane up to this head: the root has the member
    /// keys among its objects. What Released names from now on, if no commit is newer.
    Published {
        /// The newest revision that is published.
        head: Revision,
    },
    /// A batch under a [`Guard`] is about to be sent.
    CommitSent,
    /// What became of that batch. A refusal carries this plane's fence.
    CommitDone(Outcome),
    /// That batch is published, whether the store acknowledged it or the history showed it. Reported
    /// only then, so that nothing leads the plane away before.
    Landed {
        /// The revision at which the store did it.
        at: Revision,
    },
    /// The history asked for by [`Action::Settle`] was replayed, up to this head.
    Replayed {
        /// The revision of the plane's last commit in it.
        head: Revision,
    },
    /// The plane is read-only and it is its turn to find out whether the store takes writes again.
    Probe,
    /// The store has taken a write of another plane: this one need not be read-only any more.
    StoreWritable,
    /// Send no batch and take no write until [`Event::CallOff`]: the plane is about to part, and its
    /// head has to stay as it is.
    Pause,
    /// A predecessor streamed the plane's state to this replica, up to this head.
    StreamReceived {
        /// The revision of the plane's last commit in it.
        head: Revision,
    },
    /// The received stream was thrown away, for want of memory or time.
    StreamDropped,
    /// Hand the plane off.
    HandOff {
        /// A hint for the record.
        successor: Option<ReplicaId>,
        /// What goes ahead of it.
        streaming: Streaming,
    },
    /// The streaming asked for by [`Action::Stream`] ended, well or not.
    StreamEnded,
    /// Call the pause, the hand-off or the deletion off: its deadline passed, or the successor is
    /// gone.
    CallOff,
    /// Delete the plane.
    Delete,
    /// The plane cannot go on under this tenure and nothing is said to the store. What the fence
    /// says, holds: the next acquire finds it (FENCING 17).
    Abandon,
    /// The member key is lost: this incarnation owns nothing any more.
    MemberLost,
}

/// What the driver does for a plane's fence, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this once and report the outcome. Repeated ones are paced by the driver.
    Transact {
        /// Names the sending.
        attempt: Attempt,
        /// What to send.
        transaction: Transaction,
    },
    /// Read the fence linearizably, judge it, and report [`Event::Acquire`] again if it is still
    /// wanted, else [`Event::Looked`].
    ReadFence,
    /// The plane is ours. Load its state and report [`Event::Loaded`].
    OpenTenure {
        /// The token of every answer.
        tenure: Tenure,
        /// Nothing is answered, committed or released before.
        serve_from: Time,
        /// Where the state comes from.
        load: Load,
    },
    /// Nothing is answered under this tenure from here on.
    EndTenure {
        /// Which.
        tenure: Tenure,
        /// Why.
        end: TenureEnd,
    },
    /// No write from before this revision can be applied any more: replay the plane's history from
    /// the last published revision up to it, answer every caller, report [`Event::Replayed`].
    Settle {
        /// Up to where history decides.
        through: Revision,
    },
    /// Writes wait from here on.
    StopAccepting,
    /// Writes are taken again, and what is queued may be sent.
    ResumeAccepting,
    /// Stream state and history, then report [`Event::StreamEnded`].
    Stream {
        /// To whom.
        to: ReplicaId,
        /// The head of what is streamed.
        head: Revision,
    },
    /// The fence says Released.
    Released {
        /// The record, as far as known.
        fence: Option<Observed<Fence>>,
    },
    /// The fence says Deleted: remove the range in pieces, each comparing the fence at this revision.
    RemoveRange {
        /// The revision of the Deleted record.
        fence: Revision,
    },
    /// Ask the living holder over the peer channel to hand over.
    AskHolder(Holder),
    /// The plane was not taken.
    NotTaken(NotTaken),
    /// The hand-off or deletion cannot begin yet.
    NotYet {
        /// When the own wait is over, if that is what it is.
        serve_from: Time,
    },
}

/// Why a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenureEnd {
    /// Its fence is about to be released or deleted.
    Parting,
    /// The fence or the member key was found to be another's.
    Lost {
        /// Where the history decides an unsettled batch: what is not in it up to here never will be.
        /// None when only the member key's loss is known: then its outcome stays unknown.
        settled_through: Option<Revision>,
    },
}

/// Why a plane was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotTaken {
    /// Its holder is newer than the view: let the view catch up, then look again.
    ViewTooOld,
    /// Something changed meanwhile: look again.
    Changed,
    /// The store refused to consider the acquire.
    Rejected,
    /// The plane is deleted; the range may still have to be removed under this fence.
    Deleted {
        /// The revision of the Deleted record, for the compare.
        fence: Revision,
    },
    /// The plane has no directory record.
    NoDirectoryRecord,
}

/// The fence of one plane at one incarnation of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneFence {
    me: Holder,
    kind: PlaneKind,
    terms: LeaseTerms,
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
    /// Its outcome is unknown; this puts the own fence again.
    Barrier(Attempt),
    /// It is decided; history is being replayed.
    Replaying,
    /// There is none: the own fence is put again to see whether the store takes writes.
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
    /// The same, and the last word follows.
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

/// Released or Deleted was sent; there is no tenure.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parted {
    attempt: Attempt,
    stage: PartedStage,
    goal: Goal,
    /// The tenure that ended for it; it goes on if the word turns out not to have been said.
    suspended: Tenure,
    fence: Revision,
    head: Revision,
    rejections: u8,
    /// A sending of the word had no final reply: it may be said at any later time.
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
    pub fn new(me: Holder, kind: PlaneKind, terms: LeaseTerms, rules: Rules) -> Self {
        let phase = Phase::Away;
        Self {
            me,
            kind,
            terms,
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
            // The outcome of something given up: a later look at the fence tells (FENCING 17).
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
