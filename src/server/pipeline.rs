//! The stages of a request, from its head to the head of its answer, and of its reply back.
//!
//! | stage | in | ends the way with |
//! |---|---|---|
//! | parse path and query | `request/route.rs`, `request_info.rs` | 400, 404, 500 |
//! | deadline | `request/deadline.rs` | 400, 504 |
//! | locate the plane, prove the caller | `request/prove.rs`, `doorway.rs` | 401, 404, 429, 503 |
//! | count the connection as proven | `request/prove.rs` | 429 |
//! | refuse what a suspended plane is asked | `request/prove.rs` | 403 |
//! | decide where: here, or forward; record the arrival | `peer/forward.rs`, `request/audited.rs` | 500, 503 |
//! | count against the plane's limits | `request/plane_limits.rs` | 429 |
//! | take a seat | `request/seat.rs` | 429 |
//! | wake the plane, look for the token's account | `backend.rs`, `request/prove.rs` | 401, 503, 504 |
//! | impersonate | `request/impersonate.rs` | 403 |
//! | wait for seats of the priority level | `request/flow.rs` | 429 |
//! | authorize | `request/authorize.rs` | 403 |
//! | resolve the kind and verb | `request/resolve.rs` | 404, 405 |
//! | read the body | `request/body.rs` | 413, 429 |
//! | wait for the plane's turn | `request/turn.rs` | |
//! | execute | the registry | |
//! | form of the answer | `answer/respond.rs` | 406 |
//! | back: count, read the rest of the body, headers | `answer/finish.rs` | |
//!
//! The functions in this file are in this order. Locating, proving and authorizing return values that only they can
//! make: without [`Located`] nobody is proven, without [`Proven`] nothing is forwarded and no plane wakes, and the
//! registry accepts only authorized requests. Suspension, limits, seats and the life of a token are checks without
//! such a value. A plane is located once per attempt, and all later stages use that record. The replica that receives
//! a request proves the caller; if another one owns the plane, the request goes there and passes all stages again.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode};
use polyplane_apimachinery::Str;
use polyplane_audit::Recorded;
use polyplane_fairness::CountedWatch;
use polyplane_ownership::ROOT;
use polyplane_registry::{AnswerBody, TokenReviewer, Verb};

use crate::answer::body::WatchGauge;
use crate::answer::finish::{count, finish};
use crate::answer::respond::{
    Client, Delivery, Refusal, Reply, add_flow_headers, is_crowded_out, refuse,
};
use crate::backend::PlaneApi;
use crate::operations::access_metrics::AccessOutcome;
use crate::operations::flow_dump::DUMPS;
use crate::operations::local::{DRAIN_PATH, REPORTS};
use crate::operations::metrics::Labels;
use crate::operations::observe::{KindOrigin, OpenWatch, labels_of};
use crate::peer::forward::{Destination, OwnerSearch, moved_reply};
use crate::peer::headers::{MovedTo, strip};
use crate::peer::proof::proven_reply;
use crate::request::audit_id;
use crate::request::audited::Audited;
use crate::request::authorize::{Authorized, Notes, Requested, authorize};
use crate::request::body::{RequestBody, discard_unread};
use crate::request::caller::{Caller, Origin};
use crate::request::charge::Charge;
use crate::request::deadline::within;
use crate::request::flow::FlowPlace;
use crate::request::impersonate::acting_user;
use crate::request::inbound::Inbound;
use crate::request::prove::{Located, Proven, unreachable_plane};
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::request::resolve::resolve;
use crate::request::route::{PlaneReference, Route, RouteError, parse_query};
use crate::request::single::route as route_of;
use crate::server_state::ServerState;
use crate::watch::open_watches::OpenWatchEntry;

/// Answers a request. Every error becomes a reply.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    request: Request<Inbound>,
) -> Reply {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    // First, because every stage below trusts the headers that only replicas may send.
    strip(&mut parts.headers);
    let audit_id = audit_id::of(&parts.headers);
    let query = parse_query(parts.uri.query());
    let client = Client::of(&parts.headers, &query, &state.schemas);
    let charge = Charge::new(&state.unproven, &state.long_polls, &state.gate);
    let head = ParsedHead {
        caller: &caller,
        parts: &parts,
        query: &query,
        client: &client,
        audit_id: &audit_id,
        started,
        charge: &charge,
    };
    let mut body = RequestBody::Coming(body);
    let answered = {
        // Pinned in place: a future that is bound to a name first needs its memory twice.
        let mut answering = pin!(AssertUnwindSafe(answer(&state, &head, &mut body)).catch_unwind());
        poll_fn(|context| charge.poll(answering.as_mut(), context)).await
    };
    let mut reply = answered.unwrap_or_else(|_| panicked(&state, &head));
    // Here, because a request may try several times to have its caller judged. A peer that asks for a proof
    // counts the request that the proof is for.
    if is_crowded_out(&reply) && !caller.is_for_proof() {
        ServerState::count(&state.metrics.rejected);
    }
    // Before the reply, because some clients lose a reply that arrives before they have sent their
    // body.
    let connection = &caller.connection;
    discard_unread(&state, connection, &parts, &mut body, &mut reply, &charge).await;
    finish(&parts.method, audit_id, reply)
}

/// A watch that goes on after the version that its query names.
pub(crate) struct ResumedWatch {
    /// The head of the request.
    pub parts: Parts,
    /// The id of the plane in which the watch began.
    pub plane: Str,
    pub audit_id: HeaderValue,
}

/// Resumes a watch.
pub(crate) async fn reopen(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    watch: ResumedWatch,
    hint: Option<MovedTo>,
) -> Result<Reply, Refusal> {
    let ResumedWatch {
        parts,
        plane,
        audit_id,
    } = watch;
    let query = parse_query(parts.uri.query());
    let client = Client::of(&parts.headers, &query, &state.schemas);
    let charge = Charge::new(&state.unproven, &state.long_polls, &state.gate);
    let head = ParsedHead {
        caller: &caller,
        parts: &parts,
        query: &query,
        client: &client,
        audit_id: &audit_id,
        started: Instant::now(),
        charge: &charge,
    };
    let route = route_of(&state, parts.uri.path()).map_err(|_| Refusal::no_such_path())?;
    let info = RequestInfo::parse(&parts.method, &route.path, &query)
        .map_err(|error| error.refusal(&parts.uri))?;
    let mut body = RequestBody::empty();
    let mut pipeline = Pipeline::new(&state, &head, &route, &info, &mut body);
    pipeline.resumed = true;
    pipeline.expected_plane = Some(&plane);
    pipeline.process(route.plane, hint).await
}

/// The parsed head of a request, before anything is looked up.
#[derive(Clone, Copy)]
struct ParsedHead<'a> {
    caller: &'a Arc<Caller>,
    parts: &'a Parts,
    query: &'a [(String, String)],
    client: &'a Client<'a>,
    audit_id: &'a HeaderValue,
    started: Instant,
    charge: &'a Charge<'a>,
}

/// Parses the path, passes the request through the stages, and counts the reply.
async fn answer(state: &Arc<ServerState>, head: &ParsedHead<'_>, body: &mut RequestBody) -> Reply {
    let ParsedHead {
        parts,
        query,
        client,
        started,
        ..
    } = *head;
    let route = match route_of(state, parts.uri.path()) {
        Ok(route) => route,
        Err(RouteError::NoPlane) => {
            let (route, info) = (Route::nowhere(), RequestInfo::Path(""));
            let pipeline = Pipeline::new(state, head, &route, &info, body);
            return refuse(client, &pipeline.no_such_plane().await);
        }
        Err(RouteError::Encoding) => {
            let text = "400 Bad Request\n";
            return refuse(client, &Refusal::Text(StatusCode::BAD_REQUEST, text.into()));
        }
    };
    let info = match RequestInfo::parse(&parts.method, &route.path, query) {
        Ok(info) => info,
        Err(error) => return refuse(client, &error.refusal(&parts.uri)),
    };
    let mut pipeline = Pipeline::new(state, head, &route, &info, body);
    let mut reply = match pipeline.process(route.plane, None).await {
        Ok(reply) => reply,
        Err(refusal) => refuse(client, &refusal),
    };
    if let Some(uids) = pipeline.flow.uids.take() {
        add_flow_headers(&mut reply, uids);
    }
    pipeline.warn_about_token(&mut reply);
    if !head.caller.is_for_proof() {
        let counted = (pipeline.counted_labels, &pipeline.access);
        count(state, counted, (started, pipeline.flow.queued), &reply);
    }
    reply
}

fn panicked(state: &ServerState, head: &ParsedHead<'_>) -> Reply {
    ServerState::count(&state.metrics.panics);
    let audit_id = head.audit_id.to_str().unwrap_or_default();
    tracing::error!(path = head.parts.uri.path(), audit_id, "a request panicked");
    let text = "This request caused apiserver to panic. Look in the logs for details.\n";
    let refusal = Refusal::Text(StatusCode::INTERNAL_SERVER_ERROR, text.into());
    refuse(head.client, &refusal)
}

/// One request on its way through the stages, and its parsed head.
pub(crate) struct Pipeline<'a> {
    pub(crate) state: &'a Arc<ServerState>,
    pub(crate) caller: &'a Arc<Caller>,
    pub(crate) parts: &'a Parts,
    pub(crate) query: &'a [(String, String)],
    pub(crate) client: &'a Client<'a>,
    pub(crate) path: &'a str,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) audit_id: &'a HeaderValue,
    labels: Labels<'a>,
    /// The labels under which the request is counted. They name no kind before it is found.
    counted_labels: Labels<'a>,
    pub(crate) body: &'a mut RequestBody,
    pub(crate) started: Instant,
    pub(crate) charge: &'a Charge<'a>,
    /// The plane's count of the watch that is about to begin.
    watch: Option<CountedWatch>,
    /// The flow schema and the priority level of the request, once it is classified.
    pub(crate) flow: FlowPlace,
    /// How the last attempt to prove the caller and to authorize the request went.
    pub(crate) access: AccessOutcome,
    /// The record of the request, from the proof of its caller on.
    pub(crate) audited: Option<Audited>,
    /// True once the arrival of the request is in a log, for which requests wait.
    pub(crate) arrival_recorded: bool,
    /// Events for which the request waits before it is answered.
    pub(crate) unrecorded: Recorded,
    /// True if another replica has answered a part of the watch.
    resumed: bool,
    /// The id of the plane that the request is meant for, if an earlier attempt or a peer has found it
    /// by the name. Another plane may have the name by now.
    pub(crate) expected_plane: Option<&'a str>,
}

impl<'a> Pipeline<'a> {
    fn new(
        state: &'a Arc<ServerState>,
        head: &ParsedHead<'a>,
        route: &'a Route<'a>,
        info: &'a RequestInfo<'a>,
        body: &'a mut RequestBody,
    ) -> Self {
        let labels = labels_of(&head.parts.method, &head.parts.headers, info, head.query);
        Self {
            state,
            caller: head.caller,
            parts: head.parts,
            query: head.query,
            client: head.client,
            path: &route.path,
            info,
            audit_id: head.audit_id,
            labels,
            counted_labels: labels.without_kind(),
            body,
            started: head.started,
            charge: head.charge,
            watch: None,
            flow: FlowPlace::default(),
            access: AccessOutcome::default(),
            audited: None,
            arrival_recorded: false,
            unrecorded: Recorded::default(),
            resumed: false,
            expected_plane: head.caller.plane.as_ref().and_then(|id| id.to_str().ok()),
        }
    }
}

impl Pipeline<'_> {
    /// Runs the stages that need no plane, and then the others until the deadline.
    async fn process(
        &mut self,
        plane: PlaneReference<'_>,
        hint: Option<MovedTo>,
    ) -> Result<Reply, Refusal> {
        // First, because every later stage may wait, at most until the deadline.
        let deadline = match self.deadline() {
            Ok(deadline) => deadline,
            Err(refusal) => return Ok(refuse(self.client, &refusal)),
        };
        if let Some(published) = self.published(plane) {
            return published;
        }
        // Before any lookup, so that a stranger costs nothing and learns no names of planes.
        let is_stranger = self.has_no_credential();
        if is_stranger && (self.anonymous_user(plane).is_none() || self.is_for_everybody()) {
            let answered = self.answer_without_credential(plane).await;
            if let Err(refusal) = &answered {
                self.unrecorded = self.audit_unproven(refusal);
            }
            self.await_records().await;
            return answered;
        }
        let search = OwnerSearch::new(&*self.state.backend, deadline).hinted(hint);
        let is_drain = plane == PlaneReference::Root && self.path == DRAIN_PATH;
        let answered = self.answer_at_owner(plane, search, deadline);
        let answered = if is_drain {
            // Without the deadline, because handing over all planes has limits of its own.
            answered.await
        } else {
            within(deadline, answered).await
        };
        self.end_audit(&answered);
        self.await_records().await;
        answered
    }

    /// Finds the replica that answers. That may take several attempts while a plane moves.
    async fn answer_at_owner(
        &mut self,
        plane: PlaneReference<'_>,
        mut search: OwnerSearch<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        loop {
            self.flow = FlowPlace::default();
            // Locate and prove before the request takes a seat, memory for its body, or a
            // connection to a peer. Both again in each attempt, because the name may belong to
            // another plane by now.
            let (located, proven) = match self.locate_and_prove(plane).await {
                Err(refusal) if refusal.is_moved() && !self.is_direct() => {
                    return Ok(moved_reply(self.state, None));
                }
                found => found?,
            };
            if self.caller.is_for_proof() {
                return Ok(proven_reply());
            }
            self.count_as_proven(plane, &located)?;
            let record = &**located.record();
            self.charge.to(record.meter());
            self.check_suspension(&located, &proven)?;
            // Before forwarding, because health and metrics describe this replica.
            if plane == PlaneReference::Root && self.is_answered_by_any_replica(record) {
                return self.answer_about_this_replica(record, &proven, plane).await;
            }
            match self.destination(record, &mut search).await? {
                Destination::Moved => return Ok(moved_reply(self.state, Some(record))),
                Destination::Unknown => {}
                Destination::Peer(peer) => {
                    self.count_forwarded(record, &proven)?;
                    // Boxed, because the future of a request that this replica answers is far
                    // smaller.
                    let forwarded = Box::pin(self.forward(&peer, &located, deadline, &mut search));
                    if let Some(reply) = forwarded.await? {
                        return Ok(reply);
                    }
                }
                // What is answered here must not rest on a right that was taken away meanwhile. A
                // replica that has lost touch with the store soon owns nothing, and forwards.
                Destination::Here if !self.may_answer(plane) => search.pause().await?,
                Destination::Here => {
                    self.audited = self.begin_audit(&located, &proven);
                    self.record_arrival().await?;
                    match self.answer_here(&located, &proven, plane, deadline).await {
                        Err(refusal) if !refusal.is_moved() => return Err(refusal),
                        // The plane moved before anything was done, so the request may be sent to
                        // the new owner, which records it.
                        Err(_) => {
                            if let Some(audited) = self.audited.take() {
                                audited.forget();
                            }
                            if !self.is_direct() {
                                return Ok(moved_reply(self.state, Some(record)));
                            }
                            search.pause().await?;
                        }
                        Ok(reply) => return Ok(reply),
                    }
                }
            }
        }
    }

    /// Runs the stages at the replica that owns the plane.
    async fn answer_here(
        &mut self,
        located: &Located,
        proven: &Proven,
        plane: PlaneReference<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        // Before waking, so that a plane that loads slowly does not collect requests without limit.
        let record = &**located.record();
        if let Some(limited) = self.count_at_owner(record, plane, proven) {
            return Ok(limited);
        }
        let _seat = self.take_seat(record)?;
        if self.is_renewal(plane) {
            return Box::pin(self.renew(located, proven)).await;
        }
        let awake = self.wake(located, proven).await?;
        // Only an awake plane has the roles that say who may do what.
        let mut access_check = awake.access_check(deadline);
        self.prove_token(&*awake, proven, &mut access_check).await?;
        let requested = Requested::of(self.info, self.query, &self.parts.method);
        let acting = acting_user(
            &requested.by(proven.user()),
            proven.user(),
            &self.parts.headers,
            &mut access_check,
            (&self.state.impersonation_modes, record.id()),
        )
        .await?;
        if let Some(audited) = &mut self.audited {
            audited.made_as(&acting);
        }
        self.take_flow_seat(&*awake, record.meter(), &acting.user, deadline)
            .await?;
        let notes = Notes {
            outcome: &mut self.access,
            audited: self.audited.as_mut(),
        };
        let authorized = authorize(access_check, acting.user, self.info, &requested, notes).await?;
        match self.info {
            RequestInfo::Path(path) if plane == PlaneReference::Root && *path == DRAIN_PATH => {
                self.drain(&authorized.into_user()).await
            }
            RequestInfo::Path(path)
                if plane == PlaneReference::Root
                    && path.starts_with(REPORTS)
                    && self.state.single.is_none() =>
            {
                self.report(&authorized.into_user()).await
            }
            RequestInfo::Path(path) if path.starts_with(DUMPS) => {
                self.dump_flows(path, record.meter(), awake.state())
            }
            RequestInfo::Path(_) => {
                if let Some(reply) = self.metrics_of(plane, record.meter(), &*awake) {
                    return reply;
                }
                let issuer = record.token_issuer();
                let served = self.path_of(plane, record.meter(), &*awake, issuer.as_deref());
                served.await
            }
            RequestInfo::Resource(info) => {
                // After authorization, so that only authorized callers learn which kinds exist.
                let verb = self.resolve(&*awake, plane, info, deadline).await?;
                self.execute(&*awake, located, info, verb, authorized, deadline)
                    .await
            }
        }
    }

    async fn wake(&self, located: &Located, _: &Proven) -> Result<Arc<dyn PlaneApi>, Refusal> {
        let record = located.record();
        record
            .wake()
            .await
            .map_err(|error| unreachable_plane(error, record.name()))
    }

    /// Resolves path and method to a verb of a kind that the plane serves.
    async fn resolve(
        &mut self,
        awake: &dyn PlaneApi,
        plane: PlaneReference<'_>,
        info: &ResourceInfo<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Verb, Refusal> {
        let resolved = match resolve(&awake.kinds(), info, &self.parts.method) {
            Ok(resolved) => resolved,
            // A 404 or 405 is an answer from state too: no write in flight may later contradict it.
            Err(_) => {
                let wanted = (info.group, info.version, info.resource);
                let kinds = awake.settled_kinds(wanted, deadline).await?;
                resolve(&kinds, info, &self.parts.method)?
            }
        };
        let origin = match resolved.is_custom {
            true if plane.name() == ROOT => KindOrigin::CustomOfRoot,
            true => KindOrigin::CustomOfPlane,
            false => KindOrigin::BuiltIn,
        };
        self.counted_labels = self.labels.of_kind(origin);
        Ok(resolved.verb)
    }

    /// Lets the registry carry the request out, and makes a reply from its answer.
    async fn execute(
        &mut self,
        plane: &dyn PlaneApi,
        located: &Located,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        // Only now, so that no refused request uses memory for its body.
        let body = match verb {
            Verb::Get | Verb::List | Verb::Watch | Verb::Connect => Bytes::new(),
            _ => self.body(located).await?,
        };
        let mut request = self.resource_request(info, verb, authorized, body, deadline);
        if info.resource == "tokenreviews" {
            let reviewer = located.record().token_reviewer();
            request.token_reviewer = reviewer.map(TokenReviewer);
        }
        request.write_rate = self.write_rate(verb, &**located.record());
        if let Some(audited) = &mut self.audited {
            let kinds = plane.kinds();
            let row = kinds.resolve(info.group, info.version, info.resource);
            audited.sent(&request, row.map_or("", |row| &row.kind));
        }
        if verb == Verb::Watch {
            self.watch = Some(self.open_watch(&**located.record())?);
        }
        if self.writes() {
            self.charge.commit(request.body.len());
        }
        // With the body in memory and the plane awake, so that nothing but the plane itself is waited
        // for in the turn.
        let meter = located.record().meter();
        let mut answer = self.in_turn(plane, meter, request).await?;
        answer.body = self.with_seats(answer.body, meter);
        if let Some(audited) = &mut self.audited {
            audited.answered(&answer, verb);
        }
        if let AnswerBody::Connect(target) = answer.body {
            return Box::pin(self.connect_from_owner(&**located.record(), *target)).await;
        }
        let delivery = Delivery {
            client: self.client,
            read_limits: self.state.answer_read_limits(),
            abandoned: &self.state.abandoned_answers,
            charge: self.charge,
            backend: &*self.state.backend,
        };
        let watch = |stream, kind| self.watch(located.record(), stream, kind);
        let mut reply = delivery.reply(answer, watch)?;
        if let Some(bytes) = http_body::Body::size_hint(reply.body()).exact() {
            self.charge.send(bytes);
        }
        if reply.body().is_watch() {
            self.watch_form().announce(reply.headers_mut());
        }
        Ok(reply)
    }

    /// Counts a watch, whose record ends with it.
    pub(crate) fn gauge(&mut self, entry: OpenWatchEntry) -> WatchGauge {
        let mut audited = self.audited.take();
        if let Some(audited) = &mut audited {
            self.unrecorded.and(audited.started());
        }
        let counted = self.watch.take();
        OpenWatch::count(self.state, self.counted_labels, counted, audited, entry)
    }

    /// Returns whether another replica has answered a part of the watch.
    pub(crate) fn is_resumed(&self) -> bool {
        let by_peer = matches!(self.caller.origin, Origin::Peer { resumed: true, .. });
        self.resumed || by_peer
    }
}
