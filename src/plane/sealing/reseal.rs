//! Writing stale records again: after another data key, after another policy, and of planes from before
//! encryption was switched on. Unchanged objects get new versions by that, as from any write.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::key::Key;
use crate::plane::Plane;
use crate::sealing::plane_keys::PlaneKeys;
use crate::state::claim::Claim;
use crate::write::prepared_write::{Operation, SubmitError, Write};
use crate::write::sequencer::QueuedWrite;

/// How long one write of the sweep waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a sweep has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Records that were written again.
    pub written: usize,
    /// Records that are still stale.
    pub stale: usize,
}

impl Plane {
    /// Returns whether the stored record of an object is not sealed as it would be written now. Even
    /// a write that changes nothing else then stores the object again.
    #[must_use]
    pub fn is_stale_at_rest(&self, key: &Key) -> bool {
        self.data_keys().is_some_and(|keys| keys.has_stale(key))
    }

    /// Returns the number of records that are not sealed as they would be written now.
    #[must_use]
    pub fn stale_at_rest(&self) -> usize {
        self.data_keys().map_or(0, PlaneKeys::stale_records)
    }

    /// Returns whether [`Self::reseal`] with this generation has work left. False if its last call has
    /// failed, so that a plane whose records nobody can write is not awake for ever.
    #[must_use]
    pub fn is_resealing(&self, generation: u32) -> bool {
        self.data_keys()
            .is_some_and(|keys| keys.is_resealing(generation))
    }

    /// Brings the plane's data key to a generation, and writes up to `limit` stale records again. Does
    /// nothing before sealing has begun. One periodic task calls this for all awake planes.
    ///
    /// # Errors
    /// Returns the error of a write. The next call goes on.
    pub async fn reseal(
        self: &Arc<Self>,
        generation: u32,
        limit: usize,
    ) -> Result<Resealed, SubmitError> {
        let Some(keys) = self.data_keys() else {
            return Ok(Resealed::default());
        };
        if !keys.sealing().has_begun() {
            return Ok(Resealed::default());
        }
        let resealed = self.reseal_some(keys, generation, limit).await;
        keys.note_stuck(resealed.is_err());
        resealed
    }

    async fn reseal_some(
        self: &Arc<Self>,
        keys: &PlaneKeys,
        generation: u32,
        limit: usize,
    ) -> Result<Resealed, SubmitError> {
        let deadline = Instant::now() + PATIENCE;
        let writes = keys.some_stale(limit).into_iter();
        let writes = writes.filter_map(|key| self.same_again(keys, key, deadline));
        let written = join_all(writes.map(|write| self.submit(write))).await;
        let mut resealed = Resealed::default();
        for result in written {
            match result {
                Ok(_) => resealed.written += 1,
                // Somebody else has written the object, which seals it too.
                Err(SubmitError::ClaimFailed(_) | SubmitError::Withdrawn) => {}
                Err(error) => return Err(error),
            }
        }
        if keys.refresh(generation, &self.published()) {
            self.put_data_keys(deadline).await?;
        }
        resealed.stale = keys.stale_records();
        Ok(resealed)
    }

    /// Returns a write that stores an object again; `None` if it has no record of its own.
    fn same_again(&self, keys: &PlaneKeys, key: Key, deadline: Instant) -> Option<Write> {
        let published = self.published();
        let entry = published.resources.get(&key);
        let is_external = self.external().is_some_and(|prefix| prefix.contains(&key));
        let source = entry.filter(|_| !is_external);
        let source = source.map(|entry| published.object(entry).source());
        match (entry, source) {
            (Some(entry), Some(Some((_, object)))) => Some(Write {
                claims: vec![Claim::At(key.clone(), entry.stamp())],
                operations: vec![Operation::Put { key, object }],
                deadline: Some(deadline),
            }),
            _ => {
                keys.forget_stale(&key);
                None
            }
        }
    }

    /// Commits the record of the data keys alone.
    async fn put_data_keys(self: &Arc<Self>, deadline: Instant) -> Result<(), SubmitError> {
        let Some(record) = self.data_keys().and_then(|keys| keys.for_part()?.record()) else {
            return Ok(());
        };
        let (reply, answer) = oneshot::channel();
        let queued = QueuedWrite::new(Vec::new(), record.len(), reply);
        let done = self.enqueue(queued, &[], answer, Some(deadline)).await;
        done.map(drop)
    }
}
