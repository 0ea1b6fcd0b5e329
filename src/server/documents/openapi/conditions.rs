//! The conditions of a request for a document, read as Go's `http.ServeContent` reads them.

use std::time::{SystemTime, UNIX_EPOCH};

use http::header::{
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, HeaderName, Method};

/// What the conditions of a request say about its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The document is sent.
    Send,
    /// The client has it already.
    NotModified,
    /// The client wants another one, or none if there is this one.
    Failed,
}

/// Checks the conditions of a request for the document that has this tag and was made then.
pub(super) fn check(method: &Method, headers: &HeaderMap, etag: &str, made: SystemTime) -> Verdict {
    let text = |name| text_of(headers, name);
    let date = |name| text(name).and_then(|text| httpdate::parse_http_date(text).ok());
    // Headers have dates in seconds.
    let is_older = |than: SystemTime| seconds(made) <= seconds(than);
    let is_wanted = match text(IF_MATCH) {
        Some(tags) => tags_of(tags).any(|tag| tag == "*" || tag == etag),
        None => date(IF_UNMODIFIED_SINCE).is_none_or(is_older),
    };
    if !is_wanted {
        return Verdict::Failed;
    }
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let is_known = match text(IF_NONE_MATCH) {
        Some(tags) => {
            tags_of(tags).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
        }
        None => is_read && date(IF_MODIFIED_SINCE).is_some_and(is_older),
    };
    match is_known {
        true if is_read => Verdict::NotModified,
        true => Verdict::Failed,
        false => Verdict::Send,
    }
}

/// Returns the `Range` header of a request for the document that has this tag and was made then. The client may want
/// the part of another document, and then gets this one whole.
pub(super) fn range<'h>(
    method: &Method,
    headers: &'h HeaderMap,
    etag: &str,
    made: SystemTime,
) -> Option<&'h str> {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let is_meant = text_of(headers, IF_RANGE).is_none_or(|meant| {
        let date = httpdate::parse_http_date(meant);
        !is_read || meant == etag || date.is_ok_and(|date| seconds(date) == seconds(made))
    });
    text_of(headers, RANGE).filter(|_| is_meant)
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.filter(|text| !text.is_empty())
}

fn tags_of(tags: &str) -> impl Iterator<Item = &str> {
    tags.split(',').map(str::trim)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    /// The tag of the document.
    const TAG: &str = "\"A1\"";
    /// A second before it was made, the second itself, and one after it.
    const DATES: [&str; 3] = [
        "Sun, 06 Nov 1994 08:49:36 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:38 GMT",
    ];

    fn made() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(784_111_777_900)
    }

    fn headers(given: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            let value = HeaderValue::try_from(*value).expect("ASCII");
            headers.insert(name.clone(), value);
        }
        headers
    }

    fn checked(method: &Method, given: &[(HeaderName, &str)]) -> Verdict {
        check(method, &headers(given), TAG, made())
    }

    #[test]
    fn a_document_that_the_client_has_is_not_sent_again() {
        let get = |given: &[(HeaderName, &str)]| checked(&Method::GET, given);
        assert_eq!(get(&[]), Verdict::Send);
        for tags in [TAG, "*", "\"0\", W/\"A1\""] {
            assert_eq!(get(&[(IF_NONE_MATCH, tags)]), Verdict::NotModified);
            let post = checked(&Method::POST, &[(IF_NONE_MATCH, tags)]);
            assert_eq!(post, Verdict::Failed);
        }
        let since = DATES.map(|date| get(&[(IF_MODIFIED_SINCE, date)]));
        let expected = [Verdict::Send, Verdict::NotModified, Verdict::NotModified];
        assert_eq!(since, expected);
        assert_eq!(get(&[(IF_MODIFIED_SINCE, "today")]), Verdict::Send);
        let post = checked(&Method::POST, &[(IF_MODIFIED_SINCE, DATES[2])]);
        assert_eq!(post, Verdict::Send);
        // A tag says more than a date.
        let both = [(IF_NONE_MATCH, "\"0\""), (IF_MODIFIED_SINCE, DATES[2])];
        assert_eq!(get(&both), Verdict::Send);
    }

    #[test]
    fn a_document_that_the_client_does_not_mean_is_not_sent() {
        let get = |given: &[(HeaderName, &str)]| checked(&Method::GET, given);
        for (tags, expected) in [
            (TAG, Verdict::Send),
            ("*", Verdict::Send),
            ("\"0\"", Verdict::Failed),
            // Only equal bytes have this tag, and a weak one does not promise them.
            ("W/\"A1\"", Verdict::Failed),
        ] {
            assert_eq!(get(&[(IF_MATCH, tags)]), expected, "{tags}");
        }
        let since = DATES.map(|date| get(&[(IF_UNMODIFIED_SINCE, date)]));
        assert_eq!(since, [Verdict::Failed, Verdict::Send, Verdict::Send]);
    }

    #[test]
    fn a_part_of_another_document_is_not_sent() {
        let asked = |method: &Method, meant: &str| {
            let headers = headers(&[(RANGE, "bytes=0-9"), (IF_RANGE, meant)]);
            range(method, &headers, TAG, made()).is_some()
        };
        for (meant, is_sent) in [
            ("", true),
            (TAG, true),
            ("\"0\"", false),
            // Only equal bytes have this tag, and a weak one does not promise them.
            ("W/\"A1\"", false),
            (DATES[0], false),
            (DATES[1], true),
            (DATES[2], false),
            ("today", false),
        ] {
            assert_eq!(asked(&Method::GET, meant), is_sent, "{meant}");
            assert!(asked(&Method::POST, meant), "{meant}");
        }
        assert_eq!(range(&Method::GET, &HeaderMap::new(), TAG, made()), None);
    }
}
