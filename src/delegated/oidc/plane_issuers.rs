//! The issuers that one control plane names.

use std::sync::Arc;

use polyplane_auth::{
    Authentication, Authenticator, Credentials, Denied, Revocation, UnionAuthenticator, UserInfo,
    Verdict,
};
use polyplane_outbound::{PlaneCaller, TrustError};

use super::authenticator::JwtAuthenticator;
use super::config::AuthenticationConfig;
use super::token::UntrustedToken;

/// Returns why a user of an issuer may not be one of the plane; `None` if it may.
pub type ReservedUser = fn(&UserInfo) -> Option<String>;

/// The issuers of one configuration, with their keys. They outlast changes of other fields of the plane's
/// record.
pub struct KnownIssuers {
    union: UnionAuthenticator,
}

impl KnownIssuers {
    /// Creates the issuers of a configuration, whose servers are called by `caller`. The first token of
    /// an issuer has its keys looked up.
    ///
    /// # Errors
    /// Returns an error if a CA bundle cannot be used.
    pub fn new(
        config: AuthenticationConfig,
        caller: &Arc<PlaneCaller>,
    ) -> Result<Self, TrustError> {
        let made = config.jwt.into_iter().map(|jwt| {
            let made = JwtAuthenticator::of_plane(jwt, caller)?;
            Ok(Arc::new(made) as Arc<dyn Authenticator>)
        });
        Ok(Self {
            union: UnionAuthenticator::new(made.collect::<Result<_, TrustError>>()?),
        })
    }
}

/// Accepts the tokens of the issuers, except those of users who were revoked, or whom the server alone
/// names.
pub struct PlaneIssuers {
    known: Arc<KnownIssuers>,
    revoked: Vec<Revocation>,
    reserved: ReservedUser,
}

impl PlaneIssuers {
    /// Creates the authenticator of a plane, whose record has these revocations.
    pub fn new(known: Arc<KnownIssuers>, revoked: Vec<Revocation>, reserved: ReservedUser) -> Self {
        Self {
            known,
            revoked,
            reserved,
        }
    }

    fn admit(&self, judged: Authentication, credentials: &Credentials<'_>) -> Authentication {
        let Authentication::User(user) = &judged else {
            return judged;
        };
        if let Some(why) = (self.reserved)(user) {
            return Authentication::Denied(Denied::Delegated(why));
        }
        let before = Revocation::newest(&self.revoked, &user.name);
        // A token that does not say when it was issued may be older than the revocation.
        let is_revoked = |before| issued_at(credentials).is_none_or(|issued| issued < before);
        match before.is_some_and(is_revoked) {
            true => Authentication::Denied(Denied::Revoked),
            false => judged,
        }
    }
}

/// Returns the second since 1970 in which a token was issued, if it says so.
fn issued_at(credentials: &Credentials<'_>) -> Option<i64> {
    UntrustedToken::parse(credentials.bearer?)?.issued_at()
}

impl Authenticator for PlaneIssuers {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        match self.known.union.authenticate(credentials) {
            Verdict::Now(Some(judged)) => Verdict::now(self.admit(judged, credentials)),
            later => Verdict::later(async move { self.admit(later.await, credentials) }),
        }
    }
}
