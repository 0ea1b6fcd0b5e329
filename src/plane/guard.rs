//! The interface to the holder of a plane's fence: permission to write, and the right to answer.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
pub use polyplane_fencing::Intake;
use polyplane_storage::{Compare, KeyValue, ReadError, Revision, Store};
use tokio::time::Instant;

/// The answer to whether a plane may answer from memory right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerable {
    /// It may: the plane's tenure and the replica's read lease hold.
    Yes,
    /// Not yet: the tenure holds, but the read lease has run out. Answers wait until the replica
    /// has proven the lease again.
    Wait,
    /// Never again: the tenure has ended.
    Lost,
}

/// The reason why a plane does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswerable {
    /// The tenure has ended: another replica may own the plane.
    #[error("this replica does not hold the control plane any more")]
    Lost,
    /// The read lease was not proven again before the deadline.
    #[error("the server's store does not answer, so the read lease was not renewed in time")]
    Deadline,
}

/// The reason why a barrier was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// Another replica has taken the fence. No older transaction of this holder can be applied any
    /// more.
    #[error("another replica holds the fence")]
    Lost,
    /// The store refused the put. The reply is final: nothing was applied. Trying again is safe.
    #[error("the store refused the put: {0}")]
    Rejected(String),
    /// The store did not give a final reply; trying again is safe.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// The answer to whether a part of a transaction may be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendPermit {
    /// It may. The transaction must contain these compares: of the plane's fence and of the
    /// replica's own member key.
    Granted(Vec<Compare>),
    /// Not now: the plane is paused, being released, or waits for the store. The code that ends
    /// this state calls [`Plane::permits_changed`](crate::Plane::permits_changed).
    Wait,
    /// Never: the tenure has ended. Nothing was sent.
    Lost,
}

/// The store's reply to a part that was sent under a [`SendPermit`] and was not applied, or may not
/// have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDone {
    /// A compare of the transaction failed, for this plane or for another one. The reply is final:
    /// nothing was applied.
    Refused {
        /// The store's revision when the compare failed.
        at: Revision,
        /// The value of each key of the permit's compares at that revision.
        found: Vec<(Bytes, Option<KeyValue>)>,
    },
    /// The store refused to evaluate the transaction, for example because it is too large. The
    /// reply is final: nothing was applied.
    Rejected,
    /// The outcome is unknown. The caller goes on with [`CommitGuard::barrier`].
    Unknown,
}

/// The holder's side of one plane's fence for one tenure: it decides whether writes are accepted,
/// which compares every transaction contains, and whether the plane may answer. Every decision is
/// made by the fence's machine ([`polyplane_fencing::PlaneFence`]); an implementation steps it
/// under one lock.
///
/// A granted permit is followed by [`Self::acknowledged`] and then [`Self::landed`], or by
/// [`Self::not_done`]. [`Self::landed`] comes alone if a read has found the part after a final reply
/// that did not say whether it was applied. After [`NotDone::Unknown`] the caller writes barriers until one is applied
/// or the fence is lost, and then calls [`Self::landed`] or [`Self::never_done`].
#[async_trait]
pub trait CommitGuard: Send + Sync + 'static {
    /// Returns whether the plane accepts a write right now.
    fn intake(&self) -> Intake;

    /// Returns whether a part may be sent now, and the compares it must contain. A part that gets a
    /// permit counts as sent: its time of sending is the time of this call.
    fn permit(&self) -> SendPermit;

    /// Reports that the store has acknowledged the part, which proves that the replica was alive
    /// when it sent the part. The part is not published yet.
    fn acknowledged(&self);

    /// Reports that the part is published. The store applied it at this revision.
    fn landed(&self, at: Revision);

    /// Reports that the part was not applied, or that its outcome is unknown.
    fn not_done(&self, outcome: NotDone);

    /// Puts the fence again after an unknown outcome, comparing the fence's own revision. No older
    /// transaction of the plane can be applied after this put. Returns its revision.
    async fn barrier(&self) -> Result<Revision, BarrierError>;

    /// Returns, after a lost barrier, the revision at which another replica wrote the fence; `None`
    /// if only the member key was lost. Writes in the plane's range from that revision on are not
    /// this holder's. Call it *after* reading the plane's history: in the other order, the next
    /// owner's first write could be in the history without the revision that tells it apart.
    ///
    /// # Errors
    /// Returns an error if the store cannot read the history of the fence.
    async fn superseded(&self) -> Result<Option<Revision>, ReadError>;

    /// Reports that the history up to the barrier was read and does not contain the part of unknown
    /// outcome: the part was not applied and never will be.
    fn never_done(&self);

    /// Pauses the plane: until [`Self::resume`], writes wait and no part is sent.
    fn pause(&self);

    /// Ends a pause.
    fn resume(&self);

    /// Returns whether the plane is paused or being released, and every part that was sent is
    /// settled and published. The plane's head then stays as it is.
    fn is_quiescent(&self) -> bool;

    /// Tests whether the store accepts writes again, by putting the plane's own fence while no part
    /// is under way. For a plane that is [`Intake::ReadOnly`].
    async fn probe(&self) -> Result<(), BarrierError>;

    /// Reports that the store has accepted a write of another plane.
    fn store_writable(&self);

    /// Returns whether the plane may answer right now. Reads the clock itself.
    fn answerable(&self) -> Answerable;

    /// Waits until the plane may answer, until it is known that it never will, or until the
    /// deadline.
    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable>;

    /// Returns the newest revision that a linearizable read of this replica's member key has seen.
    fn observed(&self) -> Revision;

    /// Ends the plane for this tenure, because a compare was refused or the plane cannot continue.
    fn lost(&self);
}

/// Returns the revision of the first change of a key after the revision `after`.
///
/// # Errors
/// Returns an error if the store's history cannot be read.
pub async fn first_change(
    store: &Arc<dyn Store>,
    key: &Bytes,
    after: Revision,
) -> Result<Option<Revision>, ReadError> {
    // The history from then on may be compacted, although nothing has changed.
    let (_, found) = store.get(key).await?;
    if found.is_some_and(|found| found.modified <= after) {
        return Ok(None);
    }
    let mut end = key.to_vec();
    end.push(0);
    let history = store.history(key.clone(), end.into(), after).await?;
    Ok(history.events.first().map(|event| event.revision))
}
