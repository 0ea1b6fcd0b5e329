//! A small client: one connection, one protocol, any number of requests.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
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
pub async fn connect(
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

/// A stream that its owner may stop reading.
struct MayStop {
    stream: TlsStream<TcpStream>,
    reads: Arc<AtomicBool>,
}

impl AsyncRead for MayStop {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.reads.load(Ordering::SeqCst) {
            // For good, so nothing has to wake the task.
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for MayStop {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
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
        Self::with_room(server, token, 0).await
    }

    /// Creates an HTTP/2 client each of whose streams has room for this many bytes that nobody has read.
    pub async fn with_room(server: &Running, token: Option<&str>, bytes: u32) -> Self {
        let (client, _reads) = Self::that_may_stop(server, token, bytes).await;
        client
    }

    /// Creates an HTTP/2 client each of whose streams has room for this many bytes that nobody has read. It reads
    /// nothing more from its socket once the flag is false.
    pub async fn that_may_stop(
        server: &Running,
        token: Option<&str>,
        bytes: u32,
    ) -> (Self, Arc<AtomicBool>) {
        let reads = Arc::new(AtomicBool::new(true));
        let socket = MayStop {
            stream: connect(server.address, &server.pki, Protocol::Http2, None).await,
            reads: Arc::clone(&reads),
        };
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(1 << 30)
            .handshake(TokioIo::new(socket));
        let (sender, connection) = handshake.await.expect("a handshake");
        tokio::spawn(connection);
        let client = Self {
            sender: Sender::Http2(sender),
            token: token.map(str::to_owned),
        };
        (client, reads)
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

    /// Sends a GET with HTTP/2 and does not wait for its answer. The request ends with the returned task.
    pub async fn begin(&mut self, path: &str) -> JoinHandle<hyper::Result<Response<Incoming>>> {
        self.begin_with(path, &[]).await
    }

    /// As [`Self::begin`], with these headers.
    pub async fn begin_with(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> JoinHandle<hyper::Result<Response<Incoming>>> {
        let Sender::Http2(sender) = &mut self.sender else {
            panic!("a client of HTTP/2");
        };
        sender.ready().await.expect("open");
        let mut request = Request::builder().uri(format!("https://localhost{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = Full::new(Bytes::new()).boxed_unsync();
        tokio::spawn(sender.send_request(request.body(body).expect("a request")))
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
