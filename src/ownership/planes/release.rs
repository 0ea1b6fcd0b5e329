//! Releases planes: puts them to sleep, hands them to a successor, closes them at the end. Owns the
//! order of pause, stream and release. The content of a release, and what follows an unknown
//! outcome, are decided by the fence's machine.

use crate::peers::{PeerMessage, PeerReply, PeerRequest};
use crate::planes::plane_slot::{AwakePlane, PlaneSlot};
use crate::planes::{Planes, ROOT};
use crate::transactions::{revision, stored};
use polyplane_fencing::{Action, Epoch, Event, Revision as FenceRevision, Streaming};
use polyplane_plane::{Ended, ExportError, PauseError, Plane};
use polyplane_ring::Member;
use polyplane_storage::{Backoff, Revision};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

mod bulk;

/// The longest time that a plane may take to settle its commits in flight. After it the hand-off or
/// the deletion is called off, and may be tried again later.
pub(crate) const PAUSE_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that a successor may take to receive a streamed state. The plane is paused that
/// long.
const STREAM_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that a successor may take to answer the hint that a plane is released for it.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(2);
/// The time for which a release is sent again until its outcome is final.
const FINAL_REPLY_PATIENCE: Duration = Duration::from_secs(30);

/// The outcome of a hand-off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandOffOutcome {
    /// The fence is Released, or another replica holds it already.
    Released,
    /// The plane was not released, for this reason.
    Kept(NotReleased),
}

/// The reason why a plane was not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReleased {
    /// The plane's commits in flight did not settle in time.
    #[error("commits in flight do not settle")]
    Unsettled,
    /// The hand-off was called off; the plane continues here.
    #[error("the hand-off was called off")]
    CalledOff,
    /// The release got no final reply. The fence in the store decides (PROTOCOL 17).
    #[error("the outcome of the release is unknown")]
    Unknown,
}

/// The outcome of a release or a deletion that the machine has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The fence is Released, or another replica holds it already.
    Released,
    /// The fence is Deleted: remove the objects under this revision of it.
    RemoveRange(FenceRevision),
    /// The release was called off: the tenure continues.
    CalledOff,
    /// No final reply arrived. The fence in the store decides (PROTOCOL 17).
    Unknown,
}

impl Planes {
    /// Hands a plane to its successor, or only releases it if there is no successor.
    pub(crate) async fn hand_off(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
        successor: Option<&Member>,
    ) -> HandOffOutcome {
        let began = Instant::now();
        let busy = slot.busy().await;
        if !slot.fence.holds() && !slot.fence.is_relinquishing() {
            return HandOffOutcome::Released;
        }
        let epoch = slot.fence.epoch().map(Epoch::get);
        let awake = slot.awake();
        let deadline = Instant::now() + PAUSE_PATIENCE;
        if !self.pause_at_head(slot, awake.as_ref(), deadline).await {
            self.metrics().kept();
            return HandOffOutcome::Kept(NotReleased::Unsettled);
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
        let outcome = self
            .drive_release(slot, actions, awake.as_ref(), successor)
            .await;
        let outcome = Self::hand_off_outcome(slot, outcome);
        drop(busy);
        match &outcome {
            HandOffOutcome::Released => {
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
            HandOffOutcome::Kept(_) => self.metrics().kept(),
        }
        outcome
    }

    /// Pauses the plane, waits until its commits are settled, and gives the fence's machine its
    /// head, which the release names. Returns whether the commits were settled in time.
    pub(crate) async fn pause_at_head(
        &self,
        slot: &PlaneSlot,
        awake: Option<&AwakePlane>,
        deadline: Instant,
    ) -> bool {
        let Some(awake) = awake else {
            if slot.fence.holds() {
                // Nothing is in memory, so nothing was committed since the fence was put.
                let head = revision(slot.fence.put_at());
                slot.fence.step(Event::Loaded { head });
                slot.fence.until(slot.fence.serve_from()).await;
            }
            return true;
        };
        match awake.plane.pause(deadline).await {
            // The member keys move the root's head too, but not while the root is paused.
            Ok(head) => {
                let head = revision(head);
                slot.fence.step(Event::Published { head });
                true
            }
            Err(PauseError::Ended(_)) => true,
            Err(PauseError::Deadline) => false,
        }
    }

    fn hand_off_outcome(slot: &PlaneSlot, outcome: ReleaseOutcome) -> HandOffOutcome {
        match outcome {
            ReleaseOutcome::CalledOff => {
                resume(slot);
                HandOffOutcome::Kept(NotReleased::CalledOff)
            }
            ReleaseOutcome::Unknown => {
                end_in_memory(slot, Ended::Moved);
                slot.fence.abandon();
                HandOffOutcome::Kept(NotReleased::Unknown)
            }
            ReleaseOutcome::Released | ReleaseOutcome::RemoveRange(_) => {
                end_in_memory(slot, Ended::Moved);
                HandOffOutcome::Released
            }
        }
    }

    /// Hints to the successor of a plane in use that the fence is released, so that it acquires the
    /// plane now and not at the next request. A successor that has requested the plane needs no
    /// hint.
    pub(crate) async fn notify_successor(&self, slot: &PlaneSlot, member: &Member) {
        let take = PeerMessage::Take {
            birth: slot.birth.clone(),
            view: self.ring().view().number().get(),
        };
        let sent = self.ring().call(member, take.into(), NOTIFY_PATIENCE).await;
        if let Err(error) = sent {
            tracing::debug!(%error, plane = slot.birth.id, "the successor was not notified");
        }
    }

    /// Performs the actions of the machine until the fence is released or deleted, or the release
    /// is called off.
    pub(crate) async fn drive_release(
        &self,
        slot: &Arc<PlaneSlot>,
        actions: Vec<Action>,
        awake: Option<&AwakePlane>,
        successor: Option<&Member>,
    ) -> ReleaseOutcome {
        let fence = &slot.fence;
        let deadline = Instant::now() + FINAL_REPLY_PATIENCE;
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
                            // Sends the same transaction again, because its last reply was not
                            // final.
                            if Instant::now() >= deadline || fence.life().over().is_cancelled() {
                                return ReleaseOutcome::Unknown;
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
                    Action::Released { .. } => return ReleaseOutcome::Released,
                    Action::RemoveRange { fence } => return ReleaseOutcome::RemoveRange(fence),
                    // The release was called off, or the store refused it: the tenure continues.
                    Action::OpenTenure { .. } | Action::ResumeAccepting | Action::NotYet { .. } => {
                        return ReleaseOutcome::CalledOff;
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
                // The fence was lost in the meantime: another replica holds it.
                return ReleaseOutcome::Released;
            }
            let changed = fence.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            queue.extend(fence.take_deferred());
            if queue.is_empty() {
                // A commit is unsettled. The committer sends its barrier and then defers the
                // remaining actions to this task.
                if tokio::time::timeout_at(deadline, changed).await.is_err() {
                    queue.extend(fence.step(Event::CallOff));
                }
            }
        }
    }

    /// Streams a paused plane to its successor. Returns the event with which the hand-off
    /// continues.
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
                tracing::debug!(
                    plane = slot.birth.id,
                    reason,
                    "the plane was not streamed to its successor"
                );
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
            // The export has another head than the fence names, or is too large: the successor
            // reads the store.
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
            // `Busy` means that the successor has no room for the state and reads the store.
            Ok(PeerReply::Done | PeerReply::Busy) => Ok(()),
            Ok(other) => Err(format!("the successor answered {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the time for which a plane stays awake without being used.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.options().idle
    }

    /// Puts planes to sleep that were not used for the idle time, have no watcher, no work and are not being
    /// resealed, or that are suspended. Releases fences that failed wakes have left behind. Drops log
    /// events that are too old. One timer calls this for all planes together.
    pub async fn sweep(&self, has_work: &(dyn Fn(&Arc<Plane>) -> bool + Sync)) {
        self.streamed_states().sweep();
        let idle = self.options().idle.as_secs();
        let now = self.seconds();
        let takes_writes = self.store_takes_writes();
        let mut sleepy = Vec::new();
        for slot in self.slots() {
            let unused = now.saturating_sub(slot.used()) >= idle;
            let Some(awake) = slot.awake() else {
                // A wake that acquired the fence and could not load the plane has left it.
                let is_left = takes_writes && slot.birth.id != ROOT && slot.fence.holds();
                if is_left
                    && (unused || self.is_suspended(&slot.birth.id))
                    && let Some(busy) = slot.try_busy()
                {
                    sleepy.push((slot, busy));
                }
                continue;
            };
            awake.plane.sweep_log();
            let stats = awake.plane.stats();
            // A store that refuses writes would refuse the release too.
            let parts = takes_writes && slot.birth.id != ROOT && awake.plane.read_only().is_none();
            let idle = unused && stats.watchers == 0 && stats.queued == 0;
            let idle = idle && !self.is_resealing(&awake.plane) && !has_work(&awake.plane);
            let sleeps = idle || self.is_suspended(&slot.birth.id);
            if parts
                && sleeps
                && let Some(busy) = slot.try_busy()
            {
                sleepy.push((slot, busy));
            }
        }
        let slept = self.release_many(sleepy, Ended::Closed).await;
        self.metrics().released(slept);
    }
}

/// Ends the plane in memory, if there is one, even if a task that panicked during a release has
/// left it there.
pub(crate) fn end_in_memory(slot: &PlaneSlot, ended: Ended) {
    // Removed from the slot first, so that no call finds a plane that is ending.
    if let Some(awake) = slot.take_awake() {
        awake.plane.end(ended);
    }
}

/// Resumes the plane in memory, if there is one. It is looked up in the slot, because the task that
/// paused it may have panicked.
pub(crate) fn resume(slot: &PlaneSlot) {
    if let Some(awake) = slot.awake() {
        awake.plane.resume();
    }
}
