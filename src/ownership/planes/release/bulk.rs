//! Releases of many planes, many fences in one transaction: of those that nobody uses, and of all at
//! the end. Owns which planes share a transaction. The content of each release, and what follows an
//! unknown outcome, are decided by the fence's machine.

use crate::planes::fence_driver::Sending;
use crate::planes::plane_slot::PlaneSlot;
use crate::planes::release::{FINAL_REPLY_PATIENCE, PAUSE_PATIENCE, end_in_memory, resume};
use crate::planes::{Planes, ROOT};
use crate::transactions::{refusal, revision};
use bytes::Bytes;
use polyplane_fencing::{Action, Event, Outcome, Streaming};
use polyplane_plane::Ended;
use polyplane_storage::{Backoff, CommitError, Committed, Compare, KeyValue, Txn};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Number of fences in one bulk release. Each needs one compare and one operation, and the member
/// key one compare more; etcd accepts 128 of each in a transaction.
const BULK_MAX: usize = 100;

/// A plane, and the exclusive right to release it.
type BusySlot = (Arc<PlaneSlot>, OwnedMutexGuard<()>);

impl Planes {
    /// Ends the service: every plane is closed and its fence released in bulk, so that the next
    /// holder need not wait, and the member key is removed. The store stays open.
    pub async fn close(&self) {
        self.close_within(Duration::MAX).await;
    }

    /// Like [`Self::close`], but removes the member key after this time even if planes are not released
    /// by then. Without the key nobody waits for this replica longer than for its read lease.
    pub async fn close_within(&self, patience: Duration) {
        self.closing().cancel();
        let released = tokio::time::timeout(patience, self.release_all(self.slots()));
        if released.await.is_err() {
            tracing::warn!("not every control plane was released in time");
        }
        self.ring().leave().await;
    }

    /// Closes and releases these planes, except those that a task works on. Their watches can resume
    /// at the next holder.
    pub(crate) async fn put_to_sleep(&self, slots: Vec<Arc<PlaneSlot>>) {
        let idle = slots.into_iter().filter_map(|slot| {
            let busy = slot.try_busy()?;
            Some((slot, busy))
        });
        let slept = self.release_many(idle.collect(), Ended::Moved).await;
        self.metrics().released(slept);
    }

    /// Closes and releases these planes: first those that no task works on, the root last, then the
    /// others as their tasks end.
    pub(crate) async fn release_all(&self, slots: Vec<Arc<PlaneSlot>>) {
        let (mut roots, mut tenants, mut rest) = (Vec::new(), Vec::new(), JoinSet::new());
        for slot in slots {
            match slot.try_busy() {
                Some(busy) if slot.birth.id == ROOT => roots.push((slot, busy)),
                Some(busy) => tenants.push((slot, busy)),
                None => {
                    let Some(planes) = self.shared() else {
                        return;
                    };
                    rest.spawn(async move {
                        let busy = slot.busy().await;
                        planes.close_slots(vec![(slot, busy)]).await;
                    });
                }
            }
        }
        self.close_slots(tenants).await;
        self.close_slots(roots).await;
        while rest.join_next().await.is_some() {}
    }

    async fn close_slots(&self, slots: Vec<BusySlot>) {
        let known: Vec<Arc<PlaneSlot>> = slots.iter().map(|(slot, _)| Arc::clone(slot)).collect();
        self.release_many(slots, Ended::Closed).await;
        for slot in known {
            // The store refused the plane's release, but this replica ends nevertheless.
            if let Some(kept) = slot.take_awake() {
                slot.fence.abandon();
                kept.plane.end(Ended::Closed);
            }
        }
    }

    /// Releases the fences of planes, many in one transaction, and ends the planes in memory. A
    /// plane whose release the store refuses continues. Returns the number of released planes.
    ///
    /// A plane ends right before its release is sent, and waits for no other plane's commits, because
    /// its next holder waits meanwhile.
    pub(crate) async fn release_many(&self, slots: Vec<BusySlot>, ended: Ended) -> usize {
        let mut waiting = VecDeque::from(slots);
        let mut pausing: Pauses<'_> = Vec::new();
        let mut released = 0;
        loop {
            while pausing.len() < BULK_MAX
                && let Some((slot, busy)) = waiting.pop_front()
            {
                pausing.push(Box::pin(self.pause_to_release(slot, busy)));
            }
            if pausing.is_empty() {
                return released;
            }
            let paused = ended_pauses(&mut pausing).await;
            let releasing = begin_releases(paused, ended);
            released += self.release_bulk(releasing, ended).await;
        }
    }

    async fn pause_to_release(&self, slot: Arc<PlaneSlot>, busy: OwnedMutexGuard<()>) -> Paused {
        let awake = slot.awake();
        let deadline = Instant::now() + PAUSE_PATIENCE;
        let is_settled = self.pause_at_head(&slot, awake.as_ref(), deadline).await;
        Paused {
            slot,
            busy,
            is_settled,
        }
    }

    /// Sends the releases of up to [`BULK_MAX`] planes in one transaction, and again until each has
    /// a final reply or the time is over.
    async fn release_bulk(&self, mut releasing: Vec<Releasing>, ended: Ended) -> usize {
        let deadline = Instant::now() + FINAL_REPLY_PATIENCE;
        let mut backoff = Backoff::default();
        let mut released = 0;
        while !releasing.is_empty() {
            let txn = bulk_txn(&releasing);
            let compares = txn.compares.clone();
            let result = self.store().commit(txn).await;
            let before = releasing.len();
            let late = Instant::now() >= deadline;
            let outcomes = outcomes(&releasing, &compares, &result).await;
            let (done, again) = sort_outcomes(releasing, outcomes);
            for releasing in done {
                released += 1;
                end_in_memory(&releasing.slot, ended);
                tracing::debug!(plane = releasing.slot.birth.id, "a plane fell asleep");
                drop(releasing.busy);
                self.drop_if_idle(&releasing.slot);
            }
            if late || self.ring().stopped().is_cancelled() {
                for releasing in again {
                    end_in_memory(&releasing.slot, ended);
                    releasing.slot.fence.abandon();
                    drop(releasing.busy);
                    self.drop_if_idle(&releasing.slot);
                }
                return released;
            }
            if again.len() == before {
                backoff.wait().await;
            }
            releasing = again;
        }
        released
    }
}

/// Pauses that have begun.
type Pauses<'a> = Vec<Pin<Box<dyn Future<Output = Paused> + Send + 'a>>>;

/// A plane whose pause has ended.
struct Paused {
    slot: Arc<PlaneSlot>,
    busy: OwnedMutexGuard<()>,
    /// Whether the plane's commits are settled. If not, the plane continues.
    is_settled: bool,
}

/// Waits until a pause has ended, and removes all that have. There must be one.
async fn ended_pauses(pausing: &mut Pauses<'_>) -> Vec<Paused> {
    poll_fn(|context| {
        let mut ended = Vec::new();
        pausing.retain_mut(|pause| match pause.as_mut().poll(context) {
            Poll::Ready(paused) => {
                ended.push(paused);
                false
            }
            Poll::Pending => true,
        });
        match ended.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(ended),
        }
    })
    .await
}

/// Ends the tenures of planes that are settled. Returns the releases to send.
fn begin_releases(paused: Vec<Paused>, ended: Ended) -> Vec<Releasing> {
    let mut releasing = Vec::new();
    for Paused { slot, busy, .. } in paused.into_iter().filter(|paused| paused.is_settled) {
        let actions = slot.fence.step(Event::HandOff {
            successor: None,
            streaming: Streaming::Nothing,
        });
        match next_release_step(&slot, actions) {
            ReleaseStep::Send(sending) => releasing.push(Releasing {
                slot,
                busy,
                sending,
            }),
            ReleaseStep::CalledOff => resume(&slot),
            ReleaseStep::Done => end_in_memory(&slot, ended),
        }
    }
    releasing
}

/// A plane whose release has no final reply yet.
struct Releasing {
    slot: Arc<PlaneSlot>,
    busy: OwnedMutexGuard<()>,
    /// The transaction that is sent next.
    sending: Sending,
}

/// The next step of a release.
enum ReleaseStep {
    /// Send this transaction.
    Send(Sending),
    /// The fence is released, or another replica holds it.
    Done,
    /// The plane is not released: its tenure continues.
    CalledOff,
}

fn next_release_step(slot: &PlaneSlot, actions: Vec<Action>) -> ReleaseStep {
    for action in actions {
        match action {
            Action::Transact {
                attempt,
                transaction,
            } => return ReleaseStep::Send(slot.fence.sending(attempt, &transaction)),
            Action::OpenTenure { .. } | Action::ResumeAccepting | Action::NotYet { .. } => {
                return ReleaseStep::CalledOff;
            }
            Action::ReadFence
            | Action::EndTenure { .. }
            | Action::Settle { .. }
            | Action::StopAccepting
            | Action::Stream { .. }
            | Action::Released { .. }
            | Action::RemoveRange { .. }
            | Action::AskHolder(_)
            | Action::NotTaken(_) => {}
        }
    }
    ReleaseStep::Done
}

/// Returns the releases of many planes as one transaction. Compares that planes share, such as that
/// of the member key, occur in it once.
fn bulk_txn(releasing: &[Releasing]) -> Txn {
    let mut txn = Txn::default();
    for releasing in releasing {
        for compare in &releasing.sending.txn.compares {
            if !txn.compares.contains(compare) {
                txn.compares.push(compare.clone());
            }
        }
        txn.ops.extend(releasing.sending.txn.ops.iter().cloned());
    }
    txn
}

/// Returns what became of each plane's part of a transaction; `None` if the transaction was refused
/// because of other planes alone.
async fn outcomes(
    releasing: &[Releasing],
    compares: &[Compare],
    result: &Result<Committed, CommitError>,
) -> Vec<Option<Outcome>> {
    let mut outcomes = Vec::with_capacity(releasing.len());
    let mut is_readable = true;
    for Releasing { slot, sending, .. } in releasing {
        let outcome = match result {
            Ok(committed) => Some(Outcome::Applied(revision(committed.revision))),
            Err(CommitError::Refused { failed, at, found }) => {
                let own = &sending.txn.compares;
                let mut failed = failed.iter().filter_map(|at| compares.get(*at));
                failed.any(|failed| own.contains(failed)).then(|| {
                    let keys = compares.iter().map(|compare| compare.key().clone());
                    let found: Vec<(Bytes, Option<KeyValue>)> =
                        keys.zip(found.iter().cloned()).collect();
                    Outcome::Refused(refusal(*at, &found, slot.fence.keys()))
                })
            }
            Err(CommitError::Rejected(_)) => Some(Outcome::Rejected),
            // Each by its own fence, because another replica may have taken some of them since. If
            // one read fails, the others would only take the time of all planes.
            Err(CommitError::Undisclosed(..)) if is_readable => {
                let outcome = slot.fence.settle_by_read(&sending.txn).await;
                is_readable = outcome != Outcome::Unknown;
                Some(outcome)
            }
            Err(CommitError::Undisclosed(..) | CommitError::Unknown(_)) => Some(Outcome::Unknown),
        };
        outcomes.push(outcome);
    }
    outcomes
}

/// Reports the outcome to each machine, and returns the planes that are done and those to send
/// again. A refusal is reported only to machines whose own compare failed. The others send again: a
/// refused transaction has no effect, now or later.
fn sort_outcomes(
    releasing: Vec<Releasing>,
    outcomes: Vec<Option<Outcome>>,
) -> (Vec<Releasing>, Vec<Releasing>) {
    let (mut done, mut again) = (Vec::new(), Vec::new());
    for (mut releasing, outcome) in releasing.into_iter().zip(outcomes) {
        let Some(outcome) = outcome else {
            again.push(releasing);
            continue;
        };
        let fence = Arc::clone(&releasing.slot.fence);
        let actions = fence.outcome_of(&releasing.sending, outcome);
        match next_release_step(&releasing.slot, actions) {
            ReleaseStep::Send(sending) => {
                releasing.sending = sending;
                again.push(releasing);
            }
            ReleaseStep::CalledOff => resume(&releasing.slot),
            ReleaseStep::Done => done.push(releasing),
        }
    }
    (done, again)
}
