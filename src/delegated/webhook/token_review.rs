//! Asks a webhook whom a token proves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::jws::TOKEN_BYTES_MAX;
use polyplane_auth::{
    Authentication, Authenticator, Credentials, Denied, Digest, UserInfo, Verdict, digest_of,
};
use polyplane_outbound::{LogPause, PlaneCaller, TargetError};

use super::cache::Answers;
use super::kubeconfig::WebhookServer;
use super::places::Places;
use super::review::{NoStatus, ReviewVersion, Reviewer};
use crate::oidc::OperatorIssuers;

/// The issuer of legacy tokens of service accounts, in every plane.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// What a webhook said of a token.
type Said = Result<Arc<UserInfo>, Str>;

/// Accepts the tokens that a webhook accepts.
///
/// Invariant: no token of a plane here leaves the server, and no token of an issuer that the server knows.
pub struct TokenWebhook {
    reviewer: Reviewer,
    places: Places,
    version: ReviewVersion,
    audiences: Vec<Str>,
    lifetime: Duration,
    answers: Answers<Said>,
    /// Of failures, because strangers can cause any number of them.
    logged: Mutex<LogPause>,
    own_issuers: OwnIssuers,
}

/// The issuers whose tokens are judged here, and must not leave the server.
#[derive(Clone, Default)]
pub struct OwnIssuers {
    /// Those that do not change.
    pub fixed: Vec<String>,
    /// Those that the operator names.
    pub named: Option<Arc<OperatorIssuers>>,
}

impl OwnIssuers {
    fn has(&self, issuer: &str) -> bool {
        let is_named = |named: &Arc<OperatorIssuers>| named.has(issuer);
        self.fixed.iter().any(|own| own == issuer) || self.named.as_ref().is_some_and(is_named)
    }
}

impl TokenWebhook {
    /// Creates an authenticator that asks `server`. Answers are cached for `lifetime`; `audiences` are
    /// those of the API, if it has any by name; tokens of `own_issuers` are not sent.
    ///
    /// # Errors
    /// Returns an error if the webhook has no URL that may be called.
    pub fn new(
        server: WebhookServer,
        caller: &Arc<PlaneCaller>,
        version: ReviewVersion,
        audiences: Vec<Str>,
        lifetime: Duration,
        own_issuers: OwnIssuers,
    ) -> Result<Self, TargetError> {
        Ok(Self {
            reviewer: Reviewer::new(server, caller)?,
            places: Places::default(),
            version,
            audiences,
            lifetime,
            answers: Answers::default(),
            logged: Mutex::default(),
            own_issuers,
        })
    }

    /// Returns whether a token must stay here: it names an issuer whose tokens are judged here.
    fn is_own(&self, token: &str) -> bool {
        issuer_of(token).is_some_and(|issuer| {
            let is_plane = issuer.contains("/clusters/") && issuer.ends_with("/control-plane");
            is_plane || issuer == LEGACY_ISSUER || self.own_issuers.has(&issuer)
        })
    }

    async fn ask(&self, token: &str, source: usize, asked: Digest) -> Authentication {
        let mut review = Value::object();
        review.set(&["kind"], "TokenReview");
        review.set(
            &["apiVersion"],
            format!("authentication.k8s.io/{}", self.version.name()),
        );
        review.set(&["spec", "token"], token);
        if !self.audiences.is_empty() {
            let audiences: Vec<Value> = self
                .audiences
                .iter()
                .map(|one| Value::string(one.clone()))
                .collect();
            review.set(&["spec", "audiences"], audiences);
        }
        let answer = match self.places.enter(source) {
            Some(_place) => self.reviewer.review(&review).await,
            None => Err(NoStatus::Busy),
        };
        match answer {
            Ok(status) => {
                let said = self.read(&status);
                let now = Instant::now();
                self.answers.insert(asked, said.clone(), self.lifetime, now);
                authentication(said)
            }
            // Not cached: the next request may find the webhook again.
            Err(why) => {
                if self.logged.lock().is_due(tokio::time::Instant::now()) {
                    tracing::warn!(
                        "the webhook for tokens cannot be asked: {why} (logged once a minute)"
                    );
                }
                Authentication::Denied(match why {
                    // As little a judgement as the lack of a seat, which is no 401 either.
                    NoStatus::Busy => Denied::Crowded,
                    NoStatus::Open(why) => Denied::NotAsked(why),
                    // As upstream, which answers 401 if a webhook fails.
                    NoStatus::Failed(why) => Denied::Delegated(why),
                })
            }
        }
    }

    fn read(&self, status: &Value) -> Said {
        if !status.bool_at(&["authenticated"]) {
            let error = status.str_at(&["error"]);
            return Err(if error.is_empty() {
                "the webhook knows no such token"
            } else {
                error
            }
            .into());
        }
        // A webhook that names no audiences does not look at them.
        let named = status.items_at(&["audiences"]);
        let is_ours = |one: &Value| {
            one.as_str()
                .is_some_and(|one| self.audiences.iter().any(|own| own == one))
        };
        if !named.is_empty() && !self.audiences.is_empty() && !named.iter().any(is_ours) {
            return Err("the token is for other audiences".into());
        }
        let texts = |value: &[Value]| {
            value
                .iter()
                .filter_map(Value::as_str)
                .map(Str::from)
                .collect()
        };
        let user = &status["user"];
        let extra = user.get("extra").and_then(Value::as_object);
        let extra = extra.into_iter().flat_map(|extra| extra.iter());
        let extra = extra.map(|(key, _)| (Str::from(key), texts(user.items_at(&["extra", key]))));
        let found = UserInfo {
            name: user.str_at(&["username"]).into(),
            uid: user.str_at(&["uid"]).into(),
            groups: texts(user.items_at(&["groups"])),
            extra: extra.collect(),
            is_foreign: false,
        };
        match found.name.is_empty() {
            true => Err("the webhook named no user".into()),
            false => Ok(Arc::new(found.authenticated())),
        }
    }
}

impl Authenticator for TokenWebhook {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let token = credentials
            .bearer
            .filter(|token| token.len() <= TOKEN_BYTES_MAX);
        let Some(token) = token else {
            return Verdict::now(Authentication::NoOpinion);
        };
        let asked = digest_of(token.as_bytes());
        if let Some(said) = self.answers.get(&asked, Instant::now()) {
            return Verdict::now(authentication(said));
        }
        if self.is_own(token) {
            return Verdict::now(Authentication::NoOpinion);
        }
        Verdict::later(self.ask(token, credentials.source, asked))
    }
}

fn authentication(said: Said) -> Authentication {
    match said {
        Ok(user) => Authentication::User(user),
        Err(why) => Authentication::Denied(Denied::Delegated(why.to_string())),
    }
}

/// Returns the issuer that a token names, if it is a JSON Web Token.
fn issuer_of(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let bytes = BASE64_URL_SAFE_NO_PAD
        .decode(payload.trim_end_matches('='))
        .ok()?;
    let parsed = json::parse(&bytes, &Limits::default()).ok()?;
    parsed
        .value
        .get("iss")
        .and_then(Value::as_str)
        .map(str::to_owned)
}
