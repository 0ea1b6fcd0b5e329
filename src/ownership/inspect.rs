//! What the ring tells of itself to people: fences as they stand in the store, sizes of planes. Owns
//! reading them; nothing here is acted on.

use crate::birth::Birth;
use crate::peers::{Figures, PeerMessage, PeerReply};
use crate::planes::Planes;
use crate::record::{Damaged, decode_fence, fence_key};
use polyplane_fencing::FenceState;
use polyplane_storage::ReadError;
use std::time::Duration;

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

/// How long a replica may take to tell the figures of its planes.
const PATIENCE: Duration = Duration::from_secs(2);

impl Planes {
    /// How large the planes in memory here are.
    pub fn figures(&self) -> Vec<Figures> {
        let awake = self.all_awake().into_iter();
        awake
            .map(|plane| {
                let stats = plane.stats();
                Figures {
                    plane: plane.id().to_owned(),
                    objects: stats.objects,
                    bytes: stats.own_bytes,
                }
            })
            .collect()
    }

    /// How large the planes in memory anywhere in the ring are; those of replicas that do not
    /// answer are left out.
    pub async fn figures_of_ring(&self) -> Vec<Figures> {
        let mut figures = self.figures();
        let view = self.ring().view();
        for member in view.members() {
            if member.id == *self.ring().id() {
                continue;
            }
            let asked = self
                .ring()
                .call(member, PeerMessage::Figures.into(), PATIENCE);
            if let Ok(PeerReply::Figures { planes }) = asked.await {
                figures.extend(planes);
            }
        }
        figures
    }

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
