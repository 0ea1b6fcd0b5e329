//! The driver of one plane's fence during one life of this replica: steps the fence's machine, and
//! sends every store transaction that the machine asks for once. Must not know what the plane
//! contains.
//!
//! Two callers step the machine: the plane's committer, through [`RingGuard`], and the one task
//! that is busy with the slot (take, hand off, delete). Actions that a step of the committer leaves
//! for that task wait in `deferred`.

use crate::directory::birth::{Birth, DirectoryKey};
use crate::membership::own_life::OwnLife;
use crate::records::fence_key;
use crate::transactions::{PlaneKeys, observed_fence, plane_outcome, plane_txn, stored};
use parking_lot::Mutex;
use polyplane_fencing::{
    Action, Attempt, Epoch, Event, Fence, Load, Observed, Outcome, PlaneFence, PlaneKind, Tenure,
    TenureEnd, Time, Transaction,
};
use polyplane_storage::{ReadError, Revision, Store, Txn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

mod guard;

pub(crate) use guard::RingGuard;

/// `answers_from` while no tenure is open.
const NO_TENURE: u64 = u64::MAX;

/// The fence of one plane during one life of this replica.
pub(crate) struct FenceDriver {
    store: Arc<dyn Store>,
    life: Arc<OwnLife>,
    keys: PlaneKeys,
    inner: Mutex<Inner>,
    /// From when the open tenure may answer, in nanoseconds of the clock; `NO_TENURE` without one.
    /// A copy of what the machine says, read without a lock at each answer.
    answers_from: AtomicU64,
    /// Which tenure that is, so that a guard of an ended one cannot take a later one for its own.
    opening: AtomicU64,
    /// Notified at each step of the machine.
    changed: Notify,
}

struct Inner {
    machine: PlaneFence,
    /// The put of the fence that settles an unknown outcome and is still to be sent, by the caller
    /// that settles the part.
    barrier: Option<(Attempt, Transaction)>,
    /// Actions that the committer's steps left for the slot's task.
    deferred: Vec<Action>,
    /// The head as the machine knows it.
    head: Revision,
    /// The revision of the fence's last put by this fence driver.
    put_at: Revision,
    /// The revision of the fence that the last permitted part compared.
    compared: Revision,
}

/// A transaction that a machine asked for, as a part of a bulk transaction.
#[derive(Debug, Clone)]
pub(crate) struct Sending {
    attempt: Attempt,
    pub(crate) txn: Txn,
}

impl FenceDriver {
    /// The driver of a fence that this life has not looked at yet.
    pub(crate) fn new(store: Arc<dyn Store>, life: Arc<OwnLife>, birth: &Birth) -> Arc<Self> {
        let directory: Option<DirectoryKey> = birth.directory.clone();
        let keys = PlaneKeys {
            fence: fence_key(&birth.id),
            directory,
            me: life.holder().clone(),
        };
        let inner = Mutex::new(Inner {
            machine: machine(&keys, &life),
            barrier: None,
            deferred: Vec::new(),
            head: Revision(0),
            put_at: Revision(0),
            compared: Revision(0),
        });
        Arc::new(Self {
            store,
            life,
            keys,
            inner,
            answers_from: AtomicU64::new(NO_TENURE),
            opening: AtomicU64::new(0),
            changed: Notify::new(),
        })
    }

    /// The life it belongs to.
    pub(crate) fn life(&self) -> &Arc<OwnLife> {
        &self.life
    }

    /// The keys its transactions name.
    pub(crate) fn keys(&self) -> &PlaneKeys {
        &self.keys
    }

    /// Told whenever something about the tenure has changed.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Whether a tenure is open.
    pub(crate) fn holds(&self) -> bool {
        self.answers_from.load(Ordering::Acquire) != NO_TENURE && !self.life.over().is_cancelled()
    }

    /// Whether a release was sent whose outcome is not final: no tenure is open, and the next task
    /// that needs the plane drives the release on.
    pub(crate) fn is_parting(&self) -> bool {
        self.inner.lock().machine.is_parting()
    }

    /// The moment of the clock before which the open tenure neither answers nor releases.
    pub(crate) fn serve_from(&self) -> Time {
        match self.answers_from.load(Ordering::Acquire) {
            NO_TENURE => Time::from_nanos(0),
            from => Time::from_nanos(from),
        }
    }

    /// Makes the guards of the plane in memory worthless. For a tenure that goes on while its plane
    /// is loaded again.
    pub(crate) fn outdate_guards(&self) {
        self.opening.fetch_add(1, Ordering::AcqRel);
    }

    /// The fence's epoch under the open tenure.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        if !self.holds() {
            return None;
        }
        let tenure = self.inner.lock().machine.tenure();
        tenure.map(Tenure::epoch)
    }

    /// The revision of the fence's last put by this fence driver: of the acquire, right after it.
    pub(crate) fn put_at(&self) -> Revision {
        self.inner.lock().put_at
    }

    /// Reads the fence, linearizably.
    pub(crate) async fn read_fence(&self) -> Result<Option<Observed<Fence>>, ReadError> {
        let (_, found) = self.store.get(&self.keys.fence).await?;
        let observed = found.as_ref().map(observed_fence).transpose();
        observed.map_err(|damaged| ReadError::Corrupt(damaged.to_string()))
    }

    /// Steps the machine for the slot's task. Ends of tenures among the returned actions have taken
    /// effect.
    pub(crate) fn step(&self, event: Event) -> Vec<Action> {
        let mut inner = self.inner.lock();
        let now = self.life.now();
        if let Event::Loaded { head } | Event::Published { head } = &event {
            inner.head = inner.head.max(stored(*head));
        }
        let actions = inner.machine.step(now, event);
        self.note(&mut inner, &actions);
        drop(inner);
        self.changed.notify_waiters();
        actions
    }

    /// Takes what the committer's steps have left for the slot's task.
    pub(crate) fn take_deferred(&self) -> Vec<Action> {
        std::mem::take(&mut self.inner.lock().deferred)
    }

    /// A transaction of the machine, to be sent together with those of other planes.
    pub(crate) fn sending(&self, attempt: Attempt, transaction: &Transaction) -> Sending {
        let txn = plane_txn(transaction, &self.keys);
        Sending { attempt, txn }
    }

    /// Sends a transaction of the machine once and steps it with the outcome.
    pub(crate) async fn send(&self, attempt: Attempt, transaction: &Transaction) -> Vec<Action> {
        let (outcome, _) = self.commit(transaction).await;
        self.step(Event::Done { attempt, outcome })
    }

    /// Commits a transaction of the machine once. Returns the outcome for the machine, and the
    /// store's error text if it was not applied.
    async fn commit(&self, transaction: &Transaction) -> (Outcome, Option<String>) {
        let txn = plane_txn(transaction, &self.keys);
        let compares = txn.compares.clone();
        let result = self.store.commit(txn).await;
        let words = result.as_ref().err().map(ToString::to_string);
        let outcome = plane_outcome(&compares, result, &self.keys);
        self.learn(&outcome);
        (outcome, words)
    }

    /// Steps the machine with the outcome that its part of a bulk transaction had.
    pub(crate) fn outcome_of(&self, sending: &Sending, outcome: Outcome) -> Vec<Action> {
        self.learn(&outcome);
        self.step(Event::Done {
            attempt: sending.attempt,
            outcome,
        })
    }

    /// Keeps the revision of an applied put of the fence, whatever the machine makes of the
    /// outcome.
    fn learn(&self, outcome: &Outcome) {
        self.watch_for_loss(outcome);
        if let Outcome::Applied(revision) = outcome {
            self.inner.lock().put_at = stored(*revision);
        }
    }

    /// A refusal that does not find the own member key proves its loss.
    fn watch_for_loss(&self, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome
            && refusal.own_incarnation != Some(self.keys.me.incarnation)
        {
            self.life.lost();
        }
    }

    /// Copies what the actions say about the tenure, under the machine's lock: a tenure has ended
    /// in the copy before anything else is sent (F7).
    fn note(&self, inner: &mut Inner, actions: &[Action]) {
        for action in actions {
            match action {
                Action::OpenTenure {
                    serve_from, load, ..
                } => {
                    match load {
                        // The tenure that was suspended goes on, with its guards.
                        Load::Kept { .. } => {}
                        Load::Store { .. } | Load::Streamed { .. } => {
                            inner.head = Revision(0);
                            self.outdate_guards();
                        }
                    }
                    inner.barrier = None;
                    self.answers_from
                        .store(serve_from.as_nanos(), Ordering::Release);
                }
                Action::EndTenure { end, .. } => {
                    self.answers_from.store(NO_TENURE, Ordering::Release);
                    inner.barrier = None;
                    if let TenureEnd::Lost { .. } = end {
                        tracing::warn!(
                            fence = %String::from_utf8_lossy(&self.keys.fence),
                            "the fence was found to be another's"
                        );
                    }
                }
                Action::Transact { .. }
                | Action::ReadFence
                | Action::Settle { .. }
                | Action::StopAccepting
                | Action::ResumeAccepting
                | Action::Stream { .. }
                | Action::Released { .. }
                | Action::RemoveRange { .. }
                | Action::AskHolder(_)
                | Action::NotTaken(_)
                | Action::NotYet { .. } => {}
            }
        }
    }

    /// Gives a tenure up in memory and leaves the fence as it is in the store, because the plane
    /// cannot go on. The fence is adopted at the next use (PROTOCOL 17).
    pub(crate) fn abandon(&self) {
        let mut inner = self.inner.lock();
        self.answers_from.store(NO_TENURE, Ordering::Release);
        inner.machine.step(self.life.now(), Event::Abandon);
        inner.barrier = None;
        inner.deferred.clear();
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Waits until this moment of the clock, or the end of the life.
    pub(crate) async fn until(&self, from: Time) {
        loop {
            let left = from.since(self.life.now()).as_nanos();
            if left == 0 || self.life.over().is_cancelled() {
                return;
            }
            let left = std::time::Duration::from_nanos(left);
            tokio::select! {
                // The end of the life first: it ends every wait.
                biased;
                () = self.life.over().cancelled() => return,
                // Timers run by another clock than the protocol, so the loop checks again.
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

fn machine(keys: &PlaneKeys, life: &OwnLife) -> PlaneFence {
    let kind = match keys.directory {
        Some(_) => PlaneKind::Tenant,
        None => PlaneKind::Root,
    };
    PlaneFence::new(keys.me.clone(), kind, life.rules())
}
