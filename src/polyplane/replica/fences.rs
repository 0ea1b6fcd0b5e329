//! The fences of all planes, as read-only objects of the root plane. This module joins each fence
//! in the store with its row of the directory; it does not know how fences change.

use crate::replica::plane_directory::PlaneDirectory;
use async_trait::async_trait;
use polyplane_apimachinery::Str;
use polyplane_batteries::polyplane::fence::{FenceFacts, QUALIFIED};
use polyplane_ownership::{FenceRow, ROOT};
use polyplane_registry::{ExternalObject, ExternalObjects, ExternalRange, ExternalReply};
use polyplane_storage::ReadError;
use std::sync::Arc;

/// Reads the fences of one store.
pub struct Fences(pub Arc<PlaneDirectory>);

#[async_trait]
impl ExternalObjects for Fences {
    fn resource(&self) -> &'static str {
        QUALIFIED
    }

    async fn read(&self, range: ExternalRange) -> Result<ExternalReply, ReadError> {
        let ExternalRange { from, at, limit } = range;
        let page = self.0.planes.fences(&from, at, limit).await?;
        let objects = page.fences.into_iter();
        Ok(ExternalReply {
            revision: page.revision,
            objects: objects.map(|row| self.object(row)).collect(),
            more: page.more,
        })
    }
}

impl Fences {
    fn object(&self, row: FenceRow) -> ExternalObject {
        let (plane, born_at) = self.plane(&row.plane);
        let facts = FenceFacts {
            id: row.plane.clone(),
            plane,
            born_at,
            ..FenceFacts::default()
        };
        let facts = match row.fence {
            Ok(fence) => FenceFacts {
                state: fence.state,
                holder: Some(fence.replica),
                incarnation: Some(fence.incarnation),
                epoch: Some(fence.epoch),
                head: fence.head,
                successor: fence.successor,
                ..facts
            },
            // Listed as unreadable, because a list without the fence would hide the damaged record.
            Err(_) => FenceFacts {
                state: "Unreadable",
                ..facts
            },
        };
        ExternalObject {
            name: row.plane.into(),
            tree: facts.object(),
            created: row.created,
            modified: row.modified,
        }
    }

    /// Returns a plane's name and the time of its creation, if the directory knows them.
    fn plane(&self, id: &str) -> (Option<Str>, Option<Str>) {
        if id == ROOT {
            let root = self.0.root();
            let born_at = root.map(|root| root.birth.born_at.as_str().into());
            return (Some(ROOT.into()), born_at);
        }
        let entry = self.0.rows.by_id(id);
        let known = entry.map(|entry| (entry.name.clone(), entry.born_at.clone()));
        known.unzip()
    }
}
