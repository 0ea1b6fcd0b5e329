//! Requests about the run's objects, each recorded with its times and its outcome.
//!
//! This module owns the clock of the run, the numbers in writes, and the reading of answers. A
//! request is sent once: one in flight when its connection broke is never repeated. The module does
//! not judge.

pub mod pool;
pub mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::history::{
    ClientId, Cut, Failure, History, Listing, Moment, ObjectName, Operation, Outcome, PlaneName,
    Refusal, Value, Verb, Version,
};
use pool::{Pool, SendError};

/// The path of the run's objects.
pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The prefix of the names of the run's objects.
pub const PREFIX: &str = "run-";
/// The time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Records the requests of clients, on one clock.
pub struct Recorder {
    began: Instant,
    writes: AtomicU64,
    history: Mutex<History>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            writes: AtomicU64::new(0),
            history: Mutex::new(History::default()),
        }
    }
}

impl Recorder {
    /// Returns the present moment on the run's clock.
    pub fn now(&self) -> Moment {
        let since = self.began.elapsed().as_nanos();
        Moment(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Returns content that no other write of the run has.
    pub fn value(&self) -> Value {
        Value(self.writes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Removes and returns the record so far.
    pub async fn take(&self) -> History {
        std::mem::take(&mut *self.history.lock().await)
    }

    async fn note(&self, part: impl FnOnce(&mut History)) {
        part(&mut *self.history.lock().await);
    }
}

/// A client of one plane.
#[derive(Clone)]
pub struct PlaneClient {
    /// The id of the client.
    pub id: ClientId,
    /// The name of the plane.
    pub plane: PlaneName,
    pool: Arc<Pool>,
    recorder: Arc<Recorder>,
}

/// A whole answer, or the reason why there is none.
enum Reply {
    Answer(StatusCode, Json),
    /// Nothing was sent.
    Unsent,
    /// The request was sent and not answered.
    Broken,
    TimedOut,
}

impl PlaneClient {
    /// Creates a client of a plane whose requests go through a pool.
    pub fn new(id: u32, plane: &str, pool: Arc<Pool>, recorder: Arc<Recorder>) -> Self {
        Self {
            id: ClientId(id),
            plane: Arc::from(plane),
            pool,
            recorder,
        }
    }

    /// Returns content that no other write of the run has.
    pub fn value(&self) -> Value {
        self.recorder.value()
    }

    fn request(&self, method: Method, path: &str, body: &Json) -> Result<Request<Full<Bytes>>> {
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let path = format!("/clusters/{}{path}", self.plane);
        let mut request = self.pool.request(method, &path)?;
        let body = match body {
            Json::Null => Bytes::new(),
            body => {
                request = request.header(http::header::CONTENT_TYPE, kind);
                Bytes::from(body.to_string())
            }
        };
        Ok(request.body(Full::new(body))?)
    }

    async fn reply(&self, method: Method, path: &str, body: &Json) -> Result<Reply> {
        let request = self.request(method, path, body)?;
        let asked = async {
            let answer = match self.pool.send(request).await {
                Ok(answer) => answer,
                Err(SendError::Unsent(_)) => return Reply::Unsent,
                Err(SendError::Broken(_)) => return Reply::Broken,
            };
            let status = answer.status();
            match answer.into_body().collect().await {
                Ok(body) => {
                    let body = serde_json::from_slice(&body.to_bytes());
                    Reply::Answer(status, body.unwrap_or_default())
                }
                Err(error) => {
                    self.pool.say(&error.into());
                    Reply::Broken
                }
            }
        };
        Ok(timeout(PATIENCE, asked).await.unwrap_or(Reply::TimedOut))
    }

    /// Sends one request about one object and records it.
    ///
    /// # Errors
    /// Returns an error if HTTP cannot express the request.
    pub async fn operate(&self, object: &ObjectName, verb: Verb) -> Result<Outcome> {
        let (method, path, body) = asked(object, verb);
        let start = self.recorder.now();
        let reply = self.reply(method, &path, &body).await?;
        let outcome = match reply {
            Reply::Answer(status, body) => outcome(object, verb, status, &body),
            Reply::Unsent => Outcome::Failed(Failure::Connection),
            Reply::Broken => Outcome::Unknown(Failure::Connection),
            Reply::TimedOut => Outcome::Unknown(Failure::TimedOut),
        };
        let end = self.recorder.now();
        let operation = Operation {
            client: self.id,
            plane: self.plane.clone(),
            object: object.clone(),
            verb,
            start,
            end,
            outcome: outcome.clone(),
        };
        self.recorder
            .note(|history| history.operations.push(operation))
            .await;
        Ok(outcome)
    }

    /// Lists all objects of the run and records the list.
    ///
    /// # Errors
    /// Returns an error if HTTP cannot express the request.
    pub async fn list(&self) -> Result<Result<Cut, Failure>> {
        let start = self.recorder.now();
        let reply = self.reply(Method::GET, CONFIG_MAPS, &Json::Null).await?;
        let outcome = match reply {
            Reply::Answer(StatusCode::OK, body) => Ok(cut(&body)?),
            Reply::Answer(status, _) => Err(Failure::Status(status.as_u16())),
            Reply::Unsent | Reply::Broken => Err(Failure::Connection),
            Reply::TimedOut => Err(Failure::TimedOut),
        };
        let listing = Listing {
            client: self.id,
            plane: self.plane.clone(),
            start,
            end: self.recorder.now(),
            outcome: outcome.clone(),
        };
        self.recorder
            .note(|history| history.listings.push(listing))
            .await;
        Ok(outcome)
    }
}

/// Returns method, path and body of the request for a verb.
fn asked(object: &ObjectName, verb: Verb) -> (Method, String, Json) {
    let one = format!("{CONFIG_MAPS}/{object}");
    let content = |value: Value| json!({"v": value.0.to_string()});
    match verb {
        Verb::Create(value) => {
            let body = json!({"metadata": {"name": &**object}, "data": content(value)});
            (Method::POST, CONFIG_MAPS.to_owned(), body)
        }
        Verb::Get => (Method::GET, one, Json::Null),
        Verb::Update { value, over } => {
            let mut body = json!({"metadata": {"name": &**object}, "data": content(value)});
            if let Some(over) = over {
                body["metadata"]["resourceVersion"] = json!(over.0.to_string());
            }
            (Method::PUT, one, body)
        }
        Verb::Patch(value) => (Method::PATCH, one, json!({"data": content(value)})),
        Verb::Delete { over: None } => (Method::DELETE, one, Json::Null),
        Verb::Delete { over: Some(over) } => {
            let body = json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": {"resourceVersion": over.0.to_string()},
            });
            (Method::DELETE, one, body)
        }
    }
}

/// Returns the outcome that an answer means for one object.
fn outcome(object: &ObjectName, verb: Verb, status: StatusCode, body: &Json) -> Outcome {
    // A 404 may also mean that the plane or the namespace does not exist.
    let about_it = body["details"]["name"] == **object && body["details"]["kind"] == "configmaps";
    match (status.as_u16(), body["reason"].as_str()) {
        (200..=202, _) if matches!(verb, Verb::Delete { .. }) => Outcome::Deleted,
        (200 | 201, _) => Outcome::Object {
            version: version(body),
            value: value(body),
        },
        (404, _) if about_it => Outcome::Refused(Refusal::NotFound),
        (409, Some("AlreadyExists")) => Outcome::Refused(Refusal::AlreadyExists),
        (409, Some("Conflict")) => Outcome::Refused(Refusal::Conflict),
        (code @ 400..=499, _) => Outcome::Failed(Failure::Status(code)),
        (code, _) => Outcome::Unknown(Failure::Status(code)),
    }
}

fn version(object: &Json) -> Version {
    Version(crate::client::version(object))
}

/// Returns the content of an object, or 0, which nobody writes, if there is none.
fn value(object: &Json) -> Value {
    let text = object["data"]["v"].as_str().unwrap_or_default();
    Value(text.parse().unwrap_or_default())
}

fn name(object: &Json) -> Option<ObjectName> {
    let name = object["metadata"]["name"].as_str()?;
    name.starts_with(PREFIX).then(|| Arc::from(name))
}

fn cut(list: &Json) -> Result<Cut> {
    let Some(listed) = list["items"].as_array() else {
        bail!("a list without items: {list}");
    };
    let mut items = BTreeMap::new();
    for item in listed {
        if let Some(name) = name(item) {
            items.insert(name, (version(item), value(item)));
        }
    }
    Ok(Cut {
        version: version(list),
        items,
    })
}
