//! Connections to other replicas.
//!
//! HTTP/2, because a stream is cancelled alone, carries trailers, and thousands of watches share
//! a connection; what that costs against HTTP/1.1 stands in the table of [`super`].
//! The window of a connection is as large as the protocol allows and that of a stream is small: a
//! client that reads nothing holds up its own stream, never those beside it.
//!
//! Invariant: a request is handed to a connection once. Whether it may be sent again is decided by
//! whoever knows what it does.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::PeerLimits;
use super::wire::PeerBody;
use crate::backend::Peer;
use crate::gather::{Outlet, gather};
use crate::pki::peer::{PeerTls, SHARED_NAME};

/// What a stream may have under way before somebody reads.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The protocol's bound; streams bound what is really under way.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
pub(super) const SEND_BUFFER_BYTES: usize = 512 * 1024;
/// A chain of client certificates travels in a header.
pub(super) const HEADER_LIST_BYTES: u32 = 512 * 1024;
/// A silent peer is asked for a sign of life this often, and has this long to give it.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(2);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Streams on one connection above which another one is opened.
const STREAMS_WELCOME: usize = 256;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Nobody listens there, or whoever does resets the connection.
    #[error("the peer refuses connections")]
    Refused,
    /// There was no connection in time.
    #[error("the peer cannot be reached in time")]
    TimedOut,
    /// Certificates, names, protocols.
    #[error("no connection to the peer: {0}")]
    Failed(String),
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Nothing of it was sent.
    #[error("the request was not sent")]
    NotSent(#[source] ConnectError),
    /// It was sent, wholly or in part, and then the connection broke.
    #[error("the connection broke before the answer")]
    Broken(#[source] hyper::Error),
}

/// All connections to all peers.
pub(crate) struct Pool {
    tls: Arc<PeerTls>,
    limits: PeerLimits,
    links: Mutex<HashMap<Peer, Arc<Link>>>,
    pub opened: AtomicU64,
}

/// What leads to one peer.
pub(crate) struct Link {
    peer: Peer,
    connections: Mutex<Vec<Arc<Wire>>>,
    /// One connects, the others wait for what comes of it.
    connecting: tokio::sync::Mutex<Option<(Instant, ConnectError)>>,
    gone: CancellationToken,
}

/// One connection.
struct Wire {
    sender: SendRequest<PeerBody>,
    streams: AtomicUsize,
}

/// A stream on a connection; counted until it is dropped.
struct Stream(Arc<Wire>);

impl Stream {
    fn on(wire: &Arc<Wire>) -> Self {
        wire.streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(wire))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer. Dropped before its end, it cancels the stream.
pub(crate) struct PeerStream {
    body: Incoming,
    _stream: Stream,
}

impl Body for PeerStream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Pool {
    pub(super) fn new(tls: Arc<PeerTls>, limits: PeerLimits) -> Self {
        Self {
            tls,
            limits,
            links: Mutex::default(),
            opened: AtomicU64::new(0),
        }
    }

    pub(super) fn tls(&self) -> &Arc<PeerTls> {
        &self.tls
    }

    /// What leads to a peer. Connects to nobody.
    pub(crate) fn link(&self, peer: &Peer) -> Arc<Link> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(peer) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link {
            peer: peer.clone(),
            connections: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            gone: CancellationToken::new(),
        });
        links.insert(peer.clone(), Arc::clone(&link));
        link
    }

    /// Forgets peers that are no members any more. What they still answer is read to its end;
    /// whoever waits for an answer that another replica can give as well learns of it at once.
    pub(super) fn retain(&self, is_member: impl Fn(&Peer) -> bool) {
        self.links.lock().retain(|peer, link| {
            let stays = is_member(peer);
            if !stays {
                link.gone.cancel();
                link.connections.lock().clear();
            }
            stays
        });
    }

    /// Open connections to peers.
    pub(super) fn open(&self) -> usize {
        let links = self.links.lock();
        let open = links.values().map(|link| {
            let connections = link.connections.lock();
            connections
                .iter()
                .filter(|wire| !wire.sender.is_closed())
                .count()
        });
        open.sum()
    }

    /// Sends a request and waits for the head of its answer. A connection that turns out to be
    /// closed before anything was written is replaced once.
    ///
    /// # Errors
    /// Whether it was sent, and why there is no answer.
    ///
    /// # Cancel safety
    /// Dropped after the request was sent, it cancels the stream.
    pub(crate) async fn send(
        &self,
        link: &Link,
        request: Request<PeerBody>,
    ) -> Result<Response<PeerStream>, SendError> {
        let mut request = request;
        for fresh in [false, true] {
            let wire = self.wire(link, fresh).await.map_err(SendError::NotSent)?;
            let stream = Stream::on(&wire);
            let mut sender = wire.sender.clone();
            match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(response.map(|body| PeerStream {
                        body,
                        _stream: stream,
                    }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Broken(error.into_error())),
                },
            }
        }
        Err(SendError::NotSent(ConnectError::Refused))
    }

    /// The least busy connection, or a new one if all are busy.
    async fn wire(&self, link: &Link, fresh: bool) -> Result<Arc<Wire>, ConnectError> {
        let asked = Instant::now();
        let connections_max = self.limits.connections_per_peer_max;
        if !fresh && let Some(wire) = link.least_busy(connections_max) {
            return Ok(wire);
        }
        let mut failure = link.connecting.lock().await;
        if let Some(wire) = link.least_busy(connections_max) {
            return Ok(wire);
        }
        if let Some((at, error)) = &*failure
            && *at >= asked
        {
            return Err(error.clone());
        }
        match self.connect(&link.peer).await {
            Ok(wire) => {
                *failure = None;
                link.connections.lock().push(Arc::clone(&wire));
                Ok(wire)
            }
            Err(error) => {
                tracing::debug!(peer = link.peer.replica, %error, "no connection");
                *failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self, peer: &Peer) -> Result<Arc<Wire>, ConnectError> {
        tokio::time::timeout(self.limits.connect_time_max, self.dial(peer))
            .await
            .unwrap_or(Err(ConnectError::TimedOut))
    }

    async fn dial(&self, peer: &Peer) -> Result<Arc<Wire>, ConnectError> {
        let socket = TcpStream::connect(&peer.address)
            .await
            .map_err(|error| of_io(&error))?;
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a socket keeps its delay");
        }
        let configs = self.tls.current();
        let name = ServerName::try_from("peer.polyplane").expect("a host name");
        let stream = TlsConnector::from(Arc::clone(&configs.client))
            .connect(name, socket)
            .await
            .map_err(|error| of_io(&error))?;
        let shown = configs.name_of(stream.get_ref().1.peer_certificates());
        match shown.as_deref() {
            Some(name) if name == peer.replica || name == SHARED_NAME => {}
            Some(other) => {
                let why = format!("{} belongs to replica {other} by now", peer.address);
                return Err(ConnectError::Failed(why));
            }
            None => {
                let why = "the peer's certificate names no replica".to_owned();
                return Err(ConnectError::Failed(why));
            }
        }
        let (stream, outlet) = gather(stream);
        let runner = Runner(Arc::new(Mutex::new(Some(outlet))));
        let handshake = http2::Builder::new(runner)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) =
            handshake.map_err(|error| ConnectError::Failed(error.to_string()))?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        let replica = peer.replica.clone();
        // Ends when the connection does: at the latest when its last sender and stream are gone.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(peer = replica, %error, "a peer connection ended");
            }
        });
        Ok(Arc::new(Wire {
            sender,
            streams: AtomicUsize::new(0),
        }))
    }
}

impl Link {
    /// Cancelled when the peer is no member any more.
    pub(crate) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// A connection with room, or the least busy one if there can be no more.
    fn least_busy(&self, connections_max: usize) -> Option<Arc<Wire>> {
        let mut connections = self.connections.lock();
        connections.retain(|wire| !wire.sender.is_closed());
        let least = connections
            .iter()
            .min_by_key(|wire| wire.streams.load(Ordering::Relaxed))?;
        let has_room = least.streams.load(Ordering::Relaxed) < STREAMS_WELCOME;
        (has_room || connections.len() >= connections_max).then(|| Arc::clone(least))
    }
}

/// Runs the futures of one connection. hyper hands over first the one that reads and writes, in the
/// handshake: its turns end with sending what was gathered. The others belong to single streams.
#[derive(Clone)]
struct Runner(Arc<Mutex<Option<Outlet<TlsStream<TcpStream>>>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Runner {
    fn execute(&self, future: F) {
        let Some(outlet) = self.0.lock().take() else {
            // Ends with its stream.
            tokio::spawn(future);
            return;
        };
        // Ends with the connection.
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(future);
            if let Err(error) = outlet.turn(connection.as_mut()).await {
                tracing::debug!(%error, "a peer's socket is broken");
            }
        });
    }
}

/// What an input or output error says about the peer.
fn of_io(error: &io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => ConnectError::Refused,
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => ConnectError::TimedOut,
        _ => ConnectError::Failed(error.to_string()),
    }
}
