//! The wait until a replica is a member of the ring. Must not decide what it waits for.

use crate::replica::CANNOT_JOIN;
use crate::store::wait::StoreWait;
use anyhow::Context;
use polyplane_ownership::Ring;

/// Joins the ring. `wait` has the reason meanwhile, if other members and this replica do not trust each
/// other, its own certificate is not valid, another replica answers at its advertised address, or the store
/// does not accept its member key.
///
/// # Errors
/// Returns an error if the replica may not join.
pub async fn join(ring: &Ring, wait: Option<&StoreWait>) -> anyhow::Result<()> {
    let mut problems = ring.join_problems();
    let mut joining = std::pin::pin!(ring.join());
    loop {
        let problem = problems.borrow_and_update().clone();
        if let Some(wait) = wait {
            wait.record_join_problem(problem);
        }
        tokio::select! {
            // First: who has joined is held back no longer.
            biased;
            joined = &mut joining => return joined.context(CANNOT_JOIN),
            // An error is impossible, because the ring has the sender.
            changed = problems.changed() => drop(changed),
        }
    }
}
