//! Where other replicas connect.
//!
//! Whoever has no certificate of the peer CA does not get past the handshake. Behind it there are
//! messages, and requests that clients sent to the other replica. The latter are told by a header
//! that no client can send, so a client's path never becomes a message.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use polyplane_ownership::PeerHandler;
use polyplane_ring::ReplicaId;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::answering::Answering;
use super::channel::{Answerer, Channel, Driver};
use super::frame::RequestHead;
use super::headers::{FORWARDED_BY, MEANT_FOR, Received, decode_chain};
use super::stream::{PeerStream, Stream};
use super::transport::{MESSAGE_PATH, PeerTransport, SENDER, chain_of};
use super::{PeerLimits, wire};
use crate::body::ResponseBody;
use crate::connection::Connection;
use crate::inbound::Inbound;
use crate::limits::{Seat, Seats};
use crate::pipeline::{self, Caller, Origin};
use crate::pki::peer::SHARED_NAME;
use crate::respond::{Reply, bare, text};
use crate::shared::Shared;

/// Clients whose chains are remembered, so that a chain is verified once and not per request.
const CLIENTS_MAX: usize = 2048;
/// A message above this length waits until few others of its size are being read.
const LARGE_BYTES: u64 = 1024 * 1024;
const LARGE_AT_A_TIME: usize = 4;

/// A server's side towards its peers.
pub(crate) struct PeerSide {
    pub transport: Arc<PeerTransport>,
    pub connections: Arc<Seats>,
    handler: Arc<dyn PeerHandler>,
    clients: Mutex<HashMap<HeaderValue, Arc<Connection>>>,
    large: Semaphore,
}

impl PeerSide {
    pub(crate) fn new(transport: Arc<PeerTransport>, handler: Arc<dyn PeerHandler>) -> Self {
        Self {
            connections: Seats::new(transport.limits().connections_max),
            transport,
            handler,
            clients: Mutex::default(),
            large: Semaphore::new(LARGE_AT_A_TIME),
        }
    }

    /// The client behind a forwarded request. The same chain is the same client.
    fn client(&self, received: &Received) -> Result<Arc<Connection>, ()> {
        let Some(value) = &received.chain else {
            return Ok(Arc::new(Connection::new(None, received.remote.clone())));
        };
        if let Some(known) = self.clients.lock().get(value) {
            return Ok(Arc::clone(known));
        }
        let chain = decode_chain(value).ok_or(())?;
        let client = Arc::new(Connection::new(Some(chain), received.remote.clone()));
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(value.clone(), Arc::clone(&client));
        Ok(client)
    }
}

/// Serves one accepted socket of a peer listener until it is done or `closing` comes.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    side: Arc<PeerSide>,
    socket: TcpStream,
    closing: CancellationToken,
    seat: Seat,
) {
    let _seat = seat;
    let shaken = tokio::select! {
        // A server that is cut off does not finish handshakes.
        biased;
        () = shared.drain.aborting().cancelled() => return,
        shaken = shake_hands(&side, socket, shared.limits.handshake_time_max) => shaken,
    };
    let (stream, name) = match shaken {
        Ok(shaken) => shaken,
        Err(why) => {
            Shared::count(&shared.metrics.forwarding.failed_handshakes);
            tracing::warn!(why, "somebody at the peer listener was refused");
            return;
        }
    };
    let channel = Channel::new();
    let asked = Asked {
        shared: Arc::clone(&shared),
        side,
        name,
    };
    let mut driver = Driver::new(&channel, stream, Some(Box::new(asked)));
    let mut running = std::pin::pin!(driver.run());
    let mut is_closing = false;
    loop {
        tokio::select! {
            // Cutting off comes before closing, and both before serving on.
            biased;
            () = shared.drain.aborting().cancelled() => return,
            () = closing.cancelled(), if !is_closing => {
                is_closing = true;
                channel.close();
            }
            ended = running.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a peer's connection ended");
                }
                return;
            }
        }
    }
}

/// The stream of a peer, and the name in its certificate.
async fn shake_hands(
    side: &PeerSide,
    socket: TcpStream,
    time_max: Duration,
) -> Result<(TlsStream<TcpStream>, Arc<str>), String> {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a socket keeps its delay");
    }
    let configs = side.transport.tls().current();
    let acceptor = TlsAcceptor::from(Arc::clone(&configs.server));
    let stream = tokio::time::timeout(time_max, acceptor.accept(socket))
        .await
        .map_err(|_| "the handshake took too long".to_owned())?
        .map_err(|error| error.to_string())?;
    let name = configs.name_of(stream.get_ref().1.peer_certificates());
    let name = name.ok_or("the certificate names no replica")?;
    Ok((stream, name.into()))
}

/// What a peer on one connection asks.
struct Asked {
    shared: Arc<Shared>,
    side: Arc<PeerSide>,
    name: Arc<str>,
}

impl Answerer for Asked {
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
        let (shared, side) = (Arc::clone(&self.shared), Arc::clone(&self.side));
        // In a box: what serves it is some KiB, which would be moved again and again.
        let work = Box::pin(answer(shared, side, Arc::clone(&self.name), request));
        let answering = Answering::new(channel, stream);
        // Ends with its answer, or is aborted with its stream.
        tokio::spawn(async move { answering.answer(work.await).await }).abort_handle()
    }
}

async fn answer(
    shared: Arc<Shared>,
    side: Arc<PeerSide>,
    name: Arc<str>,
    mut request: Request<PeerStream>,
) -> Reply {
    let own = side.transport.tls().replica();
    let is_meant = |value: &HeaderValue| value == own;
    if !request.headers().get(MEANT_FOR).is_some_and(is_meant) {
        // The address belonged to another replica. Nothing was done.
        let reply = format!("this is replica {own}\n");
        return text(StatusCode::MISDIRECTED_REQUEST, reply);
    }
    if request.headers().contains_key(FORWARDED_BY) {
        let received = Received::take(request.headers_mut());
        let Ok(connection) = side.client(&received) else {
            return text(StatusCode::BAD_REQUEST, "no chain of certificates\n");
        };
        let origin = Origin::Peer {
            time_left: received.time_left,
        };
        let caller = Arc::new(Caller { connection, origin });
        return pipeline::serve(shared, caller, request.map(Inbound::Peer)).await;
    }
    if request.method() == Method::POST && request.uri().path() == MESSAGE_PATH {
        let sender = request.headers().get(SENDER);
        let said = sender.and_then(|value| value.to_str().ok());
        let from = match said {
            Some(said) if &*name == SHARED_NAME => said.to_owned(),
            _ => name.to_string(),
        };
        return message(&side, &from, request.into_body()).await;
    }
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

async fn message(side: &PeerSide, from: &str, mut body: PeerStream) -> Reply {
    let refused = |why: String| text(StatusCode::BAD_REQUEST, format!("{why}\n"));
    let from: ReplicaId = match from.parse() {
        Ok(from) => from,
        Err(error) => return refused(format!("the sender has no name: {error}")),
    };
    let PeerLimits {
        payload_bytes_max, ..
    } = *side.transport.limits();
    let _permit = if wire::announced(&body) > LARGE_BYTES {
        side.large.acquire().await.ok()
    } else {
        None
    };
    let gathered = wire::gather(&mut body, wire::body_bytes_max(payload_bytes_max)).await;
    let request = match gathered.and_then(wire::decode) {
        Ok(request) => request,
        Err(error) => return refused(chain_of(&error)),
    };
    // A message that has begun is carried out to its end, whether or not its sender still waits.
    let handler = Arc::clone(&side.handler);
    let handled = tokio::spawn(async move { handler.handle(&from, request).await }).await;
    let reply = match handled.map(|reply| serde_json::to_vec(&reply)) {
        Ok(Ok(json)) => json,
        Ok(Err(error)) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut reply = bare(StatusCode::OK, ResponseBody::whole(reply));
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, json);
    reply
}
