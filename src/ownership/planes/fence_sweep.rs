//! The sweep of left fences, whose planes were deleted. A deleted plane's fence is removed after
//! its directory record, in a transaction of its own: if the root's owner dies between the two, the
//! fence is left, and no object names it. Must not know when the sweep runs.

use crate::planes::Planes;
use crate::records::{FENCES, decode_fence, plane_of};
use bytes::Bytes;
use polyplane_fencing::FenceState;
use polyplane_storage::{CommitError, Compare, KeyValue, Op, RangeRequest, ReadError, Txn};
use std::time::Duration;
use tokio::time::Instant;

/// Number of fences that one read returns at most. More would delay other reads of the store.
const PAGE: usize = 500;
/// The longest time that the directory may take to reach the revision at which the fences were
/// read.
const CATCH_UP: Duration = Duration::from_secs(5);

impl Planes {
    /// Removes the fences of deleted planes whose directory record is gone, and returns their
    /// number. The root's owner calls this from time to time.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or does not answer. The next call finds the
    /// remaining fences.
    pub(crate) async fn sweep_fences(&self) -> Result<usize, SweepError> {
        let Some(directory) = self.directory() else {
            return Ok(0);
        };
        let mut request = Some(RangeRequest {
            limit: PAGE,
            ..RangeRequest::prefix(Bytes::from_static(FENCES.as_bytes()))
        });
        let mut swept = 0;
        while let Some(page) = request {
            let reply = self.store().range(page.clone()).await?;
            request = page.next_page(&reply);
            let deleted: Vec<&KeyValue> =
                reply.items.iter().filter(|item| is_deleted(item)).collect();
            if deleted.is_empty() {
                continue;
            }
            // A fence stays while the plane's record exists: until then only the fence prevents
            // that the plane is acquired again.
            let deadline = Instant::now() + CATCH_UP;
            if !directory.reach(reply.revision, deadline).await || !directory.is_whole() {
                return Err(SweepError::DirectoryBehind);
            }
            for fence in deleted {
                let id = plane_of(&fence.key);
                if directory.by_id(&id).is_none() && self.remove_fence(fence).await? {
                    tracing::info!(
                        plane = id,
                        "removed the fence that a deleted plane had left"
                    );
                    swept += 1;
                }
            }
        }
        Ok(swept)
    }

    async fn remove_fence(&self, fence: &KeyValue) -> Result<bool, CommitError> {
        let key = fence.key.clone();
        let txn = Txn {
            compares: vec![Compare::Unchanged {
                key: key.clone(),
                revision: fence.modified,
            }],
            ops: vec![Op::Delete { key }],
        };
        match self.store().commit(txn).await {
            Ok(_) => Ok(true),
            Err(CommitError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn is_deleted(item: &KeyValue) -> bool {
    let fence = decode_fence(&item.key, &item.value);
    fence.is_ok_and(|fence| fence.state == FenceState::Deleted)
}

/// The reason why not all left fences were removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    /// The fences cannot be read.
    #[error("cannot read the fences")]
    Read(#[from] ReadError),
    /// A fence cannot be removed.
    #[error("cannot remove a fence")]
    Commit(#[from] CommitError),
    /// The directory has not reached the read's revision, so it is not certain which planes exist.
    #[error("the directory of control planes is behind or not whole")]
    DirectoryBehind,
}
