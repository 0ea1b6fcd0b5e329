//! Connections to other replicas.
//!
//! Invariant: a request that may have been sent is not sent again here. Whether it may be is
//! decided by whoever knows what it does.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response};
use parking_lot::Mutex;
use polyplane_pki::{PeerTls, SHARED_NAME};
use polyplane_ring::ReplicaId;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::backend::Peer;
use crate::peer::PeerLimits;
use crate::peer::channel::stream::{Broken, NoAnswer, PeerStream, send_data};
use crate::peer::channel::{Channel, Driver};
use crate::peer::wire::PeerBody;

/// Streams on one connection above which another one is opened.
const STREAMS_PER_CONNECTION_SOFT_MAX: usize = 256;

/// Between two attempts to connect to a peer that ends connections.
const DIAL_PAUSE: Duration = Duration::from_millis(10);

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The system there refuses a connection: no process listens. Whoever gets this removes the
    /// peer from the ring, so nothing else may look like it.
    #[error("the peer refuses connections")]
    Refused,
    /// There was no connection in time, however often one was tried.
    #[error("the peer cannot be reached in time")]
    TimedOut,
    /// It left the ring: another replica has what was its.
    #[error("the peer is no member any more")]
    Gone,
    /// Certificates, names, protocols.
    #[error("no connection to the peer: {0}")]
    Failed(String),
}

/// Why one attempt led to no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DialError {
    /// It ended before it stood; the next attempt may do better.
    Ended,
    /// Trying again at once is of no use.
    Failed(ConnectError),
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Nothing of it was sent.
    #[error("the request was not sent")]
    NotSent(#[source] ConnectError),
    /// It was sent, wholly or in part, and then the connection broke.
    #[error("the connection broke before the answer")]
    Broken(#[source] Broken),
}

/// All connections to all peers.
pub(crate) struct Pool {
    tls: Arc<PeerTls>,
    limits: PeerLimits,
    links: Mutex<HashMap<Peer, Arc<Link>>>,
    opened: AtomicU64,
}

/// How busy the connections to peers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolLoad {
    /// Connections that take requests.
    pub open: usize,
    /// Connections that were ever opened.
    pub opened: u64,
    /// Requests that are being sent or answered.
    pub streams: usize,
    /// Bytes that wait to be sent.
    pub waiting_bytes: usize,
}

/// What leads to one peer.
pub(crate) struct Link {
    peer: Peer,
    connections: Mutex<Vec<Arc<Channel>>>,
    /// One connects, the others wait for what comes of it.
    connecting: tokio::sync::Mutex<Option<(Instant, ConnectError)>>,
    gone: CancellationToken,
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

    /// Forgets peers that are no members any more. What they still answer is read to its end, but
    /// one that gives no sign of life is given up within a second, whatever waits for it; whoever
    /// waits for an answer that another replica can give as well, or for a connection, learns of it
    /// at once.
    pub(super) fn retain(&self, is_member: impl Fn(&Peer) -> bool) {
        self.links.lock().retain(|peer, link| {
            let stays = is_member(peer);
            if !stays {
                link.gone.cancel();
                for channel in link.connections.lock().drain(..) {
                    channel.close();
                }
            }
            stays
        });
    }

    /// How busy all connections are together.
    pub(super) fn load(&self) -> PoolLoad {
        let mut load = PoolLoad {
            opened: self.opened.load(Ordering::Relaxed),
            ..PoolLoad::default()
        };
        for link in self.links.lock().values() {
            for channel in &*link.connections.lock() {
                load.open += usize::from(channel.is_open());
                load.streams += channel.open_streams();
                load.waiting_bytes += channel.waiting_bytes();
            }
        }
        load
    }

    /// Sends a request and waits for the head of its answer. A connection that turns out to be
    /// closed, or closing, before anybody looked at the request is replaced once.
    ///
    /// # Errors
    /// Whether it was sent, and why there is no answer.
    ///
    /// # Cancel safety
    /// Dropped after the request was sent, it cancels the stream.
    pub(crate) async fn send(
        &self,
        link: &Link,
        request: &Request<PeerBody>,
    ) -> Result<Response<PeerStream>, SendError> {
        for fresh in [false, true] {
            let channel = self.channel(link, fresh).await;
            let channel = channel.map_err(SendError::NotSent)?;
            match exchange(&channel, request).await {
                Ok(response) => return Ok(response),
                Err(NoAnswer::Refused) => {}
                Err(NoAnswer::Broken(why)) => return Err(SendError::Broken(why)),
            }
        }
        // Whoever refuses a stream is there: it must not be taken for a process that is gone.
        let why = "the peer takes no more requests at the moment".to_owned();
        Err(SendError::NotSent(ConnectError::Failed(why)))
    }

    /// The least busy connection, or a new one if all are busy.
    async fn channel(&self, link: &Link, fresh: bool) -> Result<Arc<Channel>, ConnectError> {
        let asked = Instant::now();
        let connections_max = self.limits.connections_per_peer_max;
        if !fresh && let Some(channel) = link.least_busy(connections_max) {
            return Ok(channel);
        }
        let mut failure = link.connecting.lock().await;
        if let Some(channel) = link.least_busy(connections_max) {
            return Ok(channel);
        }
        if let Some((at, error)) = &*failure
            && *at >= asked
        {
            return Err(error.clone());
        }
        let connected = tokio::select! {
            // Nothing is sent to who has left, not even over a connection that stands by now.
            biased;
            () = link.gone.cancelled() => Err(ConnectError::Gone),
            // In a box: it is seldom there, and large.
            connected = Box::pin(self.connect(link)) => connected,
        };
        match connected {
            Ok(channel) => {
                *failure = None;
                link.connections.lock().push(Arc::clone(&channel));
                Ok(channel)
            }
            Err(error) => {
                tracing::debug!(peer = link.peer.replica, %error, "no connection");
                *failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Connects, again whenever a connection ends before it stands: a busy listener, a proxy or a
    /// lost network do that as well as a process that dies, and the next attempt tells them apart.
    async fn connect(&self, link: &Link) -> Result<Arc<Channel>, ConnectError> {
        let dialling = async {
            loop {
                match self.dial(link).await {
                    Ok(channel) => return Ok(channel),
                    Err(DialError::Ended) => tokio::time::sleep(DIAL_PAUSE).await,
                    Err(DialError::Failed(error)) => return Err(error),
                }
            }
        };
        tokio::time::timeout(self.limits.connect_time_max, dialling)
            .await
            .unwrap_or(Err(ConnectError::TimedOut))
    }

    async fn dial(&self, link: &Link) -> Result<Arc<Channel>, DialError> {
        let peer = &link.peer;
        let failed = |why: String| DialError::Failed(ConnectError::Failed(why));
        let socket = open(&peer.address).await?;
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a socket keeps its delay");
        }
        let configs = self.tls.current();
        let name = ServerName::try_from("peer.polyplane").expect("a host name");
        let stream = TlsConnector::from(Arc::clone(&configs.client))
            .connect(name, socket)
            .await
            .map_err(|error| handshake_error(&error))?;
        let shown = configs.name_of(stream.get_ref().1.peer_certificates());
        match shown.as_ref().map(ReplicaId::as_str) {
            Some(name) if name == peer.replica || name == SHARED_NAME => {}
            Some(other) => {
                let why = format!("{} belongs to replica {other} by now", peer.address);
                return Err(failed(why));
            }
            None => return Err(failed("the peer's certificate names no replica".to_owned())),
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let channel = Channel::new();
        let gone = link.gone.clone().cancelled_owned();
        let mut driver = Driver::new(&channel, stream, None).until(gone);
        let replica = peer.replica.clone();
        // Ends with the connection: at the latest with its last stream once nobody else is to use it.
        tokio::spawn(async move {
            if let Err(error) = driver.run().await {
                tracing::debug!(peer = replica, %error, "a peer connection ended");
            }
        });
        Ok(channel)
    }
}

/// Sends a request on a connection and waits for the head of its answer. An answer that begins
/// before all of the request was sent is a refusal of some kind: the rest is not sent.
pub(super) async fn exchange(
    channel: &Arc<Channel>,
    request: &Request<PeerBody>,
) -> Result<Response<PeerStream>, NoAnswer> {
    let gone = |_| NoAnswer::Refused;
    let room = std::future::poll_fn(|context| channel.poll_room(context));
    room.await.map_err(gone)?;
    let body = request.body();
    // A whole short body travels with its head.
    let first = body.short_piece();
    let is_whole = first.is_some() || body.length() == 0;
    let head = (request.method(), request.uri(), request.headers());
    let opened = channel.open(head, first.map_or(&[], |piece| piece), is_whole);
    let opened = opened.ok_or(NoAnswer::Refused)?;
    let head = if is_whole {
        opened.head().await?
    } else {
        let rest = Box::pin(async {
            let mut left = body.length();
            for piece in body.pieces() {
                left -= piece.len();
                if send_data(channel, &opened.stream, piece.clone(), left == 0)
                    .await
                    .is_err()
                {
                    break;
                }
            }
            // The answer, or its want, is what matters.
            std::future::pending().await
        });
        tokio::select! {
            head = opened.head() => head?,
            () = rest => unreachable!("it never ends"),
        }
    };
    Ok(opened.into_response(head))
}

impl Link {
    /// Cancelled when the peer is no member any more.
    pub(crate) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// A connection with room, or the least busy one if there can be no more.
    fn least_busy(&self, connections_max: usize) -> Option<Arc<Channel>> {
        let mut connections = self.connections.lock();
        connections.retain(|channel| channel.is_open());
        let streams = |channel: &Arc<Channel>| (channel.open_streams(), Arc::clone(channel));
        let (open, least) = connections
            .iter()
            .map(streams)
            .min_by_key(|(open, _)| *open)?;
        (open < STREAMS_PER_CONNECTION_SOFT_MAX || connections.len() >= connections_max)
            .then_some(least)
    }
}

/// A socket to one of the systems behind an address, which may be a name.
async fn open(address: &str) -> Result<TcpStream, DialError> {
    let systems = lookup_host(address).await;
    let mut failures = Vec::new();
    for system in systems.map_err(|error| handshake_error(&error))? {
        match TcpStream::connect(system).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failures.push(connect_error(&error)),
        }
    }
    Err(combined_error(failures))
}

/// What the failures at all systems behind an address say: it refuses only if all of them do.
fn combined_error(failures: Vec<DialError>) -> DialError {
    let refused = DialError::Failed(ConnectError::Refused);
    let last = failures.iter().rfind(|failure| **failure != refused);
    match (last, failures.is_empty()) {
        (Some(last), _) => last.clone(),
        (None, false) => refused,
        (None, true) => {
            DialError::Failed(ConnectError::Failed("the name has no address".to_owned()))
        }
    }
}

/// What a failed attempt to open a socket says about the peer.
fn connect_error(error: &io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => DialError::Failed(ConnectError::Refused),
        _ => handshake_error(error),
    }
}

/// What an error on an open socket says about the peer: never that it is gone.
fn handshake_error(error: &io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::UnexpectedEof => DialError::Ended,
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => DialError::Failed(ConnectError::TimedOut),
        // This replica's own trouble, such as too many open files, or a wrong certificate.
        _ => DialError::Failed(ConnectError::Failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_name_refuses_only_if_all_its_systems_do() {
        let refused = || DialError::Failed(ConnectError::Refused);
        let timed_out = || DialError::Failed(ConnectError::TimedOut);
        assert_eq!(combined_error(vec![refused(), refused()]), refused());
        assert_eq!(combined_error(vec![timed_out(), refused()]), timed_out());
        assert_eq!(
            combined_error(vec![refused(), DialError::Ended]),
            DialError::Ended
        );
        assert_ne!(combined_error(vec![]), refused());
    }

    #[test]
    fn only_a_refused_new_connection_is_a_refusal() {
        let refused = DialError::Failed(ConnectError::Refused);
        let timed_out = DialError::Failed(ConnectError::TimedOut);
        for (kind, connecting, handshake) in [
            (ErrorKind::ConnectionRefused, &refused, &DialError::Ended),
            (
                ErrorKind::ConnectionReset,
                &DialError::Ended,
                &DialError::Ended,
            ),
            (
                ErrorKind::ConnectionAborted,
                &DialError::Ended,
                &DialError::Ended,
            ),
            (ErrorKind::BrokenPipe, &DialError::Ended, &DialError::Ended),
            (
                ErrorKind::NotConnected,
                &DialError::Ended,
                &DialError::Ended,
            ),
            (
                ErrorKind::UnexpectedEof,
                &DialError::Ended,
                &DialError::Ended,
            ),
            (ErrorKind::TimedOut, &timed_out, &timed_out),
            (ErrorKind::HostUnreachable, &timed_out, &timed_out),
            (ErrorKind::NetworkUnreachable, &timed_out, &timed_out),
            (ErrorKind::NetworkDown, &timed_out, &timed_out),
        ] {
            assert_eq!(connect_error(&kind.into()), *connecting, "{kind}");
            assert_eq!(handshake_error(&kind.into()), *handshake, "{kind}");
        }
        // Out of files, out of ports, not allowed, a wrong certificate.
        let own = [
            io::Error::from_raw_os_error(24),
            ErrorKind::AddrNotAvailable.into(),
            ErrorKind::PermissionDenied.into(),
            io::Error::new(ErrorKind::InvalidData, "a wrong certificate"),
        ];
        for error in own {
            let failed = DialError::Failed(ConnectError::Failed(error.to_string()));
            assert_eq!(connect_error(&error), failed);
            assert_eq!(handshake_error(&error), failed);
        }
    }
}
