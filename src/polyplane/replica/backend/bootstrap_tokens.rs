//! Finds the users whom bootstrap tokens prove in planes that this replica owns.

use super::{BackendState, TenantApi};
use crate::replica::plane_directory::LocatedPlane;
use polyplane_auth::{BootstrapToken, Credentials, UserInfo};
use polyplane_ownership::ROOT;
use polyplane_plane::NotAnswerable;
use polyplane_registry::tokens::{Bootstrapper, bootstrapper};
use polyplane_server::{LocateError, NotJudged};
use std::sync::Arc;
use tokio::time::Instant;

impl BackendState {
    /// Returns the user whom a bootstrap token proves in the newest state of a plane; `None` if it proves
    /// nobody.
    ///
    /// # Errors
    /// Returns the reason why the plane cannot be read until the deadline.
    pub(super) async fn user_of_bootstrap_token(
        self: &Arc<Self>,
        located: &LocatedPlane,
        token: &BootstrapToken,
        credentials: &Credentials<'_>,
        deadline: Instant,
    ) -> Result<Option<Arc<UserInfo>>, NotJudged> {
        let late = |_| NotJudged::Plane(LocateError::Unavailable);
        let waking = self.awake_for_stranger(located, credentials.source);
        let waking = tokio::time::timeout_at(deadline, waking);
        let api = waking.await.map_err(late)??;
        let plane = &api.tenant.plane;
        plane.answerable(deadline).await.map_err(|why| {
            NotJudged::Plane(match why {
                NotAnswerable::Lost => LocateError::Moved(None),
                NotAnswerable::Deadline => LocateError::Unavailable,
            })
        })?;
        let found = bootstrapper(&plane.snapshot(), token, credentials.now);
        let found = found.and_then(|found| match self.is_revoked(located, &found) {
            true => Err("it was revoked"),
            false => Ok(found.user),
        });
        if let Err(why) = &found {
            tracing::debug!(plane = %located.name, "a bootstrap token proves nobody: {why}");
        }
        Ok(found.ok())
    }

    /// Returns the plane, which is woken if few have been woken for such callers. A wrong token does not keep
    /// it awake: the right one is followed by a request.
    async fn awake_for_stranger(
        self: &Arc<Self>,
        located: &LocatedPlane,
        source: usize,
    ) -> Result<Arc<TenantApi>, NotJudged> {
        if let Some(api) = located.awake_unused(&self.directory) {
            return Ok(api);
        }
        let _turn = located.unproven_wakes.turn().await;
        if let Some(api) = located.awake_unused(&self.directory) {
            return Ok(api);
        }
        if !self.unproven_wakes.take(source, &located.unproven_wakes) {
            return Err(NotJudged::TooManyWakes);
        }
        self.wake(located).await.map_err(NotJudged::Plane)
    }

    /// Returns whether the credentials that a user got when the Secret was made have been revoked.
    fn is_revoked(&self, located: &LocatedPlane, found: &Bootstrapper) -> bool {
        if located.birth.id == ROOT {
            return false;
        }
        let record = located.access(&self.access).record();
        let before = record.revoked_before(&found.user.name);
        // The second itself too: a Secret that was made just before would live on.
        before.is_some_and(|before| found.since <= before)
    }
}
