//! Authenticators, which derive a user from credentials. This module knows no path of a server
//! beyond the public ones.

use std::sync::Arc;
use std::time::SystemTime;

use polyplane_apimachinery::status::ApiError;

use crate::service_account::{TokenFault, VerifiedToken};
use crate::user::UserInfo;
use crate::verdict::Verdict;
use crate::x509::ClientChain;

/// The credentials of a request. Absent parts are `None`, never empty.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// The token of an `Authorization: Bearer` header, without surrounding space.
    pub bearer: Option<&'a str>,
    /// The certificates that the client showed. The client has proven that it holds the leaf's key.
    pub chain: Option<&'a ClientChain>,
    /// The path of the request, without the plane's prefix.
    pub path: &'a str,
    /// The wall clock, for validity periods.
    pub now: SystemTime,
    /// A number for the source of the request, by which places are shared among strangers. Clients of one
    /// network have the same; [`Self::NO_SOURCE`] if somebody who is proven asks about the credentials.
    pub source: usize,
}

impl Credentials<'_> {
    /// The source of credentials that come from no client. No client has it: else strangers could take the places
    /// of those who ask.
    pub const NO_SOURCE: usize = usize::MAX;
}

/// The reason why credentials were refused, for the log. The client only gets 401.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Denied {
    /// The request has no credentials and its path is not public.
    #[error("no credentials were given")]
    Nothing,
    /// The bearer token is unknown.
    #[error("invalid bearer token")]
    Token,
    /// The token of a service account proves nobody.
    #[error("service account token refused: {0}")]
    Account(TokenFault),
    /// The certificate does not chain to the plane's client CA or is not valid now.
    #[error("client certificate refused: {0}")]
    Certificate(CertificateFault),
    /// The credentials prove a user of the root plane, who may not enter this plane.
    #[error("the user of the root may not enter this control plane")]
    NotGranted,
    /// An issuer's token, or a webhook's answer, proves nobody.
    #[error("token refused: {0}")]
    Delegated(String),
    /// A CA of the plane has signed for a user whom only the server names.
    #[error("client certificate refused: the server alone gives {0}")]
    Reserved(String),
    /// The user's credentials of that time were revoked.
    #[error("the credential was revoked")]
    Revoked,
    /// The credentials were not judged, because too many of the same source wait.
    #[error("too many credentials of one source wait for a server that judges them")]
    Crowded,
    /// The credentials were not judged, because the server that judges them is not asked now.
    #[error("the server that judges the credentials is not asked now: {0}")]
    NotAsked(String),
}

impl Denied {
    /// Returns the answer to a client whose credentials were not judged, so that it tries again; `None` if
    /// they were judged. A client that gets 401 gives up, although it may have a good credential.
    pub fn put_off(&self) -> Option<ApiError> {
        match self {
            Self::Crowded => {
                let message = "Too many requests, please try again later.";
                Some(ApiError::too_many_requests(message, 1))
            }
            Self::NotAsked(_) => {
                let message = "the server that judges this credential does not answer; try again";
                Some(ApiError::service_unavailable(message).with_retry_after(1))
            }
            _ => None,
        }
    }

    /// Returns which of two reasons counts: the earlier one, unless only this one leaves open whether the
    /// credentials are good.
    #[must_use]
    pub fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(earlier) if !self.is_open() || earlier.is_open() => earlier,
            Some(_) | None => self,
        }
    }

    /// Returns whether the credentials may be good.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Crowded | Self::NotAsked(_))
    }
}

/// The problem with a client certificate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// The certificate does not chain to the CA, or is not valid now.
    #[error("{0}")]
    Chain(rustls::Error),
    /// The certificate is not X.509.
    #[error("the leaf cannot be read")]
    Unreadable,
    /// The certificate does not say that it is for clients.
    #[error("the certificate lacks the extended key usage of clients")]
    NotForClients,
    /// The certificate names no user.
    #[error("the subject has no common name")]
    NoCommonName,
    /// The attribute of the uid does not contain text.
    #[error("the uid is not text")]
    UidNotText,
    /// The certificate names several uids.
    #[error("the subject has several uids")]
    SeveralUids,
}

/// The result of checking credentials.
#[derive(Clone, Debug, PartialEq)]
pub enum Authentication {
    /// The credentials prove this user.
    User(Arc<UserInfo>),
    /// A token of the plane proves the token's user, if what the token rests on exists in the state of
    /// the plane that the request reads.
    Token(Arc<VerifiedToken>),
    /// The authenticator does not judge these credentials, often because they are of another kind.
    NoOpinion,
    /// The credentials are of the authenticator's kind, and wrong.
    Denied(Denied),
}

/// Derives a user from credentials.
pub trait Authenticator: Send + Sync {
    /// Judges `credentials`. The result for equal credentials at an equal time is the same.
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication>;
}

/// Several authenticators in order. The first one that returns a user decides; a denial counts only
/// if none does, and then one that leaves open whether the credentials are good counts first.
pub struct UnionAuthenticator {
    members: Vec<Arc<dyn Authenticator>>,
}

impl UnionAuthenticator {
    /// Creates a union that uses `members` in the order given.
    pub fn new(members: Vec<Arc<dyn Authenticator>>) -> Self {
        Self { members }
    }

    async fn ask_from<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
        first: Verdict<'a, Authentication>,
        next: usize,
        mut denied: Option<Denied>,
    ) -> Authentication {
        match first.await {
            proven @ (Authentication::User(_) | Authentication::Token(_)) => return proven,
            Authentication::Denied(why) => denied = Some(why.after(denied)),
            Authentication::NoOpinion => {}
        }
        for member in &self.members[next..] {
            match member.authenticate(credentials).await {
                proven @ (Authentication::User(_) | Authentication::Token(_)) => return proven,
                Authentication::Denied(why) => denied = Some(why.after(denied)),
                Authentication::NoOpinion => {}
            }
        }
        denied.map_or(Authentication::NoOpinion, Authentication::Denied)
    }
}

impl Authenticator for UnionAuthenticator {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let mut denied = None;
        for (place, member) in self.members.iter().enumerate() {
            match member.authenticate(credentials) {
                Verdict::Now(Some(
                    proven @ (Authentication::User(_) | Authentication::Token(_)),
                )) => return Verdict::now(proven),
                Verdict::Now(Some(Authentication::Denied(why))) => denied = Some(why.after(denied)),
                Verdict::Now(_) => {}
                later @ Verdict::Later(_) => {
                    return Verdict::later(self.ask_from(credentials, later, place + 1, denied));
                }
            }
        }
        Verdict::now(denied.map_or(Authentication::NoOpinion, Authentication::Denied))
    }
}

/// Where requests without a credential are made by `system:anonymous`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Nowhere.
    #[default]
    Nowhere,
    /// On every path.
    Everywhere,
    /// On these paths alone.
    On(Vec<String>),
}

impl AnonymousAccess {
    /// Returns whether it is so on a path.
    pub fn admits(&self, path: &str) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Everywhere => true,
            Self::On(paths) => paths.iter().any(|known| known == path),
        }
    }
}

/// Admits requests without any credentials as `system:anonymous`, on a fixed set of paths.
pub struct Anonymous {
    user: Arc<UserInfo>,
    paths: &'static [&'static str],
}

/// The paths whose answers are no secret: liveness for load balancers, and the version.
const PUBLIC_PATHS: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];

impl Anonymous {
    /// Admits no anonymous request.
    pub fn nowhere() -> Self {
        Self {
            paths: &[],
            ..Self::public_paths()
        }
    }

    /// Returns whether the path is one on which anonymous requests are admitted.
    pub fn may_see(&self, path: &str) -> bool {
        self.paths.contains(&path)
    }

    /// Admits anonymous requests for health and version, and for nothing else.
    pub fn public_paths() -> Self {
        Self {
            user: Arc::new(UserInfo::anonymous()),
            paths: PUBLIC_PATHS,
        }
    }
}

impl Authenticator for Anonymous {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let offered = credentials.bearer.is_some() || credentials.chain.is_some();
        Verdict::now(if offered {
            Authentication::NoOpinion
        } else if self.may_see(credentials.path) {
            Authentication::User(Arc::clone(&self.user))
        } else {
            Authentication::Denied(Denied::Nothing)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Denies everything for this reason.
    struct Denies(Denied);

    impl Authenticator for Denies {
        fn authenticate<'a>(&'a self, _: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
            Verdict::now(Authentication::Denied(self.0.clone()))
        }
    }

    #[tokio::test]
    async fn whom_one_member_could_not_judge_is_put_off_and_not_refused() {
        let credentials = Credentials {
            bearer: Some("opaque"),
            chain: None,
            path: "/api",
            now: SystemTime::UNIX_EPOCH,
            source: 0,
        };
        for reasons in [
            [Denied::Token, Denied::Crowded],
            [Denied::Crowded, Denied::Token],
        ] {
            let members = reasons.map(|why| Arc::new(Denies(why)) as Arc<dyn Authenticator>);
            let union = UnionAuthenticator::new(members.into());
            let judged = union.authenticate(&credentials).await;
            assert_eq!(judged, Authentication::Denied(Denied::Crowded));
        }
        let answers = [
            Denied::Token,
            Denied::Crowded,
            Denied::NotAsked(String::new()),
        ];
        let codes = answers.map(|why| why.put_off().map(|error| error.code));
        assert_eq!(codes, [None, Some(429), Some(503)]);
    }
}
