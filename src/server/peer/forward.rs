//! The stage that decides where a request is carried out, and forwards it.
//!
//! A client's request is forwarded to the replica that owns its plane, at most one hop (PROTOCOL 20).
//! A request that came from a peer is never forwarded again: the replica answers *moved*, and the
//! replica that received it from the client sends it again. A request may be sent again if the
//! answer was *moved* (nothing was done), if it was not sent, or if it is a read whose answer had
//! not begun. A write whose connection broke after it was sent is never sent again, because it may
//! have been carried out.
//!
//! The request names the id of the plane for which its caller was proven. If the name means another plane
//! at the owner, because it was deleted and made anew and one of the two replicas does not know that yet,
//! the owner answers *moved* too, and the first replica looks the name up and proves the caller again.
//!
//! The table shows what happens to a write whose owner hangs, or whose owner's machine vanished
//! without closing its connections. Times count from that moment, in a small ring with the default
//! terms.
//!
//! | time | |
//! |---|---|
//! | until 0.25 s | the write is sent to the owner, which does not read it |
//! | from 0.25 s | the owner has not answered pings for this long: writes wait here ([`Backend::answers`]) |
//! | 1.1 s | pings have timed out, half of the ring suspects the owner, and the ring removes it |
//! | 1.5 s | the successor has waited for the end of the old read lease; writes that waited are sent to it |
//! | 1.6 s | the connections to the old owner were silent since its removal, and end: a write that was sent is answered with an unknown outcome, one that was not sent is sent to the successor |
//!
//! In a ring whose members do not all ping each other, members that hear of a suspicion ping the
//! owner themselves, which takes one second more.
//!
//! [`Backend::answers`]: crate::backend::Backend::answers
//!
//! Invariant: the number and the time of attempts for one request are limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use polyplane_apimachinery::error_chain;
use polyplane_apimachinery::status::ApiError;
use prometheus::core::Collector as _;
use prometheus::{Histogram, HistogramOpts};
use tokio::time::Instant;

use crate::answer::body::ResponseBody;
use crate::answer::respond::{AUDIT_ID, Refusal, Reply, bare};
use crate::backend::{Backend, Location, Peer, PlaneRecord};
use crate::operations::exposition::{Exposition, Kind};
use crate::peer::channel::frame::HeadTooLong;
use crate::peer::channel::stream::PeerStream;
use crate::peer::headers::{
    CONNECT_TO, FORWARDED_BY, MEANT_FOR, MOVED, MovedTo, WATCH_PROTOBUF, passing, strip,
};
use crate::peer::pool::{Link, SendError};
use crate::peer::transport::PeerTransport;
use crate::peer::wire::PeerBody;
use crate::pipeline::Pipeline;
use crate::request::caller::Origin;
use crate::request::prove::Located;
use crate::request::request_info::RequestInfo;
use crate::request::seat::PlaneSeat;
use crate::server_state::ServerState;
use crate::watch::record::WatchForm;
use crate::watch::relay::WatchReader;
use crate::watch::watch_query::{self, WatchQuery};

/// Longest time in which a request waits for an owner that answers. A longer wait would only keep
/// the client from its own retry.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// Attempts for one request. Without the limit, replicas that disagree about the owner would send
/// the request back and forth until its deadline.
const TRIES_MAX: u32 = 256;
/// Attempts that follow a hint about the owner at once. Later ones pause first, so that wrong hints
/// do not make a busy loop.
const TRIES_AT_ONCE: u32 = 4;
/// The first pause between two attempts; each further one is twice as long, so that a short move
/// costs little and a long one does not cause many attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between two attempts. A request is sent at most this much later than possible.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Upper bounds of the buckets for forwarded requests, in seconds.
const DURATION_BOUNDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0,
];

/// Counts forwarded requests by outcome. The metrics with upstream's names count a request at the
/// replica that answers it; the replica that forwards it counts it only here.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// Time from a request's head to the head of the answer by another replica.
    pub took: Histogram,
    pub answered: AtomicU64,
    pub moved: AtomicU64,
    pub unreached: AtomicU64,
    pub broken: AtomicU64,
    pub timed_out: AtomicU64,
    /// Requests of peers that were answered with *moved*.
    pub moved_replies: AtomicU64,
    /// Watches that this replica resumed after their source had ended.
    pub resumed: AtomicU64,
    /// Handshakes at the peer listener that failed.
    pub failed_handshakes: AtomicU64,
}

impl Default for Forwarding {
    fn default() -> Self {
        let options = HistogramOpts::new(
            "polyplane_forwarded_request_duration_seconds",
            "Time from a request's head to the head of the answer that another replica gave.",
        );
        let options = options.buckets(DURATION_BOUNDS.to_vec());
        Self {
            took: Histogram::with_opts(options).expect("the name and the bounds are sound"),
            answered: AtomicU64::default(),
            moved: AtomicU64::default(),
            unreached: AtomicU64::default(),
            broken: AtomicU64::default(),
            timed_out: AtomicU64::default(),
            moved_replies: AtomicU64::default(),
            resumed: AtomicU64::default(),
            failed_handshakes: AtomicU64::default(),
        }
    }
}

impl Forwarding {
    pub(crate) fn expose(&self, out: &mut Exposition) {
        out.collected(&self.took.collect());
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let name = "polyplane_forwarded_requests_total";
        out.family(
            name,
            Kind::Counter,
            "Requests sent to the replica that owns their plane, by what became of it.",
        );
        for (outcome, counter) in [
            ("answered", &self.answered),
            ("moved", &self.moved),
            ("unreached", &self.unreached),
            ("broken", &self.broken),
            ("timed_out", &self.timed_out),
        ] {
            out.sample(name, &[("outcome", outcome)], load(counter));
        }
        for (name, help, counter) in [
            (
                "polyplane_moved_answers_total",
                "Requests of peers that were told that their plane moved.",
                &self.moved_replies,
            ),
            (
                "polyplane_resumed_watches_total",
                "Watches that went on after their source was gone.",
                &self.resumed,
            ),
            (
                "polyplane_peer_handshake_errors_total",
                "Handshakes of the peer listener that failed.",
                &self.failed_handshakes,
            ),
        ] {
            out.family(name, Kind::Counter, help);
            out.sample(name, &[], load(counter));
        }
    }
}

/// The attempts to find the owner of one request's plane.
pub(crate) struct OwnerSearch<'a> {
    /// Knows why this replica itself answers nothing, if it does not.
    backend: &'a dyn Backend,
    deadline: Instant,
    /// The end of the time for attempts; set when the first one fails.
    until: Option<Instant>,
    tries: u32,
    pause: Duration,
    /// The new owner that the previous owner named.
    hint: Option<Peer>,
}

impl<'a> OwnerSearch<'a> {
    pub(crate) fn new(backend: &'a dyn Backend, deadline: Instant) -> Self {
        Self {
            backend,
            deadline,
            until: None,
            tries: 0,
            pause: PAUSE_FIRST,
            hint: None,
        }
    }

    /// Begins with the owner that a previous owner named in its *moved* answer.
    pub(crate) fn hinted(mut self, hint: Option<MovedTo>) -> Self {
        self.hint = hint.and_then(|moved| moved.peer);
        self
    }

    /// Prepares the next attempt after an answer *moved*. The first [`TRIES_AT_ONCE`] attempts do
    /// not pause if the answer names an owner.
    ///
    /// # Errors
    /// Returns a refusal if there were too many attempts.
    pub(super) async fn moved(&mut self, moved: Option<MovedTo>) -> Result<(), Refusal> {
        self.hint = moved.and_then(|moved| moved.peer);
        if self.hint.is_some() && self.tries < TRIES_AT_ONCE {
            self.tries += 1;
            return Ok(());
        }
        self.pause().await
    }

    /// Pauses before the next attempt.
    ///
    /// # Errors
    /// Returns a refusal if there were too many attempts, or they took too long.
    pub(crate) async fn pause(&mut self) -> Result<(), Refusal> {
        let now = Instant::now();
        let patience = (self.deadline.saturating_duration_since(now) / 2).min(PATIENCE_MAX);
        let until = *self.until.get_or_insert(now + patience);
        self.tries += 1;
        if now >= until || self.tries > TRIES_MAX {
            let known = self.backend.stale_reason();
            let why = known.unwrap_or("no server answers for the control plane at the moment");
            return Err(ApiError::service_unavailable(why)
                .with_retry_after(1)
                .into());
        }
        tokio::time::sleep_until((now + self.pause).min(until)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

/// The replica that carries out a request.
pub(crate) enum Destination {
    /// This replica.
    Here,
    /// Another replica.
    Peer(Peer),
    /// No replica answers for the plane yet; the caller locates the plane again.
    Unknown,
    /// Another replica, but the request came from a peer, which has to forward the request itself.
    Moved,
}

impl Pipeline<'_> {
    /// Decides where the request is carried out.
    ///
    /// # Errors
    /// Returns a refusal if for too long no replica answers for the plane.
    pub(crate) async fn destination(
        &self,
        record: &dyn PlaneRecord,
        search: &mut OwnerSearch<'_>,
    ) -> Result<Destination, Refusal> {
        let hint = search.hint.take();
        match (record.location(), self.state.peers.as_ref()) {
            (Location::Here, _) => Ok(Destination::Here),
            (Location::There(_) | Location::Nobody, _) if !self.is_direct() => {
                Ok(Destination::Moved)
            }
            (Location::There(peer), Some(side)) => {
                let own = side.transport.tls().replica();
                if let Some(peer) = chosen(own, peer, hint) {
                    return Ok(Destination::Peer(peer));
                }
                search.pause().await?;
                Ok(Destination::Unknown)
            }
            (Location::There(_) | Location::Nobody, _) => {
                search.pause().await?;
                Ok(Destination::Unknown)
            }
        }
    }

    /// Returns whether the client itself is connected here.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.caller.origin, Origin::Client)
    }

    /// Forwards the request; returns `None` if the caller has to locate the plane again and retry.
    ///
    /// # Errors
    /// Returns the refusal for the client, if the request may not be sent again.
    pub(crate) async fn forward(
        &mut self,
        peer: &Peer,
        located: &Located,
        deadline: Instant,
        search: &mut OwnerSearch<'_>,
    ) -> Result<Option<Reply>, Refusal> {
        let state = Arc::clone(self.state);
        let counters = &state.metrics.forwarding;
        let Some(side) = state.peers.as_ref() else {
            return Err(ApiError::internal("there is no way to other replicas").into());
        };
        // Read the body before taking a seat, so that a client that sends slowly holds none.
        let body = if self.may_be_repeated() || self.may_connect() {
            Bytes::new()
        } else {
            self.body(located).await?
        };
        if !state.backend.answers(peer) {
            // Wait: a write that is sent now may arrive there, and then it could not be sent
            // elsewhere.
            search.pause().await?;
            return Ok(None);
        }
        let _seat = self.take_forward_seat(&**located.record())?;
        let watch = self.is_watch().then(|| {
            let query = self.parts.uri.query();
            watch_query::forwarded(query, self.query)
        });
        let request = self.peer_request((peer, located), body, deadline, watch.as_ref())?;
        let link = side.transport.pool().link(peer);
        let sent = self.send(&side.transport, &link, &request, deadline).await;
        let response = match sent {
            Sent::Answer(response) => response,
            Sent::Nothing => {
                ServerState::count(&counters.unreached);
                search.pause().await?;
                return Ok(None);
            }
            Sent::TimedOut => {
                ServerState::count(&counters.timed_out);
                let message = "request did not complete within the allotted timeout";
                return Err(ApiError::timeout(message, 0).into());
            }
            Sent::TooLong(why) => return Err(ApiError::request_entity_too_large(why).into()),
            Sent::Broken(_) if self.may_be_repeated() || self.may_connect() => {
                ServerState::count(&counters.broken);
                search.pause().await?;
                return Ok(None);
            }
            Sent::Broken(why) => {
                ServerState::count(&counters.broken);
                let why = error_chain(&why);
                tracing::warn!(peer = peer.replica, why, "a forwarded write has no answer");
                let message = "the server that owns the control plane broke the connection; \
                               whether the request was carried out is not known";
                // Clients repeat what has timed out, and give up after an internal error.
                return Err(ApiError::timeout(message, 0).into());
            }
        };
        self.answered_by_peer(located, (response, &link), watch, search)
            .await
    }

    /// Makes the reply from the peer's answer; returns `None` if the plane has moved.
    async fn answered_by_peer(
        &mut self,
        located: &Located,
        (response, link): (Response<PeerStream>, &Link),
        watch: Option<WatchQuery>,
        search: &mut OwnerSearch<'_>,
    ) -> Result<Option<Reply>, Refusal> {
        let counters = &self.state.metrics.forwarding;
        if response.status() == StatusCode::MISDIRECTED_REQUEST {
            ServerState::count(&counters.moved);
            let moved = response.headers().get(MOVED).map(MovedTo::parse);
            if let Some(moved) = &moved {
                self.state.backend.reach_view(moved.view).await;
            }
            search.moved(moved).await?;
            return Ok(None);
        }
        ServerState::count(&counters.answered);
        if response.headers().contains_key(CONNECT_TO) && self.may_connect() {
            let answer = response.into_body();
            let connected = self.connect_for_owner(&**located.record(), answer).await;
            return connected.map(|mut reply| {
                reply.extensions_mut().insert(OwnerCounts);
                Some(reply)
            });
        }
        Ok(Some(self.passed_on(located, (response, link), watch)))
    }

    /// Takes a seat among forwarded requests, if the request needs one.
    fn take_forward_seat(&self, record: &dyn PlaneRecord) -> Result<Option<PlaneSeat>, Refusal> {
        if let RequestInfo::Resource(info) = self.info
            && info.is_long_running()
        {
            return Ok(None);
        }
        self.seat_among(&self.state.metrics.forwards, record)
            .map(Some)
    }

    /// Returns whether the request does no harm if it is carried out twice.
    fn may_be_repeated(&self) -> bool {
        matches!(
            self.parts.method,
            Method::GET | Method::HEAD | Method::OPTIONS
        )
    }

    /// Returns the request to send to the peer.
    pub(super) fn peer_request(
        &self,
        (peer, located): (&Peer, &Located),
        body: Bytes,
        deadline: Instant,
        watch: Option<&WatchQuery>,
    ) -> Result<Request<PeerBody>, Refusal> {
        let unusable = || ApiError::internal("the request cannot be sent to the owner");
        let payer = located.record().meter();
        let mut request = Request::new(PeerBody::new([body]).paid_by(payer));
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = match watch {
            Some(watch) => {
                let target = format!("{}?{}", self.parts.uri.path(), watch.query);
                target.try_into().map_err(|_| unusable())?
            }
            None => self.parts.uri.clone(),
        };
        let mut headers = passing(&self.parts.headers);
        headers.insert(AUDIT_ID, self.audit_id.clone());
        let own = self.state.peers.as_ref().map(|side| side.transport.tls());
        let own = own.map_or("", |tls| tls.replica());
        for (name, text) in [(FORWARDED_BY, own), (MEANT_FOR, peer.replica.as_str())] {
            let value = HeaderValue::try_from(text).map_err(|_| unusable())?;
            headers.insert(name, value);
        }
        let mut received = self.caller.connection.received();
        received.time_left = Some(deadline.saturating_duration_since(Instant::now()));
        received.resumed = self.is_resumed();
        received.connects = self.may_connect();
        received.plane = HeaderValue::try_from(located.record().id()).ok();
        received.add(&mut headers);
        if watch.is_some() {
            WatchForm::Records.announce(&mut headers);
            headers.insert(WATCH_PROTOBUF, HeaderValue::from_static("1"));
        }
        request.body().announce(&mut headers);
        *request.headers_mut() = headers;
        Ok(request)
    }

    pub(super) async fn send(
        &self,
        transport: &PeerTransport,
        link: &Link,
        request: &Request<PeerBody>,
        deadline: Instant,
    ) -> Sent {
        let sent = tokio::select! {
            // The answer first: one that has arrived counts, even if the peer has left the ring
            // since.
            biased;
            sent = tokio::time::timeout_at(deadline, transport.pool().send(link, request)) => sent,
            () = link.gone().cancelled(), if self.may_be_repeated() => return Sent::Nothing,
        };
        match sent {
            Ok(Ok(response)) => Sent::Answer(response),
            Ok(Err(SendError::NotSent(_))) => Sent::Nothing,
            Ok(Err(SendError::TooLong(why))) => Sent::TooLong(why),
            Ok(Err(error @ SendError::Broken(_))) => Sent::Broken(error),
            Err(_) => Sent::TimedOut,
        }
    }

    /// Makes the reply for the client from the peer's answer.
    fn passed_on(
        &self,
        located: &Located,
        (response, link): (Response<PeerStream>, &Link),
        watch: Option<WatchQuery>,
    ) -> Reply {
        let (mut parts, stream) = response.into_parts();
        self.remember_limit(&**located.record(), parts.status, &parts.headers);
        let watch_form = WatchForm::of(&parts.headers);
        strip(&mut parts.headers);
        if let Some(id) = parts.headers.get_mut(AUDIT_ID) {
            // The peer returned this very id, but only the local value is marked so that HTTP/2
            // keeps it out of the table of header values.
            id.clone_from(self.audit_id);
        }
        let body = match watch {
            Some(watch) if parts.status == StatusCode::OK => {
                let reader = WatchReader::new(watch_form, watch.position);
                let content_type = parts.headers.get(CONTENT_TYPE).cloned();
                self.relayed(&**located.record(), (stream, link), reader, content_type)
            }
            _ => {
                let (limits, abandoned) = (
                    self.state.answer_read_limits(),
                    &self.state.abandoned_answers,
                );
                ResponseBody::forwarded(stream, limits, abandoned)
            }
        };
        let mut reply = Response::from_parts(parts, body);
        reply.extensions_mut().insert(Forwarded);
        reply
    }
}

/// Returns the peer that a request is sent to, given where this replica places the plane; `None` if the
/// previous owner names this very replica, which then learns soon that the plane is its own. A peer of
/// this replica's name that it finds by itself is another process, which has taken the name.
fn chosen(own: &str, located: Peer, hint: Option<Peer>) -> Option<Peer> {
    // The replica that lost the plane knows its new owner before the others do.
    match hint {
        Some(hint) => (hint.replica != own).then_some(hint),
        None => Some(located),
    }
}

/// The outcome of sending a request to a peer.
pub(super) enum Sent {
    Answer(Response<PeerStream>),
    /// Nothing was sent, or the peer that received it has left the ring; the request may be sent
    /// again.
    Nothing,
    /// The request has a head that fits no frame.
    TooLong(HeadTooLong),
    /// The request was sent, and the connection broke before the answer.
    Broken(SendError),
    TimedOut,
}

/// Marks a reply that another replica made, which has all common headers already.
#[derive(Clone, Copy)]
pub(crate) struct Forwarded;

/// Marks a reply to a request that the owner has counted.
#[derive(Clone, Copy)]
pub(crate) struct OwnerCounts;

/// Returns the new place of a plane, for a peer that sent its request to the wrong replica.
pub(crate) fn moved_to(state: &ServerState, record: &dyn PlaneRecord) -> MovedTo {
    let peer = match record.location() {
        Location::There(peer) => Some(peer),
        Location::Here | Location::Nobody => None,
    };
    MovedTo {
        peer,
        view: state.backend.view(),
    }
}

/// Returns the reply to a peer's request for a plane that another replica owns, or that this replica
/// does not find.
pub(crate) fn moved_reply(state: &ServerState, record: Option<&dyn PlaneRecord>) -> Reply {
    ServerState::count(&state.metrics.forwarding.moved_replies);
    let mut reply = bare(StatusCode::MISDIRECTED_REQUEST, ResponseBody::empty());
    let moved = record.map(|record| moved_to(state, record));
    let moved = moved.unwrap_or_else(|| MovedTo {
        peer: None,
        view: state.backend.view(),
    });
    reply.headers_mut().insert(MOVED, moved.to_value());
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_at_this_replica_is_not_followed_but_a_process_that_took_its_name_is() {
        let peer = |replica: &str| Peer {
            replica: replica.to_owned(),
            address: format!("{replica}:1"),
        };
        let (a, b, c) = (peer("a"), peer("b"), peer("c"));
        assert_eq!(chosen("a", b.clone(), None), Some(b.clone()));
        assert_eq!(chosen("a", b.clone(), Some(c.clone())), Some(c));
        assert_eq!(chosen("a", b.clone(), Some(a.clone())), None);
        assert_eq!(chosen("a", a.clone(), None), Some(a.clone()));
        assert_eq!(chosen("a", a.clone(), Some(a)), None);
    }
}
