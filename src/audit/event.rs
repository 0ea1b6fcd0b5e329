//! One event: one stage of one request, as a line of JSON.
//!
//! What the head of a request tells is written once, from borrowed parts, when its audit begins. A
//! line is pieces of that text with what the stage adds between them.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::{self, write_string};
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::UserInfo;

use crate::legacy::LegacyHead;
use crate::policy::{Level, Plan};

/// The beginning of each line. An item of a list lacks kind and version, as upstream's do.
const BEGIN: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;
/// Bytes that most heads fit in beside their texts of variable length.
const HEAD_BYTES: usize = 640;
/// Bytes that a stage adds to the pieces of the head, without bodies and Status.
const STAGE_BYTES: usize = 192;
/// Bytes that an annotation adds to its key and value: quotes, with escapes of some more.
const ANNOTATION_BYTES: usize = 16;
/// Bytes that a decision adds beside its reason, whose quotes need escapes.
const DECISION_BYTES: usize = 96;
/// Longest value of an annotation.
const ANNOTATION_BYTES_MAX: usize = 32 << 10;

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request has arrived.
    RequestReceived,
    /// The head of the answer was sent, and its body takes long. Only watches and streams have it.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The server failed over the request.
    Panic,
}

impl Stage {
    pub(crate) const ALL: [Self; 4] = [
        Self::RequestReceived,
        Self::ResponseStarted,
        Self::ResponseComplete,
        Self::Panic,
    ];

    /// Returns the name in policies and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// The object of a request. Absent parts are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object<'a> {
    /// The API group; empty for core.
    pub group: &'a str,
    /// The version in the path.
    pub version: &'a str,
    /// The resource, plural.
    pub resource: &'a str,
    /// The subresource.
    pub subresource: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
}

/// A control plane, as events name it. Both parts are empty for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaneName<'a> {
    /// The name.
    pub name: &'a str,
    /// The id, which no other plane ever has.
    pub id: &'a str,
}

/// What the head of a request tells.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The id of the request, which its answer names too.
    pub audit_id: &'a str,
    /// Path and query, without the plane.
    pub uri: &'a str,
    /// The verb.
    pub verb: &'a str,
    /// The user who has proven who they are.
    pub user: &'a UserInfo,
    /// The addresses from which the request came: of proxies' headers, then of the connection.
    pub sources: &'a [IpAddr],
    /// The client's name for itself.
    pub user_agent: &'a str,
    /// The object, for requests of the API.
    pub object: Option<Object<'a>>,
    /// The plane.
    pub plane: PlaneName<'a>,
    /// When the request arrived.
    pub received: SystemTime,
}

/// How a request ended.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The status code of the answer.
    pub code: u16,
    /// The `Status` of the answer, without kind and version; empty if the answer has none.
    pub status: Bytes,
}

/// What is known of a request: the parts that all its events share.
#[derive(Debug)]
pub struct Event {
    /// What is recorded.
    pub(crate) plan: Plan,
    /// When the request arrived.
    pub(crate) received: SystemTime,
    /// The pieces of the head one after another, then name and id of the plane.
    text: Vec<u8>,
    ends: Ends,
    has_object: bool,
    pub(crate) legacy: Option<Box<LegacyHead>>,
    /// The user as whom the request was made, if it is another.
    pub impersonated: Option<Arc<UserInfo>>,
    /// The verb of the constrained mode that let the user act as `impersonated`; empty for none.
    pub impersonation_constraint: &'static str,
    /// The name in the body of a request that creates an object; empty for none.
    pub created: Str,
    /// Whether the user may make the request, and why; `None` if nobody has asked.
    decision: Option<(bool, String)>,
    /// What stages of the request say about it beside that, each once.
    annotations: Vec<(&'static str, Str)>,
    /// The body of the request, as JSON; empty for none.
    pub request: Bytes,
    /// True if the request has a body that cannot be shown.
    pub request_left_out: bool,
    /// The body of the answer, as JSON; empty for none.
    pub response: Bytes,
    /// True if the answer has a body that cannot be shown.
    pub response_left_out: bool,
    /// How the request ended, once it has.
    pub outcome: Option<Outcome>,
}

/// The ends of the pieces in an event's text.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// Level and id, up to the stage.
    id: usize,
    /// URI, verb and user.
    user: usize,
    /// Addresses, user agent and object; the object is still open.
    object: usize,
    /// The time of arrival, up to the time of the stage.
    received: usize,
    /// The annotations that name the plane, and the end of the line.
    annotations: usize,
    plane_name: usize,
}

/// Whether a line has the bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    Whole,
    /// They are too long for a backend.
    Truncated,
}

impl Event {
    /// Writes what the head of a request tells.
    pub(crate) fn new(plan: Plan, head: &Head<'_>, legacy: Option<Box<LegacyHead>>) -> Self {
        let mut line = Line(Vec::with_capacity(HEAD_BYTES + head.uri.len()));
        line.0.extend_from_slice(BEGIN);
        line.0.extend_from_slice(br#""level":""#);
        line.0.extend_from_slice(plan.level.name().as_bytes());
        line.0.push(b'"');
        line.text("auditID", head.audit_id);
        line.name("stage");
        let mut ends = Ends {
            id: line.0.len(),
            ..Ends::default()
        };
        line.text("requestURI", head.uri);
        line.text("verb", head.verb);
        line.user("user", head.user);
        ends.user = line.0.len();
        line.addresses("sourceIPs", head.sources);
        line.some("userAgent", head.user_agent);
        if let Some(object) = &head.object {
            line.open_object(object);
        }
        ends.object = line.0.len();
        line.name("requestReceivedTimestamp");
        line.time(head.received);
        line.name("stageTimestamp");
        ends.received = line.0.len();
        line.0.push(b'{');
        line.plane(&head.plane);
        line.0.extend_from_slice(b"}}\n");
        ends.annotations = line.0.len();
        line.0.extend_from_slice(head.plane.name.as_bytes());
        ends.plane_name = line.0.len();
        line.0.extend_from_slice(head.plane.id.as_bytes());
        Self {
            plan,
            received: head.received,
            text: line.0,
            ends,
            has_object: head.object.is_some(),
            legacy,
            impersonated: None,
            impersonation_constraint: "",
            created: Str::default(),
            decision: None,
            annotations: Vec::new(),
            request: Bytes::new(),
            request_left_out: false,
            response: Bytes::new(),
            response_left_out: false,
            outcome: None,
        }
    }

    /// Returns what is recorded of the request.
    #[must_use]
    pub const fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns when the request arrived.
    #[must_use]
    pub const fn received(&self) -> SystemTime {
        self.received
    }

    /// Returns whether a body of the request is recorded.
    #[must_use]
    pub fn wants_request(&self) -> bool {
        self.plan.level >= Level::Request
    }

    /// Returns whether a body of the answer is recorded.
    #[must_use]
    pub fn wants_response(&self) -> bool {
        self.plan.level >= Level::RequestResponse
    }

    /// Notes whether the user may make the request, and why, as authorizers say.
    pub fn decided(&mut self, allowed: bool, mut reason: String) {
        reason.truncate(reason.floor_char_boundary(ANNOTATION_BYTES_MAX));
        self.decision = Some((allowed, reason));
    }

    /// Notes what a stage of the request says about it, in the place of what it has said before under the
    /// same key.
    ///
    /// A value is cut after 32 KiB, so that a pod with thousands of containers, each of which violates a
    /// level of pod security, does not make a line of megabytes.
    pub fn annotate(&mut self, key: &'static str, value: &str) {
        let value = &value[..value.floor_char_boundary(ANNOTATION_BYTES_MAX)];
        match self.annotations.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value.into(),
            None => self.annotations.push((key, value.into())),
        }
    }

    /// Returns the plane.
    pub(crate) fn plane(&self) -> PlaneName<'_> {
        let text = |range: Range<usize>| std::str::from_utf8(&self.text[range]).unwrap_or_default();
        PlaneName {
            name: text(self.ends.annotations..self.ends.plane_name),
            id: text(self.ends.plane_name..self.text.len()),
        }
    }

    /// Returns the line of a stage, with its line break.
    pub(crate) fn line(&self, stage: Stage, now: SystemTime, bodies: Bodies) -> Vec<u8> {
        // What follows from later stages is not in the first event, as upstream's is written then.
        let is_first = stage == Stage::RequestReceived;
        let has_bodies = !is_first && bodies == Bodies::Whole;
        let mut length = self.text.len() + STAGE_BYTES + self.created.len();
        let noted = |(key, value): &(&str, Str)| key.len() + value.len() + ANNOTATION_BYTES;
        length += self.annotations.iter().map(noted).sum::<usize>();
        if let Some((_, reason)) = &self.decision {
            length += DECISION_BYTES + reason.len();
        }
        if has_bodies {
            length += self.request.len() + self.response.len();
        }
        if let Some(outcome) = &self.outcome {
            length += outcome.status.len();
        }
        let Ends {
            id,
            user,
            object,
            received,
            annotations,
            ..
        } = self.ends;
        let mut line = Line(Vec::with_capacity(length));
        line.0.extend_from_slice(&self.text[..id]);
        line.0.push(b'"');
        line.0.extend_from_slice(stage.name().as_bytes());
        line.0.push(b'"');
        line.0.extend_from_slice(&self.text[id..user]);
        if let Some(user) = self.impersonated.as_ref().filter(|_| !is_first) {
            line.user("impersonatedUser", user);
            line.constraint(self.impersonation_constraint);
        }
        line.0.extend_from_slice(&self.text[user..object]);
        if self.has_object {
            if !is_first {
                line.some("name", &self.created);
            }
            line.0.push(b'}');
        }
        if !is_first && let Some(outcome) = &self.outcome {
            line.outcome(outcome);
        }
        if has_bodies {
            line.raw("requestObject", &self.request);
            line.raw("responseObject", &self.response);
        }
        line.0.extend_from_slice(&self.text[object..received]);
        line.time(now);
        line.name("annotations");
        line.annotations(self, is_first, bodies);
        line.0
            .extend_from_slice(&self.text[received + 1..annotations]);
        debug_assert!(json::validate(&line.0, &json::Limits::default()));
        line.0
    }
}

/// Returns a line as an item of a list has it: without kind, version and line break.
pub(crate) fn item(line: &[u8]) -> (&'static [u8], &[u8]) {
    let rest = line.strip_prefix(BEGIN).unwrap_or_default();
    (b"{", rest.trim_ascii_end())
}

/// Returns the line that says how many events of a plane were lost.
pub(crate) fn lost(plane: &PlaneName<'_>, count: u64, now: SystemTime) -> Vec<u8> {
    let mut line = Line(Vec::with_capacity(HEAD_BYTES));
    line.0.extend_from_slice(BEGIN);
    line.0.extend_from_slice(
        br#""level":"Metadata","auditID":"","stage":"ResponseComplete","requestURI":"","verb":"","user":{}"#,
    );
    line.name("requestReceivedTimestamp");
    line.time(now);
    line.name("stageTimestamp");
    line.time(now);
    line.name("annotations");
    line.0.push(b'{');
    line.text("polyplane.dev/lost-events", &count.to_string());
    line.plane(plane);
    line.0.extend_from_slice(b"}}\n");
    line.0
}

/// A line of JSON that is being written.
struct Line(Vec<u8>);

impl Line {
    fn name(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        write_string(text, &mut self.0);
    }

    fn some(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.text(name, text);
        }
    }

    fn raw(&mut self, name: &str, json: &[u8]) {
        if !json.is_empty() {
            self.name(name);
            self.0.extend_from_slice(json.trim_ascii_end());
        }
    }

    fn time(&mut self, time: SystemTime) {
        self.0.push(b'"');
        stamp(time).write_rfc3339_micro(&mut self.0);
        self.0.push(b'"');
    }

    fn texts(&mut self, texts: &[Str]) {
        self.0.push(b'[');
        for (index, text) in texts.iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            write_string(text, &mut self.0);
        }
        self.0.push(b']');
    }

    fn addresses(&mut self, name: &str, addresses: &[IpAddr]) {
        use std::io::Write as _;
        if addresses.is_empty() {
            return;
        }
        self.name(name);
        self.0.push(b'[');
        for (index, address) in addresses.iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            // Digits, letters, dots and colons need no escapes. Memory takes all that is written.
            let _ = write!(self.0, "\"{address}\"");
        }
        self.0.push(b']');
    }

    fn user(&mut self, name: &str, user: &UserInfo) {
        self.name(name);
        self.0.push(b'{');
        self.some("username", &user.name);
        self.some("uid", &user.uid);
        if !user.groups.is_empty() {
            self.name("groups");
            self.texts(&user.groups);
        }
        if !user.extra.is_empty() {
            self.name("extra");
            self.0.push(b'{');
            for (index, (key, values)) in user.extra.iter().enumerate() {
                if index > 0 {
                    self.0.push(b',');
                }
                write_string(key, &mut self.0);
                self.0.push(b':');
                self.texts(values);
            }
            self.0.push(b'}');
        }
        self.0.push(b'}');
    }

    fn constraint(&mut self, verb: &str) {
        if !verb.is_empty() {
            self.name("authenticationMetadata");
            self.0.push(b'{');
            self.text("impersonationConstraint", verb);
            self.0.push(b'}');
        }
    }

    /// Writes an object without its closing bracket, because its name may follow from the body.
    fn open_object(&mut self, object: &Object<'_>) {
        self.name("objectRef");
        self.0.push(b'{');
        self.some("resource", object.resource);
        self.some("namespace", object.namespace);
        self.some("name", object.name);
        self.some("apiGroup", object.group);
        self.some("apiVersion", object.version);
        self.some("subresource", object.subresource);
    }

    fn outcome(&mut self, outcome: &Outcome) {
        if !outcome.status.is_empty() {
            return self.raw("responseStatus", &outcome.status);
        }
        self.name("responseStatus");
        self.0.extend_from_slice(br#"{"metadata":{},"code":"#);
        json::write(&i64::from(outcome.code).into(), &mut self.0);
        self.0.push(b'}');
    }

    /// Writes the annotations of a request, and opens those of its plane.
    fn annotations(&mut self, event: &Event, is_first: bool, bodies: Bodies) {
        self.0.push(b'{');
        // Those of the plane follow, so each ends with a comma.
        let add = |line: &mut Vec<u8>, member: &str| {
            line.extend_from_slice(member.as_bytes());
            line.push(b',');
        };
        if !is_first {
            if let Some((allowed, reason)) = &event.decision {
                let decision: &[u8] = match allowed {
                    true => br#""authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"#,
                    false => br#""authorization.k8s.io/decision":"forbid","authorization.k8s.io/reason":"#,
                };
                self.0.extend_from_slice(decision);
                write_string(reason, &mut self.0);
                self.0.push(b',');
            }
            for (key, value) in &event.annotations {
                write_string(key, &mut self.0);
                self.0.push(b':');
                write_string(value, &mut self.0);
                self.0.push(b',');
            }
            if event.request_left_out {
                add(&mut self.0, r#""polyplane.dev/request-left-out":"true""#);
            }
            if event.response_left_out {
                add(&mut self.0, r#""polyplane.dev/response-left-out":"true""#);
            }
        }
        if bodies == Bodies::Truncated {
            add(&mut self.0, r#""audit.k8s.io/truncated":"true""#);
        }
    }

    fn plane(&mut self, plane: &PlaneName<'_>) {
        self.text("polyplane.dev/control-plane", plane.name);
        self.text("polyplane.dev/control-plane-id", plane.id);
    }
}

/// Returns a time with its nanoseconds.
pub(crate) fn stamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    Timestamp {
        nanoseconds: since.unwrap_or_default().subsec_nanos(),
        ..Timestamp::from(time)
    }
}

#[cfg(test)]
mod tests;
