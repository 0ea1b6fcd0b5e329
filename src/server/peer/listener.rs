//! The listener for other replicas.
//!
//! A connection without a peer's certificate ends with its handshake, which is short and never
//! counts against the limit of proven connections ([`super::handshakes`]). Proven peers send
//! messages, and requests that clients sent to them. A forwarded request has a header that no
//! client can send, so a client's path can never address a message.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use polyplane_apimachinery::error_chain;
use polyplane_ownership::PeerHandler;
use polyplane_pki::SHARED_NAME;
use polyplane_registry::Verb;
use polyplane_ring::ReplicaId;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::answer::body::ResponseBody;
use crate::answer::negotiate;
use crate::answer::respond::{Reply, bare, text};
use crate::connection::Connection;
use crate::connection::chains::ClientChains;
use crate::connection::cost::{ConnectionCost, charged};
use crate::peer::channel::Channel;
use crate::peer::channel::answer_sender::AnswerSender;
use crate::peer::channel::driver::{Driver, RequestHandler};
use crate::peer::channel::frame::{CHUNK_BYTES, REMEMBERED_BYTES, RequestHead, SLOTS};
use crate::peer::channel::stream::{PeerStream, Stream};
use crate::peer::handshakes::{Handshakes, HandshakesMax};
use crate::peer::headers::{
    CHAIN, FORWARDED_BY, ForwardedClient, MEANT_FOR, REMOTE, WATCH_PROTOBUF, decode_chain,
};
use crate::peer::transport::{MESSAGE_PATH, PeerTransport, SENDER};
use crate::peer::wire;
use crate::pipeline;
use crate::request::caller::{Caller, Origin};
use crate::request::inbound::Inbound;
use crate::request::request_info::RequestInfo;
use crate::request::route::{Route, parse_query};
use crate::request::seats::Seats;
use crate::server_state::ServerState;
use crate::watch::record::WatchForm;

/// Clients whose chains are cached. Without the cache, each request would verify a chain again.
const CLIENTS_MAX: usize = 2048;
const DIGEST_BYTES: usize = 32;
/// Shortest time between two warnings about rejected connections. Less would let strangers fill the
/// log.
const WARNING_PAUSE: Duration = Duration::from_secs(1);
/// How long a peer above the limit of connections may take to read the refusal. Without the limit,
/// such connections would stay open.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);
/// Messages of the greatest length that are in memory at a time, all peers together. Shorter ones
/// share this memory. Without the limit, hand-offs would use all memory.
const LONGEST_AT_A_TIME: usize = 4;
/// Bytes of a message for which one permit is taken.
const PERMIT_BYTES: usize = 1024;

/// A server's side towards its peers.
pub(crate) struct PeerSide {
    pub transport: Arc<PeerTransport>,
    /// The connections of proven peers.
    pub connections: Arc<Seats>,
    handshakes: Arc<Handshakes>,
    handler: Arc<dyn PeerHandler>,
    /// The clients of forwarded requests, by the digest of their chains.
    clients: Mutex<HashMap<[u8; DIGEST_BYTES], Arc<Connection>>>,
    /// The memory of messages longer than a frame, in units of [`PERMIT_BYTES`].
    long_messages: Semaphore,
    /// The time of the last warning about a rejected connection.
    warned: Mutex<Option<Instant>>,
}

impl PeerSide {
    pub(crate) fn new(transport: Arc<PeerTransport>, handler: Arc<dyn PeerHandler>) -> Self {
        let limits = transport.limits();
        let handshakes_max = HandshakesMax {
            all: limits.handshakes_max,
            of_one_source: limits.handshakes_per_source_max,
        };
        Self {
            connections: Seats::new(limits.connections_max),
            handshakes: Handshakes::new(handshakes_max),
            handler,
            clients: Mutex::default(),
            long_messages: Semaphore::new(
                LONGEST_AT_A_TIME
                    * permits(wire::body_bytes_max(limits.payload_bytes_max)) as usize,
            ),
            warned: Mutex::default(),
            transport,
        }
    }

    /// Logs why a connection was rejected, as a warning at most once a second: a stranger that
    /// connects again and again must not fill the log.
    fn warn(&self, why: &str) {
        let now = Instant::now();
        let mut warned = self.warned.lock();
        if warned.is_some_and(|last| now < last + WARNING_PAUSE) {
            drop(warned);
            tracing::debug!(why, "a connection to the peer listener was rejected");
            return;
        }
        *warned = Some(now);
        drop(warned);
        tracing::warn!(why, "a connection to the peer listener was rejected");
    }

    /// Returns the client that has shown a chain, over any of its connections.
    fn client(&self, chains: &ClientChains, chain: &HeaderValue) -> Option<Arc<Connection>> {
        // Without the lock, because digest and decoding of a long chain take long.
        let mut key = [0; DIGEST_BYTES];
        key.copy_from_slice(digest(&SHA256, chain.as_bytes()).as_ref());
        if let Some(known) = self.clients.lock().get(&key) {
            return Some(Arc::clone(known));
        }
        let interned = chains.intern(decode_chain(chain)?);
        let client = Arc::new(Connection::new(Some(interned), None));
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        Some(Arc::clone(clients.entry(key).or_insert(client)))
    }
}

/// The clients whose requests came over one connection, by the address of their chains: the peer
/// sends a chain once, and from then on it is the same value in memory.
#[derive(Default)]
struct KnownClients(Vec<(HeaderValue, Arc<Connection>)>);

impl KnownClients {
    fn find(&self, chain: &HeaderValue) -> Option<&Arc<Connection>> {
        let same = |known: &HeaderValue| std::ptr::eq(known.as_bytes(), chain.as_bytes());
        self.0
            .iter()
            .find(|(known, _)| same(known))
            .map(|(_, client)| client)
    }

    fn add(&mut self, chain: HeaderValue, client: Arc<Connection>) {
        if self.0.len() >= SLOTS {
            self.0.remove(0);
        }
        self.0.push((chain, client));
    }
}

/// Serves one accepted socket of a peer listener until its end, or until `closing` resolves and
/// open requests have ended.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    side: Arc<PeerSide>,
    (socket, address): (TcpStream, SocketAddr),
    closing: CancellationToken,
) {
    let handshake = side.handshakes.begin(address.ip());
    let done = tokio::select! {
        // Aborting first, because a server that aborts finishes no handshakes. The handshake before
        // its time-out, because one that has succeeded counts.
        biased;
        () = state.drain.aborting().cancelled() => return,
        done = accept_tls(&side, socket) => done,
        () = handshake.evicted.cancelled() => {
            Err(Rejected::Evicted)
        }
    };
    drop(handshake);
    let (stream, name) = match done {
        Ok(done) => done,
        Err(why) => {
            ServerState::count(&state.metrics.forwarding.failed_handshakes);
            side.warn(&why.to_string());
            return;
        }
    };
    let seat = side.connections.take();
    let channel = Channel::new();
    if seat.is_none() {
        // Refuse with a frame before closing: after a bare end of file the peer would connect
        // again.
        tracing::warn!(peer = %name, "there are too many connections of peers");
        channel.close();
    }
    let handler = PeerConnection {
        state: Arc::clone(&state),
        side,
        name,
        known: Mutex::default(),
    };
    let mut driver = Driver::new(&channel, stream, Some(Box::new(handler)));
    let serving = async {
        match &seat {
            Some(_) => driver.run().await,
            None => timeout(FAREWELL_TIME_MAX, driver.run())
                .await
                .unwrap_or(Ok(())),
        }
    };
    poll_charged(&state, &channel, serving, closing).await;
}

/// Polls a connection until its end, and charges its planes for that. Returns early if the server aborts.
async fn poll_charged<E: Display>(
    state: &ServerState,
    channel: &Channel,
    serving: impl Future<Output = Result<(), E>>,
    closing: CancellationToken,
) {
    let mut running = pin!(serving);
    let mut cost = ConnectionCost::between_replicas(channel.shares());
    let mut is_closing = false;
    loop {
        tokio::select! {
            // Aborting before closing, and both before serving, so that a busy connection stops
            // too.
            biased;
            () = state.drain.aborting().cancelled() => return,
            () = closing.cancelled(), if !is_closing => {
                is_closing = true;
                channel.close();
            }
            ended = poll_fn(|context| {
                let precision = state.gate.precision();
                let (polled, nanos) = cost.poll(precision, running.as_mut(), context);
                state.gate.count(nanos, || state.now());
                polled
            }) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a peer's connection ended");
                }
                return;
            }
        }
    }
}

/// The reason why the listener closed a connection before it was that of a peer.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error("there are too many handshakes in progress, and this was the oldest")]
    Evicted,
    #[error("the handshake took too long")]
    TooSlow,
    #[error(transparent)]
    Tls(io::Error),
    #[error("the certificate names no replica")]
    NoReplicaName,
}

/// Accepts TLS. Returns the stream and the name in the peer's certificate.
async fn accept_tls(
    side: &PeerSide,
    socket: TcpStream,
) -> Result<(TlsStream<TcpStream>, ReplicaId), Rejected> {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "Nagle's algorithm could not be turned off");
    }
    let configs = side.transport.tls().current();
    let acceptor = TlsAcceptor::from(Arc::clone(&configs.server));
    let time_max = side.transport.limits().handshake_time_max;
    let stream = timeout(time_max, acceptor.accept(socket))
        .await
        .map_err(|_| Rejected::TooSlow)?
        .map_err(Rejected::Tls)?;
    let name = configs.name_of(stream.get_ref().1.peer_certificates());
    let name = name.ok_or(Rejected::NoReplicaName)?;
    Ok((stream, name))
}

/// One connection of a peer, with all that is needed to answer its requests.
struct PeerConnection {
    state: Arc<ServerState>,
    side: Arc<PeerSide>,
    /// The replica that the peer's certificate names.
    name: ReplicaId,
    known: Mutex<KnownClients>,
}

impl PeerConnection {
    /// Returns the client of a forwarded request; `None` if its chain cannot be decoded. All
    /// requests with equal chains share one client, so that a chain is judged once.
    fn client(&self, headers: &HeaderMap) -> Option<Arc<Connection>> {
        let Some(chain) = headers.get(CHAIN) else {
            return Some(Arc::new(Connection::new(
                None,
                headers.get(REMOTE).cloned(),
            )));
        };
        if let Some(known) = self.known.lock().find(chain) {
            return Some(Arc::clone(known));
        }
        let client = self.side.client(&self.state.chains, chain)?;
        // Only chains of these lengths have a slot. Others have a new address in each request, so
        // remembering them is useless.
        if REMEMBERED_BYTES.contains(&chain.len()) {
            self.known.lock().add(chain.clone(), Arc::clone(&client));
        }
        Some(client)
    }
}

impl RequestHandler for PeerConnection {
    fn streams_max(&self) -> usize {
        self.side.transport.limits().streams_per_connection_max as usize
    }

    fn answer(
        &self,
        channel: &Arc<Channel>,
        stream: &Arc<Stream>,
        head: RequestHead,
    ) -> AbortHandle {
        let mut request = Request::new(PeerStream::new(channel, stream, &head.headers));
        *request.method_mut() = head.method;
        *request.uri_mut() = head.target;
        *request.headers_mut() = head.headers;
        let (state, side) = (Arc::clone(&self.state), Arc::clone(&self.side));
        let client = self.client(request.headers());
        let gate = Arc::clone(&state.gate);
        let sender = AnswerSender::new(channel, stream);
        let answering = answer(state, side, (self.name.clone(), client), request);
        // Boxed, because this future has some KiB and would be moved several times.
        let work = Box::pin(async move { sender.send_all(answering.await).await });
        // The task ends with its answer, or the channel aborts it with its stream.
        tokio::spawn(charged(move || gate.precision(), work)).abort_handle()
    }
}

async fn answer(
    state: Arc<ServerState>,
    side: Arc<PeerSide>,
    (name, client): (ReplicaId, Option<Arc<Connection>>),
    mut request: Request<PeerStream>,
) -> Reply {
    let own = side.transport.tls().replica();
    let is_meant = |value: &HeaderValue| value == own;
    if !request.headers().get(MEANT_FOR).is_some_and(is_meant) {
        // The sender has an outdated address of the replica that it means. Nothing was done.
        let reply = format!("this is replica {own}\n");
        return text(StatusCode::MISDIRECTED_REQUEST, reply);
    }
    if request.headers().contains_key(FORWARDED_BY) {
        let watch_form = WatchForm::of(request.headers());
        if !request.headers().contains_key(WATCH_PROTOBUF) && is_watch(&request) {
            // That replica would mix lines into the watch when it resumes it.
            negotiate::drop_protobuf(request.headers_mut());
        }
        let received = ForwardedClient::take(request.headers_mut());
        let Some(connection) = client else {
            return text(StatusCode::BAD_REQUEST, "no chain of certificates\n");
        };
        let origin = Origin::Peer {
            time_left: received.time_left,
            watch_form,
            resumed: received.resumed,
            connects: received.connects,
            proves: received.proves,
        };
        let caller = Arc::new(Caller {
            connection,
            origin,
            plane: received.plane,
        });
        return pipeline::serve(state, caller, request.map(Inbound::Peer)).await;
    }
    if request.method() == Method::POST && request.uri().path() == MESSAGE_PATH {
        let sender = request.headers().get(SENDER);
        let said = sender.and_then(|value| value.to_str().ok());
        let from = match said {
            Some(said) if name.as_str() == SHARED_NAME => said.to_owned(),
            _ => name.to_string(),
        };
        return message(&side, &from, request.into_body()).await;
    }
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns whether a request is a watch, as the pipeline reads it. Names, namespaces and selectors may contain
/// the word as well.
fn is_watch<B>(request: &Request<B>) -> bool {
    let Ok(route) = Route::parse(request.uri().path()) else {
        return false;
    };
    let query = parse_query(request.uri().query());
    let info = RequestInfo::parse(request.method(), &route.path, &query);
    matches!(info, Ok(RequestInfo::Resource(info)) if info.verb == Some(Verb::Watch))
}

/// Returns the permits that a message of this length needs.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

async fn message(side: &PeerSide, from: &str, mut body: PeerStream) -> Reply {
    let refused = |why: String| text(StatusCode::BAD_REQUEST, format!("{why}\n"));
    let from: ReplicaId = match from.parse() {
        Ok(from) => from,
        Err(error) => return refused(format!("the sender has no name: {error}")),
    };
    let limits = side.transport.limits();
    let announced = usize::try_from(wire::announced(&body)).unwrap_or(usize::MAX);
    if announced > wire::body_bytes_max(limits.payload_bytes_max) {
        return refused(format!("the message announces {announced} bytes"));
    }
    // A message that fits a frame takes no permit: it is in memory when it is read, and a ping must
    // not wait for hand-offs. Who sends a longer one announces its length, or is cut off.
    let (bytes_max, _permits) = match announced > CHUNK_BYTES {
        true => {
            let permits = side.long_messages.acquire_many(permits(announced)).await;
            (announced, permits.ok())
        }
        false => (CHUNK_BYTES, None),
    };
    // Who sends stops waiting after this time, so a peer that stalls must not hold the permits.
    let time_max = limits.message_time_max(announced);
    let read = timeout(time_max, wire::read_to_end(&mut body, bytes_max)).await;
    let Ok(read) = read else {
        return refused("the message did not arrive in time".to_owned());
    };
    let request = match read.and_then(wire::decode) {
        Ok(request) => request,
        Err(error) => return refused(error_chain(&error)),
    };
    // Spawned, so that the handler finishes even if the sender cancels.
    let handler = Arc::clone(&side.handler);
    let handled = tokio::spawn(async move { handler.handle(&from, request).await }).await;
    let reply = match handled.map(|reply| wire::encode_reply(&reply)) {
        Ok(Ok(json)) => json,
        Ok(Err(error)) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut reply = bare(StatusCode::OK, ResponseBody::whole(reply));
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_known_by_its_verb_and_not_by_the_word() {
        for (target, expected) in [
            ("/clusters/a/api/v1/pods?watch=1", true),
            ("/clusters/a/api/v1/pods?labelSelector=a%3Db&watch", true),
            ("/clusters/a/api/v1/watch/pods", true),
            ("/clusters/0/control-plane/api/v1/pods?watch=true", true),
            ("/api/v1/pods?w%61tch=1", true),
            ("/clusters/a/api/v1/pods?watch=false", false),
            ("/clusters/a/api/v1/pods?labelSelector=watch%3D1", false),
            ("/clusters/a/api/v1/namespaces/watch/pods", false),
            ("/clusters/a/api/v1/namespaces/b/pods/watch?watch=1", false),
            ("/clusters/watch/api/v1/pods", false),
            ("/clusters/a/apis/watch.io/v1/watches", false),
            ("/clusters/a/version?watch=1", false),
            ("/clusters/A/api/v1/pods?watch=1", false),
        ] {
            let request = Request::builder().uri(target).body(());
            let request = request.expect("a request");
            assert_eq!(is_watch(&request), expected, "{target}");
        }
    }
}
