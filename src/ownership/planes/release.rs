//! Letting planes go: to sleep, to a successor, at the end. Owns the order of pause, stream and
//! release; the last word and what follows an unknown outcome are the machine's.

use crate::backoff::Backoff;
use crate::peers::{PeerMessage, PeerReply, PeerRequest};
use crate::planes::fence_driver::Sending;
use crate::planes::plane_slot::{AwakePlane, PlaneSlot};
use crate::planes::{Planes, ROOT};
use crate::transactions::{refusal, revision, stored};
use bytes::Bytes;
use polyplane_fencing::{Action, Epoch, Event, Outcome, Revision as FenceRevision, Streaming};
use polyplane_plane::{Ended, ExportError, PauseError};
use polyplane_ring::Member;
use polyplane_storage::{CommitError, Committed, Compare, KeyValue, Revision, Txn};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// Fences of one bulk release. Each is one compare and one operation, the member key one more.
const BULK_MAX: usize = 100;
/// How long a plane may take to settle what is in flight before its hand-off is called off.
const PAUSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a successor may take to take a streamed state in.
const STREAM_PATIENCE: Duration = Duration::from_secs(5);
/// How long a successor may take to hear that a plane is released for it.
const TELL_PATIENCE: Duration = Duration::from_secs(2);
/// How long a last word is repeated until its outcome is final.
const WORD_PATIENCE: Duration = Duration::from_secs(30);

/// How a plane parted from this replica, or did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parted {
    /// The fence says Released, or is another's already.
    Released,
    /// The plane stays, for this reason.
    Kept(String),
}

/// What the machine's actions came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Released,
    /// The range goes, under this fence.
    RemoveRange(FenceRevision),
    /// The hand-off was called off: nothing was said.
    CalledOff,
    /// No final reply came; what the fence says, holds.
    Unsaid,
}

impl Planes {
    /// Hands a plane to its successor, or just lets it go if there is none.
    pub(crate) async fn hand_off(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
        successor: Option<&Member>,
    ) -> Parted {
        let began = Instant::now();
        let busy = slot.busy().await;
        if !slot.fence.holds() && !slot.fence.is_parting() {
            return Parted::Released;
        }
        let epoch = slot.fence.epoch().map(Epoch::get);
        let awake = slot.awake();
        let deadline = Instant::now() + PAUSE_PATIENCE;
        if !self.stand_still(slot, awake.as_ref(), deadline).await {
            self.metrics().kept();
            return Parted::Kept("what is in flight does not settle".to_owned());
        }
        let streaming = match (successor, &awake) {
            (Some(member), Some(_)) => Streaming::To(member.id.clone()),
            (Some(_) | None, _) => Streaming::Nothing,
        };
        let hand_off = Event::HandOff {
            successor: successor.map(|member| member.id.clone()),
            streaming,
        };
        let actions = slot.fence.step(hand_off);
        let word = self.say(slot, actions, awake.as_ref(), successor).await;
        let parted = Self::parted(slot, word);
        drop(busy);
        match &parted {
            Parted::Released => {
                tracing::info!(
                    plane = slot.birth.id,
                    epoch,
                    to = successor.map(|member| member.id.as_str()),
                    awake = awake.is_some(),
                    millis = began.elapsed().as_millis(),
                    "handed a control plane off"
                );
                self.metrics().handed_off(began.elapsed());
                self.drop_if_idle(slot);
            }
            Parted::Kept(_) => self.metrics().kept(),
        }
        parted
    }

    /// Has the plane's head stand still before the last word names it. Says whether it does.
    pub(crate) async fn stand_still(
        &self,
        slot: &PlaneSlot,
        awake: Option<&AwakePlane>,
        deadline: Instant,
    ) -> bool {
        let Some(awake) = awake else {
            if slot.fence.holds() {
                // Nothing of it is in memory, and nothing was committed since the fence was put.
                let head = revision(slot.fence.put_at());
                slot.fence.step(Event::Loaded { head });
                slot.fence.until(slot.fence.serve_from()).await;
            }
            return true;
        };
        match awake.plane.pause(deadline).await {
            // The root's head moves with the member keys too; paused it stays.
            Ok(head) => {
                let head = revision(head);
                slot.fence.step(Event::Published { head });
                true
            }
            Err(PauseError::Ended(_)) => true,
            Err(PauseError::Deadline) => false,
        }
    }

    fn parted(slot: &PlaneSlot, word: Word) -> Parted {
        match word {
            Word::CalledOff => {
                resume(slot);
                Parted::Kept("the hand-off was called off".to_owned())
            }
            Word::Unsaid => {
                forget(slot, Ended::Moved);
                slot.fence.abandon();
                Parted::Kept("the store does not say what became of it".to_owned())
            }
            Word::Released | Word::RemoveRange(_) => {
                forget(slot, Ended::Moved);
                Parted::Released
            }
        }
    }

    /// The fence is released for it and the plane was in use: it is to take it at once, not at the
    /// next request. Only a hint. Who asked for the plane is not told: it waits for the answer.
    pub(crate) async fn tell_successor(&self, slot: &PlaneSlot, member: &Member) {
        let take = PeerMessage::Take {
            birth: slot.birth.clone(),
            view: self.ring().view().number().get(),
        };
        let told = self.ring().call(member, take.into(), TELL_PATIENCE).await;
        if let Err(error) = told {
            tracing::debug!(%error, plane = slot.birth.id, "the successor was not told");
        }
    }

    /// Carries out what the machine asks for until the last word is said, or called off.
    pub(crate) async fn say(
        &self,
        slot: &Arc<PlaneSlot>,
        actions: Vec<Action>,
        awake: Option<&AwakePlane>,
        successor: Option<&Member>,
    ) -> Word {
        let fence = &slot.fence;
        let deadline = Instant::now() + WORD_PATIENCE;
        let mut backoff = Backoff::default();
        let mut sent = false;
        let mut queue: VecDeque<Action> = actions.into();
        loop {
            while let Some(action) = queue.pop_front() {
                match action {
                    Action::Transact {
                        attempt,
                        transaction,
                    } => {
                        if sent {
                            // The same words again: the last reply was not final.
                            if Instant::now() >= deadline || fence.life().over().is_cancelled() {
                                return Word::Unsaid;
                            }
                            backoff.wait().await;
                        }
                        sent = true;
                        queue.extend(fence.send(attempt, &transaction).await);
                    }
                    Action::Stream { to, head } => {
                        let to = successor.filter(|member| member.id == to);
                        let event = self.stream(slot, awake, to, stored(head)).await;
                        queue.extend(fence.step(event));
                    }
                    Action::Released { .. } => return Word::Released,
                    Action::RemoveRange { fence } => return Word::RemoveRange(fence),
                    // Called off, or refused for good: the tenure goes on.
                    Action::OpenTenure { .. } | Action::ResumeAccepting | Action::NotYet { .. } => {
                        return Word::CalledOff;
                    }
                    Action::StopAccepting
                    | Action::EndTenure { .. }
                    | Action::ReadFence
                    | Action::Settle { .. }
                    | Action::AskHolder(_)
                    | Action::NotTaken(_) => {}
                }
            }
            if !fence.holds() {
                // Lost before or while it was said: somebody else's word stands.
                return Word::Released;
            }
            let changed = fence.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            queue.extend(fence.take_deferred());
            if queue.is_empty() {
                // An unsettled part comes first; its barrier is the committer's.
                if tokio::time::timeout_at(deadline, changed).await.is_err() {
                    queue.extend(fence.step(Event::CallOff));
                }
            }
        }
    }

    /// Streams a paused plane to its successor. Says how the hand-off goes on.
    async fn stream(
        &self,
        slot: &PlaneSlot,
        awake: Option<&AwakePlane>,
        to: Option<&Member>,
        head: Revision,
    ) -> Event {
        match self.try_stream(slot, awake, to, head).await {
            Ok(()) => Event::StreamEnded,
            Err(reason) => {
                tracing::debug!(plane = slot.birth.id, reason, "not streamed");
                Event::CallOff
            }
        }
    }

    async fn try_stream(
        &self,
        slot: &PlaneSlot,
        awake: Option<&AwakePlane>,
        to: Option<&Member>,
        head: Revision,
    ) -> Result<(), String> {
        let (Some(awake), Some(member)) = (awake, to) else {
            return Err("there is nothing to stream, or nobody to stream to".to_owned());
        };
        let export = match awake.plane.export().await {
            Ok(export) if export.head == head => export,
            // The fence names another head, or it is too large: the successor reads the store.
            Ok(_) | Err(ExportError::TooLarge { .. } | ExportError::Full) => return Ok(()),
        };
        let request = PeerRequest {
            message: PeerMessage::State {
                plane: slot.birth.id.clone(),
                head: head.0,
            },
            payload: export.bytes,
        };
        match self.ring().call(member, request, STREAM_PATIENCE).await {
            // One that has no room for the state reads the store.
            Ok(PeerReply::Done | PeerReply::Busy) => Ok(()),
            Ok(other) => Err(format!("the successor answered {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts planes to sleep that nobody has used or watched for a while, and drops log events that
    /// are too old. For one clock that runs for all planes together.
    pub async fn sweep(&self) {
        self.received().sweep();
        let idle = self.options().idle.as_secs();
        let now = self.seconds();
        let mut sleepy = Vec::new();
        for slot in self.slots() {
            let Some(awake) = slot.awake() else {
                continue;
            };
            awake.plane.sweep_log();
            let unused = now.saturating_sub(slot.used()) >= idle;
            let stats = awake.plane.stats();
            // A store that refuses writes refuses the last word too.
            let parts = slot.birth.id != ROOT && awake.plane.read_only().is_none();
            let sleeps = parts && unused && stats.watchers == 0 && stats.queued == 0;
            if sleeps && let Some(busy) = slot.try_busy() {
                sleepy.push((slot, busy));
            }
        }
        let slept = self.release(sleepy, Ended::Closed).await;
        self.metrics().released(slept);
    }

    /// Closes and releases these planes, but for those that a task is busy with.
    pub(crate) async fn put_to_sleep(&self, slots: Vec<Arc<PlaneSlot>>) {
        let idle = slots.into_iter().filter_map(|slot| {
            let busy = slot.try_busy()?;
            Some((slot, busy))
        });
        let slept = self.release(idle.collect(), Ended::Closed).await;
        self.metrics().released(slept);
    }

    /// Closes and releases these planes, those that a task is busy with too.
    pub(crate) async fn let_go_of_all(&self, slots: Vec<Arc<PlaneSlot>>) {
        let (mut roots, mut tenants) = (Vec::new(), Vec::new());
        for slot in slots {
            let busy = slot.busy().await;
            match slot.birth.id == ROOT {
                true => roots.push((slot, busy)),
                false => tenants.push((slot, busy)),
            }
        }
        for group in [tenants, roots] {
            let slots: Vec<Arc<PlaneSlot>> =
                group.iter().map(|(slot, _)| Arc::clone(slot)).collect();
            self.release(group, Ended::Closed).await;
            for slot in slots {
                // The store did not take its last word, and this replica ends all the same.
                if let Some(kept) = slot.take_awake() {
                    slot.fence.abandon();
                    kept.plane.end(Ended::Closed);
                }
            }
        }
    }

    /// Releases the fences of planes, many in one transaction, and ends those in memory. A plane
    /// whose last word the store refuses goes on. Returns how many were released.
    async fn release_many(
        &self,
        slots: Vec<(Arc<PlaneSlot>, OwnedMutexGuard<()>)>,
        ended: Ended,
    ) -> usize {
        let deadline = Instant::now() + PAUSE_PATIENCE;
        let mut leaving = Vec::new();
        for (slot, busy) in slots {
            let awake = slot.awake();
            if !self.stand_still(&slot, awake.as_ref(), deadline).await {
                continue;
            }
            let actions = slot.fence.step(Event::HandOff {
                successor: None,
                streaming: Streaming::Nothing,
            });
            match next_word(&slot, actions) {
                Next::Say(word) => leaving.push(Leaving { slot, busy, word }),
                Next::Stays => resume(&slot),
                Next::Said => forget(&slot, ended),
            }
        }
        let mut released = 0;
        while !leaving.is_empty() {
            let rest = leaving.split_off(leaving.len().min(BULK_MAX));
            released += self.release_bulk(leaving, ended).await;
            leaving = rest;
        }
        released
    }

    /// Says the last word of up to [`BULK_MAX`] planes in one transaction, again and again until
    /// each has its final reply.
    async fn release_bulk(&self, mut leaving: Vec<Leaving>, ended: Ended) -> usize {
        let deadline = Instant::now() + WORD_PATIENCE;
        let mut backoff = Backoff::default();
        let mut released = 0;
        while !leaving.is_empty() {
            let txn = bulk(&leaving);
            let compares = txn.compares.clone();
            let result = self.store().commit(txn).await;
            let before = leaving.len();
            let late = Instant::now() >= deadline;
            let (done, again) = sort(leaving, &compares, &result);
            for leaving in done {
                released += 1;
                forget(&leaving.slot, ended);
                tracing::debug!(plane = leaving.slot.birth.id, "went to sleep");
                drop(leaving.busy);
                self.drop_if_idle(&leaving.slot);
            }
            if late || self.ring().stopped().is_cancelled() {
                for leaving in again {
                    forget(&leaving.slot, ended);
                    leaving.slot.fence.abandon();
                    drop(leaving.busy);
                    self.drop_if_idle(&leaving.slot);
                }
                return released;
            }
            if again.len() == before {
                backoff.wait().await;
            }
            leaving = again;
        }
        released
    }
}

/// A plane whose last word is still to be said.
struct Leaving {
    slot: Arc<PlaneSlot>,
    busy: OwnedMutexGuard<()>,
    /// What is to be sent next.
    word: Sending,
}

/// Where a plane stands on its way out.
enum Next {
    /// This is to be sent.
    Say(Sending),
    /// It was said, or is somebody else's to say.
    Said,
    /// It will not be: the tenure goes on.
    Stays,
}

fn next_word(slot: &PlaneSlot, actions: Vec<Action>) -> Next {
    for action in actions {
        match action {
            Action::Transact {
                attempt,
                transaction,
            } => return Next::Say(slot.fence.sending(attempt, &transaction)),
            Action::OpenTenure { .. } | Action::ResumeAccepting | Action::NotYet { .. } => {
                return Next::Stays;
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
    Next::Said
}

/// Ends the plane in memory, if there is one: also one that a task left there when it died with its
/// last word under way.
pub(crate) fn forget(slot: &PlaneSlot, ended: Ended) {
    // Sleeping first: nobody finds the plane any more.
    if let Some(awake) = slot.take_awake() {
        awake.plane.end(ended);
    }
}

/// Lets the plane in memory, if there is one, go on as before its pause. Looks at the slot, for whoever
/// paused the plane may be a task that died.
pub(crate) fn resume(slot: &PlaneSlot) {
    if let Some(awake) = slot.awake() {
        awake.plane.resume();
    }
}

/// The last words of many planes in one transaction.
fn bulk(leaving: &[Leaving]) -> Txn {
    let mut txn = Txn::default();
    for leaving in leaving {
        for compare in &leaving.word.txn.compares {
            if !txn.compares.contains(compare) {
                txn.compares.push(compare.clone());
            }
        }
        txn.ops.extend(leaving.word.txn.ops.iter().cloned());
    }
    txn
}

/// Tells each machine its outcome. A refusal is told only to those whose own compare failed; for
/// the others it is as if nothing had been sent, for nothing was done and nothing will be.
fn sort(
    leaving: Vec<Leaving>,
    compares: &[Compare],
    result: &Result<Committed, CommitError>,
) -> (Vec<Leaving>, Vec<Leaving>) {
    let (mut done, mut again) = (Vec::new(), Vec::new());
    for mut leaving in leaving {
        let outcome = match result {
            Ok(committed) => Outcome::Applied(revision(committed.revision)),
            Err(CommitError::Refused { failed, at, found }) => {
                let own = &leaving.word.txn.compares;
                let concerned = failed.iter().filter_map(|at| compares.get(*at));
                if !concerned.into_iter().any(|failed| own.contains(failed)) {
                    again.push(leaving);
                    continue;
                }
                let keys = compares.iter().map(|compare| compare.key().clone());
                let found: Vec<(Bytes, Option<KeyValue>)> =
                    keys.zip(found.iter().cloned()).collect();
                Outcome::Refused(refusal(*at, &found, leaving.slot.fence.keys()))
            }
            Err(CommitError::Rejected(_)) => Outcome::Rejected,
            Err(CommitError::Unknown(_)) => Outcome::Unknown,
        };
        let fence = Arc::clone(&leaving.slot.fence);
        let actions = fence.outcome_of(&leaving.word, outcome);
        match next_word(&leaving.slot, actions) {
            Next::Say(word) => {
                leaving.word = word;
                again.push(leaving);
            }
            Next::Stays => resume(&leaving.slot),
            Next::Said => done.push(leaving),
        }
    }
    (done, again)
}
