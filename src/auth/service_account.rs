//! Service account tokens of one plane: what they claim, which keys and issuers a plane accepts, and
//! a cache of verified tokens.
//!
//! This module decides whether a token is one of the plane's and whether its times and audiences
//! hold. It must not know objects: whether the account, pod, secret or node that a token names still
//! lives is decided where objects are read, from [`Claims::binding`].

pub mod authenticator;
pub mod claims;
pub mod issuer;
pub mod verdicts;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polyplane_apimachinery::Str;
use polyplane_apimachinery::quote::quote;

use crate::jws::JwsError;
use crate::user::UserInfo;
use claims::{Claims, ClaimsError};

/// How much clocks may differ, and how long deleted accounts, pods, secrets and nodes still count:
/// upstream's value. Without it a token would be refused on a replica whose clock is behind.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// A token that a plane's key signed and that an issuer of the plane issued. Nothing else about it
/// has been checked.
#[derive(Debug, PartialEq)]
pub struct VerifiedToken {
    /// What the token says.
    pub claims: Claims,
    /// The user whom the token proves while it is valid.
    pub user: Arc<UserInfo>,
    /// The SHA-256 of the token.
    pub digest: [u8; 32],
    /// Until when tokens of the key that signed it are accepted; `None` without an end.
    pub accepted_until: Option<SystemTime>,
}

/// The reason why a token proves nobody. The texts are those of access reviews.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// The text is no token that the plane issues.
    #[error("the token was not issued here")]
    Foreign,
    /// No accepted key has the id that the token names.
    #[error("invalid signature, no keys found")]
    UnknownKey,
    /// Form, header or signature are wrong.
    #[error("{0}")]
    Jws(#[from] JwsError),
    /// The claims are not those of a service account.
    #[error("{0}")]
    Claims(#[from] ClaimsError),
    /// The key that signed the token was replaced, and its time is over.
    #[error("the key of the service account token was replaced")]
    KeyReplaced,
    /// The token has expired.
    #[error("service account token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("service account token is not valid yet")]
    NotYetValid,
    /// The token says that it was issued in the future.
    #[error("service account token is issued in the future")]
    IssuedInFuture,
    /// The token is for other audiences.
    #[error("token audiences {token} is invalid for the target audiences {target}")]
    Audience {
        /// The token's audiences, as Go prints them.
        token: String,
        /// The audiences that were asked for.
        target: String,
    },
    /// The tokens of the account of that time were revoked.
    #[error("the service account token was revoked")]
    Revoked,
    /// An object that the token rests on is gone, being deleted, or another one.
    #[error("{0}")]
    Invalidated(String),
}

impl VerifiedToken {
    /// Checks the times of the token.
    ///
    /// # Errors
    /// Returns an error if the token is not valid at `now`, give or take [`LEEWAY`].
    pub fn check_times(&self, now: SystemTime) -> Result<(), TokenFault> {
        if self.accepted_until.is_some_and(|until| now >= until) {
            return Err(TokenFault::KeyReplaced);
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let earliest = now.saturating_sub(LEEWAY);
        let latest = now.saturating_add(LEEWAY);
        let at = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let claims = &self.claims;
        if claims.not_before.is_some_and(|time| latest < at(time)) {
            return Err(TokenFault::NotYetValid);
        }
        if claims.expires.is_some_and(|time| earliest > at(time)) {
            return Err(TokenFault::Expired);
        }
        if claims.issued_at.is_some_and(|time| latest < at(time)) {
            return Err(TokenFault::IssuedInFuture);
        }
        Ok(())
    }

    /// Returns the audiences that the token shares with `wanted`. A token without audiences is for
    /// those of the plane, `own`.
    ///
    /// # Errors
    /// Returns an error if there are none.
    pub fn audiences(&self, own: &[Str], wanted: &[Str]) -> Result<Vec<Str>, TokenFault> {
        let named = match self.claims.audiences.as_slice() {
            [] => own,
            named => named,
        };
        let shared = |audience: &&Str| wanted.contains(audience);
        let shared: Vec<Str> = named.iter().filter(shared).cloned().collect();
        if shared.is_empty() {
            return Err(TokenFault::Audience {
                token: quoted(named),
                target: quoted(wanted),
            });
        }
        Ok(shared)
    }

    /// Returns whether the token is for an audience of the plane.
    pub fn is_for(&self, own: &[Str]) -> bool {
        let audiences = &self.claims.audiences;
        audiences.is_empty() || audiences.iter().any(|audience| own.contains(audience))
    }
}

/// Returns a list as Go prints it with `%q`.
fn quoted(texts: &[Str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quote(text)).collect();
    format!("[{}]", texts.join(" "))
}
