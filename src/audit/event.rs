//! One event: one stage of one request, as a line of JSON.
//!
//! What the head of a request tells is copied when its audit begins, and becomes JSON with the line. Most
//! lines are written by the thread of the log, many in a row: written one at a time, each between other
//! work, they take several times as long, because code and data have left the caches meanwhile.

mod line;

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json;
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::UserInfo;

use crate::event::line::Line;
use crate::legacy::LegacyHead;
use crate::policy::{Level, Plan};

/// The beginning of each line. An item of a list lacks kind and version, as upstream's do.
const BEGIN: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;
/// Bytes of most lines beside their texts of variable length.
const LINE_BYTES: usize = 768;
/// Bytes that a text adds to an array: quotes and a comma.
const ITEM_BYTES: usize = 3;
/// Bytes that the reason of a decision has room for without another allocation.
const REASON_BYTES: usize = 160;
/// Bytes that an annotation adds to its key and value: quotes, with escapes of some more.
const ANNOTATION_BYTES: usize = 16;
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

/// The addresses from which a request came, each once. The first one, mostly the only one, is not
/// allocated.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    first: Option<IpAddr>,
    others: Vec<IpAddr>,
}

impl Sources {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.first.iter().chain(&self.others)
    }
}

impl Extend<IpAddr> for Sources {
    fn extend<T: IntoIterator<Item = IpAddr>>(&mut self, addresses: T) {
        for address in addresses {
            match self.first {
                None => self.first = Some(address),
                Some(_) if self.iter().any(|known| *known == address) => {}
                Some(_) => self.others.push(address),
            }
        }
    }
}

impl FromIterator<IpAddr> for Sources {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> Self {
        let mut sources = Self::default();
        sources.extend(addresses);
        sources
    }
}

/// What the head of a request tells.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    /// The id of the request, which its answer names too.
    pub audit_id: &'a str,
    /// Path and query, without the plane.
    pub uri: &'a str,
    /// The verb.
    pub verb: &'a str,
    /// The user who has proven who they are.
    pub user: &'a Arc<UserInfo>,
    /// The addresses from which the request came: of proxies' headers, then of the connection.
    pub sources: Sources,
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
    head: Parts,
    user: Arc<UserInfo>,
    sources: Sources,
    has_object: bool,
    pub(crate) legacy: Option<Box<LegacyHead>>,
    /// The user as whom the request was made, if it is another.
    pub impersonated: Option<Arc<UserInfo>>,
    /// The verb of the constrained mode that let the user act as `impersonated`; empty for none.
    pub impersonation_constraint: &'static str,
    /// The name in the body of a request that creates an object; empty for none.
    pub created: Str,
    /// Whether the user may make the request, and why; `None` if nobody has asked.
    decision: Option<(bool, Range<usize>)>,
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

/// The texts of a head, in one allocation.
#[derive(Debug)]
struct Parts {
    /// One after another, in the order of [`Part`], then the reason of a decision.
    text: String,
    ends: [usize; Part::Last as usize],
}

/// A text of a head.
#[derive(Clone, Copy)]
enum Part {
    AuditId,
    Uri,
    Verb,
    UserAgent,
    Group,
    Version,
    Resource,
    Subresource,
    Namespace,
    Name,
    PlaneName,
    PlaneId,
    /// The number of the others.
    Last,
}

impl Parts {
    fn new(head: &Head<'_>) -> Self {
        let object = head.object.unwrap_or_default();
        let parts: [&str; Part::Last as usize] = [
            head.audit_id,
            head.uri,
            head.verb,
            head.user_agent,
            object.group,
            object.version,
            object.resource,
            object.subresource,
            object.namespace,
            object.name,
            head.plane.name,
            head.plane.id,
        ];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut text = String::with_capacity(length + REASON_BYTES);
        let ends = parts.map(|part| {
            text.push_str(part);
            text.len()
        });
        Self { text, ends }
    }

    fn of(&self, part: Part) -> &str {
        let end = self.ends[part as usize];
        let before = (part as usize).checked_sub(1);
        &self.text[before.map_or(0, |before| self.ends[before])..end]
    }
}

/// Whether a line has the bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    Whole,
    /// They are too long for a backend.
    Truncated,
}

impl Event {
    /// Copies what the head of a request tells.
    pub(crate) fn new(plan: Plan, head: Head<'_>, legacy: Option<Box<LegacyHead>>) -> Self {
        Self {
            plan,
            received: head.received,
            head: Parts::new(&head),
            user: Arc::clone(head.user),
            has_object: head.object.is_some(),
            sources: head.sources,
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
    pub fn decided(&mut self, allowed: bool, reason: &str) {
        let text = &mut self.head.text;
        let begin = match &self.decision {
            Some((_, earlier)) => earlier.start,
            None => text.len(),
        };
        text.truncate(begin);
        text.push_str(&reason[..reason.floor_char_boundary(ANNOTATION_BYTES_MAX)]);
        self.decision = Some((allowed, begin..text.len()));
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
        PlaneName {
            name: self.head.of(Part::PlaneName),
            id: self.head.of(Part::PlaneId),
        }
    }

    /// Returns about how many bytes a line has. One whose texts have many escapes is longer.
    pub(crate) fn line_bytes(&self, stage: Stage, bodies: Bodies) -> usize {
        let mut bytes = LINE_BYTES + self.head.text.len() + user_bytes(&self.user);
        if stage == Stage::RequestReceived {
            return bytes;
        }
        bytes += self.created.len();
        // Callers that may act as others choose how long the groups of these are.
        bytes += self.impersonated.as_deref().map_or(0, user_bytes);
        let noted = |(key, value): &(&str, Str)| key.len() + value.len() + ANNOTATION_BYTES;
        bytes += self.annotations.iter().map(noted).sum::<usize>();
        if bodies == Bodies::Whole {
            bytes += self.request.len() + self.response.len();
        }
        bytes + self.outcome.as_ref().map_or(0, |end| end.status.len())
    }

    /// Returns the line of a stage, with its line break.
    pub(crate) fn line(&self, stage: Stage, now: SystemTime, bodies: Bodies) -> Vec<u8> {
        let mut line = Vec::with_capacity(self.line_bytes(stage, bodies));
        self.write_line(stage, now, bodies, &mut line);
        line
    }

    /// Writes the line of a stage, with its line break, behind what `out` has.
    pub(crate) fn write_line(
        &self,
        stage: Stage,
        now: SystemTime,
        bodies: Bodies,
        out: &mut Vec<u8>,
    ) {
        // What follows from later stages is not in the first event, as upstream's is written then.
        let is_first = stage == Stage::RequestReceived;
        let begin = out.len();
        let mut line = Line(out);
        line.0.extend_from_slice(BEGIN);
        line.0.extend_from_slice(br#""level":""#);
        line.0.extend_from_slice(self.plan.level.name().as_bytes());
        line.0.push(b'"');
        line.text("auditID", self.head.of(Part::AuditId));
        line.text("stage", stage.name());
        line.text("requestURI", self.head.of(Part::Uri));
        line.text("verb", self.head.of(Part::Verb));
        line.user("user", &self.user);
        if let Some(user) = self.impersonated.as_ref().filter(|_| !is_first) {
            line.user("impersonatedUser", user);
            line.constraint(self.impersonation_constraint);
        }
        line.addresses("sourceIPs", &self.sources);
        line.some("userAgent", self.head.of(Part::UserAgent));
        if self.has_object {
            line.object(&self.head, if is_first { "" } else { &self.created });
        }
        if !is_first && let Some(outcome) = &self.outcome {
            line.outcome(outcome);
        }
        if !is_first && bodies == Bodies::Whole {
            line.raw("requestObject", &self.request);
            line.raw("responseObject", &self.response);
        }
        line.name("requestReceivedTimestamp");
        line.time(self.received);
        line.name("stageTimestamp");
        line.time(now);
        line.name("annotations");
        line.annotations(self, is_first, bodies);
        line.plane(&self.plane());
        line.0.extend_from_slice(b"}}\n");
        let limits = json::Limits::default();
        debug_assert!(json::validate(&line.0[begin..], &limits));
    }
}

/// Returns about how many bytes a user has in a line.
fn user_bytes(user: &UserInfo) -> usize {
    let text = |text: &Str| text.len() + ITEM_BYTES;
    let extra =
        |(key, values): &(Str, Vec<Str>)| text(key) + values.iter().map(text).sum::<usize>();
    text(&user.name)
        + text(&user.uid)
        + user.groups.iter().map(text).sum::<usize>()
        + user.extra.iter().map(extra).sum::<usize>()
}

/// Returns a line as an item of a list has it: without kind, version and line break.
pub(crate) fn item(line: &[u8]) -> (&'static [u8], &[u8]) {
    let rest = line.strip_prefix(BEGIN).unwrap_or_default();
    (b"{", rest.trim_ascii_end())
}

/// Returns the line that says how many events of a plane were lost.
pub(crate) fn lost(plane: &PlaneName<'_>, count: u64, now: SystemTime) -> Vec<u8> {
    let mut out = Vec::with_capacity(LINE_BYTES);
    let mut line = Line(&mut out);
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
    out
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
