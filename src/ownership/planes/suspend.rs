//! Suspended planes: nothing wakes them, and those that are awake go to sleep at once, used or not.
//!
//! The directory says which planes are suspended. A replica whose directory is behind may still wake
//! one; it puts the plane to sleep again when the row arrives.

use crate::planes::Planes;
use polyplane_plane::Ended;

impl Planes {
    /// Returns whether a plane is suspended, as far as this replica knows. One that is being deleted
    /// is not.
    #[must_use]
    pub fn is_suspended(&self, id: &str) -> bool {
        let entry = self.directory().and_then(|rows| rows.by_id(id));
        entry.is_some_and(|entry| entry.suspended && !entry.deleting)
    }

    /// Puts a suspended plane to sleep if it is awake here, once its commits in flight are settled.
    /// If the store refuses that, [`Self::sweep`] repeats it.
    ///
    /// # Cancel safety
    /// A release that is dropped is repeated by [`Self::sweep`].
    pub async fn suspend(&self, id: &str) {
        let Some(slot) = self.known(id) else {
            return;
        };
        let busy = slot.busy().await;
        if !slot.fence.holds() || !self.is_suspended(id) {
            return;
        }
        // As if it had moved: who still waits for the plane is proven again, and refused.
        let slept = self.release_many(vec![(slot, busy)], Ended::Moved).await;
        self.metrics().released(slept);
        tracing::info!(plane = id, slept, "a suspended control plane goes to sleep");
    }
}
