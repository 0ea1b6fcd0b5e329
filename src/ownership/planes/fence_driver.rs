//! The driver of one plane's fence during one life of this replica: steps the fence's machine, and
//! sends every store transaction that the machine requests, once. Must not know what the plane
//! contains.
//!
//! Two callers step the machine: the plane's committer, through [`RingGuard`], and the one task
//! that works on the slot (acquire, hand off, delete). Actions of the committer's steps that only
//! that task can perform wait in `deferred`.

use crate::directory::birth::{Birth, DirectoryKey};
use crate::membership::own_life::OwnLife;
use crate::records::fence_key;
use crate::transactions::{
    PlaneKeys, observed_fence, plane_outcome, plane_txn, refusal, revision, stored,
};
use parking_lot::Mutex;
use polyplane_fencing::{
    Action, Attempt, Epoch, Event, Fence, Load, Observed, Outcome, PlaneFence, PlaneKind, Tenure,
    TenureEnd, Time, Transaction,
};
use polyplane_storage::{CommitError, Compare, Op, ReadError, Revision, Store, Txn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

mod guard;

pub(crate) use guard::RingGuard;

/// The value of `answers_from` while no tenure is open.
const NO_TENURE: u64 = u64::MAX;

/// The fence of one plane during one life of this replica.
pub(crate) struct FenceDriver {
    store: Arc<dyn Store>,
    life: Arc<OwnLife>,
    keys: PlaneKeys,
    inner: Mutex<Inner>,
    /// The time from which the open tenure may answer, in nanoseconds of the clock; `NO_TENURE` if
    /// none is open. A copy of the machine's state, read without a lock at each answer.
    answers_from: AtomicU64,
    /// The number of that tenure, so that a guard of an ended one cannot take a later one for its
    /// own.
    opening: AtomicU64,
    /// Notified at each step of the machine.
    changed: Notify,
}

struct Inner {
    machine: PlaneFence,
    /// The put of the fence that settles an unknown outcome and is not sent yet. The caller that
    /// settles the part sends it.
    barrier: Option<(Attempt, Transaction)>,
    /// Actions of the committer's steps that the slot's task must perform.
    deferred: Vec<Action>,
    /// The plane's head as the machine knows it.
    head: Revision,
    /// The revision of the fence's last put by this fence driver.
    put_at: Revision,
    /// The revision of the fence that the last permitted part compared.
    compared: Revision,
}

/// A transaction that a machine requested, as a part of a bulk transaction.
#[derive(Debug, Clone)]
pub(crate) struct Sending {
    attempt: Attempt,
    pub(crate) txn: Txn,
}

impl FenceDriver {
    /// Returns the driver of a fence that this life has not read yet.
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

    /// Returns the life that the driver belongs to.
    pub(crate) fn life(&self) -> &Arc<OwnLife> {
        &self.life
    }

    /// Returns the keys that the driver's transactions name.
    pub(crate) fn keys(&self) -> &PlaneKeys {
        &self.keys
    }

    /// Returns the notifier of every step of the machine.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Returns whether a tenure is open.
    pub(crate) fn holds(&self) -> bool {
        self.answers_from.load(Ordering::Acquire) != NO_TENURE && !self.life.over().is_cancelled()
    }

    /// Returns whether a release was sent whose outcome is not final. No tenure is open then, and
    /// the next task that needs the plane completes the release.
    pub(crate) fn is_relinquishing(&self) -> bool {
        self.inner.lock().machine.is_relinquishing()
    }

    /// Returns the moment of the clock before which the open tenure neither answers nor releases.
    pub(crate) fn serve_from(&self) -> Time {
        match self.answers_from.load(Ordering::Acquire) {
            NO_TENURE => Time::from_nanos(0),
            from => Time::from_nanos(from),
        }
    }

    /// Invalidates the guards of the plane in memory, for a tenure that continues while its plane
    /// is loaded again.
    pub(crate) fn outdate_guards(&self) {
        self.opening.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the fence's epoch under the open tenure.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        if !self.holds() {
            return None;
        }
        let tenure = self.inner.lock().machine.tenure();
        tenure.map(Tenure::epoch)
    }

    /// Returns the revision of the fence's last put by this driver, which right after an acquire is
    /// that of the acquire.
    pub(crate) fn put_at(&self) -> Revision {
        self.inner.lock().put_at
    }

    /// Reads the fence with a linearizable read.
    pub(crate) async fn read_fence(&self) -> Result<Option<Observed<Fence>>, ReadError> {
        let (_, found) = self.store.get(&self.keys.fence).await?;
        let observed = found.as_ref().map(observed_fence).transpose();
        observed.map_err(|damaged| ReadError::Corrupt(damaged.to_string()))
    }

    /// Steps the machine for the slot's task. If the returned actions end a tenure, it has already
    /// ended.
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

    /// Removes and returns the actions of the committer's steps that the slot's task must perform.
    pub(crate) fn take_deferred(&self) -> Vec<Action> {
        std::mem::take(&mut self.inner.lock().deferred)
    }

    /// Returns a transaction of the machine, to be sent together with those of other planes.
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
    /// store's reason if it was not applied.
    async fn commit(&self, transaction: &Transaction) -> (Outcome, Option<String>) {
        let txn = plane_txn(transaction, &self.keys);
        let result = self.store.commit(txn.clone()).await;
        let words = result.as_ref().err().map(|error| match error {
            CommitError::Rejected(rejection) | CommitError::Undisclosed(rejection, _) => {
                rejection.to_string()
            }
            CommitError::Refused { .. } | CommitError::Unknown(_) => error.to_string(),
        });
        self.life.note_fence_reply(&result);
        let outcome = match result {
            Err(CommitError::Undisclosed(..)) => self.settle_by_read(&txn).await,
            result => plane_outcome(&txn.compares, result, &self.keys),
        };
        self.learn(&outcome);
        (outcome, words)
    }

    /// Finds out by a read what became of a put of the fence whose reply does not say that
    /// ([`CommitError::Undisclosed`]). Unlike after a lost reply a read is enough, because `sent` cannot
    /// be applied any more (PROTOCOL 1). The machine knows of earlier sendings without a reply.
    ///
    /// Without this, a full store would keep the plane unavailable until there is space: only a further
    /// put, which it refuses, could settle the outcome.
    pub(crate) async fn settle_by_read(&self, sent: &Txn) -> Outcome {
        let outcome = self.read_outcome(sent).await;
        outcome.unwrap_or_else(|error| {
            tracing::debug!(%error, "an undisclosed put of a fence cannot be settled");
            Outcome::Unknown
        })
    }

    async fn read_outcome(&self, sent: &Txn) -> Result<Outcome, ReadError> {
        let fence = &self.keys.fence;
        let (at, found) = self.store.get(fence).await?;
        let replaced = sent.compares.iter().find_map(|compare| match compare {
            Compare::Unchanged { key, revision } if key == fence => Some(*revision),
            Compare::Absent { .. }
            | Compare::Present { .. }
            | Compare::Unchanged { .. }
            | Compare::CreatedAt { .. }
            | Compare::NotCreatedAt { .. } => None,
        });
        if found.as_ref().map(|found| found.modified) == replaced {
            // What `sent` was to replace is still there.
            return Ok(Outcome::Rejected);
        }
        let put = sent.ops.iter().find_map(|op| match op {
            Op::Put { key, value, .. } if key == fence => Some(value),
            Op::Put { .. } | Op::Delete { .. } => None,
        });
        if let Some(found) = &found
            && Some(&found.value) == put
        {
            // Put by `sent`, or by an earlier sending of the same record over the same one, which is
            // as good: only one of them can have been applied.
            return Ok(Outcome::Applied(revision(found.modified)));
        }
        // What is there now refuses a further sending, so that is what the machine learns.
        let member = self.life.member_key();
        let (_, own) = self.store.get(member).await?;
        let found = [(fence.clone(), found), (member.clone(), own)];
        Ok(Outcome::Refused(refusal(at, &found, &self.keys)))
    }

    /// Steps the machine with the outcome of its part of a bulk transaction.
    pub(crate) fn outcome_of(&self, sending: &Sending, outcome: Outcome) -> Vec<Action> {
        self.learn(&outcome);
        self.step(Event::Done {
            attempt: sending.attempt,
            outcome,
        })
    }

    /// Keeps the revision of an applied put of the fence, whatever the machine concludes from the
    /// outcome.
    fn learn(&self, outcome: &Outcome) {
        self.watch_for_loss(outcome);
        if let Outcome::Applied(revision) = outcome {
            self.inner.lock().put_at = stored(*revision);
        }
    }

    /// Reports the loss of the life if a refusal does not find this replica's member key.
    fn watch_for_loss(&self, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome
            && refusal.own_incarnation != Some(self.keys.me.incarnation)
        {
            self.life.lost();
        }
    }

    /// Copies the tenure's state from the actions, under the machine's lock: a tenure has ended in
    /// the copy before anything else is sent (F7).
    fn note(&self, inner: &mut Inner, actions: &[Action]) {
        for action in actions {
            match action {
                Action::OpenTenure {
                    serve_from, load, ..
                } => {
                    match load {
                        // The suspended tenure continues with its guards.
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
                    self.log_loss(end);
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

    /// Logs a loss of the fence. That of the member key was logged once, for all planes of the life.
    fn log_loss(&self, end: &TenureEnd) {
        let fence = String::from_utf8_lossy(&self.keys.fence);
        match Loss::of(end, self.life.over().is_cancelled()) {
            Some(Loss::Fence) => tracing::warn!(%fence, "another replica holds the fence"),
            Some(Loss::Life) => tracing::debug!(%fence, "a tenure ended with the life"),
            None => {}
        }
    }

    /// Gives up a tenure in memory and leaves the fence as it is in the store, because the plane
    /// cannot continue. The fence is adopted at the next use (PROTOCOL 17).
    pub(crate) fn abandon(&self) {
        let mut inner = self.inner.lock();
        self.answers_from.store(NO_TENURE, Ordering::Release);
        inner.machine.step(self.life.now(), Event::Abandon);
        inner.barrier = None;
        inner.deferred.clear();
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Waits until this time of the clock, or the end of the life.
    pub(crate) async fn until(&self, from: Time) {
        loop {
            let left = from.since(self.life.now()).as_nanos();
            if left == 0 || self.life.over().is_cancelled() {
                return;
            }
            let left = std::time::Duration::from_nanos(left);
            tokio::select! {
                // The end of the life is polled first: it ends every wait.
                biased;
                () = self.life.over().cancelled() => return,
                // Timers do not run by the protocol's clock, so the loop checks the time again.
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// What a tenure ended with that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The life: the member key is gone. Nobody may have the fence yet.
    Life,
    /// The fence: another replica has taken it.
    Fence,
}

impl Loss {
    /// Returns the loss that ended a tenure; `None` if it was given up on purpose.
    fn of(end: &TenureEnd, is_life_over: bool) -> Option<Self> {
        match end {
            TenureEnd::Relinquished => None,
            // Without a refusal only the loss of the member key is known.
            TenureEnd::Lost {
                settled_through: None,
            } => Some(Self::Life),
            TenureEnd::Lost { .. } if is_life_over => Some(Self::Life),
            TenureEnd::Lost { .. } => Some(Self::Fence),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenure_that_ends_with_the_life_is_not_said_to_be_another_replicas() {
        let lost = |at: Option<u64>| TenureEnd::Lost {
            settled_through: at.map(polyplane_fencing::Revision::new),
        };
        let relinquished = TenureEnd::Relinquished;
        assert_eq!(Loss::of(&relinquished, false), None);
        assert_eq!(Loss::of(&lost(None), false), Some(Loss::Life));
        assert_eq!(Loss::of(&lost(Some(9)), true), Some(Loss::Life));
        assert_eq!(Loss::of(&lost(Some(9)), false), Some(Loss::Fence));
    }
}
