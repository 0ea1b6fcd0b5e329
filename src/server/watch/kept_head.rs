//! What a watch keeps of the head of its request, to be opened again at another replica.
//!
//! A watch is open for half an hour, and a head may have a quarter of a megabyte. Kept are only the headers
//! that some stage of a watch reads, and they are copied: a value that arrived is a slice of everything
//! that arrived with it.

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};

use crate::request::audited::{FORWARDED_FOR, REAL_IP};
use crate::request::impersonate;

/// Longest head that is kept, in bytes. With more, the watches of one client could fill memory with headers.
const KEPT_BYTES_MAX: usize = 16 * 1024;
/// The headers that the stages of a watch read, beside those by which a caller acts as another user.
const KEPT: [HeaderName; 6] = [
    ACCEPT,
    ACCEPT_ENCODING,
    AUTHORIZATION,
    USER_AGENT,
    FORWARDED_FOR,
    REAL_IP,
];

/// Which headers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Those that the stages of a watch read.
    Needed,
    /// All: a front proxy names the user in headers that the operator chooses.
    All,
}

/// What is kept of the head of a request.
#[derive(Clone, Debug)]
pub(super) struct KeptHead {
    pub parts: Parts,
    pub audit_id: HeaderValue,
}

/// Returns what is kept of a head; `None` if that is too long. Such a watch ends when its plane moves, as
/// any watch may.
pub(super) fn kept_head(
    head: &Parts,
    audit_id: &HeaderValue,
    keeping: Keeping,
) -> Option<KeptHead> {
    // Without host, because the stages look at path and query.
    let target = head.uri.path_and_query()?.as_str();
    let mut left = KEPT_BYTES_MAX.checked_sub(target.len() + audit_id.len())?;
    let mut headers = HeaderMap::new();
    for (name, value) in &head.headers {
        if keeping == Keeping::All || is_needed(name) {
            left = left.checked_sub(name.as_str().len() + value.len())?;
            let name = HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
            headers.append(name, copied(value));
        }
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = head.method.clone();
    parts.uri = Uri::try_from(target).ok()?;
    parts.version = head.version;
    parts.headers = headers;
    Some(KeptHead {
        parts,
        audit_id: copied(audit_id),
    })
}

fn is_needed(name: &HeaderName) -> bool {
    KEPT.contains(name) || impersonate::is_of_impersonation(name)
}

/// Returns the `Authorization` header, for as long as a watch is open; `None` if there is none, or it is too
/// long to be kept.
pub(super) fn kept_authorization(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(AUTHORIZATION)?;
    (value.len() <= KEPT_BYTES_MAX).then(|| copied(value))
}

/// Returns a value with memory of its own.
fn copied(value: &HeaderValue) -> HeaderValue {
    let copy = HeaderValue::from_bytes(value.as_bytes());
    let mut copy = copy.expect("the bytes of a value are a value");
    copy.set_sensitive(value.is_sensitive());
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn head(target: &str, headers: &[(&'static str, &str)]) -> Parts {
        let mut request = Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        parts
    }

    /// Returns what is kept of a head whose request has a short id.
    fn kept(head: &Parts, keeping: Keeping) -> Option<Parts> {
        let id = HeaderValue::from_static("id");
        kept_head(head, &id, keeping).map(|kept| kept.parts)
    }

    fn names(head: &Parts) -> Vec<&str> {
        let mut names: Vec<&str> = head.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_watch_keeps_only_the_headers_that_its_stages_read() {
        let mut asked = head(
            "https://host/api/v1/pods?watch=1",
            &[
                ("accept", "application/json"),
                ("authorization", "Bearer x"),
                ("user-agent", "kubectl"),
                ("x-forwarded-for", "10.0.0.1"),
                ("impersonate-user", "jane"),
                ("impersonate-extra-team", "dev"),
                ("impersonate-extra-team", "ops"),
                ("cookie", "large"),
                ("x-filler", "large"),
            ],
        );
        asked.extensions.insert(7_u8);
        let all = kept(&asked, Keeping::All).expect("it is short");
        assert_eq!(all.headers.len(), asked.headers.len());
        let kept = kept(&asked, Keeping::Needed).expect("it is short");
        let wanted = [
            "accept",
            "authorization",
            "impersonate-extra-team",
            "impersonate-user",
            "user-agent",
            "x-forwarded-for",
        ];
        assert_eq!(names(&kept), wanted);
        assert_eq!(
            kept.headers
                .get_all("impersonate-extra-team")
                .iter()
                .count(),
            2
        );
        assert_eq!(
            (kept.uri.path(), kept.uri.query()),
            ("/api/v1/pods", Some("watch=1"))
        );
        assert!(kept.extensions.is_empty());
    }

    #[test]
    fn a_head_that_is_too_long_is_not_kept() {
        let long = "x".repeat(KEPT_BYTES_MAX);
        let keeps = |target: &str, name: &'static str| {
            let asked = head(target, &[(name, long.as_str())]);
            kept(&asked, Keeping::Needed).is_some()
        };
        assert!(keeps("/api", "cookie"));
        assert!(!keeps("/api", "user-agent"));
        assert!(!keeps(&format!("/api?{long}"), "cookie"));
        let id = HeaderValue::from_str(&long).expect("a value");
        assert!(kept_head(&head("/api", &[]), &id, Keeping::Needed).is_none());
        let headers = |value: &str| head("/api", &[("authorization", value)]).headers;
        assert!(kept_authorization(&headers("Bearer x")).is_some());
        assert!(kept_authorization(&headers(&format!("Bearer {long}"))).is_none());
    }

    #[test]
    fn what_is_kept_does_not_hold_what_arrived_with_it() {
        let arrived = Bytes::from(vec![b'x'; 1000]);
        let value = HeaderValue::from_maybe_shared(arrived.slice(..3)).expect("a value");
        let mut asked = head("/api", &[]);
        asked.headers.insert(USER_AGENT, value);
        let kept = kept(&asked, Keeping::Needed).expect("it is short");
        drop(asked);
        assert!(arrived.is_unique(), "nothing else has a slice of it");
        assert_eq!(kept.headers[USER_AGENT], "xxx");
    }
}
