//! Deleting a plane: the holder ends its tenure, puts the fence to Deleted, and removes the range
//! in pieces under that fence (PROTOCOL 10). Only the holder deletes: to delete a plane without a
//! holder, a replica acquires its fence first. Must not know the directory: the caller removes the
//! record afterwards.

use crate::directory::birth::Birth;
use crate::peers::{PeerError, PeerMessage, PeerReply};
use crate::planes::plane_slot::{AwakePlane, PlaneSlot};
use crate::planes::release::{PAUSE_PATIENCE, ReleaseOutcome, end_in_memory, resume};
use crate::planes::take::{TakeError, TakeFor};
use crate::planes::{Planes, WakeError};
use crate::records::fence_key;
use crate::transactions::stored;
use polyplane_fencing::{Event, Holder, Revision as FenceRevision};
use polyplane_plane::{Ended, delete_range};
use polyplane_storage::{CommitError, Compare, Op, Txn};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time that another holder may take to delete a plane: it removes every object before
/// it answers.
const DELETE_PATIENCE: Duration = Duration::from_secs(60);

/// The reason why a plane's range could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The plane's fence cannot be acquired.
    #[error("cannot acquire the fence of the control plane")]
    Fence(#[source] WakeError),
    /// This replica requested the plane's holder to delete the plane, and the holder did not.
    #[error("the control plane's holder answered {0:?} to the request to delete it")]
    Holder(Box<PeerReply>),
    /// This replica requested the plane's holder to delete the plane, and got no answer.
    #[error("the control plane's holder did not answer the request to delete it")]
    HolderUnreachable(#[source] PeerError),
    /// Another replica holds the plane and may not be requested to delete it: it left the view, or
    /// a peer sent this request.
    #[error("the control plane is held by another replica")]
    HeldElsewhere,
    /// The task that deleted the plane ended before it was done.
    #[error("the task that deletes the control plane has ended")]
    TaskEnded,
    /// The plane's fence is not put to Deleted yet: a commit is in flight, or the store refused or
    /// did not answer. A further call continues from there.
    #[error("the fence of the control plane could not be put to Deleted yet")]
    NotYet,
    /// The plane's objects cannot be removed.
    #[error("cannot remove the objects of the control plane")]
    Range(#[source] polyplane_plane::DeleteError),
}

impl Planes {
    /// Deletes a plane, wherever it is: ends its tenure, so that it answers no more requests, puts
    /// its fence to Deleted, and removes its objects. After an error, call this again: it continues
    /// where it stopped.
    ///
    /// # Errors
    /// See [`DeleteError`].
    ///
    /// # Cancel safety
    /// A deletion that has begun continues after the caller is dropped.
    pub async fn delete(self: &Arc<Self>, birth: &Birth) -> Result<(), DeleteError> {
        let (planes, birth) = (Arc::clone(self), birth.clone());
        let deleting =
            tokio::spawn(async move { planes.delete_now(&birth, Forward::Allowed).await });
        match deleting.await {
            Ok(result) => result,
            Err(_) => Err(DeleteError::TaskEnded),
        }
    }

    /// Deletes a plane that is held here or by no living replica. If another replica holds it,
    /// requests that replica to delete it, if `forward` allows that: a request that came from a
    /// peer is not forwarded again.
    pub(crate) async fn delete_now(
        self: &Arc<Self>,
        birth: &Birth,
        forward: Forward,
    ) -> Result<(), DeleteError> {
        let slot = self.slot_of(birth).await.map_err(DeleteError::Fence)?;
        let deleted = self.delete_slot(&slot, forward).await;
        self.drop_if_idle(&slot);
        match deleted? {
            Some(fence) => self.remove_range(birth, fence).await,
            None => Ok(()),
        }
    }

    /// Puts the fence of a slot's plane to Deleted. Returns the fence's revision, under which the
    /// objects are removed; `None` if another holder has deleted the plane.
    async fn delete_slot(
        self: &Arc<Self>,
        slot: &Arc<PlaneSlot>,
        forward: Forward,
    ) -> Result<Option<FenceRevision>, DeleteError> {
        let busy = slot.busy().await;
        let awake = slot.awake();
        if !slot.fence.holds() {
            match self.take(slot, TakeFor::Deleting).await {
                Ok(_) => {}
                Err(TakeError::AlreadyDeleted(fence)) => return Ok(Some(fence)),
                Err(TakeError::HeldBy(holder)) => {
                    drop(busy);
                    let asked = self.ask_to_delete(&slot.birth, &holder, forward);
                    return asked.await.map(|()| None);
                }
                Err(TakeError::Failed(error)) => return Err(DeleteError::Fence(error)),
            }
        }
        let deadline = Instant::now() + PAUSE_PATIENCE;
        if !self.pause_at_head(slot, awake.as_ref(), deadline).await {
            return Err(DeleteError::NotYet);
        }
        self.put_deleted(slot, awake.as_ref()).await.map(Some)
    }

    async fn put_deleted(
        &self,
        slot: &Arc<PlaneSlot>,
        awake: Option<&AwakePlane>,
    ) -> Result<FenceRevision, DeleteError> {
        let actions = slot.fence.step(Event::Delete);
        match self.drive_release(slot, actions, awake, None).await {
            ReleaseOutcome::RemoveRange(fence) => {
                end_in_memory(slot, Ended::Deleted);
                Ok(fence)
            }
            ReleaseOutcome::CalledOff => {
                resume(slot);
                Err(DeleteError::NotYet)
            }
            ReleaseOutcome::Unknown => {
                end_in_memory(slot, Ended::Lost);
                slot.fence.abandon();
                Err(DeleteError::NotYet)
            }
            // Another replica has taken the fence in the meantime: the next call finds out.
            ReleaseOutcome::Released => {
                end_in_memory(slot, Ended::Lost);
                Err(DeleteError::NotYet)
            }
        }
    }

    async fn remove_range(&self, birth: &Birth, fence: FenceRevision) -> Result<(), DeleteError> {
        let compare = Compare::Unchanged {
            key: fence_key(&birth.id),
            revision: stored(fence),
        };
        let removed = delete_range(self.store(), &birth.id, vec![compare]).await;
        removed.map(drop).map_err(DeleteError::Range)
    }

    async fn ask_to_delete(
        &self,
        birth: &Birth,
        holder: &Holder,
        forward: Forward,
    ) -> Result<(), DeleteError> {
        let view = self.ring().view();
        let member = view.member(&holder.replica);
        let member = member.filter(|member| member.incarnation == holder.incarnation);
        let (Some(member), Forward::Allowed) = (member, forward) else {
            return Err(DeleteError::HeldElsewhere);
        };
        let message = PeerMessage::Delete {
            birth: birth.clone(),
        };
        let reply = self.ring().call(member, message.into(), DELETE_PATIENCE);
        match reply.await {
            Ok(PeerReply::Done) => Ok(()),
            Ok(other) => Err(DeleteError::Holder(Box::new(other))),
            Err(error) => Err(DeleteError::HolderUnreachable(error)),
        }
    }

    /// Removes the fence of a deleted plane once its directory record is gone. This is safe,
    /// because the id is never used again and every acquire compares the record.
    ///
    /// # Errors
    /// Returns the store's error. A compare that does not hold is not an error: the fence is gone
    /// already, or the record is still there and nothing is removed.
    pub async fn remove_deleted_fence(&self, birth: &Birth) -> Result<(), CommitError> {
        let key = fence_key(&birth.id);
        let mut compares = vec![Compare::Present { key: key.clone() }];
        let directory = birth.directory.as_ref();
        compares.extend(directory.map(|directory| Compare::NotCreatedAt {
            key: directory.key.clone(),
            revision: directory.created,
        }));
        let txn = Txn {
            compares,
            ops: vec![Op::Delete { key }],
        };
        match self.store().commit(txn).await {
            Ok(_) | Err(CommitError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The permission to request another holder to delete the plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forward {
    Allowed,
    Forbidden,
}
