//! The audit of one request: begun once its caller is proven at the owner, ended with its answer.
//!
//! All events of a request leave when it ends, each with the time of its stage; those of a watch
//! leave when it starts and when it ends. A request that goes on at another replica leaves no event
//! here, so each request has each stage once.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, StatusCode};
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::schema::{Schemas, proto};
use polyplane_apimachinery::{Str, Value, yaml};
use polyplane_audit::{Auditor, Event, Level, Object, Outcome, Plan, Stage};
use polyplane_auth::{Attributes, UserInfo};
use polyplane_registry::{Answer, AnswerBody, ResourceRequest, Verb};

use crate::answer::respond::Refusal;
use crate::pipeline::Pipeline;
use crate::request::authorize::Requested;
use crate::request::prove::{Located, Proven};
use crate::request::request_info::RequestInfo;

/// The longest body in bytes that an event has. A longer one is left out, and an annotation says so.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Parameters whose values are credentials.
const SECRET_PARAMETERS: [&str; 2] = ["access_token", "token"];
/// The code of a request whose client went away before it was answered.
const CLIENT_CLOSED: u16 = 499;

/// A request that is recorded.
pub(crate) struct Audited {
    auditor: Arc<Auditor>,
    /// The schemas of bodies in protobuf.
    schemas: Arc<Schemas>,
    plan: Plan,
    event: Box<Event>,
    /// True if the request's first stages were recorded by another replica.
    resumed: bool,
    /// The Status with which the request is answered; empty for none.
    status: Bytes,
    /// True once nothing more is recorded.
    over: bool,
}

impl Pipeline<'_> {
    /// Begins the audit of a request, if the policy wants one.
    pub(crate) fn begin_audit(&self, located: &Located, proven: &Proven) -> Option<Audited> {
        let auditor = self.state.audit.as_ref()?;
        let record = located.record();
        let plane = (record.name().into(), record.id().into());
        self.audit_of(auditor, Arc::clone(proven.user()), plane)
    }

    /// Records a request whose caller has not proven who they are.
    pub(crate) fn audit_unproven(&self, refusal: &Refusal) {
        let Some(auditor) = &self.state.audit else {
            return;
        };
        let nobody = Arc::new(UserInfo::default());
        let audited = self.audit_of(auditor, nobody, (Str::default(), Str::default()));
        if let Some(mut audited) = audited {
            audited.over = true;
            audited.event.outcome = Some(outcome_of(refusal));
            audited.record(Stage::ResponseStarted, SystemTime::now());
        }
    }

    fn audit_of(
        &self,
        auditor: &Arc<Auditor>,
        user: Arc<UserInfo>,
        plane: (Str, Str),
    ) -> Option<Audited> {
        let requested = Requested::of(self.info, self.query, &self.parts.method);
        let attributes = Attributes {
            user: &user,
            verb: &requested.verb,
            subject: requested.subject(),
        };
        let plan = auditor.plan(&attributes)?;
        let object = match self.info {
            RequestInfo::Path(_) => None,
            RequestInfo::Resource(info) => Some(Object {
                group: info.group.into(),
                version: info.version.into(),
                resource: info.resource.into(),
                subresource: info.subresource.into(),
                namespace: info.namespace.into(),
                name: requested.name.as_ref().into(),
            }),
        };
        let headers = &self.parts.headers;
        let event = Event {
            level: plan.level,
            audit_id: self.audit_id.to_str().unwrap_or_default().into(),
            uri: self.shown_uri(),
            verb: requested.verb.as_ref().into(),
            user: Arc::clone(&user),
            impersonated: None,
            sources: sources(headers, self.caller.connection.remote()),
            user_agent: text(headers, USER_AGENT.as_str()).to_owned(),
            object,
            created: Str::default(),
            plane,
            received: SystemTime::now() - self.started.elapsed(),
            request: Bytes::new(),
            response: Bytes::new(),
            annotations: Vec::new(),
            outcome: None,
        };
        Some(Audited {
            auditor: Arc::clone(auditor),
            schemas: Arc::clone(&self.state.schemas),
            plan,
            event: Box::new(event),
            resumed: self.is_resumed(),
            status: Bytes::new(),
            over: false,
        })
    }

    /// Returns path and query without the plane, and without the values of credentials.
    fn shown_uri(&self) -> String {
        let mut uri = match self.path {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        for (index, part) in self
            .parts
            .uri
            .query()
            .into_iter()
            .flat_map(|query| query.split('&'))
            .enumerate()
        {
            uri.push(if index == 0 { '?' } else { '&' });
            match part.split_once('=') {
                Some((name, _)) if SECRET_PARAMETERS.contains(&name) => {
                    uri.push_str(name);
                    uri.push_str("=masked");
                }
                _ => uri.push_str(part),
            }
        }
        uri
    }
}

impl Audited {
    /// Notes the user as whom the request is made.
    pub(crate) fn made_as(&mut self, user: &Arc<UserInfo>) {
        if !Arc::ptr_eq(user, &self.event.user) {
            self.event.impersonated = Some(Arc::clone(user));
        }
    }

    /// Notes whether the user may make the request.
    pub(crate) fn decided(&mut self, allowed: bool) {
        let decision = if allowed { "allow" } else { "forbid" };
        self.annotate("authorization.k8s.io/decision", decision);
    }

    /// Notes the request that the registry gets, which means an object of this kind.
    pub(crate) fn sent(&mut self, request: &ResourceRequest, kind: &str) {
        let body = &request.body;
        let wants_body = self.plan.level >= Level::Request;
        let is_create = request.verb == Verb::Create && request.name.is_none();
        if body.is_empty() || !(wants_body || is_create) {
            return;
        }
        let content_type = request.content_type.as_deref().unwrap_or_default();
        let mut tree = readable(body, content_type, &self.schemas);
        if let Some(tree) = tree.as_ref().filter(|_| is_create) {
            self.event.created = tree.str_at(&["metadata", "name"]).into();
        }
        if !wants_body {
            return;
        }
        if let Some(tree) = &mut tree
            && request.subresource.is_none()
            && matches!(request.verb, Verb::Create | Verb::Update)
        {
            let version = match request.group.as_str() {
                "" => request.version.to_string(),
                group => format!("{group}/{}", request.version),
            };
            for (field, value) in [("kind", kind), ("apiVersion", version.as_str())] {
                if tree.str_at(&[field]).is_empty() {
                    tree.set(&[field], Str::from(value));
                }
            }
        }
        self.event.request = self.shown(tree, body.len(), "polyplane.dev/request-left-out");
    }

    /// Notes the answer.
    pub(crate) fn answered(&mut self, answer: &Answer, verb: Verb) {
        let wants_body = self.plan.level >= Level::RequestResponse;
        // Only what was deleted may be answered with a Status.
        let may_be_status = matches!(verb, Verb::Delete | Verb::DeleteCollection);
        if !wants_body && !may_be_status {
            return;
        }
        let AnswerBody::Slices(slices) = &answer.body else {
            return self.annotate("polyplane.dev/response-left-out", "true");
        };
        let length = slices.iter().map(Bytes::len).sum();
        let tree = (length <= BODY_BYTES_MAX)
            .then(|| readable(&slices.concat(), &answer.content_type, &self.schemas))
            .flatten();
        if let Some(status) = tree
            .as_ref()
            .filter(|tree| tree.str_at(&["kind"]) == "Status")
        {
            let mut status = status.clone();
            status.set(&["code"], i64::from(StatusCode::OK.as_u16()));
            self.status = shown_status(status);
        }
        if wants_body {
            self.event.response = self.shown(tree, length, "polyplane.dev/response-left-out");
        }
    }

    /// Returns a body as an event has it; empty with an annotation if it cannot be shown.
    fn shown(&mut self, tree: Option<Value>, length: usize, left_out: &'static str) -> Bytes {
        let Some(mut tree) = tree.filter(|_| length <= BODY_BYTES_MAX) else {
            self.annotate(left_out, "true");
            return Bytes::new();
        };
        if self.plan.omits_managed_fields {
            drop(tree.remove(&["metadata", "managedFields"]));
            let items = tree.get_mut("items").and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                drop(item.remove(&["metadata", "managedFields"]));
            }
        }
        json::to_vec(&tree).into()
    }

    fn annotate(&mut self, key: &'static str, value: &str) {
        self.event.annotations.push((key, value.to_owned()));
    }

    /// Forgets the request, which another replica records.
    pub(crate) fn forget(mut self) {
        self.over = true;
    }

    /// Records that the answer has begun and takes long.
    pub(crate) fn started(&mut self) {
        self.event.outcome = Some(Outcome {
            code: 200,
            status: Bytes::new(),
        });
        self.arrived();
        self.record(Stage::ResponseStarted, SystemTime::now());
        // Neither stage is recorded again.
        self.resumed = true;
    }

    /// Records that the request was refused.
    pub(crate) fn refused(mut self, refusal: &Refusal) {
        if matches!(refusal, Refusal::Access(_)) {
            self.decided(false);
        }
        if self.plan.level == Level::RequestResponse
            && let Refusal::Status(error) | Refusal::Access(error) = refusal
        {
            self.event.response = error.to_json().into();
        }
        let outcome = outcome_of(refusal);
        self.end(outcome);
    }

    /// Records that the request was answered with this code.
    pub(crate) fn complete(mut self, code: u16) {
        let status = std::mem::take(&mut self.status);
        self.end(Outcome { code, status });
    }

    fn end(&mut self, outcome: Outcome) {
        self.over = true;
        self.event.outcome = Some(outcome);
        self.arrived();
        self.record(Stage::ResponseComplete, SystemTime::now());
    }

    /// Records the arrival, unless that was done.
    fn arrived(&self) {
        if !self.resumed {
            self.record(Stage::RequestReceived, self.event.received);
        }
    }

    fn record(&self, stage: Stage, at: SystemTime) {
        if self.plan.records(stage) && !(self.resumed && stage == Stage::ResponseStarted) {
            self.auditor.record(&self.event, stage, at);
        }
    }
}

impl Drop for Audited {
    /// Records a request that ended otherwise: the server failed, or the client went away. What it
    /// asked for may have been done.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if std::thread::panicking() {
            self.over = true;
            self.event.outcome = Some(Outcome {
                code: 500,
                status: Bytes::new(),
            });
            self.arrived();
            return self.record(Stage::Panic, SystemTime::now());
        }
        self.end(Outcome {
            code: CLIENT_CLOSED,
            status: Bytes::new(),
        });
    }
}

fn outcome_of(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::Status(error) | Refusal::Access(error) => Outcome {
            code: error.code,
            status: shown_status(json_of(&error.to_json()).unwrap_or_default()),
        },
        Refusal::Busy(_) => Outcome {
            code: StatusCode::TOO_MANY_REQUESTS.as_u16(),
            status: Bytes::new(),
        },
        Refusal::Text(code, _) => Outcome {
            code: code.as_u16(),
            status: Bytes::new(),
        },
    }
}

/// Returns a Status as events have it.
fn shown_status(mut status: Value) -> Bytes {
    for field in ["kind", "apiVersion"] {
        drop(status.remove(&[field]));
    }
    json::to_vec(&status).into()
}

/// Returns the tree of a body in JSON or YAML.
fn readable(body: &[u8], content_type: &str, schemas: &Schemas) -> Option<Value> {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let parsed = match essence {
        "" | "application/json" => json_of(body)?,
        yaml if yaml.ends_with("yaml") => yaml::parse(body, &Limits::default()).ok()?.value,
        patch if patch.ends_with("+json") => json_of(body)?,
        proto::MEDIA_TYPE => schemas.tree_of_proto(body)?,
        _ => return None,
    };
    Some(parsed)
}

fn json_of(body: &[u8]) -> Option<Value> {
    Some(json::parse(body, &Limits::default()).ok()?.value)
}

/// Returns the addresses that proxies name, and that of the connection.
fn sources(headers: &HeaderMap, remote: Option<&str>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let named = text(headers, "x-forwarded-for").split(',');
    let named = named.chain([text(headers, "x-real-ip")]);
    let address = |text: &str| text.trim().parse::<std::net::IpAddr>().ok();
    let of_connection = remote.and_then(|remote| remote.parse::<std::net::SocketAddr>().ok());
    let all = named
        .filter_map(address)
        .chain(of_connection.map(|address| address.ip()));
    for address in all {
        let address = address.to_string();
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}
