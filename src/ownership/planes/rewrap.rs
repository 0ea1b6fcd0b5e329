//! The data keys of planes as the store has them: reading which key wraps them, and wrapping those of
//! planes that sleep by the key that wraps now.
//!
//! An owner wraps the keys of its awake planes anew with a commit of theirs. A plane that sleeps is not
//! woken for that: one transaction puts its record, on the condition that its fence has not changed, so
//! no owner has it meanwhile. Whoever takes the plane later loads the record after the fence.

use crate::planes::Planes;
use crate::records::{Damaged, decode_fence, fence_key};
use bytes::Bytes;
use polyplane_fencing::FenceState;
use polyplane_plane::{
    KeysRecord, Plane, RecordError, SealedError, Sealing, data_keys_key, read_data_keys,
};
use polyplane_storage::{CommitError, Compare, KeyValue, Op, ReadError, Txn};
use std::sync::Arc;

/// The reason why the data keys of a plane are not known, or were not wrapped anew.
#[derive(Debug, thiserror::Error)]
pub enum RewrapError {
    /// The store could not be read.
    #[error("cannot read the data keys of a control plane")]
    Read(#[from] ReadError),
    /// The record was not written by this program.
    #[error("cannot decode the data keys of a control plane")]
    Record(#[from] RecordError),
    /// The fence was not written by this program.
    #[error("cannot decode the fence of a control plane")]
    Fence(#[from] Damaged),
    /// The data keys cannot be unwrapped here.
    #[error("the data keys of a control plane cannot be unwrapped")]
    Sealed(#[from] SealedError),
    /// The store refused the record, or its outcome is unknown.
    #[error("cannot write the data keys of a control plane")]
    Commit(#[from] CommitError),
}

impl Planes {
    /// Returns what seals the records of planes; `None` if encryption at rest is off.
    pub fn sealing(&self) -> Option<&Arc<Sealing>> {
        self.options.sealing.as_ref()
    }

    /// Returns the generation that the data key of a plane should have.
    pub fn data_key_generation(&self, id: &str) -> u32 {
        let entry = self.directory().and_then(|rows| rows.by_id(id));
        entry.map_or(0, |entry| entry.data_key_generation)
    }

    /// Returns whether records of an awake plane are being sealed again. If it slept meanwhile, nobody
    /// would continue before it is used.
    pub(crate) fn is_resealing(&self, plane: &Plane) -> bool {
        plane.is_resealing(self.data_key_generation(plane.id()))
    }

    /// Returns the data keys of a plane as the store has them now; `None` if nothing of the plane was
    /// ever sealed.
    ///
    /// # Errors
    /// See [`RewrapError`].
    pub async fn keys_record(&self, id: &str) -> Result<Option<KeysRecord>, RewrapError> {
        let found = self.stored_keys(id).await?;
        Ok(found.map(|(_, record)| record))
    }

    /// Wraps the data keys of a plane by the key that wraps now, if the plane sleeps. Returns the record
    /// as the store has it then; `None` if nothing of the plane was ever sealed.
    ///
    /// # Errors
    /// See [`RewrapError`]. The record is as it was, or wrapped anew.
    pub async fn rewrap_asleep(&self, id: &str) -> Result<Option<KeysRecord>, RewrapError> {
        let Some((found, record)) = self.stored_keys(id).await? else {
            return Ok(None);
        };
        let sealing = self.sealing();
        let sealing = sealing.ok_or(SealedError::NotConfigured)?;
        let Some(anew) = sealing.rewrapped(id, &record)? else {
            return Ok(Some(record));
        };
        let Some(unchanged) = self.fence_of_sleeper(id).await? else {
            // The plane is awake: its owner wraps its keys.
            return Ok(Some(record));
        };
        let key = data_keys_key(id);
        let txn = Txn {
            compares: vec![
                Compare::Unchanged {
                    key: key.clone(),
                    revision: found.modified,
                },
                unchanged,
            ],
            ops: vec![Op::Put {
                key,
                value: anew.clone(),
                lease: None,
            }],
        };
        match self.store().commit(txn).await {
            Ok(_) => Ok(Some(read_data_keys(&anew)?)),
            // Somebody has woken or deleted it meanwhile.
            Err(CommitError::Refused { .. }) => Ok(Some(record)),
            Err(error) => Err(error.into()),
        }
    }

    async fn stored_keys(&self, id: &str) -> Result<Option<(KeyValue, KeysRecord)>, RewrapError> {
        let (_, found) = self.store().get(&data_keys_key(id)).await?;
        let Some(found) = found else {
            return Ok(None);
        };
        let record = read_data_keys(&found.value)?;
        Ok(Some((found, record)))
    }

    /// Returns the condition that nobody takes a plane that nobody holds; `None` if somebody holds it. A
    /// holder that has left the ring counts: whatever it has sent compares its own member key.
    async fn fence_of_sleeper(&self, id: &str) -> Result<Option<Compare>, RewrapError> {
        let key: Bytes = fence_key(id);
        let (_, found) = self.store().get(&key).await?;
        let Some(found) = found else {
            return Ok(Some(Compare::Absent { key }));
        };
        let fence = decode_fence(&found.key, &found.value)?;
        let view = self.ring().view();
        let living = view.member(&fence.holder.replica);
        let is_living = living.is_some_and(|member| member.incarnation == fence.holder.incarnation);
        let unchanged = Compare::Unchanged {
            key,
            revision: found.modified,
        };
        Ok(match fence.state {
            FenceState::Held if is_living => None,
            FenceState::Deleted => None,
            FenceState::Held | FenceState::Released { .. } => Some(unchanged),
        })
    }
}
