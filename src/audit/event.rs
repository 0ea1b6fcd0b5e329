//! One event: one stage of one request, as a line of JSON.

use std::time::SystemTime;

use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::{self, write_string};
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::UserInfo;

use crate::policy::Level;

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
#[derive(Clone, Debug, Default)]
pub struct Object {
    /// The API group; empty for core.
    pub group: Str,
    /// The version in the path.
    pub version: Str,
    /// The resource, plural.
    pub resource: Str,
    /// The subresource.
    pub subresource: Str,
    /// The namespace.
    pub namespace: Str,
    /// The name.
    pub name: Str,
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
#[derive(Clone, Debug)]
pub struct Event {
    /// How much is recorded.
    pub level: Level,
    /// The id of the request, which its answer names too.
    pub audit_id: Str,
    /// Path and query, without the plane.
    pub uri: String,
    /// The verb.
    pub verb: Str,
    /// The user who has proven who they are.
    pub user: std::sync::Arc<UserInfo>,
    /// The user as whom the request was made, if it is another.
    pub impersonated: Option<std::sync::Arc<UserInfo>>,
    /// The addresses from which the request came: of proxies' headers, then of the connection.
    pub sources: Vec<String>,
    /// The client's name for itself.
    pub user_agent: String,
    /// The object, for requests of the API.
    pub object: Option<Object>,
    /// The name in the body of a request that creates an object; empty for none.
    pub created: Str,
    /// The plane: name and id.
    pub plane: (Str, Str),
    /// When the request arrived.
    pub received: SystemTime,
    /// The body of the request, as JSON; empty for none.
    pub request: Bytes,
    /// The body of the answer, as JSON; empty for none.
    pub response: Bytes,
    /// Further facts, by upstream's keys.
    pub annotations: Vec<(&'static str, String)>,
    /// How the request ended, once it has.
    pub outcome: Option<Outcome>,
}

impl Event {
    /// Returns the line of a stage, with its line break.
    #[must_use]
    pub fn line(&self, stage: Stage, now: SystemTime) -> Vec<u8> {
        let mut line = Line::begin(self.request.len() + self.response.len());
        line.text("level", self.level.name());
        line.text("auditID", &self.audit_id);
        line.text("stage", stage.name());
        line.text("requestURI", &self.uri);
        line.text("verb", &self.verb);
        line.user("user", &self.user);
        // What follows from later stages is not in the first event, as upstream's is written then.
        let is_first = stage == Stage::RequestReceived;
        if let Some(user) = self.impersonated.as_ref().filter(|_| !is_first) {
            line.user("impersonatedUser", user);
        }
        line.texts("sourceIPs", &self.sources);
        line.some("userAgent", &self.user_agent);
        if let Some(object) = &self.object {
            let created = if is_first { "" } else { &self.created };
            line.object(object, created);
        }
        if !is_first {
            if let Some(outcome) = &self.outcome {
                line.outcome(outcome);
            }
            line.raw("requestObject", &self.request);
            line.raw("responseObject", &self.response);
        }
        line.text("requestReceivedTimestamp", &micro(self.received));
        line.text("stageTimestamp", &micro(now));
        let annotations = if is_first { &[][..] } else { &self.annotations };
        line.annotations(&self.plane, annotations);
        line.end()
    }
}

/// Returns the line that says how many events of a plane were lost.
pub(crate) fn lost(plane: &(Str, Str), count: u64, now: SystemTime) -> Vec<u8> {
    let mut line = Line::begin(0);
    line.text("level", Level::Metadata.name());
    line.text("auditID", "");
    line.text("stage", Stage::ResponseComplete.name());
    line.text("requestURI", "");
    line.text("verb", "");
    line.raw("user", b"{}");
    line.text("requestReceivedTimestamp", &micro(now));
    line.text("stageTimestamp", &micro(now));
    let lost = [("polyplane.dev/lost-events", count.to_string())];
    line.annotations(plane, &lost);
    line.end()
}

fn micro(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let time = Timestamp {
        nanoseconds: since.subsec_nanos(),
        ..Timestamp::from(time)
    };
    time.to_rfc3339_micro()
}

/// A line of JSON that is being written.
struct Line(Vec<u8>);

impl Line {
    fn begin(bodies: usize) -> Self {
        let mut line = Vec::with_capacity(640 + bodies);
        line.extend_from_slice(br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1""#);
        Self(line)
    }

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

    fn texts<S: AsRef<str>>(&mut self, name: &str, texts: &[S]) {
        if texts.is_empty() {
            return;
        }
        self.name(name);
        self.0.push(b'[');
        for (index, text) in texts.iter().enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            write_string(text.as_ref(), &mut self.0);
        }
        self.0.push(b']');
    }

    fn user(&mut self, name: &str, user: &UserInfo) {
        self.name(name);
        self.0.push(b'{');
        self.some("username", &user.name);
        self.some("uid", &user.uid);
        self.texts("groups", &user.groups);
        if !user.extra.is_empty() {
            self.name("extra");
            self.0.push(b'{');
            for (key, values) in &user.extra {
                if self.0.last() != Some(&b'{') {
                    self.0.push(b',');
                }
                write_string(key, &mut self.0);
                self.0.extend_from_slice(b":[");
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        self.0.push(b',');
                    }
                    write_string(value, &mut self.0);
                }
                self.0.push(b']');
            }
            self.0.push(b'}');
        }
        self.0.push(b'}');
    }

    fn object(&mut self, object: &Object, created: &str) {
        self.name("objectRef");
        self.0.push(b'{');
        self.some("resource", &object.resource);
        self.some("namespace", &object.namespace);
        let is_named = !object.name.is_empty();
        self.some("name", if is_named { &object.name } else { created });
        self.some("apiGroup", &object.group);
        self.some("apiVersion", &object.version);
        self.some("subresource", &object.subresource);
        self.0.push(b'}');
    }

    fn outcome(&mut self, outcome: &Outcome) {
        if !outcome.status.is_empty() {
            return self.raw("responseStatus", &outcome.status);
        }
        self.name("responseStatus");
        let code = format!(r#"{{"metadata":{{}},"code":{}}}"#, outcome.code);
        self.0.extend_from_slice(code.as_bytes());
    }

    fn annotations(&mut self, plane: &(Str, Str), annotations: &[(&'static str, String)]) {
        self.name("annotations");
        self.0.push(b'{');
        for (key, value) in annotations {
            self.text(key, value);
        }
        self.text("polyplane.dev/control-plane", &plane.0);
        self.text("polyplane.dev/control-plane-id", &plane.1);
        self.0.push(b'}');
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        debug_assert!(json::validate(&self.0, &json::Limits::default()));
        self.0
    }
}
