//! What happens to a plane's fence, and what is to be done then: the machine's language.

use polyplane_ring::ReplicaId;

use crate::plane::Tenure;
use crate::record::{Fence, Holder, Observed, Revision};
use crate::time::Time;
use crate::transaction::{Attempt, Outcome, Transaction};
use crate::witness::Sighting;

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
    /// The state in memory: the hand-off was called off and no other replica held the fence since.
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
    /// The driver read the fence for another reason than to take the plane. The machine acts only
    /// if this incarnation holds the fence without knowing it.
    Looked(Sighting),
    /// The outcome of an [`Action::Transact`].
    Done {
        /// Which sending.
        attempt: Attempt,
        /// What became of it.
        outcome: Outcome,
    },
    /// The state requested by [`Action::OpenTenure`] is in memory, up to this head.
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
    /// A batch under a [`Guard`](crate::Guard) is about to be sent.
    CommitSent,
    /// What became of that batch. A refusal carries this plane's fence.
    CommitDone(Outcome),
    /// The batch is published, whether the store acknowledged it or the history showed it. The
    /// driver reports this only after publishing, because a leaving plane sends Released as soon as
    /// the machine knows of no batch.
    Landed {
        /// The revision at which the store did it.
        at: Revision,
    },
    /// The history requested by [`Action::Settle`] was replayed, up to this head.
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
    /// The streaming requested by [`Action::Stream`] ended, with or without success.
    StreamEnded,
    /// Call the pause, the hand-off or the deletion off: its deadline passed, or the successor is
    /// gone.
    CallOff,
    /// Delete the plane.
    Delete,
    /// The plane cannot go on under this tenure and nothing is said to the store. What the fence
    /// says, holds: the next acquire finds it (PROTOCOL 17).
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
    /// Request a hand-over from the living holder, over the peer channel.
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
    /// Its holder is newer than the view: let the view catch up, then try again.
    ViewTooOld,
    /// The fence changed meanwhile: try again.
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
