//! The request for a node or pod, made from that of the client, and its exchange for an answer.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderName, LOCATION, USER_AGENT, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use polyplane_registry::{ConnectMode, ConnectTarget};
use rustls::pki_types::ServerName;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::nodes::dial::DialError;
use crate::nodes::upgrade::UpgradeOffer;
use crate::peer::headers::{passing, strip};
use crate::request::body::RequestBody;
use crate::request::inbound::InboundError;

/// Longest head of an answer, in bytes. Without the limit, a node could use up the memory.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// Headers by which a client proves who it is, or acts as somebody else. They end here: what a node or
/// pod gets must not let it in anywhere.
const OF_IDENTITY: [&str; 2] = ["impersonate-", "x-remote-"];
/// Headers that say which web pages may use an answer. Those of a pod do not count for this server.
const OF_OTHER_ORIGINS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// The body of a request for a node or pod.
pub(super) type OutgoingBody = UnsyncBoxBody<Bytes, InboundError>;

/// What is known of the client, for the request to the server.
pub(super) struct Asking<'a> {
    pub parts: &'a Parts,
    /// The path without the plane's prefix, decoded.
    pub path: &'a str,
    /// Address and port of the client.
    pub remote: Option<&'a str>,
    /// The offer of the client to upgrade its connection, if it counts.
    pub offer: Option<&'a UpgradeOffer>,
}

impl Asking<'_> {
    /// Returns what follows `proxy` in the path: without empty segments, and without ones that lead
    /// upwards.
    pub fn path_behind_proxy(&self) -> String {
        let trimmed = self.path.trim_start_matches('/');
        // `api/v1/nodes/NAME/proxy`, or with `namespaces/NAMESPACE` in between.
        let head = if trimmed.split('/').nth(2) == Some("namespaces") {
            7
        } else {
            5
        };
        let mut clean: Vec<&str> = Vec::new();
        for segment in trimmed.split('/').skip(head) {
            match segment {
                "" | "." => {}
                ".." => drop(clean.pop()),
                other => clean.push(other),
            }
        }
        let mut path = String::new();
        for segment in &clean {
            path.push('/');
            escape_into(&mut path, segment);
        }
        if self.path.ends_with('/') {
            path.push('/');
        }
        path
    }

    /// Makes the request for a target. The body is that of the client, if the server gets it.
    pub fn request(
        &self,
        target: &ConnectTarget,
        authority: &str,
        body: RequestBody,
    ) -> Result<Request<OutgoingBody>, http::Error> {
        let path = match &target.path {
            Some(path) => path.clone(),
            None => self.path_behind_proxy(),
        };
        let query = match &target.query {
            Some(query) => Some(query.as_str()),
            None => self.parts.uri.query(),
        };
        let mut line = if path.is_empty() {
            "/".to_owned()
        } else {
            path
        };
        if let Some(query) = query.filter(|query| !query.is_empty()) {
            line.push('?');
            line.push_str(query);
        }
        let uri: Uri = line.try_into()?;
        if target.mode == ConnectMode::Log {
            let request = Request::get(uri).header(HOST, authority);
            return request.header(USER_AGENT, "polyplane").body(nothing());
        }
        let mut request = Request::new(outgoing(body));
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers(authority);
        Ok(request)
    }

    fn headers(&self, authority: &str) -> HeaderMap {
        let mut headers = passing(&self.parts.headers);
        let of_identity: Vec<HeaderName> = headers
            .keys()
            .filter(|name| {
                OF_IDENTITY
                    .iter()
                    .any(|prefix| name.as_str().starts_with(prefix))
            })
            .cloned()
            .collect();
        for name in of_identity {
            headers.remove(name);
        }
        headers.remove(AUTHORIZATION);
        let of_client = self.parts.headers.get(HOST).cloned();
        let of_client = of_client.or_else(|| {
            let authority = self.parts.uri.authority()?;
            HeaderValue::try_from(authority.as_str()).ok()
        });
        let host = of_client.or_else(|| HeaderValue::try_from(authority).ok());
        if let Some(remote) = self.remote.and_then(|remote| remote.rsplit_once(':')) {
            let before = headers
                .get(FORWARDED_FOR)
                .and_then(|value| value.to_str().ok());
            let all = match before {
                Some(before) => format!("{before}, {}", remote.0),
                None => remote.0.to_owned(),
            };
            insert(&mut headers, FORWARDED_FOR, &all);
        }
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host.clone());
            headers.insert(HOST, host);
        }
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
        insert(&mut headers, FORWARDED_URI, self.parts.uri.path());
        if let Some(offer) = self.offer {
            headers.extend(offer.handshake.clone());
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(http::header::UPGRADE, offer.protocol.clone());
        }
        headers
    }

    /// Makes the headers of an answer fit for the client: redirects of the server lead to where the
    /// client finds it.
    pub fn answered(&self, headers: &HeaderMap, authority: &str) -> HeaderMap {
        let mut kept = passing(headers);
        strip(&mut kept);
        for name in OF_OTHER_ORIGINS {
            kept.remove(name);
        }
        if let Some(length) = headers.get(http::header::CONTENT_LENGTH) {
            kept.insert(http::header::CONTENT_LENGTH, length.clone());
        }
        let behind = self.path_behind_proxy();
        let own = self.parts.uri.path();
        let prefix = own.strip_suffix(behind.as_str()).unwrap_or(own);
        let location = kept.get(LOCATION).and_then(|value| value.to_str().ok());
        let moved = location.and_then(|location| {
            let rest = ["http://", "https://"]
                .iter()
                .find_map(|scheme| location.strip_prefix(scheme)?.strip_prefix(authority));
            let path = rest.or(Some(location)).filter(|path| path.starts_with('/'));
            path.filter(|path| !path.starts_with("//"))
                .map(|path| format!("{prefix}{path}"))
        });
        if let Some(moved) = moved {
            insert(&mut kept, LOCATION, &moved);
        }
        // What a node or pod sends is of the type that it says, and of no other.
        kept.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        kept
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

/// Escapes a segment of a path as Go does.
fn escape_into(out: &mut String, segment: &str) {
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~$&+:=@!'()*,;".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn nothing() -> OutgoingBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns the body of a client as that of a request for a server. It is not kept in memory.
fn outgoing(body: RequestBody) -> OutgoingBody {
    match body {
        RequestBody::Coming(coming) => coming.boxed_unsync(),
        RequestBody::Cut => nothing(),
        RequestBody::Read { bytes, .. } if bytes.is_empty() => nothing(),
        RequestBody::Read { bytes, .. } => Full::new(bytes)
            .map_err(|never| match never {})
            .boxed_unsync(),
    }
}

/// Sends a request on a new connection, with TLS if there is a name that the server must prove. Returns
/// the answer, and the task that drives the connection.
pub(super) async fn exchange(
    stream: TcpStream,
    tls: Option<(rustls::ClientConfig, ServerName<'static>)>,
    request: Request<OutgoingBody>,
) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), ExchangeError> {
    match tls {
        None => send(stream, request).await,
        Some((config, name)) => {
            let connector = TlsConnector::from(Arc::new(config));
            let shaken = tokio::time::timeout(
                super::dial::CONNECT_TIME_MAX,
                connector.connect(name, stream),
            );
            let shaken = shaken.await.map_err(|_| DialError::TimedOut)?;
            send(shaken.map_err(DialError::Tls)?, request).await
        }
    }
}

/// The reason why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server accepted the connection and gave no answer that is HTTP.
    #[error("the server gave no answer: {0}")]
    NoAnswer(#[from] hyper::Error),
    /// The request has a form that HTTP does not allow.
    #[error("the request cannot be sent: {0}")]
    Unusable(#[from] http::Error),
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<OutgoingBody>,
) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), ExchangeError> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a node or pod ended with an error");
        }
    });
    let driver = AbortOnDropHandle::new(driver);
    let response = sender.send_request(request).await?;
    Ok((response, driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, headers: &[(&'static str, &str)]) -> Parts {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn asking<'a>(parts: &'a Parts, path: &'a str) -> Asking<'a> {
        Asking {
            parts,
            path,
            remote: Some("192.0.2.7:4711"),
            offer: None,
        }
    }

    #[test]
    fn the_path_behind_proxy_never_leads_upwards() {
        let parts = parts("/", &[]);
        for (path, behind) in [
            ("/api/v1/nodes/n/proxy", ""),
            ("/api/v1/nodes/n/proxy/", "/"),
            (
                "/api/v1/nodes/n/proxy/metrics/cadvisor",
                "/metrics/cadvisor",
            ),
            ("/api/v1/namespaces/a/pods/p:80/proxy/x/", "/x/"),
            ("/api/v1/namespaces/a/pods/p:80/proxy/x//y/../z", "/x/z"),
            ("/api/v1/namespaces/a/pods/p:80/proxy/../../x", "/x"),
            (
                "/api/v1/namespaces/a/pods/p/proxy/a b?c%d",
                "/a%20b%3Fc%25d",
            ),
        ] {
            assert_eq!(asking(&parts, path).path_behind_proxy(), behind, "{path}");
        }
    }

    #[test]
    fn no_credential_reaches_a_pod() {
        let parts = parts(
            "/clusters/a/api/v1/namespaces/a/pods/p/proxy/x",
            &[
                ("authorization", "Bearer secret"),
                ("impersonate-user", "jane"),
                ("impersonate-extra-x", "y"),
                ("x-remote-group", "system:masters"),
                ("x-polyplane-chain", "AAAA"),
                ("x-forwarded-for", "198.51.100.1"),
                ("cookie", "of=the-app"),
                ("host", "api.example.com"),
            ],
        );
        let path = "/api/v1/namespaces/a/pods/p/proxy/x";
        let headers = asking(&parts, path).headers("10.0.0.1:80");
        let mut found: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")))
            .collect();
        found.sort();
        let expected = [
            "cookie: of=the-app",
            "host: api.example.com",
            "x-forwarded-for: 198.51.100.1, 192.0.2.7",
            "x-forwarded-host: api.example.com",
            "x-forwarded-proto: https",
            "x-forwarded-uri: /clusters/a/api/v1/namespaces/a/pods/p/proxy/x",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_redirect_leads_through_the_proxy_again() {
        let parts = parts("/clusters/a/api/v1/namespaces/a/pods/p/proxy/x", &[]);
        let path = "/api/v1/namespaces/a/pods/p/proxy/x";
        let through = "/clusters/a/api/v1/namespaces/a/pods/p/proxy/login";
        for (location, expected) in [
            ("/login", through),
            ("http://10.0.0.1:80/login", through),
            ("http://elsewhere/login", "http://elsewhere/login"),
            ("//elsewhere/login", "//elsewhere/login"),
        ] {
            let mut headers = HeaderMap::new();
            insert(&mut headers, LOCATION, location);
            insert(
                &mut headers,
                HeaderName::from_static("access-control-allow-origin"),
                "*",
            );
            let answered = asking(&parts, path).answered(&headers, "10.0.0.1:80");
            assert_eq!(answered[LOCATION], expected);
            assert!(!answered.contains_key("access-control-allow-origin"));
        }
    }
}
