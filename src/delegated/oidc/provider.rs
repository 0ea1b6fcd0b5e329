//! The issuer's servers: its configuration and its keys, looked up and kept.
//!
//! Invariant: at most one look-up of an issuer is under way, and one begins at the earliest
//! [`REFRESH_PAUSE`] after the one before, however many tokens come.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method};
use parking_lot::{Mutex as Lock, RwLock};
use polyplane_apimachinery::complaints::shortened;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_auth::{Digest, digest_of};
use polyplane_outbound::{Call, LogPause, PlaneCaller, Target, Trust, TrustError};
use tokio::sync::Mutex;

use super::bounds::Bounds;
use super::config::IssuerConfig;
use super::keys::KeySet;
use super::verdicts::Verdicts;

/// Pause between two look-ups of an issuer's keys. A token with an unknown key id within it is
/// refused.
pub const REFRESH_PAUSE: Duration = Duration::from_secs(5);
/// The age from which keys are looked up again beside a request, so that a key that an issuer has
/// withdrawn ends.
const OLD: Duration = Duration::from_secs(600);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);
/// Where an issuer's configuration is, below its URL.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";
/// Bytes of what a message quotes of an issuer. A document of more could fill the log.
const QUOTED_BYTES_MAX: usize = 256;

/// The keys that an issuer had at one time, and the verdicts under them.
pub(super) struct Known {
    pub keys: KeySet,
    pub verdicts: Verdicts,
    digest: Digest,
}

/// How the last attempts to fetch an issuer's keys went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFetches {
    /// When the keys were last fetched.
    pub succeeded: Option<SystemTime>,
    /// When the last attempt failed.
    pub failed: Option<SystemTime>,
    /// The SHA-256 of the newest keys, as the issuer has written them.
    pub keys: Option<Digest>,
}

/// An issuer.
pub(super) struct Provider {
    issuer: String,
    bounds: Bounds,
    caller: Arc<PlaneCaller>,
    trust: Trust,
    state: RwLock<State>,
    fetches: Arc<Lock<KeyFetches>>,
    /// Of failed look-ups.
    logged: Lock<LogPause>,
    /// Held by the one look-up under way.
    turn: Mutex<Look>,
}

#[derive(Default)]
struct State {
    known: Option<Arc<Known>>,
    tried_at: Option<Instant>,
}

/// The targets of a look-up.
struct Look {
    discovery: String,
    targets: Vec<(String, Arc<Target>)>,
}

/// Targets that a look-up keeps: those of the configuration and of the keys.
const TARGETS_MAX: usize = 2;

impl Provider {
    pub(super) fn new(
        caller: &Arc<PlaneCaller>,
        config: &IssuerConfig,
        bounds: Bounds,
    ) -> Result<Self, TrustError> {
        let bundle = config.certificate_authority.as_ref().map(String::as_bytes);
        let below = || format!("{}{WELL_KNOWN}", config.url.trim_end_matches('/'));
        Ok(Self {
            issuer: config.url.clone(),
            bounds,
            caller: Arc::clone(caller),
            trust: Trust::new(bundle, None)?,
            state: RwLock::default(),
            fetches: Arc::default(),
            logged: Lock::default(),
            turn: Mutex::new(Look {
                discovery: config.discovery_url.clone().unwrap_or_else(below),
                targets: Vec::new(),
            }),
        })
    }

    /// Returns how the last attempts to fetch the keys went.
    pub(super) fn fetches(&self) -> KeyFetches {
        *self.fetches.lock()
    }

    /// Goes on with the record of an earlier configuration of the same issuer.
    pub(super) fn succeed(&mut self, earlier: &Self) {
        self.fetches = Arc::clone(&earlier.fetches);
    }

    /// Returns the keys that are known, whatever their age, and whether they are to be looked up.
    pub(super) fn known(&self) -> (Option<Arc<Known>>, bool) {
        let state = self.state.read();
        let since = state.tried_at.map(|at| at.elapsed());
        (state.known.clone(), since.is_none_or(|since| since >= OLD))
    }

    /// Returns whether a look-up may begin now.
    pub(super) fn may_look(&self) -> bool {
        let tried_at = self.state.read().tried_at;
        tried_at.is_none_or(|at| at.elapsed() >= REFRESH_PAUSE)
    }

    /// Looks the keys up, unless another look-up does or has just done so; then it waits for that one.
    /// Keys that are known stay if the issuer does not answer.
    pub(super) async fn look(&self) -> Option<Arc<Known>> {
        let mut look = self.turn.lock().await;
        if self.may_look() {
            self.state.write().tried_at = Some(Instant::now());
            match self.keys(&mut look).await {
                Ok((keys, digest)) => self.learn(keys, digest),
                Err(why) if self.logged.lock().is_due(tokio::time::Instant::now()) => {
                    let issuer = quoted(&self.issuer);
                    tracing::warn!(
                        %issuer,
                        "the keys of an issuer cannot be got: {why} (logged once a minute)"
                    );
                }
                Err(why) => tracing::debug!("the keys of an issuer cannot be got: {why}"),
            }
        }
        self.state.read().known.clone()
    }

    fn learn(&self, keys: KeySet, digest: Digest) {
        let mut state = self.state.write();
        // The same keys keep their verdicts.
        if state
            .known
            .as_ref()
            .is_none_or(|known| known.digest != digest)
        {
            state.known = Some(Arc::new(Known {
                keys,
                digest,
                verdicts: Verdicts::new(&self.bounds),
            }));
        }
    }

    /// Asks whether the issuer is there. It asks for no keys: as upstream, those are fetched for the
    /// first token.
    pub(super) async fn reach(&self) -> Result<(), String> {
        let mut look = self.turn.lock().await;
        self.keys_at(&mut look).await.map(drop)
    }

    async fn keys(&self, look: &mut Look) -> Result<(KeySet, Digest), String> {
        let keys_at = self.keys_at(look).await?;
        let fetched = self.keys_in(look, &keys_at).await;
        let mut fetches = self.fetches.lock();
        let now = Some(SystemTime::now());
        match &fetched {
            Ok((_, digest)) => (fetches.succeeded, fetches.keys) = (now, Some(*digest)),
            Err(_) => fetches.failed = now,
        }
        fetched
    }

    async fn keys_in(&self, look: &mut Look, keys_at: &str) -> Result<(KeySet, Digest), String> {
        let text = self.get(look, keys_at).await?;
        let keys = KeySet::parse(&text).map_err(|why| failure(keys_at, &why))?;
        Ok((keys, digest_of(&text)))
    }

    /// Returns where the issuer's configuration says that its keys are.
    async fn keys_at(&self, look: &mut Look) -> Result<String, String> {
        let discovery = look.discovery.clone();
        let text = self.get(look, &discovery).await?;
        let limits = Limits::default();
        let parsed = json::parse(&text, &limits).map_err(|error| failure(&discovery, &error))?;
        let issuer = parsed.value.str_at(&["issuer"]);
        if issuer != self.issuer {
            let (discovery, issuer) = (quoted(&discovery), quoted(issuer));
            return Err(format!("{discovery} names another issuer, {issuer:?}"));
        }
        let keys_at = parsed.value.str_at(&["jwks_uri"]).to_owned();
        if !keys_at.starts_with("https://") {
            let discovery = quoted(&discovery);
            return Err(format!("{discovery} names no jwks_uri with https"));
        }
        Ok(keys_at)
    }

    async fn get(&self, look: &mut Look, url: &str) -> Result<Bytes, String> {
        let known = look.targets.iter().find(|(known, _)| known == url);
        let target = match known {
            Some((_, target)) => Arc::clone(target),
            None => {
                let target = Target::new(&self.caller, url, &self.trust);
                let target = Arc::new(target.map_err(|error| failure(url, &error))?);
                if look.targets.len() >= TARGETS_MAX {
                    look.targets.remove(TARGETS_MAX - 1);
                }
                look.targets.push((url.to_owned(), Arc::clone(&target)));
                target
            }
        };
        let answer = target.call(Call {
            method: Method::GET,
            path: None,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: CALL,
            answer_bytes_max: self.bounds.document_bytes_max,
        });
        let answer = answer.await.map_err(|error| failure(url, &error))?;
        match answer.status.as_u16() {
            200 => Ok(answer.body),
            status => Err(format!("{} answered {status}", quoted(url))),
        }
    }
}

/// Returns the beginning of a text that an issuer, or the owner of a plane, has chosen.
fn quoted(text: &str) -> Cow<'_, str> {
    shortened(text, QUOTED_BYTES_MAX)
}

/// Returns why a document of an issuer is of no use. The error may quote the document.
fn failure(url: &str, error: &dyn Display) -> String {
    format!("{}: {}", quoted(url), quoted(&error.to_string()))
}
