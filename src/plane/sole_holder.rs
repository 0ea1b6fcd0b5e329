//! The guard of a plane whose store only this process has open, for tests, examples and tools. Owns
//! one fence record; it knows no member keys and no read lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use polyplane_storage::{CommitError, Compare, Op, ReadError, Revision, Store, Txn};
use tokio::time::Instant;

use crate::guard::{
    Answerable, BarrierError, CommitGuard, NotAnswerable, PartOutcome, Permit, first_change,
};

/// The guard of a plane in a store that only this process has open: the fence is put once, and
/// nothing but a barrier of its own moves it.
pub struct SoleHolder {
    store: Arc<dyn Store>,
    key: Bytes,
    value: Bytes,
    /// The revision of the fence's last put; 0 once the tenure has ended.
    fence: AtomicU64,
    /// The same, and still there afterwards.
    last: AtomicU64,
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
            last: AtomicU64::new(committed.revision.0),
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

    fn put_at(&self, revision: Revision) {
        self.last.store(revision.0, Ordering::Release);
        self.fence.store(revision.0, Ordering::Release);
    }

    /// After a refused barrier: an earlier one may have been done without an answer.
    async fn adopt(&self) -> BarrierError {
        match self.store.get(&self.key).await {
            Ok((_, Some(found))) if found.value == self.value => {
                self.put_at(found.modified);
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

    async fn superseded(&self) -> Result<Option<Revision>, ReadError> {
        let last = Revision(self.last.load(Ordering::Acquire));
        first_change(&self.store, &self.key, last).await
    }

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
                self.put_at(committed.revision);
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
