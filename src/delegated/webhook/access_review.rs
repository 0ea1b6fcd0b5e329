//! Asks a webhook whether a request is allowed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyplane_apimachinery::field_selector::{FieldOperator, FieldSelector};
use polyplane_apimachinery::json;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::{Attributes, Authorizer, Decision, Digest, Subject, Verdict, digest_of};
use polyplane_outbound::{LogPause, PlaneCaller, TargetError};

use super::cache::Answers;
use super::conditions::MatchConditions;
use super::kubeconfig::WebhookServer;
use super::review::{ReviewVersion, Reviewer};

/// Bytes of a question whose answer is cached, as upstream. A longer one is rare, and may be made by a
/// client to fill the cache.
const CACHED_BYTES_MAX: usize = 10_000;

/// Decides by a webhook. It serves one plane: a question does not name the plane.
pub struct AccessWebhook {
    reviewer: Reviewer,
    version: ReviewVersion,
    /// How long answers that allow and that do not are cached.
    lifetimes: (Duration, Duration),
    on_failure: OnFailure,
    conditions: MatchConditions,
    answers: Answers<Decision>,
    failures_logged: Mutex<LogPause>,
    conditions_logged: Mutex<LogPause>,
}

/// What is decided if a webhook gives no answer, or a condition no truth value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The next authorizer decides.
    #[default]
    NoOpinion,
    /// The request is refused.
    Deny,
}

impl OnFailure {
    fn decision(self) -> Decision {
        match self {
            Self::NoOpinion => Decision::NoOpinion(String::new()),
            // Without the cause, which may name servers and what they answered.
            Self::Deny => {
                Decision::Deny("a webhook that has to decide on this gave no answer".to_owned())
            }
        }
    }
}

impl AccessWebhook {
    /// Creates an authorizer that asks `server`. Answers that allow are cached for the first of the
    /// lifetimes, others for the second. Without an answer it has no opinion, unless
    /// [`Self::configured`] says otherwise.
    ///
    /// # Errors
    /// Returns an error if the webhook has no URL that may be called.
    pub fn new(
        server: WebhookServer,
        caller: &Arc<PlaneCaller>,
        version: ReviewVersion,
        lifetimes: (Duration, Duration),
    ) -> Result<Self, TargetError> {
        Ok(Self {
            reviewer: Reviewer::new(server, caller)?,
            version,
            lifetimes,
            on_failure: OnFailure::default(),
            conditions: MatchConditions::default(),
            answers: Answers::default(),
            failures_logged: Mutex::default(),
            conditions_logged: Mutex::default(),
        })
    }

    /// Returns the authorizer with its own time for one call, its own decision on failures, and as one that
    /// is asked only about what `conditions` hold for.
    #[must_use]
    pub fn configured(
        self,
        timeout: Duration,
        on_failure: OnFailure,
        conditions: MatchConditions,
    ) -> Self {
        Self {
            reviewer: self.reviewer.with_timeout(timeout),
            on_failure,
            conditions,
            ..self
        }
    }

    async fn ask(&self, review: Value, asked: Option<Digest>) -> Decision {
        let decision = match self.reviewer.review(&review).await {
            Ok(status) => decision(&status),
            // Not cached: the next request may find the webhook again.
            Err(why) => {
                if is_due(&self.failures_logged) {
                    tracing::warn!(
                        "the webhook for access cannot be asked: {why} (logged once a minute)"
                    );
                }
                return self.on_failure.decision();
            }
        };
        if let Some(asked) = asked {
            let lifetime = match decision {
                Decision::Allow => self.lifetimes.0,
                Decision::Deny(_) | Decision::NoOpinion(_) => self.lifetimes.1,
            };
            self.answers
                .insert(asked, decision.clone(), lifetime, Instant::now());
        }
        decision
    }
}

impl Authorizer for AccessWebhook {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        match self.conditions.hold_for(attributes) {
            Ok(true) => {}
            Ok(false) => return Verdict::now(Decision::NoOpinion(String::new())),
            Err(why) => {
                if is_due(&self.conditions_logged) {
                    tracing::warn!(
                        "a condition of the webhook for access has no value: {why} (logged once a \
                         minute)"
                    );
                }
                return Verdict::now(self.on_failure.decision());
            }
        }
        let review = review(attributes, self.version);
        let bytes = json::to_vec(&review);
        let asked = (bytes.len() <= CACHED_BYTES_MAX).then(|| digest_of(&bytes));
        let known = asked.and_then(|asked| self.answers.get(&asked, Instant::now()));
        match known {
            Some(decision) => Verdict::now(decision),
            None => Verdict::later(self.ask(review, asked)),
        }
    }
}

/// Returns whether what any request can cause is to be logged now.
fn is_due(logged: &Mutex<LogPause>) -> bool {
    logged.lock().is_due(tokio::time::Instant::now())
}

fn decision(status: &Value) -> Decision {
    let reason = || status.str_at(&["reason"]).to_owned();
    match (status.bool_at(&["denied"]), status.bool_at(&["allowed"])) {
        // Both at once is a contradiction, which is no permission.
        (true, _) => Decision::Deny(reason()),
        (false, true) => Decision::Allow,
        (false, false) => Decision::NoOpinion(reason()),
    }
}

/// Returns the review of a request.
fn review(attributes: &Attributes<'_>, version: ReviewVersion) -> Value {
    let mut spec = Value::object();
    let mut set = |path: &[&str], text: &str| {
        if !text.is_empty() {
            spec.set(path, text);
        }
    };
    match attributes.subject {
        Subject::Path(path) => {
            set(&["nonResourceAttributes", "path"], path);
            set(&["nonResourceAttributes", "verb"], attributes.verb);
        }
        Subject::Resource {
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
            field_selector,
        } => {
            let fields = [
                ("namespace", namespace),
                ("verb", attributes.verb),
                ("group", group),
                ("version", version),
                ("resource", resource),
                ("subresource", subresource),
                ("name", name),
            ];
            for (field, text) in fields {
                set(&["resourceAttributes", field], text);
            }
            let requirements = requirements(field_selector);
            if !requirements.is_empty() {
                let path = ["resourceAttributes", "fieldSelector", "requirements"];
                spec.set(&path, requirements);
            }
        }
    }
    let user = attributes.user;
    spec.set(&["user"], user.name.clone());
    let texts =
        |texts: &[Str]| -> Vec<Value> { texts.iter().cloned().map(Value::string).collect() };
    if !user.groups.is_empty() {
        // `v1beta1` has the groups under another name.
        let field = match version {
            ReviewVersion::V1 => "groups",
            ReviewVersion::V1Beta1 => "group",
        };
        spec.set(&[field], texts(&user.groups));
    }
    if !user.uid.is_empty() {
        spec.set(&["uid"], user.uid.clone());
    }
    if !user.extra.is_empty() {
        let extra = user.extra.iter();
        let extra: Map = extra
            .map(|(key, values)| (key.clone(), Value::Array(texts(values))))
            .collect();
        spec.set(&["extra"], extra);
    }
    let mut review = Value::object();
    review.set(&["kind"], "SubjectAccessReview");
    review.set(
        &["apiVersion"],
        format!("authorization.k8s.io/{}", version.name()),
    );
    review.set(&["spec"], spec);
    review
}

/// Returns the conditions of a field selector. One that cannot be read is left out: the question is then
/// about more.
pub(super) fn requirements(selector: &str) -> Vec<Value> {
    if selector.is_empty() {
        return Vec::new();
    }
    let Ok(parsed) = FieldSelector::parse(selector) else {
        return Vec::new();
    };
    let terms = parsed.terms().iter().map(|term| {
        let operator = match term.operator {
            FieldOperator::Equals => "In",
            FieldOperator::NotEquals => "NotIn",
        };
        let mut requirement = Value::object();
        requirement.set(&["key"], term.field.as_str());
        requirement.set(&["operator"], operator);
        requirement.set(&["values"], vec![Value::string(term.value.as_str())]);
        requirement
    });
    terms.collect()
}
