//! What reconcilers need to know about planes and cannot find in a plane itself.

use crate::replica::plane_directory::PlaneDirectory;
use crate::replica::root_secret::SharedSecret;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::Purpose;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_batteries::polyplane::controllers::Controllers;
use polyplane_controllers::PlaneInfo;
use polyplane_ownership::{Birth, ROOT};
use polyplane_pki::PlaneCa;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Answers from the directory and the root secret.
pub struct DirectoryInfo {
    directory: Arc<PlaneDirectory>,
    secret: Arc<SharedSecret>,
}

impl DirectoryInfo {
    /// Creates it.
    pub fn new(directory: &Arc<PlaneDirectory>, secret: &Arc<SharedSecret>) -> Self {
        Self {
            directory: Arc::clone(directory),
            secret: Arc::clone(secret),
        }
    }

    fn access(&self, id: &str) -> PlaneAccessSpec {
        let entry = self.directory.rows.by_id(id);
        PlaneAccessSpec::read(entry.as_ref().map_or(&[], |entry| &entry.access))
    }
}

impl PlaneInfo for DirectoryInfo {
    fn birth(&self, name: &str) -> Option<Birth> {
        let entry = self.directory.rows.named(name)?;
        Some(self.directory.birth(&entry))
    }

    fn controllers(&self, id: &str) -> Controllers {
        self.directory.controllers(id)
    }

    /// The clients of the root are those of the server's CA, which also signs what the server shows
    /// to all planes. So it signs nothing that a client requests.
    fn signing_ca(&self, id: &str, purpose: Purpose) -> Result<Option<PlaneCa>, ApiError> {
        if id == ROOT || self.secret.secret().is_none() {
            return Ok(None);
        }
        let Some(secret) = self.secret.to_issue() else {
            let why = "the ring issues no certificates yet, because replicas of an earlier release may still join it";
            return Err(ApiError::service_unavailable(why));
        };
        let generation = self.access(id).generation;
        Ok(Some(PlaneCa::derive(secret, purpose, id, generation)))
    }

    fn revoked_before(&self, id: &str, user: &str) -> Option<SystemTime> {
        let before = self.access(id).record.revoked_before(user)?;
        let since = Duration::from_secs(u64::try_from(before).ok()?);
        Some(SystemTime::UNIX_EPOCH + since)
    }
}
