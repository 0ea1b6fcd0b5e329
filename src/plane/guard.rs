//! What a plane needs of the holder of its fence: permission to write, and the right to answer.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
pub use polyplane_fencing::Intake;
use polyplane_storage::{Compare, KeyValue, ReadError, Revision, Store};
use tokio::time::Instant;

/// Whether a plane may answer from memory right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerable {
    /// Tenure and read lease hold.
    Yes,
    /// The tenure holds, the read lease ran out: answers wait for its next proof.
    Wait,
    /// The tenure has ended and does not come back.
    Lost,
}

/// Why a plane does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswerable {
    /// The tenure has ended: the owner is elsewhere.
    #[error("this replica does not hold the control plane any more")]
    Lost,
    /// The read lease was not proven again before the deadline.
    #[error("the read lease was not renewed in time")]
    Deadline,
}

/// Why a barrier was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// The fence is another's. No older transaction of this holder can be applied any more.
    #[error("the fence is another's")]
    Lost,
    /// The store did not give a final reply; trying again is safe.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// Whether a part of a transaction may be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendPermit {
    /// It may, comparing this: the plane's fence and the replica's own member key.
    Granted(Vec<Compare>),
    /// Not now: the plane is paused, being released, or waits for the store. The code that changes
    /// that calls [`Plane::go_on`](crate::Plane::go_on).
    Wait,
    /// Never: the tenure has ended. Nothing was sent.
    Lost,
}

/// What the store said about a part that was sent under a [`SendPermit`] and is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDone {
    /// A compare of the transaction failed, this plane's or another's: final, nothing was done.
    Refused {
        /// The store's revision then.
        at: Revision,
        /// What each key of the permit's compares held in that instant.
        found: Vec<(Bytes, Option<KeyValue>)>,
    },
    /// The store would not consider it: final, nothing was done.
    Rejected,
    /// The outcome is unknown. A [`CommitGuard::barrier`] follows.
    Unknown,
}

/// The holder's side of one plane's fence for one tenure: whether writes are taken, what every
/// transaction compares, and the right to answer. Every decision is that of the fence's machine
/// ([`polyplane_fencing::PlaneFence`]); an implementation steps it under one lock.
///
/// A granted permit is followed by [`Self::acknowledged`] and then [`Self::landed`], or by
/// [`Self::not_done`]. After [`NotDone::Unknown`] barriers are sent until one is written or the fence
/// is lost, and then [`Self::landed`] or [`Self::never_done`].
#[async_trait]
pub trait CommitGuard: Send + Sync + 'static {
    /// Whether the plane takes a write right now.
    fn intake(&self) -> Intake;

    /// Whether a part may be sent now, and what it must compare. A granted one counts as sent: the
    /// time of its sending is taken here.
    fn permit(&self) -> SendPermit;

    /// The store has acknowledged the part: the replica was alive when it was sent. The part is not
    /// published yet.
    fn acknowledged(&self);

    /// The part is published; the store did it at this revision.
    fn landed(&self, at: Revision);

    /// The part is not done, or its outcome is unknown.
    fn not_done(&self, outcome: NotDone);

    /// After an unknown outcome: puts the fence again, comparing the fence's own revision, which no
    /// older transaction of the plane survives. Returns its revision.
    async fn barrier(&self) -> Result<Revision, BarrierError>;

    /// After a lost barrier: the revision at which another replica wrote the fence; `None` if only the
    /// member key was lost. Writes in the plane's range from that revision on are not this holder's.
    /// Call it *after* reading the plane's history: in the other order, the next owner's first write
    /// could be in the history without the revision that tells it apart.
    ///
    /// # Errors
    /// The history of the fence cannot be read.
    async fn superseded(&self) -> Result<Option<Revision>, ReadError>;

    /// The history up to the barrier was read: the part of unknown outcome never landed and never
    /// will.
    fn never_done(&self);

    /// Writes wait and nothing is sent from here on, until [`Self::resume`].
    fn pause(&self);

    /// Ends a pause.
    fn resume(&self);

    /// Whether the plane is paused, or parts, and everything that was sent is settled and published:
    /// its head stays as it is.
    fn stands_still(&self) -> bool;

    /// Whether the store takes writes again: puts the own fence while no part is under way. For a
    /// plane that is [`Intake::ReadOnly`].
    async fn probe(&self) -> Result<(), BarrierError>;

    /// The store has taken a write of another plane.
    fn store_writable(&self);

    /// Whether the plane may answer right now. Reads the clock itself.
    fn answerable(&self) -> Answerable;

    /// Waits until the plane may answer, or never will, or the deadline.
    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable>;

    /// The newest revision that a linearizable read of the own member key has seen.
    fn observed(&self) -> Revision;

    /// The plane has ended for this tenure: a compare was refused, or it cannot go on.
    fn lost(&self);
}

/// The revision of a key's first change after one.
///
/// # Errors
/// The store's history cannot be read.
pub async fn first_change(
    store: &Arc<dyn Store>,
    key: &Bytes,
    after: Revision,
) -> Result<Option<Revision>, ReadError> {
    let mut end = key.to_vec();
    end.push(0);
    let history = store.history(key.clone(), end.into(), after).await?;
    Ok(history.events.first().map(|event| event.revision))
}
