//! Bounds the proofs that wait: for the owner of a plane, or for a plane that wakes.
//!
//! Unproven work takes turns in the [doorway](super::doorway), but who waits there for something else holds
//! no place, so the number of those is bounded here: for each plane, and for all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use polyplane_apimachinery::Str;

/// Proofs of one plane that wait at a time. With more, strangers at one plane could keep the clients of
/// others out; with fewer, nodes that join at once would have to try again.
const OF_PLANE_MAX: usize = 64;
/// Proofs of all planes that wait at a time. With more, strangers could fill memory and the links to peers.
const ALL_MAX: usize = 1024;

/// The proofs that wait.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    /// By the ids of planes, without those for which none waits.
    of_plane: HashMap<Str, usize>,
}

/// A proof that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingProof {
    proofs: Arc<Proofs>,
    plane: Str,
}

impl Proofs {
    /// Counts a proof for a plane; returns `None` if too many wait.
    pub(crate) fn begin(self: &Arc<Self>, plane: &str) -> Option<WaitingProof> {
        let mut waiting = self.0.lock();
        let of_plane = waiting.of_plane.get(plane).copied().unwrap_or_default();
        if waiting.all >= ALL_MAX || of_plane >= OF_PLANE_MAX {
            return None;
        }
        waiting.all += 1;
        waiting.of_plane.insert(plane.into(), of_plane + 1);
        drop(waiting);
        Some(WaitingProof {
            proofs: Arc::clone(self),
            plane: plane.into(),
        })
    }

    /// Returns how many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().all
    }
}

impl Drop for WaitingProof {
    fn drop(&mut self) {
        let mut waiting = self.proofs.0.lock();
        waiting.all -= 1;
        if let Some(count) = waiting.of_plane.get_mut(&self.plane) {
            *count -= 1;
            if *count == 0 {
                waiting.of_plane.remove(&self.plane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_that_wait_are_bounded_for_a_plane_and_for_all_and_leave_nothing_behind() {
        let proofs = Arc::<Proofs>::default();
        let of_one = Vec::from_iter((0..OF_PLANE_MAX + 5).filter_map(|_| proofs.begin("one")));
        assert_eq!(of_one.len(), OF_PLANE_MAX);
        let others = (0..ALL_MAX).filter_map(|number| proofs.begin(&format!("plane-{number}")));
        let others = Vec::from_iter(others);
        assert_eq!(of_one.len() + others.len(), ALL_MAX);
        drop(of_one);
        assert!(proofs.begin("one").is_some());
        drop(others);
        assert_eq!(proofs.waiting(), 0);
        assert!(proofs.0.lock().of_plane.is_empty());
    }
}
