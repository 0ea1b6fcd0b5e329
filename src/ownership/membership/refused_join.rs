//! A join that the store does not accept: it grants no lease, or refuses the member key, as a full one
//! does. Owns what the log, `/readyz` and clients of the replica learn of that meanwhile. Must not decide
//! whether the replica tries again.

use crate::log_limit::LogLimit;
use crate::membership::state::RingState;
use polyplane_apimachinery::error_chain;
use polyplane_storage::{CommitError, Committed, Health, Store};
use std::error::Error;
use std::sync::Arc;

/// The reports about one join. Once this is dropped, the store is no reason for not joining.
pub(crate) struct RefusedJoin {
    shared: Arc<RingState>,
    limit: LogLimit,
}

impl RefusedJoin {
    /// Returns the reports about a join that begins.
    pub(crate) fn new(shared: &Arc<RingState>) -> Self {
        Self {
            shared: Arc::clone(shared),
            limit: LogLimit::default(),
        }
    }

    /// Reports the store's reply to a transaction of the join.
    pub(crate) fn note_reply(&mut self, reply: &Result<Committed, CommitError>) {
        match reply {
            // A refusal says that a fact has changed since it was read: the store does accept writes.
            Ok(_) | Err(CommitError::Refused { .. }) => self.shared.contact.hold_back(None),
            Err(
                error @ (CommitError::Rejected(_)
                | CommitError::Undisclosed(..)
                | CommitError::Unknown(_)),
            ) => self.note(error),
        }
    }

    /// Reports why a step of the join failed.
    pub(crate) fn note(&mut self, error: &dyn Error) {
        let why = why_refused(&*self.shared.store, error);
        if self.limit.is_due(self.shared.now()) {
            tracing::warn!("{why}");
        }
        self.shared.contact.hold_back(Some(why));
    }
}

impl Drop for RefusedJoin {
    fn drop(&mut self) {
        self.shared.contact.hold_back(None);
    }
}

/// Returns why the store keeps this replica from joining, and what to do if the engine knows.
fn why_refused(store: &dyn Store, error: &dyn Error) -> String {
    let cause = match store.health() {
        Health::ReadOnly { reason } => format!("its store takes no writes: {reason}"),
        Health::Failed { reason } => format!("its store does not answer: {reason}"),
        Health::Ok => format!(
            "its store did not accept its member key: {}",
            error_chain(error)
        ),
    };
    let remedy = store.remedy();
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    format!("this replica does not join the ring, because {cause}{remedy}")
}
