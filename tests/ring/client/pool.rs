//! A few HTTP/2 connections that many clients share. A broken one is replaced.
//!
//! This module owns the connections. Like client libraries, it sends a request over a new
//! connection if the first one provably did not send it, or if the server provably did not accept
//! it because it was closing the connection. A request that the server may have accepted is never
//! sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::connection::connect;
use crate::kubeconfig::{Caller, Endpoint, Protocol};

/// The longest time of a connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The client pings a connection that has been silent for this time, and drops it if no answer
/// arrives within [`ALIVE_LIMIT`]. Both are client-go's defaults.
const ALIVE_AFTER: Duration = Duration::from_secs(30);
const ALIVE_LIMIT: Duration = Duration::from_secs(15);
/// Connections that are tried for a request before it counts as unsent.
const OFFERS: usize = 3;

/// Broken requests whose reasons are printed. More would hide the result.
const SAID: usize = 10;

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum SendError {
    /// The request was not sent.
    Unsent(anyhow::Error),
    /// The connection broke after at least a part of the request was sent, so it may have arrived.
    Broken(anyhow::Error),
}

/// A connection. A task moves its frames, and ends when nobody can send any more and the last
/// stream has ended. Dropping a connection therefore does not break streams that others still read.
struct Link {
    sender: http2::SendRequest<Full<Bytes>>,
}

/// The connections to one address.
pub struct Pool {
    endpoint: Endpoint,
    links: Vec<Mutex<Option<Arc<Link>>>>,
    next: AtomicUsize,
    broken: AtomicUsize,
}

impl Pool {
    /// Creates a pool of `links` connections, none of them open yet.
    pub fn new(endpoint: Endpoint, links: usize) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            links: (0..links.max(1)).map(|_| Mutex::new(None)).collect(),
            next: AtomicUsize::new(0),
            broken: AtomicUsize::new(0),
        })
    }

    /// Begins a request to an absolute path, with the credentials of the endpoint.
    ///
    /// # Errors
    /// Returns an error if the path is not valid.
    pub fn request(&self, method: Method, path: &str) -> Result<http::request::Builder> {
        let (host, port) = (&self.endpoint.host, self.endpoint.port);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{host}:{port}{path}"));
        if let Some(token) = &self.endpoint.token {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(request)
    }

    /// Sends a request over one of the connections and waits for the head of the answer.
    ///
    /// # Errors
    /// Returns the reason if there is no answer. Its kind says whether the request may have
    /// arrived.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.links.len();
        for _ in 0..OFFERS {
            let link = self.link(place).await.map_err(SendError::Unsent)?;
            let mut sender = link.sender.clone();
            if sender.ready().await.is_err() {
                self.forget(place, &link).await;
                continue;
            }
            match sender.try_send_request(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(mut error) => {
                    let unsent = error.take_message().is_some();
                    let error = anyhow::Error::from(error.into_error());
                    if !unsent && !is_goodbye(&error) {
                        self.say(&error);
                        return Err(SendError::Broken(error));
                    }
                    self.forget(place, &link).await;
                }
            }
        }
        Err(SendError::Unsent(anyhow!("no connection took the request")))
    }

    /// Prints why a request broke, up to [`SAID`] times.
    pub(super) fn say(&self, error: &anyhow::Error) {
        if self.broken.fetch_add(1, Ordering::Relaxed) < SAID {
            println!("broken: {error:#}");
        }
    }

    /// Returns the connection of a slot, and opens one if there is none that can be used.
    async fn link(&self, place: usize) -> Result<Arc<Link>> {
        let mut slot = self.links[place].lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.sender.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let link = timeout(CONNECT_LIMIT, self.connect()).await;
        let link = Arc::new(link.context("connecting takes too long")??);
        *slot = Some(Arc::clone(&link));
        Ok(link)
    }

    async fn connect(&self) -> Result<Link> {
        let stream = connect(&self.endpoint, Caller::Admin, Protocol::Http2).await?;
        let (sender, frames) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(ALIVE_AFTER)
            .keep_alive_timeout(ALIVE_LIMIT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move { drop(frames.await) });
        Ok(Link { sender })
    }

    /// Stops using a connection, if it is still that of its slot. Streams on it continue.
    async fn forget(&self, place: usize, link: &Arc<Link>) {
        let mut slot = self.links[place].lock().await;
        if slot.as_ref().is_some_and(|there| Arc::ptr_eq(there, link)) {
            *slot = None;
        }
    }
}

/// Returns whether the server closed the connection in good order (GOAWAY without an error). Only a
/// request that the server has not accepted and never will gets this error (RFC 9113, 6.8).
fn is_goodbye(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause: &h2::Error| {
        cause.is_go_away() && cause.is_remote() && cause.reason() == Some(h2::Reason::NO_ERROR)
    })
}
