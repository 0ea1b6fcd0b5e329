//! Authenticates callers by the service account tokens of one plane.

use std::sync::Arc;

use super::TokenFault;
use super::issuer::TokenIssuer;
use super::verdicts::VerdictCache;
use crate::authenticator::{Authentication, Authenticator, Credentials, Denied};
use crate::verdict::Verdict;

/// Accepts the tokens of one plane's issuer that are for the plane and valid now. What they rest on
/// has to be looked up afterwards: see [`Authentication::Token`].
pub struct AccountTokens {
    issuer: Arc<TokenIssuer>,
    verdicts: Arc<VerdictCache>,
}

impl AccountTokens {
    /// Creates an authenticator for the tokens of `issuer`, which shares `verdicts` with others.
    pub fn new(issuer: Arc<TokenIssuer>, verdicts: Arc<VerdictCache>) -> Self {
        Self { issuer, verdicts }
    }

    fn judge(
        &self,
        token: &str,
        credentials: &Credentials<'_>,
    ) -> Result<Authentication, TokenFault> {
        let verified = self.verdicts.verify(&self.issuer, token)?;
        verified.check_times(credentials.now)?;
        self.issuer.check_revoked(&verified)?;
        if !verified.is_for(self.issuer.audiences()) {
            let own = self.issuer.audiences_of(&verified);
            verified.audiences(&own, &own)?;
        }
        Ok(Authentication::Token(verified))
    }
}

impl Authenticator for AccountTokens {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let token = credentials
            .bearer
            .filter(|token| TokenIssuer::may_judge(token));
        let Some(token) = token else {
            return Verdict::now(Authentication::NoOpinion);
        };
        let judged = self.judge(token, credentials);
        Verdict::now(judged.unwrap_or_else(|fault| Authentication::Denied(Denied::Account(fault))))
    }
}
