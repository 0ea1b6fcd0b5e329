//! The issuers of the planes' service account tokens, whose keys derive from the root secret. This
//! module does not know objects or requests.

use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_auth::jws::SigningKey;
use polyplane_auth::service_account::authenticator::AccountTokens;
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::service_account::verdicts::VerdictCache;
use polyplane_auth::service_account::{TokenFault, VerifiedToken};
use polyplane_auth::{KeyGeneration, Purpose, RootSecret};
use polyplane_ownership::Planes;
use polyplane_registry::TokenIssuers;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The floor of a shared store from which on tokens are issued. A replica of a lower level would
/// refuse them.
const ISSUED_FROM_LEVEL: u32 = 4;
/// Issuers that are kept. Beyond that those that no plane uses at the moment are made again, which
/// takes a tenth of a millisecond.
const ISSUERS_MAX: usize = 4096;

/// The issuers of all planes.
pub struct PlaneTokens {
    secret: Arc<RootSecret>,
    /// The URLs under which clients reach the server; the first one stands in new tokens.
    bases: Vec<Str>,
    issuers: Mutex<HashMap<Str, Arc<TokenIssuer>>>,
    verdicts: Arc<VerdictCache>,
    planes: Weak<Planes>,
}

impl PlaneTokens {
    /// Creates the issuers for a server that clients reach under `bases`.
    pub fn new(secret: Arc<RootSecret>, bases: Vec<Str>, planes: &Arc<Planes>) -> Self {
        Self {
            secret,
            bases,
            issuers: Mutex::default(),
            verdicts: Arc::default(),
            planes: Arc::downgrade(planes),
        }
    }

    /// Returns the issuer of the plane with this id.
    pub fn of_plane(&self, plane: &str) -> Arc<TokenIssuer> {
        if let Some(known) = self.issuers.lock().get(plane) {
            return Arc::clone(known);
        }
        // Without the lock: several callers may make the same issuer at once.
        let key = self.secret.derive(Purpose::Token, plane, KeyGeneration(0));
        let key = key.p256();
        let signing = SigningKey::new(key.signer(), key.point());
        let signing = signing.expect("the point of a derived key is on the curve");
        let issuer = Arc::new(TokenIssuer::new(plane, &self.bases, signing, Vec::new()));
        let mut issuers = self.issuers.lock();
        if issuers.len() >= ISSUERS_MAX {
            issuers.retain(|_, issuer| Arc::strong_count(issuer) > 1);
        }
        if issuers.len() < ISSUERS_MAX {
            issuers.insert(plane.into(), Arc::clone(&issuer));
        }
        issuer
    }

    /// Returns the authenticator of a plane's tokens.
    pub fn authenticator(&self, plane: &str) -> AccountTokens {
        AccountTokens::new(self.of_plane(plane), Arc::clone(&self.verdicts))
    }
}

impl TokenIssuers for PlaneTokens {
    fn issuer(&self, plane: &str) -> Option<Arc<TokenIssuer>> {
        let planes = self.planes.upgrade()?;
        // No replica of an earlier release can be beside the one that has an embedded store.
        let is_alone = planes.store().opened_at().is_some();
        let may_issue = is_alone || planes.floor().level >= ISSUED_FROM_LEVEL;
        may_issue.then(|| self.of_plane(plane))
    }

    fn verify(&self, issuer: &TokenIssuer, token: &str) -> Result<Arc<VerifiedToken>, TokenFault> {
        self.verdicts.verify(issuer, token)
    }
}
