//! The pool of connections to other replicas.
//!
//! Invariant: the pool never sends a request again that may have arrived. Only the caller knows
//! whether the request may be carried out twice.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use polyplane_fairness::Precision;
use polyplane_pki::{PeerTls, SHARED_NAME};
use polyplane_ring::ReplicaId;
use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::backend::Peer;
use crate::connection::cost::ConnectionCost;
use crate::peer::PeerLimits;
use crate::peer::channel::answer_memory::AnswerMemory;
use crate::peer::channel::driver::Driver;
use crate::peer::channel::frame::HeadTooLong;
use crate::peer::channel::stream::{Broken, NoAnswer, PeerStream, SharedIoError};
use crate::peer::channel::{Channel, Opened};
use crate::peer::headers::MOVED;
use crate::peer::wire::PeerBody;

/// Streams on one connection above which the pool opens another one, up to the limit per peer. With
/// more streams on one connection, all of them would share one TLS stream and one task.
const STREAMS_PER_CONNECTION_SOFT_MAX: usize = 256;

/// Pause between two attempts to connect to a peer that ends connections. Without it the attempts
/// would be a busy loop.
const DIAL_PAUSE: Duration = Duration::from_millis(10);

/// Time after a failed attempt to connect in which requests use busy connections without another
/// attempt. Without it, each of them could wait for the longest time that connecting may take.
const DIAL_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The peer's system refuses connections: no process listens there. The caller removes the peer
    /// from the ring, so no other failure may be reported as this one.
    #[error("the peer refuses connections")]
    Refused,
    /// No attempt led to a connection in time.
    #[error("the peer cannot be reached in time")]
    TimedOut,
    /// The peer left the ring: other replicas own its planes.
    #[error("the peer is not a member of the ring any more")]
    Gone,
    /// Connecting failed for a reason that another attempt would meet too.
    #[error("no connection to the peer: {0}")]
    Failed(ConnectFailure),
}

/// The reason why every attempt to connect to a peer fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectFailure {
    /// This replica cannot open a socket, or one side refuses the other's certificate.
    #[error("{0}")]
    System(SharedIoError),
    /// The peer's host name resolves to nothing.
    #[error("the name has no address")]
    NoAddress,
    /// The peer shows a certificate of no replica.
    #[error("the peer's certificate names no replica")]
    NoReplicaName,
    /// Another replica answers at the peer's address.
    #[error("{address} is the address of replica {replica}")]
    OtherReplica { address: String, replica: ReplicaId },
    /// The peer is alive and refuses streams.
    #[error("the peer takes no more requests at the moment")]
    Overloaded,
}

impl ConnectFailure {
    /// Returns whether one of the two replicas does not accept the other's certificate as that of a
    /// replica.
    pub(crate) fn is_distrust(&self) -> bool {
        match self {
            Self::System(error) => is_distrust(&error.0),
            Self::NoReplicaName => true,
            Self::NoAddress | Self::OtherReplica { .. } | Self::Overloaded => false,
        }
    }
}

/// The reason why one attempt to connect failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DialError {
    /// The connection ended during the handshake; the next attempt may succeed.
    Ended,
    /// The attempt failed, and the next one would too.
    Failed(ConnectError),
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No part of the request was sent.
    #[error("the request was not sent")]
    NotSent(#[source] ConnectError),
    /// No part of the request was sent, and no peer accepts it.
    #[error(transparent)]
    TooLong(HeadTooLong),
    /// The request was sent, wholly or in part, and then the connection broke.
    #[error("the connection broke before the answer")]
    Broken(#[source] Broken),
}

/// All connections to all peers.
pub(crate) struct Pool {
    tls: Arc<PeerTls>,
    limits: PeerLimits,
    links: Mutex<HashMap<Peer, Arc<Link>>>,
    answers: Arc<AnswerMemory>,
    opened: AtomicU64,
}

/// Numbers that say how busy the connections to peers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolLoad {
    /// Connections that accept requests.
    pub open: usize,
    /// Connections opened since the start.
    pub opened: u64,
    /// Requests in flight.
    pub streams: usize,
    /// Bytes that wait to be sent.
    pub waiting_bytes: usize,
}

/// The connections to one peer.
pub(crate) struct Link {
    peer: Peer,
    connections: Mutex<Vec<Arc<Channel>>>,
    /// The last failure to connect. The lock lets one request connect while the others wait for the
    /// outcome.
    connecting: tokio::sync::Mutex<Option<(Instant, ConnectError)>>,
    gone: CancellationToken,
}

impl Pool {
    pub(super) fn new(tls: Arc<PeerTls>, limits: PeerLimits) -> Self {
        Self {
            tls,
            limits,
            links: Mutex::default(),
            answers: Arc::default(),
            opened: AtomicU64::new(0),
        }
    }

    pub(super) fn tls(&self) -> &Arc<PeerTls> {
        &self.tls
    }

    /// Returns the memory that answers take on their way to clients.
    pub(crate) fn answers(&self) -> &AnswerMemory {
        &self.answers
    }

    /// Returns the link to a peer. Opens no connection.
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

    /// Forgets peers that have left the ring. Answers that are arriving are read to their end, but
    /// silence of such a peer breaks the connection within a second. Requests that may be sent
    /// again, or that wait for a connection, fail at once.
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

    /// Returns how busy all connections together are.
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
    /// closed or closing before the peer has read the request is replaced once. A connection over which
    /// another replica answers is used no more.
    ///
    /// # Errors
    /// Returns [`SendError::NotSent`] if the peer has not read the request,
    /// [`SendError::TooLong`] if no frame holds the head of the request, or [`SendError::Broken`] if the connection broke after at least a part of it was sent.
    ///
    /// # Cancel safety
    /// If the future is dropped after the request was sent, the stream is cancelled.
    pub(crate) async fn send(
        &self,
        link: &Link,
        request: &Request<PeerBody>,
    ) -> Result<Response<PeerStream>, SendError> {
        for fresh in [false, true] {
            let channel = self.channel(link, fresh).await;
            let channel = channel.map_err(SendError::NotSent)?;
            match exchange(&channel, request).await {
                Ok(response) => {
                    if is_of_another_replica(&response) {
                        // The address may lead to the peer by now, and the open connection does not.
                        channel.close();
                    }
                    return Ok(response);
                }
                Err(NoAnswer::Refused) => {}
                Err(NoAnswer::Broken(why)) => return Err(SendError::Broken(why)),
                Err(NoAnswer::TooLong(why)) => return Err(SendError::TooLong(why)),
            }
        }
        // A peer that refuses streams is alive, so this failure must not be reported as `Refused`.
        let overloaded = ConnectError::Failed(ConnectFailure::Overloaded);
        Err(SendError::NotSent(overloaded))
    }

    /// Returns the least busy connection, or a new one if all are busy. If no new one can be opened,
    /// a busy one is returned, unless `fresh`: then the open ones have just refused the request.
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
        let instead = |error: ConnectError| match fresh {
            true => Err(error),
            false => link.instead_of_new(error),
        };
        if let Some((at, error)) = &*failure {
            let instead = instead(error.clone());
            if *at >= asked || (instead.is_ok() && at.elapsed() < DIAL_AGAIN_AFTER) {
                return instead;
            }
        }
        let connected = tokio::select! {
            // First: send nothing to a peer that has left the ring, even if the connection is ready
            // by now.
            biased;
            () = link.gone.cancelled() => Err(ConnectError::Gone),
            // Boxed, because this future is large and rarely needed.
            connected = Box::pin(self.connect(link)) => connected,
        };
        match connected {
            Ok(channel) => {
                *failure = None;
                link.connections.lock().push(Arc::clone(&channel));
                Ok(channel)
            }
            Err(error) => {
                tracing::debug!(peer = link.peer.replica, %error, "cannot connect to a peer");
                *failure = Some((Instant::now(), error.clone()));
                instead(error)
            }
        }
    }

    /// Connects, and tries again if a connection ends during its handshake. A busy listener, a
    /// proxy or a network fault end connections that way as well as a process that dies; only
    /// another attempt can tell.
    async fn connect(&self, link: &Link) -> Result<Arc<Channel>, ConnectError> {
        let deadline = Instant::now() + self.limits.connect_time_max;
        let dialling = async {
            loop {
                match self.dial(link, deadline).await {
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

    async fn dial(&self, link: &Link, deadline: Instant) -> Result<Arc<Channel>, DialError> {
        let peer = &link.peer;
        let failed = |why| DialError::Failed(ConnectError::Failed(why));
        let socket = open(&peer.address, deadline).await?;
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "Nagle's algorithm could not be turned off");
        }
        let configs = self.tls.current();
        let name = ServerName::try_from("peer.polyplane").expect("a host name");
        let stream = TlsConnector::from(Arc::clone(&configs.client))
            .connect(name, socket)
            .await
            .map_err(handshake_error)?;
        let shown = configs.name_of(stream.get_ref().1.peer_certificates());
        match shown {
            Some(name) if name.as_str() == peer.replica || name.as_str() == SHARED_NAME => {}
            Some(replica) => {
                let address = peer.address.clone();
                return Err(failed(ConnectFailure::OtherReplica { address, replica }));
            }
            None => return Err(failed(ConnectFailure::NoReplicaName)),
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        let channel = Channel::of_answers(&self.answers);
        let gone = link.gone.clone().cancelled_owned();
        let mut driver = Driver::new(&channel, stream, None).until(gone);
        let mut cost = ConnectionCost::between_replicas(channel.shares());
        let replica = peer.replica.clone();
        // The task ends with the connection: at the latest with its last stream, once it is
        // closing.
        tokio::spawn(async move {
            let mut running = pin!(driver.run());
            let run = poll_fn(|context| {
                let (polled, _) = cost.poll(Precision::Rough, running.as_mut(), context);
                polled
            });
            if let Err(error) = run.await {
                tracing::debug!(peer = replica, %error, "a peer connection ended");
            }
        });
        Ok(channel)
    }
}

/// Sends a request on a connection and waits for the head of its answer. If the answer begins
/// before the whole request was sent, the owner has refused the request, and the rest of it is not
/// sent.
pub(super) async fn exchange(
    channel: &Arc<Channel>,
    request: &Request<PeerBody>,
) -> Result<Response<PeerStream>, NoAnswer> {
    let body = request.body();
    // A short body that is complete is sent in one frame with its head.
    let first = body.short_piece();
    let is_whole = first.is_some() || body.length() == 0;
    let head = (request.method(), request.uri(), request.headers());
    let opened = loop {
        let bytes: &[u8] = first.map_or(&[], |piece| piece);
        match channel.open(head, bytes, is_whole, body.payer()) {
            Opened::Stream(opened) => break opened,
            Opened::NoRoom => channel.room().await.map_err(|_| NoAnswer::Refused)?,
            Opened::Closed => return Err(NoAnswer::Refused),
            Opened::TooLong(why) => return Err(NoAnswer::TooLong(why)),
        }
    };
    let head = if is_whole {
        opened.head().await?
    } else {
        let rest = Box::pin(async {
            let mut left = body.length();
            for piece in body.pieces() {
                left -= piece.len();
                if channel
                    .send_data(&opened.stream, piece.clone(), left == 0)
                    .await
                    .is_err()
                {
                    break;
                }
            }
            // Never resolve: only the head of the answer, or its absence, ends the exchange.
            std::future::pending().await
        });
        tokio::select! {
            head = opened.head() => head?,
            () = rest => unreachable!("it never ends"),
        }
    };
    Ok(opened.into_response(head))
}

/// Returns whether an answer says that another replica than the one that is meant got the request. If all
/// replicas share one certificate, the handshake cannot tell. An owner that has lost a plane names the
/// plane's new owner.
fn is_of_another_replica(response: &Response<PeerStream>) -> bool {
    response.status() == StatusCode::MISDIRECTED_REQUEST && !response.headers().contains_key(MOVED)
}

impl Link {
    /// Returns the token that is cancelled when the peer leaves the ring.
    pub(crate) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Returns a connection with room, or the least busy one if the limit of connections is
    /// reached.
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

    /// Returns the least busy connection in place of a new one that could not be opened.
    ///
    /// # Errors
    /// Returns the error if no connection is open, or if it says that the process which the open
    /// ones lead to is no longer there: what is sent over them may get no answer.
    fn instead_of_new(&self, error: ConnectError) -> Result<Arc<Channel>, ConnectError> {
        match &error {
            ConnectError::Refused
            | ConnectError::Gone
            | ConnectError::Failed(
                ConnectFailure::OtherReplica { .. } | ConnectFailure::NoReplicaName,
            ) => Err(error),
            // As if the limit of connections were reached.
            ConnectError::TimedOut
            | ConnectError::Failed(
                ConnectFailure::System(_) | ConnectFailure::NoAddress | ConnectFailure::Overloaded,
            ) => self.least_busy(0).ok_or(error),
        }
    }
}

/// Opens a socket to one of the systems behind an address, which may be a name.
async fn open(address: &str, deadline: Instant) -> Result<TcpStream, DialError> {
    let systems = lookup_host(address).await.map_err(handshake_error)?;
    let systems: Vec<SocketAddr> = systems.collect();
    open_one_of(&systems, deadline).await
}

/// Opens a socket to the first system that lets it. Each gets an equal part of the time that is left,
/// so that one which does not answer leaves time for the others.
async fn open_one_of(systems: &[SocketAddr], deadline: Instant) -> Result<TcpStream, DialError> {
    let mut failures = Vec::new();
    for (system, untried) in systems.iter().zip((1..=systems.len()).rev()) {
        let left = deadline.saturating_duration_since(Instant::now());
        let time_max = left / u32::try_from(untried).unwrap_or(u32::MAX);
        match tokio::time::timeout(time_max, TcpStream::connect(system)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => failures.push(connect_error(error)),
            Err(_) => failures.push(DialError::Failed(ConnectError::TimedOut)),
        }
    }
    Err(combined_error(failures))
}

/// Combines the failures at all systems behind an address. The result is `Refused` only if all
/// systems refused.
fn combined_error(failures: Vec<DialError>) -> DialError {
    let refused = DialError::Failed(ConnectError::Refused);
    let last = failures.iter().rfind(|failure| **failure != refused);
    match (last, failures.is_empty()) {
        (Some(last), _) => last.clone(),
        (None, false) => refused,
        (None, true) => DialError::Failed(ConnectError::Failed(ConnectFailure::NoAddress)),
    }
}

/// Returns whether an error of a connection says that one side does not accept the other's
/// certificate.
pub(crate) fn is_distrust(error: &io::Error) -> bool {
    let source = error.get_ref();
    match source.and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::NoCertificatesPresented
            // The verifiers of `polyplane_pki` refuse the role or the length of a chain so.
            | rustls::Error::General(_),
        ) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::CertificateRequired
        ),
        Some(_) | None => false,
    }
}

/// Classifies the error of an attempt to open a socket.
fn connect_error(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => DialError::Failed(ConnectError::Refused),
        _ => handshake_error(error),
    }
}

/// Classifies an error on an open socket, which never means that the peer is gone.
fn handshake_error(error: io::Error) -> DialError {
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
        // A problem of this replica, such as too many open files, or a wrong certificate.
        _ => DialError::Failed(ConnectError::Failed(ConnectFailure::System(error.into()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Method, Uri};
    use std::io::ErrorKind;
    use tokio::net::{TcpListener, TcpSocket};

    /// Returns a connection with this number of open streams, which nobody answers.
    fn busy(streams: usize) -> (Arc<Channel>, Vec<Opened>) {
        let channel = Channel::new();
        let head = (&Method::GET, &Uri::from_static("/"), &HeaderMap::new());
        let opened = (0..streams).map(|_| channel.open(head, &[], true, None));
        let opened: Vec<Opened> = opened.collect();
        assert_eq!(channel.open_streams(), streams);
        (channel, opened)
    }

    #[tokio::test]
    async fn a_busy_connection_is_used_if_no_further_one_can_be_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let tls = PeerTls::load_or_create(folder.path(), "polyplane-0").expect("made");
        let limits = PeerLimits {
            connect_time_max: Duration::from_millis(50),
            ..PeerLimits::default()
        };
        let pool = Pool::new(tls, limits);
        // Connections are established, and their handshakes get no answer.
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let link = pool.link(&Peer {
            replica: "polyplane-1".to_owned(),
            address: mute.local_addr().expect("bound").to_string(),
        });
        let timed_out = Some(ConnectError::TimedOut);
        assert_eq!(pool.channel(&link, false).await.err(), timed_out);
        let (busier, _more) = busy(STREAMS_PER_CONNECTION_SOFT_MAX + 1);
        let (busy, _streams) = busy(STREAMS_PER_CONNECTION_SOFT_MAX);
        link.connections.lock().extend([busier, Arc::clone(&busy)]);
        *link.connecting.lock().await = None;
        for _ in 0..2 {
            let before = link.connecting.lock().await.clone();
            let channel = pool.channel(&link, false).await.expect("an open one");
            assert!(Arc::ptr_eq(&channel, &busy), "not the least busy one");
            let is_attempt = *link.connecting.lock().await != before;
            match before {
                None => assert!(is_attempt),
                // On a machine that stood still for so long, another attempt is right.
                Some((at, _)) => assert!(!is_attempt || at.elapsed() >= DIAL_AGAIN_AFTER),
            }
        }
        assert_eq!(pool.channel(&link, true).await.err(), timed_out);
        // Nobody listens any more, so the process that the open connections lead to has gone.
        drop(mute);
        *link.connecting.lock().await = None;
        let refused = Some(ConnectError::Refused);
        assert_eq!(pool.channel(&link, false).await.err(), refused);
    }

    #[test]
    fn open_connections_are_used_unless_their_process_has_gone() {
        let link = Link {
            peer: Peer {
                replica: "polyplane-1".to_owned(),
                address: "h:1".to_owned(),
            },
            connections: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            gone: CancellationToken::new(),
        };
        let failed = ConnectError::Failed;
        let system = ConnectFailure::System(io::Error::from(ErrorKind::InvalidData).into());
        let other = ConnectFailure::OtherReplica {
            address: "h:1".to_owned(),
            replica: "polyplane-2".parse().expect("a replica id"),
        };
        let cases = [
            (ConnectError::TimedOut, true),
            (failed(system), true),
            (failed(ConnectFailure::NoAddress), true),
            (ConnectError::Refused, false),
            (ConnectError::Gone, false),
            (failed(other), false),
            (failed(ConnectFailure::NoReplicaName), false),
        ];
        let channel = Channel::new();
        for is_open in [false, true] {
            if is_open {
                link.connections.lock().push(Arc::clone(&channel));
            }
            for (error, may_be_used) in cases.clone() {
                let used = link.instead_of_new(error.clone());
                assert_eq!(used.is_ok(), is_open && may_be_used, "{error}");
                assert!(used.err().is_none_or(|returned| returned == error));
            }
        }
        channel.close();
        let closing = link.instead_of_new(ConnectError::TimedOut).map(drop);
        assert_eq!(closing, Err(ConnectError::TimedOut));
    }

    #[tokio::test]
    async fn a_system_that_does_not_answer_leaves_time_for_the_next_one() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let full = TcpSocket::new_v4().expect("a socket");
        full.bind(any).expect("a free port");
        let full = full.listen(1).expect("it listens");
        let full_address = full.local_addr().expect("bound");
        let soon = Duration::from_millis(100);
        // Nothing is accepted, so once the queue is full, further connections get no answer.
        let mut queued = Vec::new();
        while let Ok(socket) = tokio::time::timeout(soon, TcpStream::connect(full_address)).await {
            queued.push(socket.expect("it is queued"));
        }
        let live = TcpListener::bind(any).await.expect("a free port");
        let systems = [full_address, live.local_addr().expect("bound")];
        let deadline = Instant::now() + Duration::from_secs(2);
        let socket = open_one_of(&systems, deadline).await;
        let socket = socket.expect("the second one answers");
        assert_eq!(socket.peer_addr().expect("connected"), systems[1]);
        assert!(Instant::now() < deadline);
    }

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
            assert_eq!(connect_error(kind.into()), *connecting, "{kind}");
            assert_eq!(handshake_error(kind.into()), *handshake, "{kind}");
        }
        // Too many open files, no free port, no permission, a wrong certificate.
        let own: [fn() -> io::Error; 4] = [
            || io::Error::from_raw_os_error(24),
            || ErrorKind::AddrNotAvailable.into(),
            || ErrorKind::PermissionDenied.into(),
            || io::Error::new(ErrorKind::InvalidData, "a wrong certificate"),
        ];
        for error in own {
            let system = ConnectFailure::System(error().into());
            let failed = DialError::Failed(ConnectError::Failed(system));
            assert_eq!(connect_error(error()), failed);
            assert_eq!(handshake_error(error()), failed);
        }
    }
}
