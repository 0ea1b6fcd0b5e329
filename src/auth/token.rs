//! Authenticators for tokens that the server gets from files. They keep only a token's digest, never
//! the token.

use std::sync::Arc;

use aws_lc_rs::constant_time;
use parking_lot::RwLock;

use crate::authenticator::{Authentication, Authenticator, Credentials, Denied};
use crate::authorizer::METRICS_PATH;
use crate::digest::{Digest, digest_of};
use crate::user::{METRICS_READERS, UserInfo};
use crate::verdict::Verdict;

/// One token, kept as its digest, and the user whom it proves.
pub struct StaticToken {
    digest: Digest,
    bytes: usize,
    user: Arc<UserInfo>,
}

impl StaticToken {
    /// Creates a token that proves `user`.
    pub fn new(token: &str, user: UserInfo) -> Self {
        Self {
            digest: digest_of(token),
            bytes: token.len(),
            user: Arc::new(user.authenticated()),
        }
    }
}

/// A fixed list of tokens, compared in constant time.
pub struct StaticTokens {
    tokens: Vec<StaticToken>,
}

impl StaticTokens {
    /// Creates an authenticator that accepts exactly `tokens`.
    pub fn new(tokens: Vec<StaticToken>) -> Self {
        Self { tokens }
    }
}

impl Authenticator for StaticTokens {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(bearer) = credentials.bearer else {
            return Verdict::now(Authentication::NoOpinion);
        };
        // The length of a token is no secret, and a long token of another kind is not digested twice.
        if self.tokens.iter().all(|token| token.bytes != bearer.len()) {
            return Verdict::now(Authentication::Denied(Denied::Token));
        }
        // Compare digests of equal length, and all of them, so that the time reveals neither how
        // much of a token was right nor which one it resembled.
        let offered = digest_of(bearer);
        let mut found = None;
        for token in &self.tokens {
            if constant_time::verify_slices_are_equal(&token.digest, &offered).is_ok() {
                found = Some(&token.user);
            }
        }
        Verdict::now(match found {
            Some(user) => Authentication::User(Arc::clone(user)),
            None => Authentication::Denied(Denied::Token),
        })
    }
}

/// A token of one user that can be replaced while the server runs.
pub struct ReplaceableToken {
    known: RwLock<Known>,
    user: Arc<UserInfo>,
}

/// What is kept of a replaceable token.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    digest: Digest,
    bytes: usize,
}

impl Known {
    fn of(token: &str) -> Self {
        Self {
            digest: digest_of(token),
            bytes: token.len(),
        }
    }
}

impl ReplaceableToken {
    /// Creates an authenticator that accepts `token`, which proves `user`.
    pub fn new(token: &str, user: UserInfo) -> Self {
        Self {
            known: RwLock::new(Known::of(token)),
            user: Arc::new(user),
        }
    }

    /// Replaces the accepted token by `token`. Returns whether the two differ.
    pub fn replace(&self, token: &str) -> bool {
        let fresh = Known::of(token);
        std::mem::replace(&mut *self.known.write(), fresh) != fresh
    }

    /// Returns whether `token` is the accepted one.
    pub fn is(&self, token: &str) -> bool {
        self.user_of(token).is_some()
    }

    /// Returns the user if `bearer` is the token.
    fn user_of(&self, bearer: &str) -> Option<&Arc<UserInfo>> {
        let known = *self.known.read();
        // The length of a token is no secret, and a long token of another kind is not digested.
        if known.bytes != bearer.len() {
            return None;
        }
        let offered = digest_of(bearer);
        let is_it = constant_time::verify_slices_are_equal(&known.digest, &offered).is_ok();
        is_it.then_some(&self.user)
    }
}

impl Authenticator for ReplaceableToken {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(bearer) = credentials.bearer else {
            return Verdict::now(Authentication::NoOpinion);
        };
        Verdict::now(match self.user_of(bearer) {
            Some(user) => Authentication::User(Arc::clone(user)),
            None => Authentication::Denied(Denied::Token),
        })
    }
}

/// A token that proves a member of [`METRICS_READERS`], and only on the path of the metrics: on any
/// other path it is not a credential at all.
pub struct MetricsToken(Arc<ReplaceableToken>);

impl MetricsToken {
    /// Creates an authenticator that accepts `token`.
    pub fn new(token: &str) -> Self {
        let user = UserInfo::new("polyplane:metrics", &[METRICS_READERS]);
        Self(Arc::new(ReplaceableToken::new(token, user)))
    }

    /// Returns the token, to replace it.
    pub fn token(&self) -> &Arc<ReplaceableToken> {
        &self.0
    }
}

impl Authenticator for MetricsToken {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(bearer) = credentials
            .bearer
            .filter(|_| credentials.path == METRICS_PATH)
        else {
            return Verdict::now(Authentication::NoOpinion);
        };
        Verdict::now(match self.0.user_of(bearer) {
            Some(user) => Authentication::User(Arc::clone(user)),
            None => Authentication::NoOpinion,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorizer::{Attributes, Authorizer as _, Decision, MetricsRules, Subject};
    use std::time::SystemTime;

    async fn judged(token: &dyn Authenticator, bearer: Option<&str>, path: &str) -> Authentication {
        let credentials = Credentials {
            bearer,
            chain: None,
            path,
            now: SystemTime::UNIX_EPOCH,
            source: 0,
        };
        token.authenticate(&credentials).await
    }

    #[tokio::test]
    async fn the_token_for_metrics_proves_a_reader_of_metrics_at_their_path_alone() {
        let token = MetricsToken::new("one");
        let proven = judged(&token, Some("one"), "/metrics").await;
        let Authentication::User(user) = proven else {
            panic!("{proven:?}");
        };
        assert_eq!(user.groups, [METRICS_READERS]);
        for (bearer, path) in [
            (Some("one"), "/metrics/"),
            (Some("one"), "/api"),
            (Some("two"), "/metrics"),
            (None, "/metrics"),
        ] {
            let judged = judged(&token, bearer, path).await;
            assert_eq!(judged, Authentication::NoOpinion, "{bearer:?} {path}");
        }
        for (verb, path, allowed) in [
            ("get", "/metrics", true),
            ("post", "/metrics", false),
            ("get", "/metrics/x", false),
            ("get", "/api", false),
        ] {
            let subject = Subject::Path(path);
            let attributes = Attributes {
                user: &user,
                verb,
                subject,
            };
            let decision = MetricsRules.authorize(&attributes).await;
            assert_eq!(decision == Decision::Allow, allowed, "{verb} {path}");
        }
    }

    #[tokio::test]
    async fn a_replaced_token_is_known_no_more() {
        let metrics = MetricsToken::new("one");
        let admin = ReplaceableToken::new("one", UserInfo::new("admin", &[]));
        let refused = [
            Authentication::NoOpinion,
            Authentication::Denied(Denied::Token),
        ];
        let both: [(&ReplaceableToken, &dyn Authenticator); 2] =
            [(metrics.token().as_ref(), &metrics), (&admin, &admin)];
        for ((token, judge), refused) in both.into_iter().zip(refused) {
            assert!(!token.replace("one"));
            for next in ["two", "three"] {
                assert!(token.replace(next));
                let old = judged(judge, Some("one"), "/metrics").await;
                assert_eq!(old, refused);
                let new = judged(judge, Some(next), "/metrics").await;
                assert!(matches!(new, Authentication::User(_)), "{new:?}");
            }
        }
        let nobody = judged(&admin, None, "/metrics").await;
        assert_eq!(nobody, Authentication::NoOpinion);
    }
}
