//! Tokens that are known beforehand.

use std::sync::Arc;

use aws_lc_rs::{constant_time, digest};

use crate::authenticator::{Authentication, Authenticator, Credentials, Denied};
use crate::user::UserInfo;
use crate::verdict::Verdict;

/// One token and the user it stands for. Only the token's digest is kept.
pub struct StaticToken {
    digest: [u8; 32],
    user: Arc<UserInfo>,
}

impl StaticToken {
    /// `token` stands for `user`.
    pub fn new(token: &str, user: UserInfo) -> Self {
        Self {
            digest: digest_of(token),
            user: Arc::new(user.authenticated()),
        }
    }
}

/// A fixed list of tokens, compared in constant time.
pub struct StaticTokens {
    tokens: Vec<StaticToken>,
}

impl StaticTokens {
    /// Knows exactly `tokens`.
    pub fn new(tokens: Vec<StaticToken>) -> Self {
        Self { tokens }
    }
}

fn digest_of(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    out
}

impl Authenticator for StaticTokens {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(bearer) = credentials.bearer else {
            return Verdict::now(Authentication::NoOpinion);
        };
        // Digests of equal length are compared, and all of them, so that time tells neither how
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
