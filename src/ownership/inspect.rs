//! What the ring tells of itself to people: fences as they stand in the store. Owns reading them;
//! nothing here is acted on.

use crate::birth::Birth;
use crate::planes::Planes;
use crate::record::{Damaged, decode_fence, fence_key};
use polyplane_fencing::FenceState;
use polyplane_storage::ReadError;

/// A plane's fence, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSeen {
    /// Who wrote it last.
    pub replica: String,
    /// Which life of that replica.
    pub incarnation: u64,
    /// How often the plane was taken.
    pub epoch: u64,
    /// `Held`, `Released` or `Deleted`.
    pub state: &'static str,
}

/// Why a fence cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The store could not be read.
    #[error("cannot read the fence of the control plane")]
    Read(#[from] ReadError),
    /// What stands there was not written by this program.
    #[error("cannot understand the fence of the control plane")]
    Damaged(#[from] Damaged),
}

impl Planes {
    /// A plane's fence as the store has it now; none if nobody has used the plane yet.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub async fn fence(&self, birth: &Birth) -> Result<Option<FenceSeen>, InspectError> {
        let key = fence_key(&birth.id);
        let (_, Some(found)) = self.store().get(&key).await? else {
            return Ok(None);
        };
        let fence = decode_fence(&key, &found.value)?;
        Ok(Some(FenceSeen {
            replica: fence.holder.replica.to_string(),
            incarnation: fence.holder.incarnation.get(),
            epoch: fence.epoch.get(),
            state: match fence.state {
                FenceState::Held => "Held",
                FenceState::Released { .. } => "Released",
                FenceState::Deleted => "Deleted",
            },
        }))
    }
}
