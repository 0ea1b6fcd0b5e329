//! A small client: one connection, one protocol, any number of requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use polyplane_pki::{Identity, Pki};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fake::Running;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Both protocols, for tests that must hold with each.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// The body of a request.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

pub struct Client {
    sender: Sender,
    pub token: Option<String>,
}

/// A complete answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("ASCII"))
    }
}

/// Connects to a server and shakes hands.
async fn connect(
    address: SocketAddr,
    pki: &Pki,
    protocol: Protocol,
    identity: Option<&Identity>,
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(pki.root().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => builder
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .expect("a certificate"),
        None => builder.with_no_client_auth(),
    };
    let alpn: &[u8] = if protocol == Protocol::Http2 {
        b"h2"
    } else {
        b"http/1.1"
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await;
    stream.expect("the server's certificate is trusted")
}

impl Client {
    /// Creates a client with the administrator's token.
    pub async fn admin(server: &Running, protocol: Protocol) -> Self {
        Self::with(server, protocol, Some(server.pki.admin_token()), None).await
    }

    pub async fn with(
        server: &Running,
        protocol: Protocol,
        token: Option<&str>,
        identity: Option<&Identity>,
    ) -> Self {
        Self::to(server.address, &server.pki, protocol, token, identity).await
    }

    /// Creates a client of any server.
    pub async fn to(
        address: SocketAddr,
        pki: &Pki,
        protocol: Protocol,
        token: Option<&str>,
        identity: Option<&Identity>,
    ) -> Self {
        let io = TokioIo::new(connect(address, pki, protocol, identity).await);
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await.expect("a handshake");
                tokio::spawn(connection.with_upgrades());
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let handshake = http2::Builder::new(TokioExecutor::new()).handshake(io);
                let (sender, connection) = handshake.await.expect("a handshake");
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Self {
            sender,
            token: token.map(str::to_owned),
        }
    }

    /// Creates an HTTP/2 client whose streams have no room for any body.
    pub async fn without_room(server: &Running, token: Option<&str>) -> Self {
        let stream = connect(server.address, &server.pki, Protocol::Http2, None).await;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(0)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("a handshake");
        tokio::spawn(connection);
        Self {
            sender: Sender::Http2(sender),
            token: token.map(str::to_owned),
        }
    }

    /// Waits until the connection accepts no more requests.
    pub async fn closed(&mut self) {
        let is_closed = || match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        };
        while !is_closed() {
            tokio::task::yield_now().await;
        }
    }

    pub async fn get(&mut self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn get_as(&mut self, path: &str, accept: &str) -> Reply {
        self.send(Method::GET, path, &[("accept", accept)], "")
            .await
    }

    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let (parts, body) = self.open(method, path, headers, body).await.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    /// Sends a request and returns as soon as the answer's head has arrived.
    pub async fn open(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let body = Full::new(body.into()).boxed_unsync();
        self.open_with(method, path, headers, body).await
    }

    /// Sends a request whose body may arrive slowly.
    pub async fn open_with(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Response<Incoming> {
        let answered = self.try_open(method, path, headers, body).await;
        answered.expect("an answer")
    }

    /// Sends a request whose stream may be reset.
    pub async fn try_open(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await.expect("open");
                let request = request.uri(path).header("host", "localhost").body(body);
                sender.send_request(request.expect("a request")).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.expect("open");
                let request = request.uri(format!("https://localhost{path}")).body(body);
                sender.send_request(request.expect("a request")).await
            }
        }
    }
}
