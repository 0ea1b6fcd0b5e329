//! Watches over a WebSocket: the handshake, and the token that it may carry.
//!
//! A client that sends `GET …?watch=1` with `Upgrade: websocket` over HTTP/1.1 gets each event as a
//! message. The WebSocket ends at this replica: the request passes the pipeline as an ordinary
//! watch, here or at another replica, and if the answer is a watch, its events become messages.
//! Every other request and answer is handled as if the client had not sent `Upgrade`.
//!
//! A browser cannot send `Authorization` with a WebSocket, so its token may be a sub-protocol. This
//! module moves it to that header before anything reads headers.
//!
//! Invariant: no other module knows of WebSockets or sees a token in a sub-protocol.

mod stream;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_TYPE, ORIGIN, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Reply, bare};
use crate::nodes::upgrade::wants_upgrade;
use crate::request::bearer;
use crate::watch::session::is_protobuf;

use stream::Framing;
pub(crate) use stream::Session;

/// The beginning of a sub-protocol with a bearer token; the token follows as unpadded base64url.
const BEARER_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
/// The text that RFC 6455 appends to a client's key.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The only version of the protocol that this server speaks.
const VERSION: HeaderValue = HeaderValue::from_static("13");

const OF_THE_HANDSHAKE: [HeaderName; 4] = [
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_EXTENSIONS,
];

/// The handshake of a client that requests its watch over a WebSocket.
pub(crate) struct Handshake {
    answer: Result<HandshakeAnswer, HandshakeError>,
}

/// The answer to a valid handshake.
#[derive(Debug, PartialEq, Eq)]
struct HandshakeAnswer {
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

/// The problem with a handshake, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeError {
    Key,
    Version,
    /// The header is absent, or is not a URI, such as the `null` of a page without an origin. The
    /// value does not matter otherwise: no browser adds credentials to such a request by itself.
    Origin,
    /// Several sub-protocols: only one could be chosen, and this server knows none.
    Protocols,
}

impl Handshake {
    /// Removes the handshake from the headers of a request, which is an ordinary one from then on.
    /// Returns it, and the removed headers without a token; `None` if the request is not a WebSocket
    /// handshake.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<(Self, HeaderMap)> {
        if !asks_for_websocket(headers) {
            return None;
        }
        let protocols = take_token(headers).unwrap_or_else(|| first_protocols(headers));
        let answer = HandshakeAnswer::of(headers, &protocols);
        let mut removed = HeaderMap::new();
        for name in OF_THE_HANDSHAKE {
            if let Some(value) = headers.remove(&name) {
                removed.insert(name, value);
            }
        }
        removed.remove(SEC_WEBSOCKET_PROTOCOL);
        // A token that was not moved, such as one of several, is removed too.
        let names = protocols.split(',').map(str::trim);
        let names: Vec<&str> = names
            .filter(|name| !name.is_empty() && !name.starts_with(BEARER_PREFIX))
            .collect();
        if let Ok(names) = HeaderValue::try_from(names.join(", "))
            && !names.is_empty()
        {
            removed.insert(SEC_WEBSOCKET_PROTOCOL, names);
        }
        Some((Self { answer }, removed))
    }

    /// Makes the reply to the handshake from the reply to the request, and returns the session that
    /// then uses the connection.
    pub(crate) fn answer(self, upgrade: OnUpgrade, reply: Reply) -> (Reply, Option<Session>) {
        if reply.status() != StatusCode::OK || !reply.body().is_watch() {
            return (reply, None);
        }
        match self.answer {
            Ok(answer) => {
                let framing = match reply.headers().get(CONTENT_TYPE) {
                    Some(form) if is_protobuf(form) => Framing::Lengths,
                    _ => Framing::Lines,
                };
                let session = Session::new(upgrade, reply.into_body(), framing);
                (answer.reply(), Some(session))
            }
            Err(error) => (error.reply(), None),
        }
    }
}

impl HandshakeAnswer {
    fn of(headers: &HeaderMap, protocols: &str) -> Result<Self, HandshakeError> {
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes);
        let key = key
            .filter(|key| !key.is_empty())
            .ok_or(HandshakeError::Key)?;
        if headers.get(SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
            return Err(HandshakeError::Version);
        }
        let origin = headers.get(ORIGIN).and_then(|value| value.to_str().ok());
        if !origin.is_some_and(is_uri) {
            return Err(HandshakeError::Origin);
        }
        if protocols.contains(',') {
            return Err(HandshakeError::Protocols);
        }
        let protocol = match protocols.trim() {
            "" => None,
            one => Some(HeaderValue::from_str(one).map_err(|_| HandshakeError::Protocols)?),
        };
        let hash = digest(
            &SHA1_FOR_LEGACY_USE_ONLY,
            &[key, KEY_SUFFIX.as_bytes()].concat(),
        );
        let accept = HeaderValue::from_str(&STANDARD.encode(hash)).expect("base64 is a value");
        Ok(Self { accept, protocol })
    }

    fn reply(self) -> Reply {
        let mut reply = bare(StatusCode::SWITCHING_PROTOCOLS, ResponseBody::empty());
        let headers = reply.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        reply
    }
}

impl HandshakeError {
    fn reply(self) -> Reply {
        let (status, text) = match self {
            Self::Key => (StatusCode::BAD_REQUEST, "mismatch challenge/response"),
            Self::Version => (StatusCode::BAD_REQUEST, "missing or bad WebSocket Version"),
            Self::Origin => (StatusCode::FORBIDDEN, ""),
            Self::Protocols => (StatusCode::BAD_REQUEST, ""),
        };
        let mut reply = bare(status, ResponseBody::whole(text));
        let headers = reply.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if self == Self::Version {
            headers.insert(SEC_WEBSOCKET_VERSION, VERSION);
        }
        reply
    }
}

fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).map(HeaderValue::as_bytes);
    upgrade.is_some_and(|name| name.eq_ignore_ascii_case(b"websocket")) && wants_upgrade(headers)
}

fn first_protocols(headers: &HeaderMap) -> String {
    let first = headers.get(SEC_WEBSOCKET_PROTOCOL);
    let first = first.and_then(|value| value.to_str().ok());
    first.unwrap_or("").to_owned()
}

/// Moves a token among the sub-protocols to the `Authorization` header, and returns the other
/// sub-protocols. Returns `None` if there is no token, or the header has one already.
///
/// A malformed token is moved as it is: the server does not refuse a client with a certificate for
/// it, and admits no other client because of it.
fn take_token(headers: &mut HeaderMap) -> Option<String> {
    if bearer::token_of(headers).is_some() {
        return None;
    }
    let all = headers.get_all(SEC_WEBSOCKET_PROTOCOL);
    let all = all.iter().filter_map(|value| value.to_str().ok());
    let (tokens, others): (Vec<&str>, Vec<&str>) = all
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .partition(|protocol| protocol.starts_with(BEARER_PREFIX));
    let token = match tokens[..] {
        [] => return None,
        [one] => decoded(one),
        _ => None,
    };
    let (bearer, left) = match token {
        Some(token) if token.is_empty() => return None,
        // Another sub-protocol must remain, because the reply has to choose one.
        Some(token) if !others.is_empty() => (token, Some(others.join(","))),
        _ => (tokens[0].to_owned(), None),
    };
    let mut value = HeaderValue::try_from(format!("Bearer {bearer}")).ok()?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    left
}

/// Returns the token in a sub-protocol; `None` if it is badly encoded or not a valid header value.
fn decoded(protocol: &str) -> Option<String> {
    let encoded = protocol.strip_prefix(BEARER_PREFIX)?;
    let token = String::from_utf8(URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()?;
    token
        .bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then_some(token)
}

/// Returns whether `text` is an absolute URI or an absolute path.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let has_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(in_scheme);
    (has_scheme || text.starts_with('/')) && !text.contains(|c: char| c.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.clone(), HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn sound() -> HeaderMap {
        headers(&[
            (SEC_WEBSOCKET_KEY, KEY),
            (SEC_WEBSOCKET_VERSION, "13"),
            (ORIGIN, "https://dashboard.example"),
        ])
    }

    #[test]
    fn a_sound_handshake_is_accepted_with_the_key_of_the_rfc() {
        let answer = HandshakeAnswer::of(&sound(), " base64.binary.k8s.io ").expect("sound");
        assert_eq!(answer.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.protocol.expect("echoed"), "base64.binary.k8s.io");
        assert_eq!(
            HandshakeAnswer::of(&sound(), "").expect("sound").protocol,
            None
        );
    }

    #[test]
    fn flaws_are_found_in_upstreams_order() {
        let mut headers = headers(&[]);
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,b"),
            Err(HandshakeError::Key)
        );
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static(KEY));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13, 8"));
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,b"),
            Err(HandshakeError::Version)
        );
        headers.insert(SEC_WEBSOCKET_VERSION, VERSION);
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,b"),
            Err(HandshakeError::Origin)
        );
        headers.insert(ORIGIN, HeaderValue::from_static("null"));
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,b"),
            Err(HandshakeError::Origin)
        );
        headers.insert(ORIGIN, HeaderValue::from_static("file://"));
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,b"),
            Err(HandshakeError::Protocols)
        );
        assert_eq!(
            HandshakeAnswer::of(&headers, "a,"),
            Err(HandshakeError::Protocols)
        );
        assert!(HandshakeAnswer::of(&headers, "a").is_ok());
    }

    #[test]
    fn origins_are_absolute() {
        for (text, is_one) in [
            ("http://localhost", true),
            ("chrome-extension://abc", true),
            ("mailto:x@y", true),
            ("/x", true),
            ("", false),
            ("null", false),
            ("nonsense", false),
            (":", false),
            ("1a://b", false),
            ("http://a b/", false),
        ] {
            assert_eq!(is_uri(text), is_one, "{text}");
        }
    }

    #[test]
    fn only_websockets_are_taken_for_one() {
        for (connection, upgrade, is_one) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "WebSocket", true),
            ("keep-alive", "websocket", false),
            ("Upgrade", "h2c", false),
            ("Upgrade", "websocket, h2c", false),
        ] {
            let headers = headers(&[(CONNECTION, connection), (UPGRADE, upgrade)]);
            assert_eq!(
                asks_for_websocket(&headers),
                is_one,
                "{connection} {upgrade}"
            );
        }
    }

    /// Returns the bearer and the remaining sub-protocols after [`take_token`].
    fn taken(protocols: &[&str], authorization: &str) -> (String, Option<String>) {
        let mut headers = headers(&[(AUTHORIZATION, authorization)]);
        for protocol in protocols {
            let value = HeaderValue::from_str(protocol).expect("a value");
            headers.append(SEC_WEBSOCKET_PROTOCOL, value);
        }
        let left = take_token(&mut headers);
        (bearer::token_of(&headers).unwrap_or("").to_owned(), left)
    }

    fn token(text: impl AsRef<[u8]>) -> String {
        format!("{BEARER_PREFIX}{}", URL_SAFE_NO_PAD.encode(text))
    }

    #[test]
    fn a_token_among_the_protocols_is_the_bearer() {
        let token = token("secret");
        let cases: [(&[&str], &str); 5] = [
            (&[&format!("{token}, foo")], "foo"),
            (&[&format!("foo,{token}")], "foo"),
            (&["foo", &token], "foo"),
            (&["foo", &token, "bar"], "foo,bar"),
            (&[&format!("{token},")], ""),
        ];
        for (protocols, left) in cases {
            for authorization in ["", "Basic Zm9vOmJhcg=="] {
                let expected = ("secret".to_owned(), Some(left.to_owned()));
                assert_eq!(taken(protocols, authorization), expected, "{protocols:?}");
            }
        }
    }

    #[test]
    fn a_bearer_in_the_header_comes_before_one_in_a_protocol() {
        let protocols = format!("foo,{}", token("secret"));
        assert_eq!(taken(&[&protocols], "Bearer own"), ("own".to_owned(), None));
    }

    #[test]
    fn no_token_and_an_empty_one_leave_everything_as_it_is() {
        for protocols in ["foo", BEARER_PREFIX, &format!("foo,{BEARER_PREFIX}")] {
            assert_eq!(
                taken(&[protocols], ""),
                (String::new(), None),
                "{protocols}"
            );
        }
    }

    #[test]
    fn what_cannot_be_a_token_lets_nobody_in_and_leaves_the_protocols() {
        let good = token("secret");
        for (protocols, bearer) in [
            (good.clone(), good.clone()),
            (format!("foo,{good},{good}"), good.clone()),
            (
                format!("foo,{BEARER_PREFIX}!!"),
                format!("{BEARER_PREFIX}!!"),
            ),
            (format!("foo,{}", token(b"\xff\xfe")), token(b"\xff\xfe")),
            (
                format!("foo,{}", token("secret more")),
                token("secret more"),
            ),
            (format!("foo,{}", token("secret\n")), token("secret\n")),
            (format!("foo,{good}="), format!("{good}=")),
        ] {
            assert_eq!(taken(&[&protocols], ""), (bearer, None), "{protocols}");
        }
    }
}
