//! The inputs and outputs of a plane's fence: the events that it accepts, and the actions that it
//! returns.

use core::fmt;

use polyplane_ring::ReplicaId;

use crate::plane::Tenure;
use crate::record::{Fence, Holder, Observed, Revision};
use crate::time::Time;
use crate::transaction::{Attempt, Outcome, Transaction};
use crate::witness::Sighting;

/// The source of a new tenure's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Load {
    /// The store, read at this revision or later.
    Store {
        /// The revision of the acquire.
        not_before: Revision,
    },
    /// The state that the former owner streamed, which is exactly the released one.
    Streamed {
        /// The head of that state.
        head: Revision,
    },
    /// The state in memory: the hand-off was called off, and no other replica has held the fence
    /// since.
    Kept {
        /// The head of that state.
        head: Revision,
    },
}

/// The choice whether a hand-off carries the plane's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Streaming {
    /// Stream state and history to this replica first.
    To(ReplicaId),
    /// Release only: the plane is asleep, or has no successor.
    Nothing,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Acquire the fence if the rules allow it: this replica is designated, or needs the plane.
    Acquire(Sighting),
    /// The driver has read the fence for another reason than to acquire the plane. The machine acts
    /// only if this incarnation holds the fence without knowing it.
    Looked(Sighting),
    /// The outcome of an [`Action::Transact`].
    Done {
        /// The number of the attempt.
        attempt: Attempt,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The state requested by [`Action::OpenTenure`] is in memory, up to this head.
    Loaded {
        /// The revision of the last commit in that state.
        head: Revision,
    },
    /// Writes of other replicas have been published in the plane up to this head. (The root has the
    /// member keys among its objects.) Released will name this head, if no commit is newer.
    Published {
        /// The newest revision that is published.
        head: Revision,
    },
    /// A batch under a [`Guard`](crate::Guard) is about to be sent.
    CommitSent,
    /// The outcome of that batch. A refusal contains this plane's fence.
    CommitDone(Outcome),
    /// The batch is published, whether the store acknowledged it or the history showed it. The
    /// driver reports this only after publishing, because a leaving plane sends Released as soon as
    /// the machine knows of no batch.
    Landed {
        /// The revision at which the store applied the batch.
        at: Revision,
    },
    /// The history requested by [`Action::Settle`] was replayed, up to this head.
    Replayed {
        /// The revision of the last commit in that history.
        head: Revision,
    },
    /// The plane is read-only and should find out now whether the store accepts writes again.
    Probe,
    /// The store has accepted a write of another plane, so this one need not be read-only any more.
    StoreWritable,
    /// Send no batch and accept no write until [`Event::CallOff`]: the plane is about to be
    /// released, and its head must not change.
    Pause,
    /// The plane's owner has streamed the plane's state to this replica, up to this head.
    StreamReceived {
        /// The revision of the last commit in that state.
        head: Revision,
    },
    /// The streamed state was dropped, for lack of memory or time.
    StreamDropped,
    /// Hand the plane off.
    HandOff {
        /// The successor that Released will name, as a hint.
        successor: Option<ReplicaId>,
        /// The streaming that precedes the release.
        streaming: Streaming,
    },
    /// The streaming requested by [`Action::Stream`] ended, with or without success.
    StreamEnded,
    /// Call the pause, the hand-off or the deletion off: its deadline passed, or the successor does
    /// not answer.
    CallOff,
    /// Delete the plane.
    Delete,
    /// Give the plane up without any message to the store, because it cannot continue under this
    /// tenure. The fence stays as it is, and the next acquire finds it (PROTOCOL 17).
    Abandon,
    /// The member key is lost: this incarnation owns nothing any more.
    MemberLost,
}

/// An output of the machine. The driver performs the actions of a step in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this transaction once and report the outcome. Before the driver sends a repeated one, it
    /// pauses.
    Transact {
        /// The number of the attempt.
        attempt: Attempt,
        /// The transaction.
        transaction: Transaction,
    },
    /// Read the fence linearizably, judge it, and report [`Event::Acquire`] again if the plane is
    /// still wanted, else [`Event::Looked`].
    ReadFence,
    /// The replica holds the fence. Load the plane's state and report [`Event::Loaded`].
    OpenTenure {
        /// The tenure, which every answer must name.
        tenure: Tenure,
        /// The time before which nothing is answered, committed or released.
        serve_from: Time,
        /// The source of the state.
        load: Load,
    },
    /// Answer nothing under this tenure from here on.
    EndTenure {
        /// The tenure that ends.
        tenure: Tenure,
        /// The reason for its end.
        end: TenureEnd,
    },
    /// No transaction from before this revision can be applied any more. Replay the plane's history
    /// from the last published revision up to it, answer every caller, and report
    /// [`Event::Replayed`].
    Settle {
        /// The revision up to which the history decides.
        through: Revision,
    },
    /// Make writes wait from here on.
    StopAccepting,
    /// Accept writes again; queued writes may be sent.
    ResumeAccepting,
    /// Stream state and history, then report [`Event::StreamEnded`].
    Stream {
        /// The successor.
        to: ReplicaId,
        /// The head of the streamed state.
        head: Revision,
    },
    /// The fence is Released.
    Released {
        /// The fence's record, as far as it is known.
        fence: Option<Observed<Fence>>,
    },
    /// The fence is Deleted: remove the range in pieces, each of which compares the fence at this
    /// revision.
    RemoveRange {
        /// The revision of the Deleted record.
        fence: Revision,
    },
    /// Request a hand-over from the living holder, over the peer channel.
    AskHolder(Holder),
    /// The fence was not acquired, for this reason.
    NotTaken(NotTaken),
    /// The hand-off or deletion cannot begin yet.
    NotYet {
        /// The time at which this replica's own wait is over, if that is the reason.
        serve_from: Time,
    },
}

/// The reason why a tenure ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenureEnd {
    /// The fence is about to be released or deleted.
    Relinquished,
    /// The fence or the member key was found to be another's.
    Lost {
        /// The revision up to which the history decides an unsettled batch: if the batch is not in
        /// it, it was not applied and never will be. `None` if only the loss of the member key is
        /// known; then the batch's outcome stays unknown.
        settled_through: Option<Revision>,
    },
}

impl fmt::Debug for TenureEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The name in traces that were recorded before it was changed.
            Self::Relinquished => f.write_str("Parting"),
            Self::Lost { settled_through } => f
                .debug_struct("Lost")
                .field("settled_through", settled_through)
                .finish(),
        }
    }
}

/// The reason why a fence was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotTaken {
    /// The plane's holder is newer than the view: let the view catch up, then try again.
    ViewTooOld,
    /// The fence changed in the meantime: try again.
    Changed,
    /// The store refused to consider the acquire.
    Rejected,
    /// The plane is deleted. Its range may still have to be removed under this fence.
    Deleted {
        /// The revision of the Deleted record, for the compare.
        fence: Revision,
    },
    /// The plane has no directory record.
    NoDirectoryRecord,
}
