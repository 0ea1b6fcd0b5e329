//! The issuers of the planes' service account tokens, whose keys derive from the root secret. This
//! module does not know objects or requests.

use crate::replica::access::accepted;
use crate::replica::plane_directory::PlaneDirectory;
use crate::replica::root_secret::SharedSecret;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_auth::jws::{SigningKey, VerifyingKey};
use polyplane_auth::service_account::authenticator::AccountTokens;
use polyplane_auth::service_account::issuer::{FormerKey, TokenIssuer};
use polyplane_auth::service_account::verdicts::VerdictCache;
use polyplane_auth::service_account::{TokenFault, VerifiedToken};
use polyplane_auth::{KeyGeneration, Purpose, Revocation, RootSecret};
use polyplane_batteries::bootstrap::ACCESS_LEVEL;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_ownership::Planes;
use polyplane_registry::TokenIssuers;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Issuers that are kept. Beyond that those that no plane uses at the moment are made again, which
/// takes a tenth of a millisecond.
const ISSUERS_MAX: usize = 4096;

/// The generations of a plane's token keys, and the tokens that ended all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedKeys {
    /// The one that signs.
    pub signing: KeyGeneration,
    /// Earlier ones, each with the time until which its tokens are accepted.
    pub former: Vec<(KeyGeneration, SystemTime)>,
    /// The tokens of accounts that ended early.
    pub revoked: Vec<Revocation>,
}

/// Returns the generations of the token keys of the plane with this id, as its record says now.
pub type AcceptedKeysOf = Box<dyn Fn(&str) -> AcceptedKeys + Send + Sync>;

struct KnownIssuer {
    accepted: AcceptedKeys,
    issuer: Arc<TokenIssuer>,
}

/// The issuers of all planes.
pub struct PlaneTokens {
    secret: Arc<RootSecret>,
    /// The URLs under which clients reach the server; the first one stands in new tokens.
    bases: Vec<Str>,
    accepted: AcceptedKeysOf,
    issuers: Mutex<HashMap<Str, KnownIssuer>>,
    verdicts: Arc<VerdictCache>,
    planes: Weak<Planes>,
}

impl PlaneTokens {
    /// Creates the issuers for a server that clients reach under `bases`.
    pub fn new(
        secret: Arc<RootSecret>,
        bases: Vec<Str>,
        accepted: AcceptedKeysOf,
        planes: &Arc<Planes>,
    ) -> Self {
        Self {
            secret,
            bases,
            accepted,
            issuers: Mutex::default(),
            verdicts: Arc::default(),
            planes: Arc::downgrade(planes),
        }
    }

    /// Returns the issuer of the plane with this id, with the keys that the plane accepts now.
    pub fn of_plane(&self, plane: &str) -> Arc<TokenIssuer> {
        let accepted = (self.accepted)(plane);
        if let Some(known) = self.issuers.lock().get(plane)
            && known.accepted == accepted
        {
            return Arc::clone(&known.issuer);
        }
        // Without the lock: several callers may make the same issuer at once.
        let issuer = Arc::new(self.make(plane, &accepted));
        let mut issuers = self.issuers.lock();
        if issuers.len() >= ISSUERS_MAX {
            issuers.retain(|_, known| Arc::strong_count(&known.issuer) > 1);
        }
        if issuers.len() < ISSUERS_MAX {
            let issuer = Arc::clone(&issuer);
            issuers.insert(plane.into(), KnownIssuer { accepted, issuer });
        }
        issuer
    }

    fn make(&self, plane: &str, accepted: &AcceptedKeys) -> TokenIssuer {
        let key = |generation| self.secret.derive(Purpose::Token, plane, generation).p256();
        let sound = "the point of a derived key is on the curve";
        let signing = key(accepted.signing);
        let signing = SigningKey::new(signing.signer(), signing.point()).expect(sound);
        let former = accepted.former.iter().map(|(generation, until)| FormerKey {
            key: VerifyingKey::es256(key(*generation).point()).expect(sound),
            until: *until,
        });
        TokenIssuer::new(plane, &self.bases, signing, former.collect())
            .revoking(accepted.revoked.clone())
    }

    /// Returns the authenticator of a plane's tokens.
    pub fn authenticator(&self, plane: &str) -> AccountTokens {
        AccountTokens::new(self.of_plane(plane), Arc::clone(&self.verdicts))
    }
}

/// Returns the issuers of the planes' tokens, if this replica has the root secret.
pub fn plane_tokens(
    secret: &SharedSecret,
    endpoint: &str,
    directory: &PlaneDirectory,
) -> Option<Arc<PlaneTokens>> {
    let base = format!("https://{endpoint}").into();
    let secret = secret.secret().cloned()?;
    let rows = Arc::clone(&directory.rows);
    let accepted = Box::new(move |id: &str| {
        let entry = rows.by_id(id);
        let spec = PlaneAccessSpec::read(entry.as_ref().map_or(&[], |entry| &entry.access));
        let all = accepted(&spec).into_iter();
        AcceptedKeys {
            signing: spec.generation,
            former: all
                .filter_map(|(generation, until)| Some((generation, until?)))
                .collect(),
            revoked: spec.record.revoked,
        }
    });
    let tokens = PlaneTokens::new(secret, vec![base], accepted, &directory.planes);
    Some(Arc::new(tokens))
}

impl TokenIssuers for PlaneTokens {
    fn issuer(&self, plane: &str) -> Option<Arc<TokenIssuer>> {
        let planes = self.planes.upgrade()?;
        // No replica of an earlier release can be beside the one that has an embedded store.
        let is_alone = planes.store().opened_at().is_some();
        let may_issue = is_alone || planes.floor().level >= ACCESS_LEVEL;
        may_issue.then(|| self.of_plane(plane))
    }

    fn verify(&self, issuer: &TokenIssuer, token: &str) -> Result<Arc<VerifiedToken>, TokenFault> {
        self.verdicts.verify(issuer, token)
    }
}
