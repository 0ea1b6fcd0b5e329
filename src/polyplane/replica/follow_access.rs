//! Follows changes of who may use planes: what was open before such a change must not outlive it.

use crate::replica::backend::BackendState;
use polyplane_apimachinery::Str;
use polyplane_server::WatchGuard;
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The changes of the directory that a replica follows, and what it does about them.
pub struct FollowAccess {
    shared: Arc<BackendState>,
    changes: Receiver<Str>,
    watches: WatchGuard,
}

impl FollowAccess {
    /// Takes note of all changes from now on.
    pub fn new(shared: &Arc<BackendState>, watches: WatchGuard) -> Self {
        Self {
            shared: Arc::clone(shared),
            changes: shared.directory.rows.access_changes(),
            watches,
        }
    }

    /// Ends the watches of those whose access is taken away, lets awake planes show new keys, and puts
    /// suspended ones to sleep, until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        // Beside this task, because a plane's commits in flight may take seconds to settle.
        let mut falling_asleep = JoinSet::new();
        loop {
            while falling_asleep.try_join_next().is_some() {}
            let changed = tokio::select! {
                // First: a stopping replica ends all watches anyway.
                biased;
                () = stop.cancelled() => return,
                changed = self.changes.recv() => changed,
            };
            let changed = match changed {
                Ok(id) => Some(id),
                Err(RecvError::Lagged(_)) => None,
                Err(RecvError::Closed) => return,
            };
            self.watches.access_changed(changed.as_deref()).await;
            let directory = &self.shared.directory;
            let planes = &directory.planes;
            let awake = planes.all_awake();
            let concerned = |id: &str| changed.as_deref().is_none_or(|changed| changed == id);
            for plane in awake.iter().filter(|plane| concerned(plane.id())) {
                if planes.is_suspended(plane.id()) {
                    let (planes, id) = (Arc::clone(planes), plane.id().to_owned());
                    falling_asleep.spawn(async move { planes.suspend(&id).await });
                }
            }
            let awake = match &changed {
                Some(id) => Vec::from_iter(directory.tenant_awake(id)),
                None => directory.tenants_awake(),
            };
            for tenant in awake {
                self.shared.reconcilers.keys_changed(&tenant);
            }
        }
    }
}
