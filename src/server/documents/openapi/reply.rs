//! The replies with documents: whole or in part, compressed or plain, or only what has changed.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, EXPIRES, LAST_MODIFIED, LOCATION, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::conditions::{self, Verdict};
use super::packed::Document;
use super::ranges::{self, Requested};
use crate::answer::body::{Coding, ResponseBody, SliceStream};
use crate::answer::inflated::Inflated;
use crate::answer::negotiate::takes_gzip_of_documents;
use crate::answer::respond::{Reply, bare, text};
use crate::documents::paths::PathRequest;
use crate::request::charge::charged;

/// The time for which a client may cache a document that is named by its hash: practically forever,
/// because another content has another hash.
const IMMUTABLE: Duration = Duration::from_secs(365 * 86_400);

/// Returns the reply to a client that accepts no form of a document. As upstream's, it has no body.
pub(super) fn unacceptable() -> Reply {
    let mut reply = bare(StatusCode::NOT_ACCEPTABLE, ResponseBody::empty());
    vary(reply.headers_mut());
    reply
}

/// Says which headers of a request decide on the form of a document.
fn vary(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.append(VARY, HeaderValue::from_static("Accept"));
}

/// Returns the reply with a document, whether the client requested it by name alone or by name and
/// hash.
pub(super) fn part(request: &PathRequest<'_>, found: &Document) -> Reply {
    let asked = request.query.iter().find(|(key, _)| key == "hash");
    match asked
        .map(|(_, hash)| hash.as_str())
        .filter(|hash| !hash.is_empty())
    {
        None => document(request, found),
        Some(hash) if hash == found.hash => {
            let mut reply = document(request, found);
            if reply.status() == StatusCode::RANGE_NOT_SATISFIABLE {
                return reply;
            }
            let headers = reply.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            headers.insert(EXPIRES, http_date(SystemTime::now() + IMMUTABLE));
            reply
        }
        Some(_) => {
            let mut reply = bare(StatusCode::MOVED_PERMANENTLY, ResponseBody::empty());
            let url = format!("{}?hash={}", request.path, found.hash);
            if let Ok(url) = HeaderValue::try_from(url) {
                reply.headers_mut().insert(LOCATION, url);
            }
            let headers = reply.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(found.media_type));
            headers.insert(ETAG, found.etag());
            vary(headers);
            reply
        }
    }
}

/// Returns the reply with a document.
pub(super) fn document(request: &PathRequest<'_>, document: &Document) -> Reply {
    let etag = document.etag();
    let tag = etag.to_str().unwrap_or("");
    let (method, headers, length) = (request.method, request.headers, document.length);
    let verdict = conditions::check(method, headers, tag, document.made);
    let range = || conditions::range(method, headers, tag, document.made);
    let mut reply = match verdict {
        Verdict::NotModified => bare(StatusCode::NOT_MODIFIED, ResponseBody::empty()),
        Verdict::Failed => bare(StatusCode::PRECONDITION_FAILED, ResponseBody::empty()),
        Verdict::Send => match range().map(|text| ranges::requested(text, length)) {
            None | Some(Requested::Whole) => whole_document(request, document),
            Some(Requested::Part(part)) => part_of_document(request, document, part),
            Some(Requested::Outside) => {
                let mut reply = unsatisfiable("invalid range: failed to overlap\n");
                let shown = format!("bytes */{length}");
                reply.headers_mut().insert(CONTENT_RANGE, ascii(&shown));
                return reply;
            }
            Some(Requested::Malformed) => return unsatisfiable("invalid range\n"),
        },
    };
    let headers = reply.headers_mut();
    let mut put = |name: HeaderName, value| headers.insert(name, value);
    if verdict != Verdict::NotModified {
        // The client has these with the document.
        put(CONTENT_TYPE, HeaderValue::from_static(document.media_type));
        put(LAST_MODIFIED, http_date(document.made));
    }
    put(ETAG, etag);
    vary(headers);
    reply
}

/// Returns the reply with all of a document, compressed if the client takes that. Parts are always plain, so only
/// the plain document says that it has them: with those, the client could not go on with what is compressed.
fn whole_document(request: &PathRequest<'_>, document: &Document) -> Reply {
    if takes_gzip_of_documents(request.headers.get(ACCEPT_ENCODING)) {
        let mut reply = bare(StatusCode::OK, ResponseBody::whole(document.gzip.clone()));
        let gzip = HeaderValue::from_static("gzip");
        reply.headers_mut().insert(CONTENT_ENCODING, gzip);
        return reply;
    }
    let body = unpacked(request, document, 0..document.length);
    let mut reply = bare(StatusCode::OK, body);
    let bytes = HeaderValue::from_static("bytes");
    reply.headers_mut().insert(ACCEPT_RANGES, bytes);
    reply
}

fn part_of_document(request: &PathRequest<'_>, document: &Document, part: Range<usize>) -> Reply {
    let (last, length) = (part.end.saturating_sub(1), document.length);
    let shown = format!("bytes {}-{last}/{length}", part.start);
    let body = unpacked(request, document, part);
    let mut reply = bare(StatusCode::PARTIAL_CONTENT, body);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_RANGE, ascii(&shown));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    reply
}

/// Returns the reply to a client that names no part of the document. As upstream's, it does not say which document
/// there is.
fn unsatisfiable(why: &'static str) -> Reply {
    let mut reply = text(StatusCode::RANGE_NOT_SATISFIABLE, why);
    vary(reply.headers_mut());
    reply
}

/// Returns the body with a part of a document for a client that takes it plain: unpacked as it is read, each piece in
/// a turn of the plane.
fn unpacked(request: &PathRequest<'_>, document: &Document, part: Range<usize>) -> ResponseBody {
    let (state, length) = (request.state, part.len());
    let mut stream: SliceStream = Box::pin(Inflated::new(document.gzip.clone(), part));
    if let Some(meter) = request.meter {
        let plain = (stream, Coding::Identity);
        stream = charged(plain, state, meter, request.seat.cloned());
    }
    let limits = state.answer_read_limits();
    ResponseBody::sized(stream, length as u64, limits, &state.abandoned_answers)
}

/// Returns a time as headers write it: `Fri, 20 Nov 2026 20:00:00 GMT`.
pub(super) fn http_date(time: SystemTime) -> HeaderValue {
    ascii(&httpdate::fmt_http_date(time))
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).expect("dates and numbers are ASCII")
}
