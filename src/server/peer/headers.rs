//! The headers that replicas send to each other.
//!
//! Invariant: the server removes such headers from a client's request before anything reads a
//! header, and from a peer's answer before the client gets it.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use polyplane_auth::ClientChain;
use rustls::pki_types::CertificateDer;

use crate::backend::Peer;

const PREFIX: &str = "x-polyplane-";

/// Marks a request of a client, and names the replica that received it.
pub(crate) const FORWARDED_BY: HeaderName = HeaderName::from_static("x-polyplane-forwarded-by");
/// The replica for which the request is meant. Its address may belong to another replica by now.
pub(crate) const MEANT_FOR: HeaderName = HeaderName::from_static("x-polyplane-meant-for");
/// The id of the plane that the request is meant for. Its name may belong to another plane by now. An
/// older replica ignores and sends no such header.
pub(crate) const PLANE: HeaderName = HeaderName::from_static("x-polyplane-plane");
/// The client's certificates, leaf first, as base64 with commas. The client has proven that it
/// holds their key.
pub(super) const CHAIN: HeaderName = HeaderName::from_static("x-polyplane-chain");
/// Address and port of the client.
pub(super) const REMOTE: HeaderName = HeaderName::from_static("x-polyplane-remote");
/// Milliseconds until the request's deadline.
pub(super) const DEADLINE: HeaderName = HeaderName::from_static("x-polyplane-deadline");
/// The new owner of a plane: `<replica>;address=<host:port>;view=<n>`. Replica and address are
/// absent if they are not known.
pub(crate) const MOVED: HeaderName = HeaderName::from_static("x-polyplane-moved");
/// The version up to which all events were sent, in the trailers of a watch that ended because its
/// plane moved.
pub(crate) const SENT_UP_TO: HeaderName = HeaderName::from_static("x-polyplane-told");

/// The form of records that a peer understands, in the head of its request for a watch; and the form
/// of the watch, in the head of the answer. An older replica ignores and sends no such header.
pub(crate) const WATCH_RECORDS: HeaderName = HeaderName::from_static("x-polyplane-watch-records");

/// Says that a peer passes on the records of a watch in protobuf, in the head of its request for a
/// watch. An older replica ignores and sends no such header, and gets JSON.
pub(crate) const WATCH_PROTOBUF: HeaderName = HeaderName::from_static("x-polyplane-watch-protobuf");

/// Marks a request that resumes a watch which another replica has answered in part. An older replica
/// ignores and sends no such header; the audit then has the start of the watch twice.
pub(crate) const RESUMED: HeaderName = HeaderName::from_static("x-polyplane-resumed");

/// The rate of a plane that a request has exceeded, in the head of an owner's 429: `requests;MILLIS` or
/// `writes;MILLIS`, with the time until there is room for one more. An older replica ignores and
/// sends no such header, and forwards each request.
pub(crate) const LIMITED: HeaderName = HeaderName::from_static("x-polyplane-limited");

/// Marks a request from a replica that connects its client to a node or pod by itself. An older replica
/// ignores and sends no such header; the owner then answers by itself, without an upgrade.
pub(crate) const CONNECTS: HeaderName = HeaderName::from_static("x-polyplane-connects");

/// Marks a request that asks only whether its caller is proven. It has no body, and the owner answers 204,
/// or the refusal. An older replica, which ignores the header, proves nobody by such a token.
pub(crate) const PROVES: HeaderName = HeaderName::from_static("x-polyplane-proves");

/// Marks an answer whose body is the target to which a replica connects its client.
pub(crate) const CONNECT_TO: HeaderName = HeaderName::from_static("x-polyplane-connect-to");

/// The content of [`LIMITED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limited {
    /// True if only changing requests are refused.
    pub writes_only: bool,
    /// Milliseconds until there is room for one request.
    pub wait_millis: u64,
}

impl Limited {
    /// Returns the header.
    pub(crate) fn to_value(self) -> HeaderValue {
        let kind = if self.writes_only {
            "writes"
        } else {
            "requests"
        };
        HeaderValue::try_from(format!("{kind};{}", self.wait_millis))
            .expect("a word and a number are a header value")
    }

    /// Reads the header; returns `None` if this program does not understand it.
    pub(crate) fn parse(value: &HeaderValue) -> Option<Self> {
        let (kind, millis) = value.to_str().ok()?.split_once(';')?;
        let writes_only = match kind {
            "requests" => false,
            "writes" => true,
            _ => return None,
        };
        Some(Self {
            writes_only,
            wait_millis: millis.parse().ok()?,
        })
    }
}

/// Headers that concern one connection only and are never forwarded.
const OF_ONE_CONNECTION: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HOST,
    EXPECT,
];

/// Removes the headers that only a peer may send.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let ours = |name: &&HeaderName| name.as_str().starts_with(PREFIX);
    if !headers.keys().any(|name| ours(&name)) {
        return;
    }
    let names: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Returns a client's headers without those that concern this connection only.
///
/// Other headers that `Connection` names stay. The hop is inside the server, and a request must
/// mean the same at the owner as at the replica that received it. Otherwise a client behind a proxy
/// could make the owner miss the headers by which the proxy names the client.
pub(crate) fn passing(headers: &HeaderMap) -> HeaderMap {
    let mut passing = HeaderMap::with_capacity(headers.len() + 8);
    for (name, value) in headers {
        let ends = OF_ONE_CONNECTION.contains(name)
            || name == CONTENT_LENGTH
            || name.as_str().starts_with(PREFIX);
        if !ends {
            passing.append(name.clone(), value.clone());
        }
    }
    passing
}

/// The facts about a client that only the replica that received its request knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardedClient {
    /// The client's certificates.
    pub chain: Option<HeaderValue>,
    /// The client's address.
    pub remote: Option<HeaderValue>,
    /// The time until the request's deadline.
    pub time_left: Option<Duration>,
    /// True if the request resumes a watch.
    pub resumed: bool,
    /// True if that replica connects the client to a node or pod.
    pub connects: bool,
    /// True if that replica asks only whether the caller is proven.
    pub proves: bool,
    /// The id of the plane that the request is meant for.
    pub plane: Option<HeaderValue>,
}

impl ForwardedClient {
    /// Removes these facts from the headers of a forwarded request and returns them.
    pub(crate) fn take(headers: &mut HeaderMap) -> Self {
        let text = headers.remove(DEADLINE);
        let millis = text.and_then(|value| value.to_str().ok()?.parse().ok());
        let received = Self {
            chain: headers.remove(CHAIN),
            remote: headers.remove(REMOTE),
            time_left: millis.map(Duration::from_millis),
            resumed: headers.remove(RESUMED).is_some(),
            connects: headers.remove(CONNECTS).is_some(),
            proves: headers.remove(PROVES).is_some(),
            plane: headers.remove(PLANE),
        };
        strip(headers);
        received
    }

    /// Adds these facts to the headers of a request for a peer.
    pub(crate) fn add(self, headers: &mut HeaderMap) {
        if let Some(chain) = self.chain {
            headers.insert(CHAIN, chain);
        }
        if let Some(remote) = self.remote {
            headers.insert(REMOTE, remote);
        }
        if let Some(plane) = self.plane {
            headers.insert(PLANE, plane);
        }
        if self.connects {
            headers.insert(CONNECTS, HeaderValue::from_static("1"));
        }
        if self.proves {
            headers.insert(PROVES, HeaderValue::from_static("1"));
        }
        if self.resumed {
            headers.insert(RESUMED, HeaderValue::from_static("1"));
        }
        if let Some(left) = self.time_left {
            let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            headers.insert(DEADLINE, HeaderValue::from(millis));
        }
    }
}

/// Returns a chain as a header value.
pub(crate) fn encode_chain(chain: &ClientChain) -> HeaderValue {
    let mut text = String::new();
    for certificate in chain.certificates() {
        if !text.is_empty() {
            text.push(',');
        }
        STANDARD_NO_PAD.encode_string(certificate, &mut text);
    }
    HeaderValue::try_from(text).expect("base64 and commas are a header value")
}

/// Returns the chain in a header value, or `None` if the value is not a chain.
pub(crate) fn decode_chain(value: &HeaderValue) -> Option<ClientChain> {
    let text = value.to_str().ok()?;
    let certificates: Option<Vec<CertificateDer<'static>>> = text
        .split(',')
        .map(|part| STANDARD_NO_PAD.decode(part).ok().map(CertificateDer::from))
        .collect();
    ClientChain::possessed(&certificates?)
}

/// The new owner of a plane, as far as the old one knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MovedTo {
    /// The new owner; `None` if it is not known.
    pub peer: Option<Peer>,
    /// The number of the view of the ring in which that replica is the owner.
    pub view: u64,
}

impl MovedTo {
    pub(crate) fn to_value(&self) -> HeaderValue {
        let view = self.view;
        let text: Cow<'_, str> = match &self.peer {
            Some(Peer { replica, address }) => {
                format!("{replica};address={address};view={view}").into()
            }
            None => format!(";view={view}").into(),
        };
        HeaderValue::try_from(&*text).unwrap_or_else(|_| HeaderValue::from_static(";view=0"))
    }

    pub(crate) fn parse(value: &HeaderValue) -> Self {
        let mut moved = Self::default();
        let Ok(text) = value.to_str() else {
            return moved;
        };
        let mut parts = text.split(';');
        let replica = parts.next().unwrap_or("");
        for part in parts {
            match part.split_once('=') {
                Some(("address", address)) if !replica.is_empty() && !address.is_empty() => {
                    moved.peer = Some(Peer {
                        replica: replica.to_owned(),
                        address: address.to_owned(),
                    });
                }
                Some(("view", number)) => moved.view = number.parse().unwrap_or(0),
                _ => {}
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[test]
    fn what_only_peers_may_say_is_removed() {
        let mut headers = map(&[
            ("x-polyplane-chain", "AAAA"),
            ("accept", "*/*"),
            ("x-polyplane-anything-else", "x"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn headers_of_one_connection_stay_behind() {
        let headers = map(&[
            (
                "connection",
                "close, authorization, Impersonate-User, X-Own",
            ),
            ("keep-alive", "timeout=5"),
            ("upgrade", "websocket"),
            ("x-own", "1"),
            ("host", "a"),
            ("te", "trailers"),
            ("content-length", "3"),
            ("authorization", "Bearer t"),
            ("impersonate-user", "jane"),
            ("x-polyplane-remote", "1.2.3.4:5"),
        ]);
        let kept = map(&[
            ("x-own", "1"),
            ("authorization", "Bearer t"),
            ("impersonate-user", "jane"),
        ]);
        assert_eq!(passing(&headers), kept);
    }

    #[test]
    fn what_was_received_arrives_and_is_gone() {
        let received = ForwardedClient {
            chain: Some(HeaderValue::from_static("AAAA,BBBB")),
            remote: Some(HeaderValue::from_static("1.2.3.4:5")),
            time_left: Some(Duration::from_millis(1500)),
            resumed: true,
            connects: true,
            proves: true,
            plane: Some(HeaderValue::from_static("cp-1")),
        };
        let mut headers = map(&[("accept", "*/*")]);
        received.clone().add(&mut headers);
        let back = ForwardedClient::take(&mut headers);
        assert_eq!((back.chain, back.remote), (received.chain, received.remote));
        assert_eq!((back.time_left, back.resumed), (received.time_left, true));
        assert!(back.connects && back.proves);
        assert_eq!(back.plane, received.plane);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn chains_survive_the_way() {
        let certificates = [vec![1_u8, 2, 3, 4], vec![5; 700]].map(CertificateDer::from);
        let chain = ClientChain::possessed(&certificates).expect("a leaf");
        let back = decode_chain(&encode_chain(&chain)).expect("its own encoding");
        assert_eq!(back.certificates(), certificates);
        assert!(decode_chain(&HeaderValue::from_static("no base64!")).is_none());
    }

    #[test]
    fn where_a_plane_went_is_read_as_it_was_written() {
        let known = MovedTo {
            peer: Some(Peer {
                replica: "polyplane-1".to_owned(),
                address: "[fd00::1]:7443".to_owned(),
            }),
            view: 42,
        };
        let unknown = MovedTo {
            peer: None,
            view: 7,
        };
        for moved in [known, unknown] {
            assert_eq!(MovedTo::parse(&moved.to_value()), moved);
        }
        let nonsense = MovedTo::parse(&HeaderValue::from_static("a;b;c=d;view=x"));
        assert_eq!(nonsense, MovedTo::default());
    }
}
