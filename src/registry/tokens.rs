//! Service account tokens where objects are read: whether what a token rests on still lives, and the
//! tokens that a plane accepts.
//!
//! A verified token (see [`polyplane_auth::service_account`]) says that the plane has signed it. It
//! proves its account only while the account, and the pod, Secret or node that it is bound to, exist.
//! That is decided in the state that a request reads or writes against, like its roles, so a token is
//! refused by the first request after a deletion was acknowledged, at every replica. So is a bootstrap
//! token, which is nothing but its Secret.

mod bootstrap;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::json::scan::{self, Scanned};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, status::ApiError};
use polyplane_auth::digest_of;
use polyplane_auth::service_account::claims::{Binding, ObjectClaim};
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::service_account::{LEEWAY, TokenFault, VerifiedToken};
use polyplane_plane::{Flags, Key, Snapshot};

pub use bootstrap::{Bootstrapper, bootstrapper};

/// The type of a Secret that holds a token.
pub const TOKEN_SECRET: &str = "kubernetes.io/service-account-token";
/// The label of a Secret whose token is not accepted any more, though it is still there.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Gives planes the issuers of their tokens.
pub trait TokenIssuers: Send + Sync {
    /// Returns the issuer of the plane with this id; `None` if the plane has none, because there is no
    /// root secret, or because replicas of an earlier release are in the ring.
    fn issuer(&self, plane: &str) -> Option<Arc<TokenIssuer>>;

    /// Verifies form, signature and issuer of a token, as [`TokenIssuer::verify`] does. It may
    /// remember the verdict.
    ///
    /// # Errors
    /// Returns an error if the token is not one of the issuer's plane.
    fn verify(&self, issuer: &TokenIssuer, token: &str) -> Result<Arc<VerifiedToken>, TokenFault>;
}

/// The error of a request that needs the issuer of a plane that has none.
pub(crate) fn no_issuer() -> ApiError {
    ApiError::service_unavailable(
        "this control plane issues no tokens: the server has no root secret, or some of its replicas are of an earlier release",
    )
}

/// Checks that the objects that a token rests on exist in a state, as of `now`.
///
/// # Errors
/// Returns an error with upstream's text if one of them is gone, was deleted more than a minute ago,
/// or is another one of the same name.
pub fn check_live(
    cut: &Snapshot,
    token: &VerifiedToken,
    now: SystemTime,
) -> Result<(), TokenFault> {
    let claims = &token.claims;
    let namespace = claims.namespace.as_str();
    if let Binding::HeldBy(secret) = &claims.binding {
        check_held(cut, token, secret)?;
    }
    let (name, uid) = (&claims.account.name, &claims.account.uid);
    let account = Found::get(cut, "serviceaccounts", Some(namespace), name);
    let account = account.ok_or_else(|| {
        let error = format!("serviceaccounts \"{name}\" not found");
        TokenFault::Invalidated(error)
    })?;
    let known = account.uid();
    if known != *uid {
        let error = match claims.binding {
            Binding::HeldBy(_) => {
                format!("ServiceAccount UID ({known}) does not match claim ({uid})")
            }
            _ => format!("service account UID ({known}) does not match claim ({uid})"),
        };
        return Err(TokenFault::Invalidated(error));
    }
    let is_gone = match claims.binding {
        // Such a token has no grace: upstream's check knows none.
        Binding::HeldBy(_) => account.is_deleting,
        _ => account.is_gone(now),
    };
    if is_gone {
        let error = format!("service account {namespace}/{name} has been deleted");
        return Err(TokenFault::Invalidated(error));
    }
    match &claims.binding {
        Binding::Account | Binding::HeldBy(_) => Ok(()),
        Binding::Pod { pod, .. } => check_bound(cut, "pods", Some(namespace), pod, now),
        Binding::Secret(secret) => check_bound(cut, "secrets", Some(namespace), secret, now),
        Binding::Node(node) => check_bound(cut, "nodes", None, node, now),
    }
}

fn check_bound(
    cut: &Snapshot,
    resource: &str,
    namespace: Option<&str>,
    claim: &ObjectClaim,
    now: SystemTime,
) -> Result<(), TokenFault> {
    let invalidated =
        || TokenFault::Invalidated("service account token has been invalidated".into());
    let found = Found::get(cut, resource, namespace, &claim.name).ok_or_else(invalidated)?;
    let known = found.uid();
    if known != claim.uid {
        let (kind, uid) = (resource.trim_end_matches('s'), &claim.uid);
        let error =
            format!("{kind} UID ({known}) does not match service account {kind} ref claim ({uid})");
        return Err(TokenFault::Invalidated(error));
    }
    if found.is_gone(now) {
        return Err(invalidated());
    }
    Ok(())
}

/// Checks that a Secret still holds a token.
fn check_held(cut: &Snapshot, token: &VerifiedToken, name: &str) -> Result<(), TokenFault> {
    let invalidated = |text: &str| Err(TokenFault::Invalidated(text.to_owned()));
    let namespace = token.claims.namespace.as_str();
    let Some(secret) = Found::get(cut, "secrets", Some(namespace), name) else {
        return invalidated("Token has been invalidated");
    };
    if secret.is_deleting {
        return invalidated("Token has been invalidated");
    }
    let body = Scanned(&secret.body);
    let held = BASE64_STANDARD.decode(&*body.str_at(&["data", "token"]));
    let held = held.ok().and_then(|held| String::from_utf8(held).ok());
    // Digests, so that the time says nothing about how much of a token was right.
    let holds = held.is_some_and(|held| digest_of(&held) == token.digest);
    if !holds {
        return invalidated("Token does not match server's copy");
    }
    if !body
        .str_at(&["metadata", "labels", INVALID_SINCE])
        .is_empty()
    {
        let account = &token.claims.account.name;
        let error = format!(
            "the token in secret {namespace}/{name} for service account {namespace}/{account} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
        );
        return Err(TokenFault::Invalidated(error));
    }
    Ok(())
}

/// An object that a token rests on.
struct Found {
    body: bytes::Bytes,
    is_deleting: bool,
}

impl Found {
    fn get(cut: &Snapshot, resource: &str, namespace: Option<&str>, name: &str) -> Option<Self> {
        let object = cut.get(&Key::new("", resource, namespace, name))?;
        Some(Self {
            is_deleting: object.flags().has(Flags::DELETING),
            body: object.body(),
        })
    }

    fn uid(&self) -> Str {
        let uid = scan::string_at(&self.body, &["metadata", "uid"]);
        uid.map(Str::from).unwrap_or_default()
    }

    /// Returns whether the object was deleted longer ago than clocks may differ.
    fn is_gone(&self, now: SystemTime) -> bool {
        if !self.is_deleting {
            return false;
        }
        let deleted = scan::string_at(&self.body, &["metadata", "deletionTimestamp"]);
        let deleted = deleted.and_then(|time| Timestamp::parse(&time).ok());
        let Some(deleted) = deleted else {
            return true;
        };
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let earliest = now.saturating_sub(LEEWAY);
        let deleted = u64::try_from(deleted.seconds).map(Duration::from_secs);
        deleted.is_ok_and(|deleted| deleted < earliest)
    }
}
