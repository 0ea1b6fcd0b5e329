//! Requests that are answered by their heads alone, before any stage.

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use http::{HeaderValue, Method, StatusCode, Version};
use hyper::body::Incoming;

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Reply, bare, text};

/// Returns the reply to `OPTIONS *`, which is about the server and not about a path. Upstream's library replies
/// before it calls any handler, so the reply has none of their headers.
pub(crate) fn about_server(request: &http::Request<Incoming>) -> Option<Reply> {
    let target = request.uri().path_and_query()?;
    if *request.method() != Method::OPTIONS || target.as_str() != "*" {
        return None;
    }
    let mut reply = bare(StatusCode::OK, ResponseBody::empty());
    let nothing = HeaderValue::from_static("0");
    reply.headers_mut().insert(CONTENT_LENGTH, nothing);
    Some(reply)
}

/// Returns the refusal of a request of HTTP/1.1 that the connection ends with.
pub(crate) fn refused_head(request: &http::Request<Incoming>) -> Option<Reply> {
    let mut reply = without_one_host(request).or_else(|| with_unknown_expectation(request))?;
    let close = HeaderValue::from_static("close");
    reply.headers_mut().insert(CONNECTION, close);
    Some(reply)
}

/// Returns the refusal of a request of HTTP/1.1 that expects something other than `100 Continue`.
fn with_unknown_expectation(request: &http::Request<Incoming>) -> Option<Reply> {
    let expected = request.headers().get(EXPECT)?.as_bytes();
    let mut tokens = expected.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
    if expected.is_empty() || tokens.any(|token| token.eq_ignore_ascii_case(b"100-continue")) {
        return None;
    }
    let mut reply = bare(StatusCode::EXPECTATION_FAILED, ResponseBody::empty());
    let nothing = HeaderValue::from_static("0");
    reply.headers_mut().insert(CONTENT_LENGTH, nothing);
    Some(reply)
}

/// Returns the refusal of a request of HTTP/1.1 that names no host or several (RFC 9112, 3.2): what is in
/// front of the server could understand another one.
fn without_one_host(request: &http::Request<Incoming>) -> Option<Reply> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let why = match hosts {
        1 => return None,
        0 if request.version() < Version::HTTP_11 => return None,
        0 => "missing required Host header",
        _ => "too many Host headers",
    };
    let why = format!("400 Bad Request: {why}");
    Some(text(StatusCode::BAD_REQUEST, why))
}
