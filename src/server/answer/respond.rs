//! Makes the reply to a request from an answer or a refusal: status, headers, form and body.
//!
//! Invariant: no other file chooses the status for an answer of the registry.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER,
    USER_AGENT, VARY, WARNING, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Share;
use polyplane_registry::answer::held::HELD_BYTES_MIN;
use polyplane_registry::{Answer, AnswerBody, Outcome, WatchStream};

use crate::answer::body::{AtomicCounter, Coding, ResponseBody, SliceStream, compressed};
use crate::answer::guard::ReadLimits;
use crate::answer::negotiate::{self, FORMS, Form};
use crate::answer::warnings;
use crate::backend::Backend;
use crate::request::charge::Charge;
use crate::request::flow::FlowUids;

/// A reply to a client or peer.
pub(crate) type Reply = Response<ResponseBody>;

/// Length in bytes above which an answer that ends is compressed for clients that accept it. For
/// shorter ones, compressing costs more time than it saves.
const GZIP_BYTES_MIN: usize = 128 * 1024;
/// The text of the refusal of a request for which its priority level has no seats.
const BUSY: &str = "Too many requests, please try again later.\n";

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The headers of a request that decide on the form of its answer.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    pub accept: &'a str,
    pub user_agent: &'a str,
    takes_gzip: bool,
    pub pretty: bool,
    /// The schemas of what the server itself answers.
    pub schemas: &'a Schemas,
}

impl<'a> Client<'a> {
    pub(crate) fn of(
        headers: &'a HeaderMap,
        query: &[(String, String)],
        schemas: &'a Schemas,
    ) -> Self {
        let text = |name| {
            let value: Option<&'a HeaderValue> = headers.get(name);
            value.and_then(|value| value.to_str().ok()).unwrap_or("")
        };
        let user_agent = text(USER_AGENT);
        Self {
            accept: text(ACCEPT),
            user_agent,
            takes_gzip: negotiate::takes_gzip(headers.get(ACCEPT_ENCODING)),
            pretty: negotiate::wants_pretty(query, user_agent)
                || negotiate::accepts_pretty(text(ACCEPT)),
            schemas,
        }
    }

    /// Returns the coding of an answer of this length; `None` for one that is streamed, which only long lists are.
    /// This decides what is compressed, and so what a plane pays for compression. As upstream, answers to all verbs
    /// and in all forms are compressed, errors and discovery too, but for [`raw_json`]. Unlike upstream, no watch is: the replica between
    /// its owner and its client reads its events.
    pub(crate) fn coding(&self, length: Option<usize>) -> Coding {
        let is_long = length.is_none_or(|bytes| bytes > GZIP_BYTES_MIN);
        match self.takes_gzip && is_long {
            true => Coding::Gzip,
            false => Coding::Identity,
        }
    }
}

/// The refusal of a request, in the form that the client gets.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A `Status` object.
    Status(Box<ApiError>),
    /// A `Status` object that says that the user may not do this. Upstream tells browsers not to
    /// guess its type.
    Access(Box<ApiError>),
    /// A `Status` object that says that the caller may not act as another user, or names none. It is
    /// answered before a priority level is found, as upstream.
    Impersonation(Box<ApiError>),
    /// A `Status` object for a caller whom this replica can neither prove nor refute yet, because it does
    /// not know what proves the users of planes, or cannot ask who knows. Until then the caller is a stranger.
    Unsettled(Box<ApiError>),
    /// Plain text that says that there is no room for the request, which may be sent again after so
    /// many seconds.
    Busy(u32),
    /// Plain text.
    Text(StatusCode, Cow<'static, str>),
}

impl Refusal {
    /// Returns what the `Status` object says; `None` if the answer is plain text.
    pub(crate) fn status(&self) -> Option<&ApiError> {
        match self {
            Self::Status(error)
            | Self::Access(error)
            | Self::Impersonation(error)
            | Self::Unsettled(error) => Some(error),
            Self::Busy(_) | Self::Text(..) => None,
        }
    }

    /// Returns whether nothing was done because another replica owns the plane.
    pub(crate) fn is_moved(&self) -> bool {
        self.status().is_some_and(ApiError::is_moved)
    }

    /// Returns whether the caller has not proven who they are.
    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self, Self::Unsettled(_)) || self.status().is_some_and(|error| error.code == 401)
    }

    /// Returns the refusal of a request that its user may not make.
    pub(crate) fn of_access(error: ApiError) -> Self {
        match error.code {
            403 => Self::Access(Box::new(error)),
            _ => error.into(),
        }
    }

    /// Returns the refusal of a caller who may not act as another user, or names none.
    pub(crate) fn of_impersonation(error: ApiError) -> Self {
        Self::Impersonation(Box::new(error))
    }

    /// Returns the refusal of a caller whom this replica cannot judge yet.
    pub(crate) fn unsettled(error: ApiError) -> Self {
        Self::Unsettled(Box::new(error))
    }

    /// Returns the refusal of a path that does not exist.
    pub(crate) fn no_such_path() -> Self {
        Self::Text(StatusCode::NOT_FOUND, Cow::Borrowed("404 page not found\n"))
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Status(Box::new(error))
    }
}

/// Marks the reply to a caller whom this replica cannot judge yet. Its status does not show that the caller
/// is a stranger.
#[derive(Clone, Copy, Debug)]
struct UnsettledCaller;

/// What a reply shows of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepliedTo {
    /// Somebody who is proven, or was refused for another reason.
    Anybody,
    /// Somebody who has not proven who they are.
    Stranger,
}

impl RepliedTo {
    pub(crate) fn of(reply: &Reply) -> Self {
        let is_unsettled = || reply.extensions().get::<UnsettledCaller>().is_some();
        match reply.status() == StatusCode::UNAUTHORIZED || is_unsettled() {
            true => Self::Stranger,
            false => Self::Anybody,
        }
    }
}

/// Returns whether a reply puts off a caller whom nobody judged for lack of room.
pub(crate) fn is_crowded_out(reply: &Reply) -> bool {
    reply.status() == StatusCode::TOO_MANY_REQUESTS && RepliedTo::of(reply) == RepliedTo::Stranger
}

/// Returns a reply without headers.
pub(crate) fn bare(status: StatusCode, body: ResponseBody) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().reserve(12);
    reply
}

/// Returns a reply of plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = bare(status, ResponseBody::whole(body));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, PLAIN_TEXT);
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    reply
}

/// Returns a reply of JSON that is always indented and never negotiated, as a few of upstream's
/// answers are.
pub(crate) fn raw_json(status: StatusCode, compact: &[u8]) -> Reply {
    let mut reply = bare(status, ResponseBody::whole(indented(compact)));
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}

/// Returns a reply with an object that the server made, in the form that the client prefers.
pub(crate) fn object(client: &Client<'_>, status: StatusCode, compact: Bytes) -> Reply {
    let Some(form) = negotiate::form(client.accept) else {
        return refuse(client, &ApiError::not_acceptable(FORMS).into());
    };
    let content_type = HeaderValue::from_static(form.content_type());
    typed_object(client, status, compact, form, content_type)
}

/// Returns a reply with an object in a form that the caller has negotiated.
pub(crate) fn typed_object(
    client: &Client<'_>,
    status: StatusCode,
    compact: Bytes,
    form: Form,
    content_type: HeaderValue,
) -> Reply {
    let body = match form {
        Form::Yaml => as_yaml(&compact).into(),
        Form::Protobuf => match client.schemas.proto_of_json(&compact) {
            Some(object) => object.into(),
            // Whatever has no form in protobuf is shown in JSON, which says so.
            None => return raw_json(status, &compact),
        },
        Form::Json if client.pretty => indented(&compact),
        Form::Json => compact,
    };
    whole_object(client, status, body, content_type)
}

/// Returns a reply with an object that is written already. What compression takes is a part of the request's own
/// work, so that nothing is added to its cost for it.
pub(crate) fn whole_object(
    client: &Client<'_>,
    status: StatusCode,
    body: Bytes,
    content_type: HeaderValue,
) -> Reply {
    let coding = client.coding(Some(body.len()));
    let body = match coding {
        Coding::Identity => body,
        Coding::Gzip => compressed(&body),
    };
    let mut reply = bare(status, ResponseBody::whole(body));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    add_coding_headers(headers, coding);
    reply
}

/// Adds the headers that name the coding of a body.
fn add_coding_headers(headers: &mut HeaderMap, coding: Coding) {
    if coding == Coding::Gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// Returns the reply that carries a refusal, in the form that the client prefers. A client that
/// accepts none of the forms gets indented JSON.
pub(crate) fn refuse(client: &Client<'_>, refusal: &Refusal) -> Reply {
    let error = match refusal {
        Refusal::Text(status, body) => return text(*status, body.clone().into_owned()),
        Refusal::Busy(seconds) => {
            let mut reply = text(StatusCode::TOO_MANY_REQUESTS, BUSY);
            let headers = reply.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from(*seconds));
            return reply;
        }
        Refusal::Status(error)
        | Refusal::Access(error)
        | Refusal::Impersonation(error)
        | Refusal::Unsettled(error) => error,
    };
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut compact = error.to_json();
    if compact.last() != Some(&b'\n') {
        compact.push(b'\n');
    }
    let mut reply = match negotiate::form(client.accept) {
        Some(form) => {
            let content_type = HeaderValue::from_static(form.content_type());
            typed_object(client, status, compact.into(), form, content_type)
        }
        None => raw_json(status, &compact),
    };
    if matches!(refusal, Refusal::Unsettled(_)) {
        reply.extensions_mut().insert(UnsettledCaller);
    }
    let headers = reply.headers_mut();
    if matches!(refusal, Refusal::Access(_) | Refusal::Impersonation(_)) {
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    }
    for warning in warnings::headers(&error.warnings) {
        headers.append(WARNING, warning);
    }
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

fn indented(compact: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(compact.len() * 2);
    json::pretty(compact.trim_ascii_end(), &mut out);
    out.into()
}

fn as_yaml(compact: &[u8]) -> Vec<u8> {
    let parsed = json::parse(compact, &json::Limits::default())
        .expect("what this server wrote as JSON is JSON");
    let mut out = Vec::with_capacity(compact.len() * 2);
    polyplane_apimachinery::yaml::write(&parsed.value, &mut out);
    out
}

/// Everything that is needed to make a reply from an answer of the registry.
pub(crate) struct Delivery<'a> {
    pub client: &'a Client<'a>,
    pub read_limits: ReadLimits,
    pub abandoned: &'a Arc<AtomicCounter>,
    pub charge: &'a Charge<'a>,
    pub backend: &'a dyn Backend,
}

impl Delivery<'_> {
    /// Returns the reply for an answer. For a watch, `watch_body` makes the body.
    pub(crate) fn reply(
        self,
        answer: Answer,
        watch_body: impl FnOnce(WatchStream, HeaderValue) -> ResponseBody,
    ) -> Result<Reply, Refusal> {
        let Answer {
            outcome,
            content_type,
            warnings,
            body,
        } = answer;
        let status = match outcome {
            Outcome::Ok => StatusCode::OK,
            Outcome::Created => StatusCode::CREATED,
            Outcome::Accepted => StatusCode::ACCEPTED,
            Outcome::NoContent => StatusCode::NO_CONTENT,
        };
        let mut coding = Coding::Identity;
        let pretty = self.client.pretty && content_type.starts_with("application/json");
        let body = match body {
            AnswerBody::Watch(stream) => watch_body(stream, header_value(content_type.clone())),
            AnswerBody::Connect(_) => {
                return Err(ApiError::internal("a connection has no body of its own").into());
            }
            AnswerBody::Stream(stream) => {
                let stream = match pretty {
                    true => indented_stream(stream),
                    false => stream,
                };
                coding = self.client.coding(None);
                ResponseBody::stream(stream, coding, self.read_limits, self.abandoned)
            }
            AnswerBody::Slices(slices) => {
                let slices = match pretty {
                    true => vec![self.held(indented(&slices.concat()))],
                    false => slices,
                };
                let length: usize = slices.iter().map(Bytes::len).sum();
                coding = self.client.coding(Some(length));
                if coding == Coding::Gzip {
                    self.charge.compress(length);
                }
                ResponseBody::slices(slices, coding, self.read_limits, self.abandoned)
            }
        };
        let mut reply = bare(status, body);
        let headers = reply.headers_mut();
        if status != StatusCode::NO_CONTENT {
            headers.insert(CONTENT_TYPE, header_value(content_type));
        }
        add_coding_headers(headers, coding);
        for warning in warnings::headers(&warnings) {
            headers.append(WARNING, warning);
        }
        Ok(reply)
    }

    /// Counts a text in the share of answers until it is sent. What it was made of had room there, so it is never
    /// refused; those that come next are.
    fn held(&self, text: Bytes) -> Bytes {
        if text.len() < HELD_BYTES_MIN {
            return text;
        }
        let hold = self.backend.memory().hold(Share::Answers, text.len());
        hold.keep(text)
    }
}

/// Indents an answer piece by piece.
fn indented_stream(stream: SliceStream) -> SliceStream {
    let mut indenter = json::Indenter::default();
    Box::pin(stream.map_ok(move |piece| {
        let mut out = Vec::new();
        indenter.write(&piece, &mut out);
        out.into()
    }))
}

fn header_value(text: Cow<'static, str>) -> HeaderValue {
    match text {
        Cow::Borrowed(text) => HeaderValue::from_static(text),
        Cow::Owned(text) => HeaderValue::try_from(text)
            .unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream")),
    }
}

/// Adds the headers that every reply of this replica has.
pub(crate) fn add_common_headers(reply: &mut Reply, audit_id: HeaderValue) {
    let headers = reply.headers_mut();
    headers.insert(AUDIT_ID, audit_id);
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    }
}

/// Adds the headers that name the flow schema and the priority level of a request. As with upstream,
/// replies lack them to requests that were not classified: those whose callers were not proven or may not
/// impersonate, with a bad deadline, and long-running ones other than watches.
pub(crate) fn add_flow_headers(reply: &mut Reply, [schema, level]: FlowUids) {
    let headers = reply.headers_mut();
    headers.insert(FLOW_SCHEMA_UID, schema);
    headers.insert(PRIORITY_LEVEL_UID, level);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn long_objects_of_the_server_are_compressed_for_those_who_take_it() {
        let schemas = Schemas::default();
        let client = |takes_gzip| Client {
            accept: "",
            user_agent: "",
            takes_gzip,
            pretty: false,
            schemas: &schemas,
        };
        let longest = Bytes::from(vec![b' '; GZIP_BYTES_MIN]);
        let long = Bytes::from(vec![b' '; GZIP_BYTES_MIN + 1]);
        for (takes_gzip, body, is_packed) in [
            (true, &long, true),
            (false, &long, false),
            (true, &longest, false),
        ] {
            let reply = object(&client(takes_gzip), StatusCode::OK, body.clone());
            let header = |name| reply.headers().get(name).map(HeaderValue::as_bytes);
            let (coding, vary) = (header(CONTENT_ENCODING), header(VARY));
            assert_eq!(coding, is_packed.then_some(&b"gzip"[..]));
            assert_eq!(vary, is_packed.then_some(&b"Accept-Encoding"[..]));
            let sent = reply.into_body().collect().await.expect("whole").to_bytes();
            let mut plain = Vec::new();
            match is_packed {
                true => flate2::read::GzDecoder::new(&sent[..]).read_to_end(&mut plain),
                false => (&sent[..]).read_to_end(&mut plain),
            }
            .expect("what was compressed here is gzip");
            assert_eq!(plain, *body);
        }
    }

    #[test]
    fn a_caller_who_cannot_be_judged_yet_is_a_stranger_whatever_the_status() {
        let schemas = Schemas::default();
        let (headers, query) = (HeaderMap::new(), Vec::new());
        let client = Client::of(&headers, &query, &schemas);
        let later = || ApiError::service_unavailable("later").with_retry_after(1);
        for (refusal, status, caller) in [
            (
                Refusal::from(ApiError::unauthorized("no")),
                401,
                RepliedTo::Stranger,
            ),
            (Refusal::unsettled(later()), 503, RepliedTo::Stranger),
            (Refusal::from(later()), 503, RepliedTo::Anybody),
        ] {
            assert_eq!(refusal.is_unproven(), caller == RepliedTo::Stranger);
            let reply = refuse(&client, &refusal);
            assert_eq!(reply.status().as_u16(), status);
            assert_eq!(RepliedTo::of(&reply), caller, "{refusal:?}");
            assert_eq!(reply.headers().contains_key(RETRY_AFTER), status == 503);
        }
    }
}
