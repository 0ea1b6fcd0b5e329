//! One HTTP/2 connection with many streams, which costs little CPU per request.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use polyplane_tests::connection::connect;
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use tokio::task::JoinHandle;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// An open connection. Dropping it closes the socket.
pub struct Lane {
    sender: http2::SendRequest<Full<Bytes>>,
    endpoint: Endpoint,
    prefix: String,
    authorization: Option<HeaderValue>,
    driver: JoinHandle<()>,
}

/// The body of a request.
pub enum Content {
    /// No body.
    None,
    /// A JSON object.
    Json(Bytes),
    /// A JSON merge patch.
    MergePatch(Bytes),
    /// The wanted fields of a server-side apply, as JSON.
    Apply(Bytes),
}

impl Lane {
    /// Connects as the user of the kubeconfig.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub async fn open(endpoint: &Endpoint) -> Result<Self> {
        let stream = connect(endpoint, Caller::Admin, Protocol::Http2).await?;
        let (sender, frames) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        let token = endpoint
            .token
            .as_ref()
            .map(|token| format!("Bearer {token}").parse());
        Ok(Self {
            sender,
            endpoint: endpoint.clone(),
            prefix: format!(
                "https://{}:{}{}",
                endpoint.host, endpoint.port, endpoint.base_path
            ),
            authorization: token.transpose()?,
            driver: tokio::spawn(async move { drop(frames.await) }),
        })
    }

    /// Returns the endpoint that the connection leads to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns a request to a path below the endpoint's base path.
    ///
    /// # Errors
    /// Returns an error if the path is not valid.
    pub fn request(&self, method: Method, path: &str, content: Content) -> Result<Ask> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .body(Full::default())?;
        if let Some(authorization) = &self.authorization {
            request
                .headers_mut()
                .insert(AUTHORIZATION, authorization.clone());
        }
        let (kind, body) = match content {
            Content::None => return Ok(request),
            Content::Json(body) => ("application/json", body),
            Content::MergePatch(body) => ("application/merge-patch+json", body),
            Content::Apply(body) => ("application/apply-patch+yaml", body),
        };
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        *request.body_mut() = Full::new(body);
        Ok(request)
    }

    /// Sends a request and returns when the head of the answer has arrived.
    ///
    /// # Errors
    /// Returns an error if the connection breaks.
    pub async fn start(&self, request: Ask) -> Result<(StatusCode, Incoming)> {
        let response = self.sender.clone().send_request(request).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Sends a request, discards the body of the answer and returns its length.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or the status is not the expected one; the error
    /// contains the body.
    pub async fn exchange(&self, request: Ask, expected: StatusCode) -> Result<u64> {
        let (status, mut body) = self.start(request).await?;
        if status != expected {
            let text = body.collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&text));
        }
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                bytes += data.len() as u64;
            }
        }
        Ok(bytes)
    }

    /// Creates an object that an earlier run may have left.
    ///
    /// # Errors
    /// Returns an error if the connection breaks, or the server refuses the object.
    pub async fn create(&self, collection: &str, object: Bytes) -> Result<()> {
        let request = self.request(Method::POST, collection, Content::Json(object))?;
        let (status, body) = self.start(request).await?;
        if !status.is_success() && status != StatusCode::CONFLICT {
            let text = body.collect().await?.to_bytes();
            bail!("{collection}: {status}: {}", String::from_utf8_lossy(&text));
        }
        Ok(())
    }

    /// Sends a request and returns the body of the answer; for preparations.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or the answer is not a success.
    pub async fn call(&self, method: Method, path: &str, content: Content) -> Result<Bytes> {
        let request = self.request(method, path, content)?;
        let (status, body) = self.start(request).await?;
        let body = body
            .collect()
            .await
            .context("the body broke off")?
            .to_bytes();
        if !status.is_success() {
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}

/// A request as a lane sends it.
pub type Ask = Request<Full<Bytes>>;

impl Drop for Lane {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
