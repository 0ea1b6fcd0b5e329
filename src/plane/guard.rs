//! What a plane asks of whoever holds its fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use polyplane_storage::{CommitError, Compare, KeyValue, Op, Revision, Store, Txn};
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
/// answer. Implemented over the fence protocol, and by [`SoleHolder`] where nobody else can be.
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

/// The guard of a plane in a store that only this process has open: the fence is put once, and
/// nothing but a barrier of its own moves it.
pub struct SoleHolder {
    store: Arc<dyn Store>,
    key: Bytes,
    value: Bytes,
    /// The revision of the fence's last put; 0 once the tenure has ended.
    fence: AtomicU64,
}

impl SoleHolder {
    /// Takes the fence at `key`. `holder` tells this life of this process from every other.
    ///
    /// # Errors
    /// What the store said.
    pub async fn take(
        store: Arc<dyn Store>,
        key: impl Into<Bytes>,
        holder: impl Into<Bytes>,
    ) -> Result<Arc<Self>, CommitError> {
        let (key, value) = (key.into(), holder.into());
        let put = Op::Put {
            key: key.clone(),
            value: value.clone(),
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        let committed = store.commit(txn).await?;
        Ok(Arc::new(Self {
            store,
            key,
            value,
            fence: AtomicU64::new(committed.revision.0),
        }))
    }

    /// The revision of the fence's last put.
    #[must_use]
    pub fn fence(&self) -> Revision {
        Revision(self.fence.load(Ordering::Acquire))
    }

    fn compares(&self) -> Option<Vec<Compare>> {
        let revision = self.fence();
        (revision != Revision(0)).then(|| {
            vec![Compare::Unchanged {
                key: self.key.clone(),
                revision,
            }]
        })
    }

    /// After a refused barrier: an earlier one may have been done without an answer.
    async fn adopt(&self) -> BarrierError {
        match self.store.get(&self.key).await {
            Ok((_, Some(found))) if found.value == self.value => {
                self.fence.store(found.modified.0, Ordering::Release);
                BarrierError::Unavailable("an earlier barrier was done unseen".into())
            }
            Ok(_) => {
                self.lost();
                BarrierError::Lost
            }
            Err(error) => BarrierError::Unavailable(error.to_string()),
        }
    }
}

#[async_trait]
impl CommitGuard for SoleHolder {
    fn permit(&self) -> Permit {
        match self.compares() {
            Some(compares) => Permit::Granted(compares),
            None => Permit::Lost,
        }
    }

    async fn until_permitted(&self) {}

    fn done(&self, _outcome: PartOutcome) {}

    fn settled(&self, _landed: Option<Revision>) {}

    async fn probe(&self) -> Result<(), BarrierError> {
        self.barrier().await.map(drop)
    }

    fn answerable(&self) -> Answerable {
        if self.fence() == Revision(0) {
            return Answerable::Lost;
        }
        Answerable::Yes
    }

    async fn until_answerable(&self, _deadline: Instant) -> Result<(), NotAnswerable> {
        match self.answerable() {
            Answerable::Yes => Ok(()),
            Answerable::Wait | Answerable::Lost => Err(NotAnswerable::Lost),
        }
    }

    async fn barrier(&self) -> Result<Revision, BarrierError> {
        let Some(compares) = self.compares() else {
            return Err(BarrierError::Lost);
        };
        let put = Op::Put {
            key: self.key.clone(),
            value: self.value.clone(),
            lease: None,
        };
        let txn = Txn {
            compares,
            ops: vec![put],
        };
        match self.store.commit(txn).await {
            Ok(committed) => {
                self.fence.store(committed.revision.0, Ordering::Release);
                Ok(committed.revision)
            }
            Err(CommitError::Refused { .. }) => Err(self.adopt().await),
            Err(error @ (CommitError::Rejected(_) | CommitError::Unknown(_))) => {
                Err(BarrierError::Unavailable(error.to_string()))
            }
        }
    }

    fn observed(&self) -> Revision {
        Revision(0)
    }

    fn lost(&self) {
        self.fence.store(0, Ordering::Release);
    }
}
