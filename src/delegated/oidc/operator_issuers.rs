//! The issuers that the operator names. A newer configuration replaces them while tokens are judged.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use polyplane_auth::{Authentication, Authenticator, Credentials, UnionAuthenticator, Verdict};
use polyplane_outbound::{PlaneCaller, TrustError};

use super::authenticator::JwtAuthenticator;
use super::config::JwtConfig;
use super::provider::KeyFetches;

/// How long the issuers of a newer configuration may take to answer: as long as upstream waits.
const REACHED: Duration = Duration::from_secs(60);

/// The reason why newer issuers do not replace the present ones.
#[derive(Debug, thiserror::Error)]
pub enum NotReplaced {
    /// The CA bundle of one cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// One does not answer as an issuer.
    #[error("the issuer {issuer} cannot be reached: {why}")]
    Unreachable {
        /// Its URL.
        issuer: String,
        /// What happened.
        why: String,
    },
}

/// Accepts the tokens of all issuers of a configuration.
pub struct OperatorIssuers {
    caller: Arc<PlaneCaller>,
    current: RwLock<Arc<Named>>,
}

/// The issuers of one configuration.
struct Named {
    members: Vec<Arc<JwtAuthenticator>>,
    any: UnionAuthenticator,
}

impl Named {
    fn new(
        earlier: &[Arc<JwtAuthenticator>],
        configs: Vec<JwtConfig>,
        caller: &Arc<PlaneCaller>,
    ) -> Result<Arc<Self>, TrustError> {
        let members = configs.into_iter();
        let members = members.map(|config| {
            let mut earlier = earlier.iter();
            let earlier = earlier.find(|earlier| earlier.issuer() == config.issuer.url);
            let earlier = earlier.map(|earlier| &**earlier);
            Ok(Arc::new(JwtAuthenticator::after(earlier, config, caller)?))
        });
        let members: Vec<Arc<JwtAuthenticator>> = members.collect::<Result<_, TrustError>>()?;
        let all = members.iter();
        let all = all.map(|member| Arc::clone(member) as Arc<dyn Authenticator>);
        Ok(Arc::new(Self {
            any: UnionAuthenticator::new(all.collect()),
            members,
        }))
    }
}

impl OperatorIssuers {
    /// Creates the authenticator of the issuers of a configuration, whose servers are called by `caller`.
    ///
    /// # Errors
    /// Returns an error if the CA bundle of one cannot be used.
    pub fn new(configs: Vec<JwtConfig>, caller: &Arc<PlaneCaller>) -> Result<Self, TrustError> {
        Ok(Self {
            current: RwLock::new(Named::new(&[], configs, caller)?),
            caller: Arc::clone(caller),
        })
    }

    /// Returns whether an issuer is one of these.
    #[must_use]
    pub fn has(&self, issuer: &str) -> bool {
        let current = self.current.read();
        current
            .members
            .iter()
            .any(|member| member.issuer() == issuer)
    }

    /// Returns for each issuer how the last attempts to fetch its keys went.
    #[must_use]
    pub fn key_fetches(&self) -> Vec<(String, KeyFetches)> {
        let current = self.current.read();
        let members = current.members.iter();
        members
            .map(|member| (member.issuer().to_owned(), member.key_fetches()))
            .collect()
    }

    /// Asks whether the issuers are there, so that the log says early if one is not.
    pub async fn visit(&self) {
        let current = Arc::clone(&self.current.read());
        for member in &current.members {
            let issuer = member.issuer();
            if let Err(why) = member.reach().await {
                tracing::warn!(issuer, "an issuer cannot be reached: {why}");
            }
        }
    }

    /// Replaces the issuers once each of the newer ones answers. A token of one that is no longer named
    /// proves nobody from then on.
    ///
    /// # Errors
    /// Returns why the present issuers stay.
    ///
    /// # Cancel safety
    /// If the future is dropped, the present issuers stay.
    pub async fn replace(&self, configs: Vec<JwtConfig>) -> Result<(), NotReplaced> {
        let present = Arc::clone(&self.current.read());
        let newer = Named::new(&present.members, configs, &self.caller)?;
        let end = tokio::time::Instant::now() + REACHED;
        for member in &newer.members {
            let reached = tokio::time::timeout_at(end, member.reach()).await;
            let reached = reached.unwrap_or_else(|_| Err("it does not answer".to_owned()));
            reached.map_err(|why| NotReplaced::Unreachable {
                issuer: member.issuer().to_owned(),
                why,
            })?;
        }
        *self.current.write() = newer;
        Ok(())
    }
}

impl Authenticator for OperatorIssuers {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let current = Arc::clone(&self.current.read());
        match current.any.authenticate(credentials) {
            Verdict::Now(Some(known)) => return Verdict::now(known),
            Verdict::Now(None) => return Verdict::now(Authentication::NoOpinion),
            // Nothing was done for it yet.
            Verdict::Later(_) => {}
        }
        Verdict::later(async move { current.any.authenticate(credentials).await })
    }
}
