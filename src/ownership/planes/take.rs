//! Acquiring a fence: a loop of attempts that ends with a tenure or with the reason for none, and
//! loading the plane under that tenure. Every decision is the machine's or the view's.
//!
//! **While the store takes no writes no fence can be put, so no plane wakes**, also none of a replica that
//! died. It would be wrong to answer reads of such a plane without its fence: once there is space, any
//! replica may take the fence and acknowledge writes, and nobody waits until a reader has stopped that no
//! record names (PROTOCOL 3, 5 and 7). Sound would be an answer that is confirmed by a store read which
//! is sent after the request arrived, and finds the fence as it was before the state was loaded, and the
//! holder's life gone: nobody commits under an unchanged fence then (PROTOCOL 9). That is another right to
//! answer than a tenure, for watches too, and neither the machine nor its model has it. So the caller gets
//! [`Unavailable::StoreReadOnly`] at once.

use crate::membership::member_record::members_prefix;
use crate::peers::{Life, PeerError, PeerMessage, PeerReply};
use crate::planes::fence_driver::RingGuard;
use crate::planes::plane_slot::{AwakePlane, NewTenure, PlaneSlot};
use crate::planes::{Planes, ROOT, Unavailable, WakeError};
use crate::transactions::revision;
use polyplane_fencing::{Action, Epoch, Event, Fence, Holder, Load, NotTaken, Observed, Revision};
use polyplane_plane::{CommitGuard, Ended, Import, Plane, PlaneParams, PlaneRecord, uid_seed};
use polyplane_ring::ViewNumber;
use polyplane_storage::Backoff;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The time for which one wake tries to acquire a fence. It is longer than a dead holder's eviction
/// takes; a client waits no longer.
const TAKE_PATIENCE: Duration = Duration::from_secs(10);
/// The longest time that a holder may take to hand a plane over.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time that this replica waits for a view that another one has seen already.
pub(crate) const VIEW_PATIENCE: Duration = Duration::from_secs(2);
/// Planes that were taken at a predecessor's word and that a receiver has not seen yet. One that lags looks at all.
pub(crate) const TAKEN_MAX: usize = 1024;

/// The purpose for which a plane is acquired, which decides who may acquire it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeFor {
    /// To serve the plane: only the designated replica may acquire it.
    Serving,
    /// To delete the plane: any replica may acquire it, if no living replica holds it.
    Deleting,
}

/// The outcome of one attempt to acquire the fence.
enum AcquireOutcome {
    Held(NewTenure),
    /// Read the fence again.
    Again,
    /// This living replica holds the fence: request it to hand over.
    Ask(Holder),
    NotTaken(NotTaken),
}

/// The reason why a fence was not acquired.
#[derive(Debug)]
pub(crate) enum TakeError {
    /// This living replica holds the fence.
    HeldBy(Holder),
    /// The fence is Deleted, at this revision.
    AlreadyDeleted(Revision),
    /// The fence was not acquired for another reason.
    Failed(WakeError),
}

impl Planes {
    /// Acquires the fence of a plane and loads the plane. The caller holds the slot's `busy`.
    pub(crate) async fn take_and_load(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
    ) -> Result<Arc<Plane>, WakeError> {
        let began = Instant::now();
        if let Some(awake) = slot.awake() {
            return Ok(awake.plane);
        }
        let taken = self.take(slot, TakeFor::Serving).await;
        let held = taken.map_err(|not| match not {
            TakeError::Failed(error) => error,
            TakeError::HeldBy(_) | TakeError::AlreadyDeleted(_) => WakeError::Deleted,
        })?;
        let plane = self.load(slot, &held).await?;
        let head = revision(plane.head());
        slot.fence.step(Event::Loaded { head });
        let waited = held.serve_from > slot.fence.life().now();
        slot.fence.until(held.serve_from).await;
        if !held.guard.holds() {
            plane.end(Ended::Lost);
            return Err(WakeError::Unavailable(Unavailable::FenceLost));
        }
        self.metrics().taken(began.elapsed(), waited);
        tracing::info!(
            plane = plane.id(),
            epoch = slot.fence.epoch().map(Epoch::get),
            streamed = plane.imported(),
            waited,
            millis = began.elapsed().as_millis(),
            "took a control plane"
        );
        let guard = held.guard;
        slot.set_awake(AwakePlane {
            plane: Arc::clone(&plane),
            guard,
        });
        Ok(plane)
    }

    /// Acquires the fence of a plane.
    pub(crate) async fn take(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
        wanted: TakeFor,
    ) -> Result<NewTenure, TakeError> {
        let deadline = Instant::now() + TAKE_PATIENCE;
        let unavailable = |why| TakeError::Failed(WakeError::Unavailable(why));
        let mut backoff = Backoff::default();
        let mut why = Unavailable::TimedOut;
        while Instant::now() < deadline {
            if slot.fence.life().over().is_cancelled() {
                return Err(unavailable(Unavailable::MemberKeyLost));
            }
            if wanted == TakeFor::Serving {
                self.check_designated(slot)?;
                if self.closing().is_cancelled() {
                    let other = self.designated(&slot.birth).map(Box::new);
                    return Err(TakeError::Failed(WakeError::Moved(other)));
                }
            }
            match self.read_fence(slot).await {
                Ok(fence) => match self.acquire(slot, fence).await {
                    AcquireOutcome::Held(held) => return Ok(held),
                    AcquireOutcome::Again => {}
                    AcquireOutcome::Ask(holder) if wanted == TakeFor::Deleting => {
                        return Err(TakeError::HeldBy(holder));
                    }
                    AcquireOutcome::Ask(holder) => {
                        let reply = tokio::select! {
                            // The end is polled first: nothing is acquired after it.
                            biased;
                            () = self.closing().cancelled() => continue,
                            reply = self.ask_holder(slot, &holder) => reply?,
                        };
                        match reply {
                            HolderReply::LookAgain => {}
                            HolderReply::Declined(reason) => {
                                why = reason;
                                self.wait_for_view_change(backoff.next_pause()).await;
                            }
                        }
                        continue;
                    }
                    AcquireOutcome::NotTaken(not) => {
                        Self::not_taken(not, wanted)?;
                    }
                },
                Err(reason) => why = reason,
            }
            backoff.wait().await;
        }
        Err(unavailable(why))
    }

    /// Waits for `patience`, or until the view changes.
    async fn wait_for_view_change(&self, patience: Duration) {
        let mut views = self.ring().view_changes();
        // The caller checks everything again, whichever of the two ends the wait.
        let _ = tokio::time::timeout(patience, views.changed()).await;
    }

    /// Returns an error if another member is designated.
    fn check_designated(&self, slot: &PlaneSlot) -> Result<(), TakeError> {
        let designated = self.designated(&slot.birth);
        match designated {
            Some(member) if self.ring().is_own(&member) => Ok(()),
            other => {
                let other = other.map(Box::new);
                Err(TakeError::Failed(WakeError::Moved(other)))
            }
        }
    }

    /// Opens a tenure for a fence that names this life but has none, so that the plane can be
    /// handed over.
    pub(crate) async fn adopt(
        &self,
        slot: &PlaneSlot,
        fence: Observed<Fence>,
    ) -> Result<(), Unavailable> {
        match self.acquire(slot, Some(fence)).await {
            AcquireOutcome::Held(_) => Ok(()),
            AcquireOutcome::Again | AcquireOutcome::Ask(_) | AcquireOutcome::NotTaken(_) => {
                Err(Unavailable::FenceChanged)
            }
        }
    }

    async fn read_fence(&self, slot: &PlaneSlot) -> Result<Option<Observed<Fence>>, Unavailable> {
        let read = slot.fence.read_fence().await;
        read.map_err(|error| Unavailable::FenceUnreadable(Arc::new(error)))
    }

    /// Makes one attempt to acquire the fence.
    async fn acquire(&self, slot: &PlaneSlot, fence: Option<Observed<Fence>>) -> AcquireOutcome {
        if let Some(head) = self.streamed_states().head(&slot.birth.id) {
            slot.fence.step(Event::StreamReceived {
                head: revision(head),
            });
        }
        let holder = fence.as_ref().map(|fence| fence.value.holder.clone());
        let sighting = self.ring().sighting(fence);
        let mut queue: VecDeque<Action> = slot.fence.step(Event::Acquire(sighting)).into();
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Transact {
                    attempt,
                    transaction,
                } => {
                    queue.extend(slot.fence.send(attempt, &transaction).await);
                }
                Action::OpenTenure {
                    tenure,
                    serve_from,
                    load,
                } => {
                    if let Load::Kept { .. } = load {
                        // The plane that was in memory has been dropped, so its guards must not
                        // answer.
                        slot.fence.outdate_guards();
                    }
                    let guard = RingGuard::new(Arc::clone(&slot.fence), tenure);
                    return AcquireOutcome::Held(NewTenure {
                        guard: Arc::new(guard),
                        acquired: slot.fence.put_at(),
                        serve_from,
                        load,
                    });
                }
                Action::AskHolder(holder) => return AcquireOutcome::Ask(holder),
                Action::NotTaken(NotTaken::ViewTooOld) => {
                    if let Some(holder) = &holder {
                        let number = ViewNumber::new(holder.incarnation.get());
                        self.ring().reach(number, VIEW_PATIENCE).await;
                    }
                }
                Action::NotTaken(not) => return AcquireOutcome::NotTaken(not),
                Action::RemoveRange { fence } => {
                    return AcquireOutcome::NotTaken(NotTaken::Deleted { fence });
                }
                Action::ReadFence
                | Action::EndTenure { .. }
                | Action::Settle { .. }
                | Action::StopAccepting
                | Action::ResumeAccepting
                | Action::Stream { .. }
                | Action::Released { .. }
                | Action::NotYet { .. } => {}
            }
        }
        AcquireOutcome::Again
    }

    fn not_taken(not: NotTaken, wanted: TakeFor) -> Result<(), TakeError> {
        match (not, wanted) {
            (NotTaken::Deleted { fence }, TakeFor::Deleting) => {
                Err(TakeError::AlreadyDeleted(fence))
            }
            (NotTaken::Deleted { .. } | NotTaken::NoDirectoryRecord, _) => {
                Err(TakeError::Failed(WakeError::Deleted))
            }
            (NotTaken::Rejected, _) => {
                let why = Unavailable::StoreReadOnly;
                Err(TakeError::Failed(WakeError::Unavailable(why)))
            }
            (NotTaken::Changed | NotTaken::ViewTooOld, _) => Ok(()),
        }
    }

    /// Requests a living holder to hand the plane over. Its fence is never taken from it.
    async fn ask_holder(
        &self,
        slot: &PlaneSlot,
        holder: &Holder,
    ) -> Result<HolderReply, TakeError> {
        let view = self.ring().view();
        let known = view.member(&holder.replica);
        let Some(member) = known.filter(|m| m.incarnation == holder.incarnation) else {
            // The holder has left the view, so the fence may be free.
            return Ok(HolderReply::LookAgain);
        };
        let message = PeerMessage::HandOver {
            birth: slot.birth.clone(),
            taker: Life::from(slot.fence.life().holder()),
            view: view.number().get(),
        };
        let reply = self.ring().call(member, message.into(), ASK_PATIENCE).await;
        match reply {
            Ok(PeerReply::Done | PeerReply::NotHeld) => Ok(HolderReply::LookAgain),
            Ok(PeerReply::Kept { view: theirs }) => {
                let number = ViewNumber::new(theirs);
                self.ring().reach(number, VIEW_PATIENCE).await;
                self.check_designated(slot)?;
                // Both replicas think themselves designated, because one has not seen a changed pin
                // yet. The holder continues to serve the plane.
                let member = Some(Box::new(member.clone()));
                Err(TakeError::Failed(WakeError::Moved(member)))
            }
            Ok(PeerReply::Busy) => Ok(HolderReply::Declined(Unavailable::HolderBusy)),
            Ok(PeerReply::Failed { reason }) => {
                Ok(HolderReply::Declined(Unavailable::HolderFailed(reason)))
            }
            Ok(
                PeerReply::Pong { .. }
                | PeerReply::Load { .. }
                | PeerReply::Figures { .. }
                | PeerReply::View { .. },
            ) => Ok(HolderReply::Declined(Unavailable::HolderConfused)),
            Err(
                error @ (PeerError::Refused
                | PeerError::TimedOut
                | PeerError::Ended(_)
                | PeerError::Untrusted(_)
                | PeerError::OtherReplica(_)
                | PeerError::Failed(_)),
            ) => Ok(HolderReply::Declined(Unavailable::HolderUnreachable(error))),
        }
    }

    /// Returns the values of the layer's placeholders that derive from the id of a plane, and from what
    /// its record says now.
    #[must_use]
    pub fn derived_params(&self, plane: &str) -> Vec<(String, String)> {
        let derive = self.options().derived_params.as_ref();
        derive.map_or_else(Vec::new, |derive| derive(plane))
    }

    /// Opens the plane of a tenure.
    async fn load(&self, slot: &PlaneSlot, held: &NewTenure) -> Result<Arc<Plane>, WakeError> {
        let birth = &slot.birth;
        let received = self.streamed_states().take(&birth.id);
        let mut params = birth.params.clone();
        params.extend(self.derived_params(&birth.id));
        let record = PlaneRecord {
            id: birth.id.clone(),
            base: birth.base,
            birth: None,
            layer: birth.layer.clone(),
            params,
        };
        let import = match held.load {
            Load::Streamed { head } => {
                let received = received.filter(|received| revision(received.head) == head);
                received.map(|received| Import {
                    head: received.head,
                    bytes: received.export,
                })
            }
            Load::Store { .. } | Load::Kept { .. } => None,
        };
        let opened = Plane::open(PlaneParams {
            record,
            copied: self.numbering().copied,
            born: birth.born,
            born_at: birth.born_at.clone(),
            layers: Arc::clone(self.layers()),
            uid_seed: uid_seed(self.secret(), &birth.id, birth.born),
            indexes: self.options().indexes.clone(),
            derivation: self.options().derivation.clone(),
            summarize: self.options().summarize.clone(),
            committer: Arc::clone(self.committer()),
            guard: Arc::clone(&held.guard) as Arc<dyn CommitGuard>,
            acquired: held.acquired,
            log: self.options().log,
            // The member keys are among the root's objects.
            external: (birth.id == ROOT).then(members_prefix),
            import,
        });
        opened
            .await
            .map_err(|error| WakeError::Open(Arc::new(error)))
    }
}

/// The answer of a plane's holder to the request to hand it over.
enum HolderReply {
    /// Read the fence again at once.
    LookAgain,
    /// The holder did not hand the plane over for now, for this reason.
    Declined(Unavailable),
}
