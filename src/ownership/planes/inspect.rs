//! The ring's state for people: fences as they are in the store, sizes of planes. Owns reading
//! them; no decision rests on what is read here.

use crate::directory::birth::Birth;
use crate::peers::{Figures, PeerMessage, PeerReply, Used};
use crate::planes::Planes;
use crate::records::{Damaged, FENCES, decode_fence, fence_key, plane_of};
use bytes::Bytes;
use polyplane_fencing::FenceState;
use polyplane_plane::{Plane, PlaneStats};
use polyplane_ring::ReplicaId;
use polyplane_storage::{KeyValue, RangeRequest, ReadError, Revision};
use std::time::Duration;

/// A plane's fence in a readable form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSeen {
    /// The name of the replica that wrote the fence last.
    pub replica: String,
    /// The incarnation of that replica.
    pub incarnation: u64,
    /// The number of times that the plane was acquired.
    pub epoch: u64,
    /// `Held`, `Released` or `Deleted`.
    pub state: &'static str,
    /// The plane's head at its release.
    pub head: Option<u64>,
    /// The replica that should acquire the plane next, if the last holder named one.
    pub successor: Option<String>,
}

/// A fence as one read of the store found it.
#[derive(Debug, Clone)]
pub struct FenceRow {
    /// The id of the fence's plane.
    pub plane: String,
    /// The content of the fence, or the error if this program cannot read it.
    pub fence: Result<FenceSeen, Damaged>,
    /// The revision of the fence's first put.
    pub created: Revision,
    /// The revision of the fence's last put.
    pub modified: Revision,
}

/// Fences in the order of their planes' ids.
#[derive(Debug, Clone)]
pub struct FencePage {
    /// The revision at which they were read.
    pub revision: Revision,
    /// The fences.
    pub fences: Vec<FenceRow>,
    /// True if there are more fences behind the last one.
    pub more: bool,
}

/// The sizes of the planes in memory anywhere in the ring.
#[derive(Debug, Clone, Default)]
pub struct RingFigures {
    /// The sizes at the replicas that have answered.
    pub planes: Vec<Figures>,
    /// The members that have not answered. Their planes are missing.
    pub silent: Vec<ReplicaId>,
}

/// The reason why a fence cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The store could not be read.
    #[error("cannot read the fence of the control plane")]
    Read(#[from] ReadError),
    /// A record of the store was not written by this program.
    #[error("cannot decode the fence of the control plane")]
    Damaged(#[from] Damaged),
}

/// The longest time that a replica may take to report the sizes of its planes. A slower replica is
/// left out.
const PATIENCE: Duration = Duration::from_secs(2);

impl Planes {
    /// Returns the sizes of the planes in memory here.
    pub fn figures(&self) -> Vec<Figures> {
        let awake = self.all_awake().into_iter();
        awake
            .map(|plane| {
                let stats = plane.stats();
                Figures {
                    plane: plane.id().to_owned(),
                    objects: stats.objects,
                    bytes: stats.own_bytes,
                    used: used(&plane, &stats),
                }
            })
            .collect()
    }

    /// Returns the sizes of the planes in memory anywhere in the ring.
    pub async fn figures_of_ring(&self) -> RingFigures {
        let mut figures = RingFigures {
            planes: self.figures(),
            silent: Vec::new(),
        };
        let view = self.ring().view();
        for member in view.members() {
            if self.ring().is_own(member) {
                continue;
            }
            let asked = self
                .ring()
                .call(member, PeerMessage::Figures.into(), PATIENCE);
            match asked.await {
                Ok(PeerReply::Figures { planes }) => figures.planes.extend(planes),
                Ok(_) | Err(_) => figures.silent.push(member.id.clone()),
            }
        }
        figures
    }

    /// Returns a plane's fence as the store has it now; `None` if the plane has not been used yet.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub async fn fence(&self, birth: &Birth) -> Result<Option<FenceSeen>, InspectError> {
        let key = fence_key(&birth.id);
        let (_, Some(found)) = self.store().get(&key).await? else {
            return Ok(None);
        };
        Ok(Some(seen(&found)?))
    }

    /// Reads up to `limit` fences in the order of their planes' ids, beginning with that of the
    /// plane `from` or the next one after it. Reads them as of now, or as of the revision `at`.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn fences(
        &self,
        from: &[u8],
        at: Option<Revision>,
        limit: usize,
    ) -> Result<FencePage, ReadError> {
        let all = RangeRequest::prefix(Bytes::from_static(FENCES.as_bytes()));
        let request = RangeRequest {
            start: [FENCES.as_bytes(), from].concat().into(),
            at,
            limit,
            ..all
        };
        let reply = self.store().range(request).await?;
        let fences = reply.items.iter().map(|item| FenceRow {
            plane: plane_of(&item.key),
            fence: seen(item),
            created: item.created,
            modified: item.modified,
        });
        Ok(FencePage {
            revision: reply.revision,
            fences: fences.collect(),
            more: reply.more,
        })
    }
}

fn used(plane: &Plane, stats: &PlaneStats) -> Used {
    let used = plane.meter().map(|meter| meter.usage()).unwrap_or_default();
    Used {
        own_objects: stats.own_objects,
        requests: used.requests,
        writes: used.writes,
        refused: used.refused,
        cpu_millis: used.cpu_nanos / 1_000_000,
        watches: used.watches,
    }
}

fn seen(found: &KeyValue) -> Result<FenceSeen, Damaged> {
    let fence = decode_fence(&found.key, &found.value)?;
    let (state, head, successor) = match fence.state {
        FenceState::Held => ("Held", None, None),
        FenceState::Released { head, successor } => ("Released", Some(head.get()), successor),
        FenceState::Deleted => ("Deleted", None, None),
    };
    Ok(FenceSeen {
        replica: fence.holder.replica.to_string(),
        incarnation: fence.holder.incarnation.get(),
        epoch: fence.epoch.get(),
        state,
        head,
        successor: successor.map(|successor| successor.to_string()),
    })
}
