//! One HTTPS connection to one endpoint, HTTP/2 or HTTP/1.1, with the caller's credentials.
//!
//! This module owns sockets, TLS and the framing of requests. It does not know what a request
//! means.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::kubeconfig::{Caller, Endpoint, Protocol};

/// A request. Its path is appended to the endpoint's base path.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The verb.
    pub method: Method,
    /// Path and query, beginning with a slash.
    pub path: String,
    /// The headers as given. `authorization: none` means that no credential is sent.
    pub headers: Vec<(String, String)>,
    /// The body, empty for none.
    pub body: Bytes,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// The body, read to its end.
    pub body: Bytes,
}

enum Sender {
    Http2(http2::SendRequest<Full<Bytes>>),
    Http1(Mutex<http1::SendRequest<Full<Bytes>>>),
}

/// An open connection. Dropping it closes the socket.
pub struct Connection {
    endpoint: Endpoint,
    caller: Caller,
    sender: Sender,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects, does the TLS handshake and starts the task that moves frames.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or its certificate is wrong.
    pub async fn open(endpoint: &Endpoint, caller: Caller, protocol: Protocol) -> Result<Self> {
        let stream = TokioIo::new(connect(endpoint, caller, protocol).await?);
        let (sender, driver) = match protocol {
            Protocol::Http2 => {
                let (sender, frames) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(8 << 20)
                    .handshake(stream)
                    .await?;
                let driver = tokio::spawn(async move { drop(frames.await) });
                (Sender::Http2(sender), driver)
            }
            Protocol::Http1 => {
                let (sender, frames) = http1::handshake(stream).await?;
                let driver = tokio::spawn(async move { drop(frames.await) });
                (Sender::Http1(Mutex::new(sender)), driver)
            }
        };
        Ok(Self {
            endpoint: endpoint.clone(),
            caller,
            sender,
            driver,
        })
    }

    /// Sends a request and returns as soon as the answer's head has arrived.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or the request cannot be expressed in HTTP.
    pub async fn start(&self, ask: Ask) -> Result<Response<Incoming>> {
        let request = self.request(ask)?;
        let response = match &self.sender {
            Sender::Http2(sender) => sender.clone().send_request(request).await?,
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        Ok(response)
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::start`], or an error if the body breaks off.
    pub async fn send(&self, ask: Ask) -> Result<Answer> {
        let response = self.start(ask).await?;
        let (head, body) = response.into_parts();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body
                .collect()
                .await
                .context("the body broke off")?
                .to_bytes(),
        })
    }

    fn request(&self, ask: Ask) -> Result<Request<Full<Bytes>>> {
        let mut authority = self.endpoint.host.clone();
        if authority.contains(':') {
            authority = format!("[{authority}]");
        }
        let authority = format!("{authority}:{}", self.endpoint.port);
        let path = format!("{}{}", self.endpoint.base_path, ask.path);
        let uri = match &self.sender {
            Sender::Http2(_) => format!("https://{authority}{path}"),
            Sender::Http1(_) => path,
        };
        let mut request = Request::builder().method(ask.method).uri(uri);
        let headers = request.headers_mut().context("bad method or path")?;
        if let Sender::Http1(_) = self.sender {
            headers.insert(http::header::HOST, authority.parse()?);
        }
        for (name, value) in &ask.headers {
            headers.append(
                HeaderName::try_from(name.as_str())?,
                HeaderValue::try_from(value)?,
            );
        }
        match headers.get(AUTHORIZATION) {
            Some(value) if value == "none" => drop(headers.remove(AUTHORIZATION)),
            Some(_) => {}
            None => {
                if let (Caller::Admin, Some(token)) = (self.caller, &self.endpoint.token) {
                    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
                }
            }
        }
        request.body(Full::new(ask.body)).context("bad request")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Opens the socket and does the TLS handshake.
///
/// # Errors
/// Returns an error if the server cannot be reached or its certificate is wrong.
pub async fn connect(
    endpoint: &Endpoint,
    caller: Caller,
    protocol: Protocol,
) -> Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect((endpoint.host.as_str(), endpoint.port))
        .await
        .with_context(|| format!("cannot reach {}:{}", endpoint.host, endpoint.port))?;
    socket.set_nodelay(true)?;
    TlsConnector::from(endpoint.tls(caller, protocol)?)
        .connect(endpoint.server_name()?, socket)
        .await
        .context("no TLS session")
}
