//! Authenticates callers by the tokens of one issuer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polyplane_auth::{
    Authentication, Authenticator, Credentials, Denied, Digest, UserInfo, Verdict as AuthVerdict,
    digest_of,
};
use polyplane_outbound::{PlaneCaller, TrustError};

use super::bounds::Bounds;
use super::claims::user_of;
use super::config::JwtConfig;
use super::provider::{KeyFetches, Known, Provider};
use super::token::{Times, TokenRefused, UntrustedToken};
use super::verdicts::Verdict;

/// How long a request waits for an issuer's keys: two calls, and a little.
const WAIT: Duration = Duration::from_secs(8);
/// Requests that wait for keys at once, of one issuer. Each holds a connection of a caller who is not
/// proven.
const WAITING_MAX: usize = 64;

/// Accepts the tokens of one issuer.
pub struct JwtAuthenticator {
    inner: Arc<Inner>,
}

struct Inner {
    config: JwtConfig,
    provider: Provider,
    bounds: Bounds,
    waiting: tokio::sync::Semaphore,
}

/// What a token needs to be judged.
enum Judged {
    Done(Result<Arc<UserInfo>, TokenRefused>),
    /// No key is known, or none by the token's key id.
    NeedsKeys,
}

impl JwtAuthenticator {
    /// Creates the authenticator of an issuer that the operator names, whose servers are called by
    /// `caller`.
    ///
    /// # Errors
    /// Returns an error if the issuer's CA bundle cannot be used.
    pub fn new(config: JwtConfig, caller: &Arc<PlaneCaller>) -> Result<Self, TrustError> {
        Self::bounded(config, caller, Bounds::OPERATOR)
    }

    /// Creates the authenticator of an issuer that the operator names, in the place of one of an earlier
    /// configuration.
    ///
    /// # Errors
    /// Returns an error if the issuer's CA bundle cannot be used.
    pub(super) fn after(
        earlier: Option<&Self>,
        config: JwtConfig,
        caller: &Arc<PlaneCaller>,
    ) -> Result<Self, TrustError> {
        let mut provider = Provider::new(caller, &config.issuer, Bounds::OPERATOR)?;
        if let Some(earlier) = earlier {
            provider.succeed(&earlier.inner.provider);
        }
        Ok(Self::with(config, provider, Bounds::OPERATOR))
    }

    /// Creates the authenticator of an issuer that a control plane names. It keeps less, and a token
    /// with a new key is refused until the key is known.
    ///
    /// # Errors
    /// Returns an error if the issuer's CA bundle cannot be used.
    pub fn of_plane(config: JwtConfig, caller: &Arc<PlaneCaller>) -> Result<Self, TrustError> {
        Self::bounded(config, caller, Bounds::PLANE)
    }

    fn bounded(
        config: JwtConfig,
        caller: &Arc<PlaneCaller>,
        bounds: Bounds,
    ) -> Result<Self, TrustError> {
        let provider = Provider::new(caller, &config.issuer, bounds)?;
        Ok(Self::with(config, provider, bounds))
    }

    fn with(config: JwtConfig, provider: Provider, bounds: Bounds) -> Self {
        let inner = Inner {
            config,
            provider,
            bounds,
            waiting: tokio::sync::Semaphore::new(WAITING_MAX),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns how the last attempts to fetch the issuer's keys went.
    #[must_use]
    pub fn key_fetches(&self) -> KeyFetches {
        self.inner.provider.fetches()
    }

    /// Asks whether the issuer is there.
    ///
    /// # Errors
    /// Returns why it cannot be reached, or that it names another issuer or no keys.
    pub async fn reach(&self) -> Result<(), String> {
        self.inner.provider.reach().await
    }

    /// Returns the issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.inner.config.issuer.url
    }

    /// Looks keys that are old up again, beside the request.
    fn renew(&self) {
        if self.inner.provider.may_look() {
            let inner = Arc::clone(&self.inner);
            // At most one look-up does anything, and it ends by its deadlines.
            tokio::spawn(async move { inner.provider.look().await });
        }
    }
}

impl Inner {
    /// Keeps what is known of a token, unless the token is too long for that.
    fn keep(
        &self,
        known: &Known,
        token: &UntrustedToken<'_>,
        digest: Digest,
        verdict: impl FnOnce() -> Verdict,
    ) {
        if token.bytes() <= self.bounds.kept_bytes_max {
            known.verdicts.insert(digest, verdict());
        }
    }

    fn judge(
        &self,
        known: Option<&Known>,
        token: &UntrustedToken<'_>,
        digest: Digest,
        now: SystemTime,
    ) -> Judged {
        let Some(known) = known else {
            return Judged::NeedsKeys;
        };
        if let Err(refused) = token.verify(&known.keys, self.config.algorithms.as_deref()) {
            if refused == TokenRefused::UnknownKey {
                return Judged::NeedsKeys;
            }
            self.keep(known, token, digest, || Verdict::Refused(refused.clone()));
            return Judged::Done(Err(refused));
        }
        let times = match Times::of(&token.claims) {
            Ok(times) => times,
            Err(refused) => return Judged::Done(Err(refused)),
        };
        match user_of(&token.claims, &self.config) {
            Ok(user) => {
                let user = Arc::new(user);
                let verdict = || Verdict::Proves(Arc::clone(&user), times);
                self.keep(known, token, digest, verdict);
                Judged::Done(times.check(seconds(now)).map(|()| user))
            }
            Err(refused) => {
                self.keep(known, token, digest, || Verdict::Refused(refused.clone()));
                Judged::Done(Err(refused))
            }
        }
    }

    async fn judge_with_new_keys(
        &self,
        token: UntrustedToken<'_>,
        digest: Digest,
        now: SystemTime,
    ) -> Result<Arc<UserInfo>, TokenRefused> {
        let unknown = || match self.provider.known().0 {
            Some(_) => TokenRefused::UnknownKey,
            None => TokenRefused::NoKeys(self.config.issuer.url.as_str().into()),
        };
        let _place = self.waiting.try_acquire().map_err(|_| unknown())?;
        let looked = tokio::time::timeout(WAIT, self.provider.look()).await;
        let known = looked.ok().flatten();
        match self.judge(known.as_deref(), &token, digest, now) {
            Judged::Done(judged) => judged,
            Judged::NeedsKeys => Err(unknown()),
        }
    }
}

impl Authenticator for JwtAuthenticator {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> AuthVerdict<'a, Authentication> {
        let Some(bearer) = credentials.bearer else {
            return AuthVerdict::now(Authentication::NoOpinion);
        };
        let inner = &self.inner;
        let (known, is_old) = inner.provider.known();
        let digest_of_token = digest_of(bearer);
        let verdict = known
            .as_ref()
            .and_then(|known| known.verdicts.get(&digest_of_token));
        let judged = match verdict {
            Some(Verdict::Proves(user, times)) => {
                times.check(seconds(credentials.now)).map(|()| user)
            }
            Some(Verdict::Refused(refused)) => Err(refused),
            None => {
                let parsed = UntrustedToken::parse(bearer);
                let Some(token) = parsed.filter(|token| token.issuer() == self.issuer()) else {
                    return AuthVerdict::now(Authentication::NoOpinion);
                };
                let now = credentials.now;
                match inner.judge(known.as_deref(), &token, digest_of_token, now) {
                    Judged::Done(judged) => judged,
                    Judged::NeedsKeys
                        if known.is_some() && !inner.bounds.waits_for_unknown_keys =>
                    {
                        self.renew();
                        Err(TokenRefused::UnknownKey)
                    }
                    // Within the pause a look-up would not begin; but one may be under way.
                    Judged::NeedsKeys => {
                        return AuthVerdict::later(async move {
                            let judged = inner.judge_with_new_keys(token, digest_of_token, now);
                            authentication(judged.await)
                        });
                    }
                }
            }
        };
        if is_old {
            self.renew();
        }
        AuthVerdict::now(authentication(judged))
    }
}

fn authentication(judged: Result<Arc<UserInfo>, TokenRefused>) -> Authentication {
    match judged {
        Ok(user) => Authentication::User(user),
        Err(refused) => Authentication::Denied(Denied::Delegated(refused.to_string())),
    }
}

fn seconds(now: SystemTime) -> i64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
