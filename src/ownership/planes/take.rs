//! Taking a fence: the four rules of the acquire as a loop that ends with a tenure or with a reason
//! why not, and loading the plane under it. Every decision is the machine's or the view's.

use crate::backoff::Backoff;
use crate::membership::member_record::members_prefix;
use crate::peers::{Life, PeerError, PeerMessage, PeerReply};
use crate::planes::fence_driver::RingGuard;
use crate::planes::plane_slot::{AwakePlane, NewTenure, PlaneSlot};
use crate::planes::{Planes, ROOT, WakeError};
use crate::transactions::revision;
use polyplane_fencing::{Action, Epoch, Event, Fence, Holder, Load, NotTaken, Observed, Revision};
use polyplane_plane::{CommitGuard, Ended, Import, Plane, PlaneParams, PlaneRecord, uid_seed};
use polyplane_ring::ViewNumber;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long one wake tries to take a fence.
const TAKE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a holder may take to hand over.
const ASK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a view that is behind may take to catch up.
pub(crate) const VIEW_PATIENCE: Duration = Duration::from_secs(2);

/// Who may take a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The designated replica, to serve it.
    Served,
    /// Whoever is to delete it, designated or not, if no living replica holds it.
    Deleted,
}

/// What became of the actions of one step.
enum Carried {
    Held(NewTenure),
    /// Look at the fence again.
    Again,
    /// The holder lives.
    Ask(Holder),
    NotTaken(NotTaken),
}

/// Why a plane to be deleted was not taken.
#[derive(Debug)]
pub(crate) enum NotToDelete {
    /// A living replica holds it.
    HeldBy(Holder),
    /// Its fence says Deleted, at this revision.
    Already(Revision),
    /// It was not taken for another reason.
    Failed(WakeError),
}

impl Planes {
    /// Takes the fence of a plane and loads it. The slot's `busy` is held.
    pub(crate) async fn take_and_load(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
    ) -> Result<Arc<Plane>, WakeError> {
        let began = Instant::now();
        if let Some(awake) = slot.awake() {
            return Ok(awake.plane);
        }
        let taken = self.take(slot, Wanted::Served).await;
        let held = taken.map_err(|not| match not {
            NotToDelete::Failed(error) => error,
            NotToDelete::HeldBy(_) | NotToDelete::Already(_) => WakeError::Deleted,
        })?;
        let plane = self.load(slot, &held).await?;
        let head = revision(plane.head());
        slot.fence.step(Event::Loaded { head });
        let waited = held.serve_from > slot.fence.life().now();
        slot.fence.until(held.serve_from).await;
        if !held.guard.holds() {
            plane.end(Ended::Lost);
            return Err(WakeError::Unavailable(
                "the fence was lost again".to_owned(),
            ));
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

    /// Takes the fence of a plane.
    pub(crate) async fn take(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
        wanted: Wanted,
    ) -> Result<NewTenure, NotToDelete> {
        let deadline = Instant::now() + TAKE_PATIENCE;
        let unavailable = |why: String| NotToDelete::Failed(WakeError::Unavailable(why));
        let mut backoff = Backoff::default();
        let mut why = "it took too long".to_owned();
        while Instant::now() < deadline {
            if slot.fence.life().over().is_cancelled() {
                return Err(unavailable("this replica lost its member key".to_owned()));
            }
            if wanted == Wanted::Served {
                self.check_designated(slot)?;
            }
            match self.look(slot).await {
                Ok(fence) => match self.acquire(slot, fence).await {
                    Carried::Held(held) => return Ok(held),
                    Carried::Again => {}
                    Carried::Ask(holder) if wanted == Wanted::Deleted => {
                        return Err(NotToDelete::HeldBy(holder));
                    }
                    Carried::Ask(holder) => match self.ask(slot, &holder).await? {
                        Asked::Released => continue,
                        Asked::Not(reason) => {
                            why = reason;
                            self.view_changes_or(backoff.next()).await;
                            continue;
                        }
                    },
                    Carried::NotTaken(not) => {
                        Self::not_taken(not, wanted)?;
                    }
                },
                Err(reason) => why = reason,
            }
            backoff.wait().await;
        }
        Err(unavailable(why))
    }

    /// Waits so long, or until the view changes.
    async fn view_changes_or(&self, patience: Duration) {
        let mut views = self.ring().view_changes();
        // Either way everything is looked at again.
        let _ = tokio::time::timeout(patience, views.changed()).await;
    }

    /// Refuses to serve what another member is to serve.
    fn check_designated(&self, slot: &PlaneSlot) -> Result<(), NotToDelete> {
        let designated = self.designated(&slot.birth);
        match designated {
            Some(member) if member.id == *self.ring().id() => Ok(()),
            other => {
                let other = other.map(Box::new);
                Err(NotToDelete::Failed(WakeError::Moved(other)))
            }
        }
    }

    /// Takes a fence that names this life without a tenure, for whoever is to have it next.
    pub(crate) async fn look_and_adopt(
        &self,
        slot: &PlaneSlot,
        fence: Observed<Fence>,
    ) -> Result<(), String> {
        match self.acquire(slot, Some(fence)).await {
            Carried::Held(_) => Ok(()),
            Carried::Again | Carried::Ask(_) | Carried::NotTaken(_) => {
                Err("the fence has changed".to_owned())
            }
        }
    }

    async fn look(&self, slot: &PlaneSlot) -> Result<Option<Observed<Fence>>, String> {
        let read = slot.fence.read_fence().await;
        read.map_err(|error| format!("the fence cannot be read: {error}"))
    }

    /// One try, by the rules.
    async fn acquire(&self, slot: &PlaneSlot, fence: Option<Observed<Fence>>) -> Carried {
        if let Some(head) = self.received().head(&slot.birth.id) {
            slot.fence.step(Event::StreamReceived {
                head: revision(head),
            });
        }
        let holder = fence.as_ref().map(|fence| fence.value.holder.clone());
        let sighting = self.ring().judge(fence);
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
                        // What was in memory is gone.
                        slot.fence.outdate_guards();
                    }
                    let guard = RingGuard::new(Arc::clone(&slot.fence), tenure);
                    return Carried::Held(NewTenure {
                        guard: Arc::new(guard),
                        acquired: slot.fence.put_at(),
                        serve_from,
                        load,
                    });
                }
                Action::AskHolder(holder) => return Carried::Ask(holder),
                Action::NotTaken(NotTaken::ViewTooOld) => {
                    if let Some(holder) = &holder {
                        let number = ViewNumber::new(holder.incarnation.get());
                        self.ring().reach(number, VIEW_PATIENCE).await;
                    }
                }
                Action::NotTaken(not) => return Carried::NotTaken(not),
                Action::RemoveRange { fence } => {
                    return Carried::NotTaken(NotTaken::Deleted { fence });
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
        Carried::Again
    }

    fn not_taken(not: NotTaken, wanted: Wanted) -> Result<(), NotToDelete> {
        match (not, wanted) {
            (NotTaken::Deleted { fence }, Wanted::Deleted) => Err(NotToDelete::Already(fence)),
            (NotTaken::Deleted { .. } | NotTaken::NoDirectoryRecord, _) => {
                Err(NotToDelete::Failed(WakeError::Deleted))
            }
            (NotTaken::Rejected, _) => {
                let why = "the store takes no writes".to_owned();
                Err(NotToDelete::Failed(WakeError::Unavailable(why)))
            }
            (NotTaken::Changed | NotTaken::ViewTooOld, _) => Ok(()),
        }
    }

    /// Rule 3: the living are asked, never robbed.
    async fn ask(&self, slot: &PlaneSlot, holder: &Holder) -> Result<Asked, NotToDelete> {
        let view = self.ring().view();
        let known = view.member(&holder.replica);
        let Some(member) = known.filter(|m| m.incarnation == holder.incarnation) else {
            // The view has moved on: judge the fence anew.
            return Ok(Asked::Released);
        };
        let message = PeerMessage::HandOver {
            birth: slot.birth.clone(),
            taker: Life::from(slot.fence.life().holder()),
            view: view.number().get(),
        };
        let reply = self.ring().call(member, message.into(), ASK_PATIENCE).await;
        match reply {
            Ok(PeerReply::Done | PeerReply::NotHeld) => Ok(Asked::Released),
            Ok(PeerReply::Kept { view: theirs }) => {
                let number = ViewNumber::new(theirs);
                self.ring().reach(number, VIEW_PATIENCE).await;
                self.check_designated(slot)?;
                // Both think themselves designated, for a wish that one does not know yet: who
                // holds it serves it.
                let member = Some(Box::new(member.clone()));
                Err(NotToDelete::Failed(WakeError::Moved(member)))
            }
            Ok(PeerReply::Busy) => Ok(Asked::Not("its holder hands others over".to_owned())),
            Ok(PeerReply::Failed { reason }) => Ok(Asked::Not(reason)),
            Ok(
                PeerReply::Pong { .. }
                | PeerReply::Load { .. }
                | PeerReply::Figures { .. }
                | PeerReply::View { .. },
            ) => Ok(Asked::Not("its holder gave a wrong answer".to_owned())),
            Err(
                error @ (PeerError::Refused
                | PeerError::TimedOut
                | PeerError::Ended(_)
                | PeerError::Failed(_)),
            ) => Ok(Asked::Not(format!("its holder was asked: {error}"))),
        }
    }

    /// Opens the plane of a tenure.
    async fn load(&self, slot: &PlaneSlot, held: &NewTenure) -> Result<Arc<Plane>, WakeError> {
        let birth = &slot.birth;
        let received = self.received().take(&birth.id);
        let record = PlaneRecord {
            id: birth.id.clone(),
            base: birth.base,
            birth: None,
            layer: birth.layer.clone(),
            params: birth.params.clone(),
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
            born: birth.born,
            born_at: birth.born_at.clone(),
            layers: Arc::clone(self.layers()),
            uid_seed: uid_seed(self.secret(), &birth.id, birth.born),
            indexes: self.options().indexes.clone(),
            derivation: self.options().derivation.clone(),
            committer: Arc::clone(self.committer()),
            guard: Arc::clone(&held.guard) as Arc<dyn CommitGuard>,
            acquired: held.acquired,
            log: self.options().log,
            // The member keys stand among the root's objects.
            foreign: (birth.id == ROOT).then(members_prefix),
            import,
        });
        opened
            .await
            .map_err(|error| WakeError::Open(Arc::new(error)))
    }
}

/// What the holder of a plane said.
enum Asked {
    /// The fence is to be looked at again at once.
    Released,
    /// It did not let go, for now.
    Not(String),
}
