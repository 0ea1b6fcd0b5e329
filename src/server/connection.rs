//! A client's connection: its handshake, its protocol, and the facts about the client that all its
//! requests share.

pub(crate) mod chains;
pub(crate) mod coalesce;
mod control_frames;
pub(crate) mod cost;
pub(crate) mod counted_body;
pub(crate) mod goaway;
mod heads;
mod held_window;
mod http2_settings;
pub(crate) mod open_connections;
mod plain_http;
pub(crate) mod requests;
pub(crate) mod reset_delay;
mod strange_heads;
pub(crate) mod tls;
pub(crate) mod unread;
mod verdicts;

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use futures_util::future::{Either, ready};
use http::{HeaderValue, Method};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use polyplane_auth::{ChainJudge, ClientChain, Denied, UserInfo};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::answer::browsers::preflight;
use crate::answer::respond::Reply;
use crate::connection::chains::InternedChain;
use crate::connection::coalesce::coalesce;
use crate::connection::control_frames::{LimitedFrames, is_flood};
use crate::connection::cost::ConnectionCost;
use crate::connection::counted_body::Sent;
use crate::connection::goaway::close_if_stopping;
use crate::connection::heads::{about_server, refused_head};
use crate::connection::held_window::HeldWindow;
use crate::connection::http2_settings::http2_settings;
use crate::connection::open_connections::{Closing, Lifetime, OpenConnection};
use crate::connection::requests::{Requests, answer_of_next};
use crate::connection::reset_delay::{DelayedReset, KeptStreams, leaves_body};
use crate::connection::strange_heads::{HeldHead, NoRoom, bytes_of};
use crate::connection::tls::ALPN_H2;
use crate::connection::unread::{Sending, Sweeper, UnreadAnswers};
use crate::nodes::upgrade::{ClientUpgrade, Session};
use crate::peer::headers::ForwardedClient;
use crate::pipeline;
use crate::request::caller::{Caller, Origin};
use crate::request::doorway::Lane;
use crate::request::inbound::Inbound;
use crate::request::seats::Seats;
use crate::server_state::ServerState;
use crate::watch::packed;

use std::convert::Infallible;
use std::io;
use std::time::Duration;

/// Answers that a connection which has proven nobody may leave unread, because it gives their streams no room; one
/// more is a reset of its stream. With more, strangers could fill memory with streams that wait.
const UNREAD_BY_STRANGER_MAX: usize = 32;
/// Headers of a request over HTTP/1.1. With the library's own limit of 100, users in many groups get 431, because front
/// proxies and impersonation send a header for each group. With more, all requests would cost more: to parse a head,
/// however short, the library allocates 64 bytes for each header that there may be.
const HTTP1_HEADERS_MAX: usize = 1024;
/// Bytes of an incomplete head, or of a body that nobody reads, after which a connection of HTTP/1.1 reads no further.
/// The last read may bring as many again, so a connection holds twice as many at most, which no share of the memory
/// budget counts. With the library's own limit of 408 KiB, 5000 clients without a credential could hold 4 GiB. Proxies
/// between clients and servers take heads of 8 to 60 KiB.
const HTTP1_HEAD_BYTES: usize = 64 * 1024;
/// For how long a connection of HTTP/1.1 takes a request after the server has begun to stop, unless one was
/// answered with `Connection: close` before. With HTTP/1.1 a server cannot say that a connection without a request is
/// about to close, so with less, more requests on the way would be lost; more would delay the stop.
const LAST_CALL: Duration = Duration::from_millis(250);

/// A request over HTTP/2, with the room that its head takes.
type Held = (http::Request<Incoming>, Option<HeldHead>);

/// The facts about a client that are known before its first request.
pub(crate) struct Connection {
    /// The connection's entry among the open ones; `None` if the client is connected to a peer.
    open: Option<Arc<OpenConnection>>,
    interned: Option<Arc<InternedChain>>,
    /// Address and port of the client, as forwarded to peers.
    remote: Option<HeaderValue>,
    /// The address in it.
    address: Option<IpAddr>,
    /// Set while the newest proof of a request on the connection has failed.
    is_doubted: AtomicBool,
    /// Where its unproven requests wait for one another.
    lane: Lane,
}

impl Connection {
    pub(crate) fn new(interned: Option<Arc<InternedChain>>, remote: Option<HeaderValue>) -> Self {
        let parsed = remote
            .as_ref()
            .and_then(|remote| remote.to_str().ok()?.parse().ok());
        Self {
            open: None,
            interned,
            remote,
            address: parsed.map(|remote: SocketAddr| remote.ip()),
            is_doubted: AtomicBool::new(false),
            lane: Lane::default(),
        }
    }

    /// Returns this connection with its entry among the open ones.
    fn at(self, open: &Arc<OpenConnection>) -> Self {
        Self {
            open: Some(Arc::clone(open)),
            ..self
        }
    }

    /// Returns the connection's entry among the open ones, if the client is connected to this
    /// replica.
    pub(crate) fn open(&self) -> Option<&OpenConnection> {
        self.open.as_deref()
    }

    /// Returns the client's certificates. The client has proven that it holds their key.
    pub(crate) fn chain(&self) -> Option<&ClientChain> {
        self.interned.as_deref().map(InternedChain::chain)
    }

    /// Returns for how much longer the client's own certificate is valid; `None` if it has shown none that
    /// says so.
    pub(crate) fn certificate_time_left(&self, now: SystemTime) -> Option<Duration> {
        self.interned.as_ref()?.leaf_time_left(now)
    }

    /// Returns the address and port of the client.
    pub(crate) fn remote(&self) -> Option<&str> {
        self.remote.as_ref()?.to_str().ok()
    }

    /// Returns the address of the client.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns whether the next proof on the connection is a stranger's: no request of it has been
    /// proven, or the newest proof has failed. A peer that forwards has proven the caller already.
    pub(crate) fn is_strange(&self) -> bool {
        let is_unproven = |open: &Arc<OpenConnection>| !open.is_proven();
        let own = self.open.as_ref();
        own.is_some_and(|open| is_unproven(open) || self.is_doubted.load(Ordering::Relaxed))
    }

    /// Returns whether no request of the client's own connection has been proven.
    fn has_proven_nobody(&self) -> bool {
        self.open().is_some_and(|open| !open.is_proven())
    }

    /// Takes room for the head of a request over HTTP/2, unless a request of the connection has been proven.
    ///
    /// # Errors
    /// Returns an error if there is none. The request is dropped then.
    fn hold_head(&self, request: http::Request<Incoming>) -> Result<Held, NoRoom> {
        let head = match self.open() {
            Some(open) if !open.is_proven() => Some(open.heads().hold(bytes_of(&request))?),
            Some(_) | None => None,
        };
        Ok((request, head))
    }

    /// Gives the client room again, because these bytes of a body were read.
    pub(crate) fn return_room(&self, bytes: usize) {
        if let Some(open) = self.open() {
            open.return_room(bytes);
        }
    }

    /// Notes whether a proof has failed.
    pub(crate) fn doubt(&self, has_failed: bool) {
        self.is_doubted.store(has_failed, Ordering::Relaxed);
    }

    /// Returns the address of the client, and where the connection's unproven requests wait.
    pub(crate) fn doorway_entry(&self) -> (Option<IpAddr>, &Lane) {
        (self.address, &self.lane)
    }

    /// Returns the facts about the client that are sent to peers with its requests.
    pub(crate) fn received(&self) -> ForwardedClient {
        ForwardedClient {
            chain: self.interned.as_deref().map(InternedChain::value),
            remote: self.remote.clone(),
            time_left: None,
            resumed: false,
            connects: false,
            proves: false,
            plane: None,
        }
    }

    /// Returns the user that the chain proves to a plane.
    pub(crate) fn user_of_chain(
        &self,
        by: &dyn ChainJudge,
        now: SystemTime,
    ) -> Result<Arc<UserInfo>, Denied> {
        let interned = self.interned.as_ref().ok_or(Denied::Nothing)?;
        interned.user(by, now)
    }
}

/// Serves one accepted socket until the connection ends or the server stops.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    acceptor: TlsAcceptor,
    socket: TcpStream,
    open: OpenConnection,
) {
    let open = Arc::new(open);
    let remote = socket.peer_addr().ok();
    let remote = remote.and_then(|address| HeaderValue::try_from(address.to_string()).ok());
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "Nagle's algorithm could not be turned off");
    }
    let handshake = shake_hands(&state, &acceptor, socket);
    let handshake = tokio::time::timeout(state.limits.handshake_time_max, handshake);
    let stream = tokio::select! {
        // First, because a server that aborts does not finish handshakes.
        biased;
        () = state.drain.aborting().cancelled() => return,
        done = handshake => match done {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                ServerState::count(&state.metrics.failed_handshakes);
                log_failed_handshake(&state, remote.as_ref(), &error);
                return;
            }
            Err(_) => {
                ServerState::count(&state.metrics.failed_handshakes);
                tracing::debug!("a handshake took too long");
                return;
            }
        },
    };
    let session = stream.get_ref().1;
    let is_h2 = session.alpn_protocol() == Some(ALPN_H2);
    let chain = session.peer_certificates().and_then(ClientChain::possessed);
    let interned = chain.map(|chain| state.chains.intern(chain));
    let connection = Arc::new(Connection::new(interned, remote).at(&open));
    let caller = Arc::new(Caller {
        connection,
        origin: Origin::Client,
        plane: None,
    });
    // Pinned in place: a future that is bound to a name first needs its memory twice.
    let mut serving = pin!(match is_h2 {
        true => Either::Left(serve_h2(&state, &open, caller, stream)),
        false => Either::Right(serve_h1(&state, &open, caller, stream)),
    });
    let mut cost = ConnectionCost::default();
    let served = poll_fn(|context| {
        let (polled, nanos) = cost.poll(state.gate.precision(), serving.as_mut(), context);
        state.gate.count(nanos, || state.now());
        polled
    });
    if let Err(error) = served.await {
        if let Broken::Protocol(error) = &error
            && is_flood(error)
        {
            ServerState::count(&open.flooding());
        }
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Logs why a handshake failed. The client gets no reason but an alert, so a certificate that cannot be
/// used is no matter of debugging alone; strangers can show any number of them, so that line is rare.
fn log_failed_handshake(state: &ServerState, remote: Option<&HeaderValue>, error: &io::Error) {
    match what_is_accepted(error) {
        Some(accepted) if state.refused_certificates.lock().is_due(Instant::now()) => {
            tracing::info!(
                %error,
                client = remote.and_then(|remote| remote.to_str().ok()),
                "a client certificate cannot be used, and ended its handshake; {accepted} (logged \
                 once a minute)"
            );
        }
        Some(_) | None => tracing::debug!(%error, "a handshake failed"),
    }
}

/// Returns which certificates are accepted if a handshake failed because of those that the client
/// showed.
fn what_is_accepted(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(_) => Some(
            "X.509 version 1, which `openssl x509 -req` makes without extensions, is not accepted",
        ),
        // Of the messages of clients only that with their chain can be too long.
        rustls::Error::General(_)
        | rustls::Error::InvalidMessage(
            rustls::InvalidMessage::HandshakePayloadTooLarge
            | rustls::InvalidMessage::CertificatePayloadTooLarge,
        ) => Some(
            "a chain that is too long, as of a user with hundreds of groups or a very long name, is not \
             accepted",
        ),
        _ => None,
    }
}

/// Does the handshake, in the turns of unproven work.
async fn shake_hands(
    state: &ServerState,
    acceptor: &TlsAcceptor,
    socket: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let source = socket.peer_addr().ok().map(|address| address.ip());
    // So that a client takes no place before it has sent something.
    socket.readable().await?;
    plain_http::refuse(&socket).await?;
    let handshake = acceptor.accept(socket);
    let from = (source, &Lane::default());
    let worked = state.doorway.work(from, || state.now(), handshake).await;
    let (stream, nanos) = worked.map_err(io::Error::other)?;
    state.unproven.charge(nanos);
    stream
}

/// Returns the answer to a request. The future is boxed because it has some KiB, and hyper moves it
/// several times before it is polled.
fn answered(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    request: http::Request<Incoming>,
) -> Pin<Box<impl Future<Output = Reply>>> {
    Box::pin(answer(state, caller, request))
}

/// Answers a request, with the headers for browsers, if there are any.
async fn answer(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    request: http::Request<Incoming>,
) -> Reply {
    if let Some(reply) = about_server(&request) {
        return reply;
    }
    let origin = state.browsers.allowed_origin(request.headers());
    let mut reply = match origin {
        // Before the caller is proven, because browsers send no credential with it.
        Some(_) if request.method() == Method::OPTIONS => preflight(request.headers()),
        _ => {
            let packs = packed::is_wanted(&request);
            let request = request.map(Inbound::Client);
            let reply = pipeline::serve(Arc::clone(&state), caller, request).await;
            if packs { packed::packed(reply) } else { reply }
        }
    };
    state.browsers.add_headers(origin, &mut reply);
    reply
}

/// The reason why a stranger's stream is reset instead of being answered. The library takes the code of the reset from
/// the source. Without it the code is that of a broken server.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("the client reads none of its answers")]
    TooManyUnread(#[source] h2::Error),
    /// The request was not begun.
    #[error("there is no room for the head of the request")]
    NoRoom(#[source] h2::Error),
}

impl Unanswered {
    fn too_many_unread() -> Self {
        Self::TooManyUnread(h2::Reason::ENHANCE_YOUR_CALM.into())
    }

    fn no_room() -> Self {
        Self::NoRoom(h2::Reason::REFUSED_STREAM.into())
    }
}

/// The reason why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Protocol(hyper::Error),
    #[error("the socket is broken")]
    Socket(#[source] io::Error),
    #[error("the client does not read from the socket")]
    Unread,
}

async fn serve_h2(
    state: &Arc<ServerState>,
    open: &Arc<OpenConnection>,
    caller: Arc<Caller>,
    stream: TlsStream<TcpStream>,
) -> Result<(), Broken> {
    let (stream, flusher) = coalesce(stream);
    let stream = LimitedFrames::new(HeldWindow::new(stream, open), open);
    let under_way = Seats::new(usize::MAX);
    let service = {
        let (state, under_way) = (Arc::clone(state), Arc::clone(&under_way));
        let requests = open.requests();
        let kept_streams = Arc::new(KeptStreams::new(&state.metrics.kept_streams));
        service_fn(move |request: http::Request<Incoming>| {
            let (seat, request_under_way) = (under_way.take(), requests.begin());
            let sending = answer_of_next();
            // Now, because the request may not be polled in this turn.
            let held = caller.connection.hold_head(request);
            if state.goaway.draws() {
                requests.send_away();
            }
            let (caller, kept_streams) = (Arc::clone(&caller), Arc::clone(&kept_streams));
            let state = Arc::clone(&state);
            async move {
                let Ok((request, head)) = held else {
                    ServerState::count(&state.metrics.rejected);
                    return Err(Unanswered::no_room());
                };
                let reply = answered(state, Arc::clone(&caller), request).await;
                drop((seat, head));
                let has_many = request_under_way.unread() >= UNREAD_BY_STRANGER_MAX;
                if has_many && caller.connection.has_proven_nobody() {
                    return Err(Unanswered::too_many_unread());
                }
                if leaves_body(&reply) {
                    sending.keep_stream(&kept_streams);
                }
                Ok(request_under_way.with(reply, Sent::InStream(sending)))
            }
        })
    };
    let mut requests = Requests::new();
    let settings = http2_settings(requests.begins(), &state.limits);
    let mut serving = pin!(settings.serve_connection(TokioIo::new(stream), service));
    let mut lifetime = Lifetime::new(open, &state.limits, &state.drain);
    let mut sweeper = Sweeper::new(requests.unread(), &state.limits);
    loop {
        tokio::select! {
            // `lifetime` first, so that a busy connection closes too.
            biased;
            step = lifetime.next() => match step {
                Closing::Graceful => serving.as_mut().graceful_shutdown(),
                Closing::Abort => return Ok(()),
            },
            done = async {
                let both = poll_fn(|context| requests.poll_beside(serving.as_mut(), context));
                flusher.poll_and_flush(pin!(both), &under_way).await
            } => {
                return done.map_err(Broken::Socket)?.map_err(Broken::Protocol);
            }
            // Last, because the requests have listed by then what is unread.
            swept = sweeper.next() => {
                open.count_cut(swept);
                if swept.is_stuck {
                    return Err(Broken::Unread);
                }
            }
        }
    }
}

async fn serve_h1(
    state: &Arc<ServerState>,
    open: &OpenConnection,
    caller: Arc<Caller>,
    stream: TlsStream<TcpStream>,
) -> Result<(), Broken> {
    // Set by the request that upgrades the connection.
    let session: Arc<Mutex<Option<Session>>> = Arc::default();
    let (sending, unread) = (Arc::<Sending>::default(), Arc::<UnreadAnswers>::default());
    let mut sweeper = Sweeper::new(Arc::clone(&unread), &state.limits);
    let (stream, delay) = DelayedReset::new(stream);
    let service = {
        let (state, session) = (Arc::clone(state), Arc::clone(&session));
        let requests = open.requests();
        service_fn(move |mut request: http::Request<Incoming>| {
            let under_way = requests.begin();
            let upgrade = ClientUpgrade::take(&mut request);
            let work = match refused_head(&request) {
                Some(refusal) => Either::Left(ready(refusal)),
                None => Either::Right(answered(Arc::clone(&state), Arc::clone(&caller), request)),
            };
            let (session, drain) = (Arc::clone(&session), Arc::clone(&state.drain));
            let sent = Sent::Alone(Arc::clone(&sending), Arc::clone(&unread));
            let delay = delay.clone();
            async move {
                let mut reply = work.await;
                if let Some(upgrade) = upgrade {
                    (reply, *session.lock()) = upgrade.answer(reply);
                }
                close_if_stopping(&drain, &mut reply);
                Ok::<_, Infallible>(under_way.with(delay.noted(reply), sent))
            }
        })
    };
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.limits.head_time_max)
        .max_headers(HTTP1_HEADERS_MAX)
        .max_buf_size(HTTP1_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let mut lifetime = Lifetime::new(open, &state.limits, &state.drain);
    let mut last_call_ends: Option<Instant> = None;
    loop {
        tokio::select! {
            // `lifetime` first, so that a busy connection closes too.
            biased;
            step = lifetime.next() => match step {
                Closing::Graceful if state.drain.closing().is_cancelled() => {
                    last_call_ends = Some(Instant::now() + LAST_CALL);
                }
                Closing::Graceful => serving.as_mut().graceful_shutdown(),
                Closing::Abort => return Ok(()),
            },
            done = serving.as_mut() => break done.map_err(Broken::Protocol)?,
            // Behind `serving`, which has read by then what has arrived.
            () = sleep_until(last_call_ends.unwrap_or_else(Instant::now)), if last_call_ends.is_some() => {
                last_call_ends = None;
                serving.as_mut().graceful_shutdown();
            }
            // The answer that nobody reads is all that the connection sends.
            swept = sweeper.next() => {
                open.count_cut(swept);
                return Ok(());
            }
        }
    }
    serve_upgraded(state, &session).await;
    Ok(())
}

/// Serves a connection after its upgrade, if it was upgraded.
async fn serve_upgraded(state: &ServerState, session: &Mutex<Option<Session>>) {
    let Some(session) = session.lock().take() else {
        return;
    };
    tokio::select! {
        // First, because a server that aborts does not wait. Otherwise the watch itself ends when
        // the server ends watches.
        biased;
        () = state.drain.aborting().cancelled() => {}
        () = session.serve() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_handshake_that_a_certificate_has_ended_is_told_from_others() {
        let failed = |cause: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, cause);
        let unreadable = rustls::CertificateError::BadEncoding;
        let says = |error: &io::Error, what: &str| {
            what_is_accepted(error).is_some_and(|accepted| accepted.contains(what))
        };
        assert!(says(&failed(unreadable.into()), "version 1"));
        let long = rustls::Error::General("a chain of 9 certificates".to_owned());
        let longer = rustls::InvalidMessage::HandshakePayloadTooLarge;
        for long in [long, longer.into()] {
            assert!(says(&failed(long), "too long"));
        }
        assert!(!says(&failed(rustls::Error::DecryptError), ""));
        assert!(!says(&io::ErrorKind::UnexpectedEof.into(), ""));
    }

    #[test]
    fn a_stranger_who_reads_no_answers_is_asked_to_slow_down() {
        let refusal = Unanswered::too_many_unread();
        let cause = refusal
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>());
        let code = cause.and_then(h2::Error::reason);
        assert_eq!(code, Some(h2::Reason::ENHANCE_YOUR_CALM));
    }
}
