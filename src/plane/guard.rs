//! What a plane asks of whoever holds its fence.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
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

/// Why a barrier did not stand.
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
pub enum Permit {
    /// It may, comparing this: the plane's fence and the replica's own member key.
    Granted(Vec<Compare>),
    /// Not yet: a wait runs or a hand-off is under way. See [`CommitGuard::until_permitted`].
    Wait,
    /// Never: the tenure has ended. Nothing was sent.
    Lost,
}

/// What the store said about a part that was sent under a [`Permit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartOutcome {
    /// Done at this revision.
    Applied(Revision),
    /// A compare of the transaction failed, this plane's or another's: final, nothing was done.
    Refused {
        /// The store's revision then.
        at: Revision,
        /// What each key of the permit's compares held in that instant.
        found: Vec<(Bytes, Option<KeyValue>)>,
    },
    /// The store would not consider it: final, nothing was done.
    Rejected,
    /// Nobody knows. A [`CommitGuard::barrier`] follows.
    Unknown,
}

/// The holder's side of one plane's fence: what every transaction compares, and the right to
/// answer. Implemented over the fence protocol, and by [`SoleHolder`](crate::SoleHolder) where nobody else can be.
///
/// A granted permit is followed by exactly one [`Self::done`]; if that said
/// [`PartOutcome::Unknown`], by barriers until one stands, and then by one [`Self::settled`].
#[async_trait]
pub trait CommitGuard: Send + Sync + 'static {
    /// Whether a part may be sent now, and what it must compare. A granted one counts as sent: the
    /// time of its sending is taken here.
    fn permit(&self) -> Permit;

    /// Waits until a permit is granted or never will be.
    async fn until_permitted(&self);

    /// What became of the part under the last permit. Told before the plane publishes anything.
    fn done(&self, outcome: PartOutcome);

    /// Whether the plane may answer right now. Reads the clock itself.
    fn answerable(&self) -> Answerable;

    /// Waits until the plane may answer, or never will, or the deadline.
    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable>;

    /// After an unknown outcome: puts the fence again, comparing the fence's own revision, which no
    /// older transaction of the plane survives. Returns its revision.
    async fn barrier(&self) -> Result<Revision, BarrierError>;

    /// After a lost barrier: the revision at which another wrote the fence, from which on nothing in
    /// the plane's range is this holder's; none if only the member key was lost.
    ///
    /// # Errors
    /// The history of the fence cannot be read.
    async fn superseded(&self) -> Result<Option<Revision>, ReadError>;

    /// The history up to the barrier was read: the part of unknown outcome landed at this revision,
    /// or never will.
    fn settled(&self, landed: Option<Revision>);

    /// Writes something harmless under the fence while no part is under way: whether the store
    /// takes writes again.
    async fn probe(&self) -> Result<(), BarrierError>;

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
