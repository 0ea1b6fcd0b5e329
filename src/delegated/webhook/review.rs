//! A question to a webhook: an object of a review kind there and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_outbound::{Call, CallError, PlaneCaller, Target, TargetError};

use super::kubeconfig::WebhookServer;

/// How long one call may take, unless the operator says otherwise.
const CALL: Duration = Duration::from_secs(10);
/// Calls for one question: a webhook that restarts refuses some connections.
const ATTEMPTS: u32 = 3;
/// The pause before the second call, which grows; less would fall into the same restart.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes of the longest answer. A user with many groups has some kilobytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Depth of brackets in an answer.
const DEPTH_MAX: usize = 32;

/// The version of reviews that a webhook speaks. Both have the same fields here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`
    V1,
    /// `v1beta1`, upstream's default.
    V1Beta1,
}

impl ReviewVersion {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// Returns the version of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::V1, Self::V1Beta1]
            .into_iter()
            .find(|one| one.name() == name)
    }
}

/// The reason why a webhook gave no status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoStatus {
    /// There was no place for the question.
    #[error("too many questions wait")]
    Busy,
    /// The last calls failed, so this one was not made.
    #[error("{0}")]
    Open(String),
    /// The webhook was asked, and gave no status.
    #[error("{0}")]
    Failed(String),
}

/// A webhook that reviews.
pub(super) struct Reviewer {
    target: Target,
    headers: HeaderMap,
    timeout: Duration,
}

impl Reviewer {
    pub(super) fn new(
        server: WebhookServer,
        caller: &Arc<PlaneCaller>,
    ) -> Result<Self, TargetError> {
        let (target, mut headers) = server.target(caller)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Self {
            target,
            headers,
            timeout: CALL,
        })
    }

    /// Sets how long one call may take.
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sends a review, and returns the status of the one that comes back.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    pub(super) async fn review(&self, review: &Value) -> Result<Value, NoStatus> {
        let body = Bytes::from(json::to_vec(review));
        let mut pause = PAUSE;
        let mut attempt = 1;
        let answer = loop {
            let answer = self.target.call(Call {
                method: Method::POST,
                path: None,
                headers: self.headers.clone(),
                body: body.clone(),
                timeout: self.timeout,
                answer_bytes_max: ANSWER_BYTES_MAX,
            });
            let failure = match answer.await {
                Ok(answer) if answer.status.is_server_error() || answer.status == 429 => {
                    format!("the webhook answered {}", answer.status.as_u16())
                }
                Ok(answer) => break answer,
                Err(error @ CallError::Transport(_)) => error.to_string(),
                Err(CallError::Busy) => return Err(NoStatus::Busy),
                Err(error @ CallError::Open(_)) => return Err(NoStatus::Open(error.to_string())),
                // A second try would wait as long, or is not to be made.
                Err(error) => return Err(NoStatus::Failed(error.to_string())),
            };
            if attempt == ATTEMPTS {
                return Err(NoStatus::Failed(failure));
            }
            attempt += 1;
            tokio::time::sleep(pause).await;
            pause *= 2;
        };
        if !answer.status.is_success() {
            let status = answer.status.as_u16();
            return Err(NoStatus::Failed(format!("the webhook answered {status}")));
        }
        let limits = Limits {
            depth_max: DEPTH_MAX,
            ..Limits::default()
        };
        let parsed = json::parse(&answer.body, &limits);
        let mut parsed = parsed
            .map_err(|error| NoStatus::Failed(format!("the answer is no JSON: {error}")))?
            .value;
        for field in ["kind", "apiVersion"] {
            if parsed.str_at(&[field]) != review.str_at(&[field]) {
                let why = format!("the answer has another {field}");
                return Err(NoStatus::Failed(why));
            }
        }
        Ok(parsed
            .get_mut("status")
            .map(Value::take)
            .unwrap_or_default())
    }
}
