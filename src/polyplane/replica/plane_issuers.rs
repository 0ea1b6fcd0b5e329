//! The issuers of OpenID Connect that planes name. This module does not know how tokens are judged.

use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_auth::{Authenticator, Revocation};
use polyplane_batteries::polyplane::authentication;
use polyplane_delegated::oidc::{KnownIssuers, PlaneIssuers};
use polyplane_outbound::Caller;
use std::collections::HashMap;
use std::sync::Arc;

/// Planes whose issuers are kept with their keys although only the limits or grants of the plane have
/// changed. Beyond that those that no located plane uses have their keys looked up again.
const KEPT_MAX: usize = 1024;

/// The issuers of all planes.
pub struct AllPlaneIssuers {
    caller: Arc<Caller>,
    kept: Mutex<HashMap<Str, Kept>>,
}

struct Kept {
    /// The field of the plane's record.
    says: Box<[u8]>,
    known: Arc<KnownIssuers>,
}

impl AllPlaneIssuers {
    /// Creates the issuers, whose servers are called by `caller`.
    pub fn new(caller: Arc<Caller>) -> Self {
        Self {
            caller,
            kept: Mutex::default(),
        }
    }

    /// Returns the authenticator for the tokens of the issuers that the record of a plane names; `None` if
    /// it names none.
    pub fn of_plane(
        &self,
        plane: &str,
        record: &[u8],
        revoked: &[Revocation],
    ) -> Option<Arc<dyn Authenticator>> {
        let known = self.known(plane, authentication::raw(record))?;
        let issuers = PlaneIssuers::new(known, revoked.to_vec(), authentication::reserved);
        Some(Arc::new(issuers))
    }

    fn known(&self, plane: &str, says: Option<&[u8]>) -> Option<Arc<KnownIssuers>> {
        let Some(says) = says else {
            self.kept.lock().remove(plane);
            return None;
        };
        if let Some(kept) = self.kept.lock().get(plane)
            && *kept.says == *says
        {
            return Some(Arc::clone(&kept.known));
        }
        let config = authentication::read(says)?;
        // Places and circuits are the plane's own.
        let made = KnownIssuers::new(config, &self.caller.of_plane());
        let known = match made {
            Ok(known) => Arc::new(known),
            Err(error) => {
                tracing::error!(
                    plane,
                    "the issuers of a control plane cannot be used: {error}"
                );
                return None;
            }
        };
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, kept| Arc::strong_count(&kept.known) > 1);
        }
        if kept.len() < KEPT_MAX {
            let entry = Kept {
                says: says.into(),
                known: Arc::clone(&known),
            };
            kept.insert(plane.into(), entry);
        }
        Some(known)
    }
}
