//! The guard of a plane whose store only this process has open, for tests and examples (feature
//! `testing`). Owns one fence record and the machine over it; it knows no member keys and no read lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_fencing::{
    Action, Attempt, CommitPermit, Directory, Event, Fence, FenceState, Holder, Incarnation,
    LeaseTerms, Observed, Outcome, PlaneFence, PlaneKind, Refusal, Rules, Tenure, Time,
    Transaction, Witness,
};
use polyplane_storage::{CommitError, Compare, KeyValue, Op, ReadError, Revision, Store, Txn};
use tokio::time::Instant;

use crate::guard::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, SendPermit, first_change,
};
use crate::history::log::LogBounds;
use crate::layers::Layers;
use crate::layers::layer::Layer;
use crate::lifecycle::params::{PlaneParams, PlaneRecord};
use crate::version::Version;
use crate::write::committer::Committer;

/// The time that the fence's machine is given. It never changes, because nothing here depends on
/// time: no wait runs and no lease ends.
const NOW: Time = Time::from_nanos(0);

/// The guard of a plane in a store that only this process has open. It puts the fence once, and
/// afterwards only for a barrier or a probe of its own.
pub struct SoleHolder {
    store: Arc<dyn Store>,
    key: Bytes,
    value: Bytes,
    me: Holder,
    tenure: Tenure,
    inner: Mutex<Inner>,
}

struct Inner {
    machine: PlaneFence,
    /// A put of the fence that the machine requested and that has no final reply yet.
    pending: Option<(Attempt, Transaction)>,
    /// The revision of the fence that the last part or the last barrier compared.
    fence: Revision,
    head: Revision,
}

impl SoleHolder {
    /// Acquires the fence at `key`. `holder` must differ between any two processes.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn take(
        store: Arc<dyn Store>,
        key: impl Into<Bytes>,
        holder: impl Into<Bytes>,
    ) -> Result<Arc<Self>, CommitError> {
        let (key, value) = (key.into(), holder.into());
        let put = put(&key, &value);
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        let fence = store.commit(txn).await?.revision;
        let me = Holder {
            replica: "sole".parse().expect("a replica id"),
            incarnation: Incarnation::new(fence.0),
        };
        let mut machine = PlaneFence::new(me.clone(), PlaneKind::Root, Rules::default());
        let witness = Witness::shared_store(LeaseTerms::default());
        let asked = machine.step(NOW, Event::Acquire(witness.sighting(None)));
        let [Action::Transact { attempt, .. }] = asked[..] else {
            unreachable!("an absent fence is taken by one transaction");
        };
        let outcome = Outcome::Applied(revision(fence));
        machine.step(NOW, Event::Done { attempt, outcome });
        machine.step(
            NOW,
            Event::Loaded {
                head: revision(Revision(0)),
            },
        );
        let tenure = machine.tenure().expect("it was just taken");
        let inner = Mutex::new(Inner {
            machine,
            pending: None,
            fence,
            head: Revision(0),
        });
        Ok(Arc::new(Self {
            store,
            key,
            value,
            me,
            tenure,
            inner,
        }))
    }

    /// Returns the parameters for opening an empty plane under this fence, which has no directory
    /// record. Callers replace the parameters that they need otherwise.
    #[must_use]
    pub fn empty_plane(self: &Arc<Self>, committer: Arc<Committer>) -> PlaneParams {
        PlaneParams {
            record: PlaneRecord {
                id: "test".into(),
                base: 0,
                birth: None,
                layer: Layer::empty().hash().clone(),
                params: BTreeMap::new(),
            },
            born: Version::from_raw(256),
            born_at: "2024-05-06T07:08:09Z".into(),
            layers: Layers::new(Arc::clone(&self.store)),
            uid_seed: [0; 32],
            indexes: Vec::new(),
            derivation: None,
            summarize: None,
            committer,
            guard: Arc::clone(self) as Arc<dyn CommitGuard>,
            acquired: self.fence(),
            log: LogBounds::default(),
            external: None,
            import: None,
            copied: None,
        }
    }

    /// Returns the revision of the fence's last put.
    #[must_use]
    pub fn fence(&self) -> Revision {
        self.inner.lock().fence
    }

    fn txn(&self, transaction: &Transaction) -> Txn {
        let at = |compare: &polyplane_fencing::Compare| match compare {
            polyplane_fencing::Compare::FenceAt(revision) => {
                Some(self.at(Revision(revision.get())))
            }
            // There are no member keys, because no other process has the store open.
            _ => None,
        };
        Txn {
            compares: transaction.compares.iter().filter_map(at).collect(),
            ops: vec![put(&self.key, &self.value)],
        }
    }

    fn at(&self, revision: Revision) -> Compare {
        Compare::Unchanged {
            key: self.key.clone(),
            revision,
        }
    }

    fn refusal(&self, at: Revision, found: Option<&KeyValue>) -> Outcome {
        let fence = found.filter(|found| found.value == self.value);
        let fence = fence.map(|found| Observed {
            value: Fence {
                holder: self.me.clone(),
                epoch: self.tenure.epoch(),
                state: FenceState::Held,
            },
            revision: revision(found.modified),
        });
        Outcome::Refused(Refusal {
            at: revision(at),
            fence,
            own_incarnation: Some(self.me.incarnation),
            directory: Directory::Present,
        })
    }

    fn step(&self, inner: &mut Inner, event: Event) -> Vec<Action> {
        let actions = inner.machine.step(NOW, event);
        for action in &actions {
            if let Action::Transact {
                attempt,
                transaction,
            } = action
            {
                inner.pending = Some((*attempt, transaction.clone()));
            }
        }
        actions
    }

    /// Sends the pending put of the fence once.
    async fn put_fence(&self) -> Result<Revision, BarrierError> {
        let Some((attempt, transaction)) = self.inner.lock().pending.take() else {
            return Err(BarrierError::Unavailable("nothing is unsettled".into()));
        };
        let result = self.store.commit(self.txn(&transaction)).await;
        let (outcome, reason) = match result {
            Ok(committed) => (
                Outcome::Applied(revision(committed.revision)),
                String::new(),
            ),
            Err(CommitError::Refused { at, found, .. }) => {
                let found = found.first().and_then(Option::as_ref);
                (self.refusal(at, found), "it was done unseen".to_owned())
            }
            Err(CommitError::Rejected(rejection)) => (Outcome::Rejected, rejection.to_string()),
            Err(CommitError::Undisclosed(rejection, _)) => {
                (Outcome::Unknown, rejection.to_string())
            }
            Err(CommitError::Unknown(reason)) => (Outcome::Unknown, reason),
        };
        let landed = match &outcome {
            Outcome::Applied(at) => Some(*at),
            Outcome::Refused(refusal) => refusal.fence.as_ref().map(|fence| fence.revision),
            Outcome::Rejected | Outcome::Unknown => None,
        };
        let is_rejected = outcome == Outcome::Rejected;
        let mut inner = self.inner.lock();
        self.step(&mut inner, Event::Done { attempt, outcome });
        if inner.machine.tenure() != Some(self.tenure) {
            return Err(BarrierError::Lost);
        }
        match landed {
            Some(at) => {
                inner.fence = Revision(at.get());
                Ok(inner.fence)
            }
            None if is_rejected => Err(BarrierError::Rejected(reason)),
            None => Err(BarrierError::Unavailable(reason)),
        }
    }
}

#[async_trait]
impl CommitGuard for SoleHolder {
    fn intake(&self) -> Intake {
        self.inner.lock().machine.intake(self.tenure)
    }

    fn permit(&self) -> SendPermit {
        let mut inner = self.inner.lock();
        match inner.machine.commit_permit(NOW, self.tenure) {
            CommitPermit::Granted(_) => {
                inner.machine.step(NOW, Event::CommitSent);
                SendPermit::Granted(vec![self.at(inner.fence)])
            }
            CommitPermit::Wait => SendPermit::Wait,
            CommitPermit::Moved => SendPermit::Lost,
        }
    }

    fn acknowledged(&self) {}

    fn landed(&self, at: Revision) {
        let mut inner = self.inner.lock();
        inner.head = inner.head.max(at);
        let event = Event::Landed { at: revision(at) };
        self.step(&mut inner, event);
    }

    fn not_done(&self, outcome: NotDone) {
        let outcome = match outcome {
            NotDone::Refused { at, found } => {
                let found = found.first().and_then(|(_, found)| found.as_ref());
                self.refusal(at, found)
            }
            NotDone::Rejected => Outcome::Rejected,
            NotDone::Unknown => Outcome::Unknown,
        };
        self.step(&mut self.inner.lock(), Event::CommitDone(outcome));
    }

    async fn barrier(&self) -> Result<Revision, BarrierError> {
        self.put_fence().await
    }

    async fn superseded(&self) -> Result<Option<Revision>, ReadError> {
        first_change(&self.store, &self.key, self.fence()).await
    }

    fn never_done(&self) {
        let mut inner = self.inner.lock();
        let head = revision(inner.head);
        self.step(&mut inner, Event::Replayed { head });
    }

    fn pause(&self) {
        self.step(&mut self.inner.lock(), Event::Pause);
    }

    fn resume(&self) {
        self.step(&mut self.inner.lock(), Event::CallOff);
    }

    fn is_quiescent(&self) -> bool {
        self.inner.lock().machine.is_quiescent(self.tenure)
    }

    async fn probe(&self) -> Result<(), BarrierError> {
        let asked = self.step(&mut self.inner.lock(), Event::Probe);
        match asked.is_empty() {
            true => Ok(()),
            false => self.put_fence().await.map(drop),
        }
    }

    fn store_writable(&self) {
        self.step(&mut self.inner.lock(), Event::StoreWritable);
    }

    fn answerable(&self) -> Answerable {
        match self.inner.lock().machine.tenure() == Some(self.tenure) {
            true => Answerable::Yes,
            false => Answerable::Lost,
        }
    }

    async fn until_answerable(&self, _deadline: Instant) -> Result<(), NotAnswerable> {
        match self.answerable() {
            Answerable::Yes => Ok(()),
            Answerable::Wait | Answerable::Lost => Err(NotAnswerable::Lost),
        }
    }

    fn observed(&self) -> Revision {
        Revision(0)
    }

    fn lost(&self) {
        self.step(&mut self.inner.lock(), Event::Abandon);
    }
}

fn put(key: &Bytes, value: &Bytes) -> Op {
    Op::Put {
        key: key.clone(),
        value: value.clone(),
        lease: None,
    }
}

fn revision(revision: Revision) -> polyplane_fencing::Revision {
    polyplane_fencing::Revision::new(revision.0)
}
