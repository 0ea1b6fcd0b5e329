//! Answers the requests of peers. Owns no decision about a fence: it waits for the view that the
//! peer names, and calls the methods of [`Planes`] that hand off, acquire or delete.

use crate::directory::birth::Birth;
use crate::peers::{Life, PeerHandler, PeerMessage, PeerReply, PeerRequest, ViewMember};
use crate::planes::Planes;
use crate::planes::delete::Forward;
use crate::planes::release::HandOffOutcome;
use crate::planes::take::VIEW_PATIENCE;
use async_trait::async_trait;
use polyplane_fencing::{FenceState, Holder};
use polyplane_ring::{ReplicaId, ViewNumber};
use polyplane_storage::Revision;
use std::sync::Arc;
use tokio::sync::broadcast;

#[async_trait]
impl PeerHandler for Planes {
    async fn handle(&self, from: &ReplicaId, request: PeerRequest) -> PeerReply {
        let Some(planes) = self.shared() else {
            return failed("this replica is closing");
        };
        planes.ring().reached_by(from);
        // On a task of its own, so that a request which has begun is finished even if the peer
        // stops waiting.
        let from = from.clone();
        let handled = tokio::spawn(async move { planes.answer(&from, request).await });
        match handled.await {
            Ok(reply) => reply,
            Err(error) => failed(&error.to_string()),
        }
    }
}

impl Planes {
    /// Returns a receiver of the ids of planes that were taken because their predecessor said so, and that no request
    /// has named here yet. A receiver that lags has to look at all planes that are awake.
    #[must_use]
    pub fn taken(&self) -> broadcast::Receiver<String> {
        self.taken.subscribe()
    }

    async fn answer(self: Arc<Self>, from: &ReplicaId, request: PeerRequest) -> PeerReply {
        match request.message {
            PeerMessage::Ping { .. } => PeerReply::Pong {
                view: self.ring().view().number().get(),
            },
            PeerMessage::HandOver { birth, taker, view } => {
                self.hand_over(from, &birth, &taker, view).await
            }
            PeerMessage::State { plane, head } => {
                let head = Revision(head);
                match self.streamed_states().put(plane, head, request.payload) {
                    true => PeerReply::Done,
                    false => PeerReply::Busy,
                }
            }
            PeerMessage::Take { birth, view } => {
                self.ring()
                    .reach(ViewNumber::new(view), VIEW_PATIENCE)
                    .await;
                match self.wake(&birth).await {
                    Ok(_) => {
                        // It fails if nobody listens.
                        let _ = self.taken.send(birth.id);
                        PeerReply::Done
                    }
                    Err(error) => failed(&error.to_string()),
                }
            }
            PeerMessage::Delete { birth } => {
                match self.delete_now(&birth, Forward::Forbidden).await {
                    Ok(()) => PeerReply::Done,
                    Err(error) => failed(&error.to_string()),
                }
            }
            PeerMessage::Load => {
                let stats = self.stats();
                PeerReply::Load {
                    owned: stats.owned,
                    awake: stats.awake,
                    hand_offs: stats.hand_offs_done,
                }
            }
            PeerMessage::Figures => PeerReply::figures(self.figures()),
            PeerMessage::View => {
                let view = self.ring().view();
                PeerReply::View {
                    number: view.number().get(),
                    members: view.members().map(ViewMember::from).collect(),
                }
            }
        }
    }

    /// Hands a plane to the replica that should own it. The replica with the older view catches up
    /// first, so that two views do not move a plane back and forth (PROTOCOL 19).
    async fn hand_over(
        self: &Arc<Self>,
        from: &ReplicaId,
        birth: &Birth,
        taker: &Life,
        view: u64,
    ) -> PeerReply {
        if taker.replica != from.as_str() {
            return failed("a replica asks for itself only");
        }
        let number = ViewNumber::new(view);
        if !self.ring().reach(number, VIEW_PATIENCE).await {
            return failed("this replica's view is behind");
        }
        if self.designated_here(birth) {
            let view = self.ring().view().number().get();
            return PeerReply::Kept { view };
        }
        let slot = match self.known(&birth.id) {
            Some(slot) if slot.is_here() => slot,
            Some(_) | None => match self.adopt_forgotten(birth).await {
                Some(reply) => return reply,
                None => match self.known(&birth.id) {
                    Some(slot) => slot,
                    None => return PeerReply::NotHeld,
                },
            },
        };
        let Ok(_place) = self.hand_off_permits().try_acquire() else {
            return PeerReply::Busy;
        };
        let successor = self.designated(birth);
        match self.hand_off(&slot, successor.as_ref()).await {
            HandOffOutcome::Released => PeerReply::Done,
            HandOffOutcome::Kept(reason) => failed(&reason.to_string()),
        }
    }

    /// Adopts a fence that names this life but has no tenure, so that it can be handed over
    /// (PROTOCOL 17). Returns the reply if there is nothing to hand over.
    async fn adopt_forgotten(self: &Arc<Self>, birth: &Birth) -> Option<PeerReply> {
        let slot = match self.slot_of(birth).await {
            Ok(slot) => slot,
            Err(error) => return Some(failed(&error.to_string())),
        };
        let busy = slot.busy().await;
        if slot.fence.holds() {
            return None;
        }
        let own = |holder: &Holder| holder == slot.fence.life().holder();
        let reply = match slot.fence.read_fence().await {
            Ok(Some(fence))
                if fence.value.state == FenceState::Held && own(&fence.value.holder) =>
            {
                match self.adopt(&slot, fence).await {
                    Ok(()) => None,
                    Err(reason) => Some(failed(&reason.to_string())),
                }
            }
            Ok(_) => Some(PeerReply::NotHeld),
            Err(error) => Some(failed(&error.to_string())),
        };
        drop(busy);
        if reply.is_some() {
            self.drop_if_idle(&slot);
        }
        reply
    }
}

fn failed(reason: &str) -> PeerReply {
    let reason = reason.to_owned();
    PeerReply::Failed { reason }
}
