//! The audit of one request: begun once its caller is proven at the owner, ended with its answer.
//!
//! All events of a request leave when it ends, each with the time of its stage; those of a watch
//! leave when it starts and when it ends. A request that goes on at another replica leaves no event
//! here, so each request has each stage once. If requests wait for a backend, the event of the
//! arrival leaves first, and a request whose plane moves away after that may have it at both owners.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderName, StatusCode};
use polyplane_apimachinery::json::{self, Limits, document, scan};
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::schema::{Schemas, proto};
use polyplane_apimachinery::{Str, Value, yaml};
use polyplane_audit::{
    Auditor, BODY_BYTES_MAX, Event, Head, Object, Outcome, PlaneName, Recorded, Sources, Stage,
    shown_status,
};
use polyplane_auth::service_account::claims::Claims;
use polyplane_auth::{Attributes, UserInfo};
use polyplane_registry::{Annotations, Answer, AnswerBody, CheckedAccess, ResourceRequest, Verb};

use crate::answer::respond::{Refusal, Reply};
use crate::pipeline::Pipeline;
use crate::request::authorize::Requested;
use crate::request::impersonate::ActingUser;
use crate::request::prove::{Located, Proven};
use crate::request::request_info::RequestInfo;

/// Parameters whose values are credentials.
const SECRET_PARAMETERS: [&str; 2] = ["access_token", "token"];
/// The headers in which proxies name the client's address.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// The code of a request whose client went away before it was answered.
const CLIENT_CLOSED: u16 = 499;

/// A request that is recorded.
pub(crate) struct Audited {
    auditor: Arc<Auditor>,
    /// The schemas of bodies in protobuf.
    schemas: Arc<Schemas>,
    /// Shared with the log once the request is over.
    event: Arc<Event>,
    user: Arc<UserInfo>,
    /// True if the arrival was recorded, here or by another replica.
    has_arrived: bool,
    /// True if the start of the answer was recorded by another replica.
    has_started: bool,
    /// The Status with which the request is answered; empty for none.
    status: Bytes,
    /// What the registry says about the request.
    annotations: Arc<Annotations>,
    /// True once nothing more is recorded.
    over: bool,
}

impl Pipeline<'_> {
    /// Begins the audit of a request, if the policy wants one.
    pub(crate) fn begin_audit(&self, located: &Located, proven: &Proven) -> Option<Audited> {
        let auditor = self.state.audit.as_ref()?;
        let record = located.record();
        let plane = PlaneName {
            name: record.name(),
            id: record.id(),
        };
        let mut audited = self.audit_of(auditor, proven.user(), plane)?;
        if let Some(token) = proven.token() {
            audited.came_by(&token.claims);
        }
        Some(audited)
    }

    /// Records the arrival of the request, if requests wait for that.
    ///
    /// # Errors
    /// Returns the refusal of a request whose arrival must be recorded and could not be.
    pub(crate) async fn record_arrival(&mut self) -> Result<(), Refusal> {
        if let Some(audited) = &mut self.audited {
            audited.arrive(self.path).await?;
            self.arrival_recorded = audited.has_arrived;
        }
        Ok(())
    }

    /// Records the end of the request.
    pub(crate) fn end_audit(&mut self, answered: &Result<Reply, Refusal>) {
        let recorded = match (self.audited.take(), answered) {
            (Some(audited), Ok(reply)) => audited.complete(reply.status().as_u16()),
            (Some(audited), Err(refusal)) => audited.refused(refusal),
            // The peer that asks for a proof records its refusal.
            (None, _) if self.caller.is_for_proof() => return,
            (None, Err(refusal)) if refusal.is_unproven() => self.audit_unproven(refusal),
            (None, _) => return,
        };
        self.unrecorded.and(recorded);
    }

    /// Waits until the events of the request are recorded, if requests wait for that. What was done is
    /// done, so the answer is the same if they cannot be.
    pub(crate) async fn await_records(&mut self) {
        if !self.unrecorded.is_settled() {
            // Boxed, because most servers never wait here.
            drop(Box::pin(std::mem::take(&mut self.unrecorded).wait()).await);
        }
    }

    /// Records a request whose caller has not proven who they are.
    pub(crate) fn audit_unproven(&self, refusal: &Refusal) -> Recorded {
        let Some(auditor) = &self.state.audit else {
            return Recorded::default();
        };
        let nobody = Arc::new(UserInfo::default());
        let audited = self.audit_of(auditor, &nobody, PlaneName::default());
        let Some(mut audited) = audited else {
            return Recorded::default();
        };
        audited.over = true;
        audited.event_mut().outcome = Some(outcome_of(refusal));
        audited.record(Stage::ResponseStarted, SystemTime::now())
    }

    fn audit_of(
        &self,
        auditor: &Arc<Auditor>,
        user: &Arc<UserInfo>,
        plane: PlaneName<'_>,
    ) -> Option<Audited> {
        let requested = Requested::of(self.info, self.query, &self.parts.method);
        let attributes = Attributes {
            user,
            verb: &requested.verb,
            subject: requested.subject(),
        };
        let plan = auditor.plan(&attributes)?;
        let object = match self.info {
            RequestInfo::Path(_) => None,
            RequestInfo::Resource(info) => Some(Object {
                group: info.group,
                version: info.version,
                resource: info.resource,
                subresource: info.subresource,
                namespace: info.namespace,
                name: &requested.name,
            }),
        };
        let headers = &self.parts.headers;
        let head = Head {
            audit_id: self.audit_id.to_str().unwrap_or_default(),
            uri: &self.shown_uri(),
            verb: &requested.verb,
            user,
            sources: sources(headers, self.caller.connection.address()),
            user_agent: text(headers, &USER_AGENT),
            object,
            plane,
            received: SystemTime::now() - self.started.elapsed(),
        };
        Some(Audited {
            event: Arc::new(auditor.event(plan, head)),
            auditor: Arc::clone(auditor),
            schemas: Arc::clone(&self.state.schemas),
            user: Arc::clone(user),
            has_arrived: self.is_resumed() || self.arrival_recorded,
            has_started: self.is_resumed(),
            status: Bytes::new(),
            annotations: Arc::default(),
            over: false,
        })
    }

    /// Returns path and query without the plane, and without the values of credentials.
    fn shown_uri(&self) -> Cow<'_, str> {
        let path = match self.path {
            "" => "/",
            path => path,
        };
        let Some(query) = self.parts.uri.query() else {
            return Cow::Borrowed(path);
        };
        let mut uri = String::with_capacity(path.len() + 1 + query.len());
        uri.push_str(path);
        for (index, part) in query.split('&').enumerate() {
            uri.push(if index == 0 { '?' } else { '&' });
            match part.split_once('=') {
                Some((name, _)) if SECRET_PARAMETERS.contains(&name) => {
                    uri.push_str(name);
                    uri.push_str("=masked");
                }
                _ => uri.push_str(part),
            }
        }
        Cow::Owned(uri)
    }
}

impl Audited {
    /// Records the arrival and waits until it is recorded, if requests wait for a backend.
    ///
    /// # Errors
    /// Returns the refusal of a request whose arrival must be recorded and could not be.
    async fn arrive(&mut self, path: &str) -> Result<(), Refusal> {
        if !self.auditor.waits() || self.has_arrived {
            return Ok(());
        }
        self.has_arrived = true;
        if !self.event.plan().records(Stage::RequestReceived) {
            return Ok(());
        }
        // Boxed, because most servers never wait here.
        let arrived = Box::pin(self.auditor.record_arrival(&self.event)).await;
        arrived.map_err(|error| {
            self.over = true;
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            let path = quote(path);
            let text = format!("Internal Server Error: {path}: {error}\n");
            Refusal::Text(code, text.into())
        })
    }

    /// Notes what the token of the caller, a service account, tells beside the user.
    fn came_by(&mut self, claims: &Claims) {
        if claims.audiences.is_empty() {
            let subject = &claims.user_name();
            self.event_mut()
                .annotate("authentication.k8s.io/legacy-token", subject);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
        if let Some(threshold) = claims.warn_after.filter(|threshold| *threshold < now) {
            let (subject, seconds) = (claims.user_name(), now - threshold);
            let text = format!("subject: {subject}, seconds after warning threshold: {seconds}");
            self.event_mut()
                .annotate("authentication.k8s.io/stale-token", &text);
        }
    }

    /// Notes the user as whom the request is made.
    pub(crate) fn made_as(&mut self, acting: &ActingUser) {
        if !Arc::ptr_eq(&acting.user, &self.user) {
            self.event_mut().impersonated = Some(Arc::clone(&acting.user));
            self.event_mut().impersonation_constraint = acting.constraint;
        }
    }

    /// Notes whether the user may make the request, and why.
    pub(crate) fn decided(&mut self, access: CheckedAccess, reason: String) {
        if let Some(allowed) = access.is_allowed() {
            self.event_mut().decided(allowed, &reason);
        }
    }

    /// Returns where the registry says what it knows about the request.
    pub(crate) fn annotations(&self) -> Arc<Annotations> {
        Arc::clone(&self.annotations)
    }

    /// Notes the request that the registry gets, which means an object of this kind.
    pub(crate) fn sent(&mut self, request: &ResourceRequest, kind: &str) {
        let body = &request.body;
        let is_create = request.verb == Verb::Create && request.name.is_none();
        if body.is_empty() || !(self.event.wants_request() || is_create) {
            return;
        }
        let content_type = request.content_type.as_deref().unwrap_or_default();
        if !self.event.wants_request() && is_json(content_type) {
            // Without a tree, because most creations are recorded without bodies.
            self.event_mut().created = created_name(body).unwrap_or_default();
            return;
        }
        let tree = readable(body, content_type, &self.schemas);
        if let Some(tree) = tree.as_ref().filter(|_| is_create) {
            self.event_mut().created = tree.str_at(&["metadata", "name"]).into();
        }
        let is_object =
            request.subresource.is_none() && matches!(request.verb, Verb::Create | Verb::Update);
        let version = match request.group.as_str() {
            "" => request.version.to_string(),
            group => format!("{group}/{}", request.version),
        };
        let kind = is_object.then_some((kind, version.as_str()));
        self.event_mut().show_request(tree, body.len(), kind);
    }

    /// Notes the answer.
    pub(crate) fn answered(&mut self, answer: &Answer, verb: Verb) {
        let wants_body = self.event.wants_response();
        // Only what was deleted may be answered with a Status.
        let may_be_status = matches!(verb, Verb::Delete | Verb::DeleteCollection);
        if !wants_body && !may_be_status {
            return;
        }
        let AnswerBody::Slices(slices) = &answer.body else {
            self.event_mut().response_left_out = wants_body;
            return;
        };
        let length = slices.iter().map(Bytes::len).sum();
        let body = (length <= BODY_BYTES_MAX).then(|| slices.concat());
        let has_other_kind = |body: &Vec<u8>| {
            let kind = scan::string_at(body, &["kind"]);
            is_json(&answer.content_type) && kind.is_some_and(|kind| kind != "Status")
        };
        if !wants_body && body.as_ref().is_none_or(has_other_kind) {
            return;
        }
        let tree = body.and_then(|body| readable(&body, &answer.content_type, &self.schemas));
        if let Some(status) = tree
            .as_ref()
            .filter(|tree| tree.str_at(&["kind"]) == "Status")
        {
            let mut status = status.clone();
            status.set(&["code"], i64::from(StatusCode::OK.as_u16()));
            self.status = shown_status(status);
        }
        self.event_mut().show_response(tree, length);
    }

    /// Returns the event of a request that goes on.
    fn event_mut(&mut self) -> &mut Event {
        Arc::get_mut(&mut self.event).expect("the log gets an event when its request is over")
    }

    /// Forgets the request, which another replica records.
    pub(crate) fn forget(mut self) {
        self.over = true;
    }

    /// Records that the answer has begun and takes long.
    pub(crate) fn started(&mut self) -> Recorded {
        self.event_mut().outcome = Some(Outcome {
            code: 200,
            status: Bytes::new(),
        });
        let mut recorded = self.arrived();
        if !self.has_started {
            recorded.and(self.record(Stage::ResponseStarted, SystemTime::now()));
        }
        self.has_arrived = true;
        recorded
    }

    /// Records that the request was refused.
    fn refused(mut self, refusal: &Refusal) -> Recorded {
        if self.over {
            // Its arrival could not be recorded, so it has not begun.
            return Recorded::default();
        }
        if let Some(error) = refusal.status() {
            self.event_mut().refuse(error);
            if error.code == StatusCode::BAD_REQUEST.as_u16() {
                // The body may be none of the object, so it names nothing.
                self.event_mut().created = Str::default();
            }
        }
        let outcome = self.event_mut().outcome.take();
        self.end(outcome.unwrap_or_else(|| outcome_of(refusal)))
    }

    /// Records that the request was answered with this code.
    pub(crate) fn complete(mut self, code: u16) -> Recorded {
        let status = std::mem::take(&mut self.status);
        self.end(Outcome { code, status })
    }

    fn end(&mut self, outcome: Outcome) -> Recorded {
        self.over = true;
        self.event_mut().outcome = Some(outcome);
        for (key, value) in self.annotations.take() {
            self.event_mut().annotate(key, &value);
        }
        let mut recorded = self.arrived();
        recorded.and(self.record(Stage::ResponseComplete, SystemTime::now()));
        recorded
    }

    /// Records the arrival, unless that was done.
    fn arrived(&self) -> Recorded {
        match self.has_arrived {
            true => Recorded::default(),
            false => self.record(Stage::RequestReceived, self.event.received()),
        }
    }

    fn record(&self, stage: Stage, at: SystemTime) -> Recorded {
        match (self.event.plan().records(stage), self.over) {
            (true, true) => self.auditor.record_whole(&self.event, stage, at),
            (true, false) => self.auditor.record(&self.event, stage, at),
            (false, _) => Recorded::default(),
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
            self.event_mut().outcome = Some(Outcome {
                code: 500,
                status: Bytes::new(),
            });
            // Nobody is left who could wait.
            drop(self.arrived());
            return drop(self.record(Stage::Panic, SystemTime::now()));
        }
        drop(self.end(Outcome {
            code: CLIENT_CLOSED,
            status: Bytes::new(),
        }));
    }
}

fn outcome_of(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::Status(error)
        | Refusal::Access(error)
        | Refusal::Impersonation(error)
        | Refusal::Unsettled(error) => Outcome::refused(error),
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

fn is_json(content_type: &str) -> bool {
    matches!(essence(content_type), "" | "application/json")
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Returns the name in the `metadata` of an object in JSON.
fn created_name(body: &[u8]) -> Option<Str> {
    let text = std::str::from_utf8(body).ok()?;
    // The last one of equal members counts.
    let last = |text, name| {
        let members = document::members(text);
        let found = members.filter(|(key, _)| key == name).last();
        found.map(|(_, value)| value)
    };
    let name = last(last(text, "metadata")?, "name")?;
    Some(scan::string(name.as_bytes())?.as_ref().into())
}

/// Returns the tree of a body in JSON or YAML.
fn readable(body: &[u8], content_type: &str, schemas: &Schemas) -> Option<Value> {
    let parsed = match essence(content_type) {
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
fn sources(headers: &HeaderMap, remote: Option<IpAddr>) -> Sources {
    let mut found = Sources::default();
    for name in [FORWARDED_FOR, REAL_IP] {
        let named = text(headers, &name)
            .split(',')
            .filter(|one| !one.is_empty());
        found.extend(named.filter_map(|one| one.trim().parse().ok()));
    }
    found.extend(remote);
    found
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name);
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}
