//! The life of a request, from its head to the head of its answer.
//!
//! [`Pipeline::process`] reads top to bottom. Each stage returns a value that only it can make, so
//! no stage can be left out: without [`Located`] nothing can be proven, without [`Proven`] nothing
//! is forwarded or wakes, and the registry only takes what is authorized. The replica that receives
//! a request proves it; where another one owns its plane, `forward` sends it there, and it goes
//! through all stages again.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use polyplane_apimachinery::status::ApiError;
use polyplane_registry::request::parameters::FIELD_SELECTOR;
use polyplane_registry::{ResourceRequest, Verb};

use crate::answer::body::{ResponseBody, WatchGauge};
use crate::answer::respond::{Client, Delivery, Refusal, Reply, Unqueued, refuse};
use crate::backend::PlaneApi;
use crate::connection::Connection;
use crate::documents::paths;
use crate::operations::local::{DRAIN_PATH, REPORTS};
use crate::operations::metrics::Labels;
use crate::operations::observe::{OpenWatch, labels_of};
use crate::peer::forward::{Destination, Forwarded, Search, moved_reply};
use crate::peer::headers::{MovedTo, strip};
use crate::request::audit_id;
use crate::request::authorize::{Authorized, authorize};
use crate::request::budget::{Exhausted, Reservation};
use crate::request::impersonate::effective_user;
use crate::request::inbound::Inbound;
use crate::request::limits::{BodyError, discard_rest, read_body};
use crate::request::prove::{Located, Proven, unreachable_plane};
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::request::resolve::resolve;
use crate::request::route::{PlaneReference, Route, RouteError, parse_query};
use crate::server_state::ServerState;

/// Whom a request comes from.
pub(crate) struct Caller {
    pub connection: Arc<Connection>,
    pub origin: Origin,
}

/// By which way a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the client itself.
    Client,
    /// From a peer that the client is connected to.
    Peer {
        /// What is left for the answer.
        time_left: Option<Duration>,
    },
}

/// A request's body, kept until nobody can need it again.
enum RequestBody {
    Coming(Inbound),
    /// With the room it takes, which is given back when the request is answered.
    Read {
        bytes: Bytes,
        _room: Option<Reservation>,
    },
}

/// Answers a request. Never fails: whatever happens becomes a reply.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    request: Request<Inbound>,
) -> Reply {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    strip(&mut parts.headers);
    let audit_id = audit_id::of(&parts.headers);
    let query = parse_query(parts.uri.query());
    let client = Client::of(&parts.headers, &query);
    let head = ParsedHead {
        caller: &caller,
        parts: &parts,
        query: &query,
        client: &client,
        audit_id: &audit_id,
        started,
    };
    let mut body = RequestBody::Coming(body);
    // Written in one: a future that is given a name first takes its room twice.
    let mut reply = match AssertUnwindSafe(answer(&state, &head, &mut body))
        .catch_unwind()
        .await
    {
        Ok(reply) => reply,
        Err(_) => {
            ServerState::count(&state.metrics.panics);
            let audit_id = audit_id.to_str().unwrap_or_default();
            tracing::error!(path = parts.uri.path(), audit_id, "a request panicked");
            let text = "This request caused apiserver to panic. Look in the logs for details.\n";
            refuse(
                &client,
                &Refusal::Text(StatusCode::INTERNAL_SERVER_ERROR, text.into()),
            )
        }
    };
    if let RequestBody::Coming(rest) = &mut body
        && !parts.headers.contains_key(EXPECT)
    {
        let is_stranger = reply.status() == StatusCode::UNAUTHORIZED;
        let seat = is_stranger.then(|| state.metrics.discards.take());
        // Many strangers are not waited for.
        if !matches!(seat, Some(None)) {
            discard_rest(rest).await;
        }
    }
    if reply.extensions_mut().remove::<Forwarded>().is_some() {
        return reply;
    }
    if parts.method == Method::HEAD {
        reply = without_body(reply);
    }
    state.common_headers.add(&mut reply, audit_id);
    reply
}

/// Opens the rest of a watch: `parts` ask for what comes after a version.
pub(crate) async fn reopen(
    state: Arc<ServerState>,
    caller: Arc<Caller>,
    parts: Parts,
    audit_id: HeaderValue,
    hint: Option<MovedTo>,
) -> Result<Reply, Refusal> {
    let query = parse_query(parts.uri.query());
    let client = Client::of(&parts.headers, &query);
    let head = ParsedHead {
        caller: &caller,
        parts: &parts,
        query: &query,
        client: &client,
        audit_id: &audit_id,
        started: Instant::now(),
    };
    let route = Route::parse(parts.uri.path()).map_err(|_| Refusal::no_such_path())?;
    let info = RequestInfo::parse(&parts.method, &route.path, &query)
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let mut body = RequestBody::Read {
        bytes: Bytes::new(),
        _room: None,
    };
    let mut pipeline = Pipeline::new(&state, &head, &route, &info, &mut body);
    pipeline.process(route.plane, hint).await
}

/// What was read from a request's head before anything was looked up.
#[derive(Clone, Copy)]
struct ParsedHead<'a> {
    caller: &'a Arc<Caller>,
    parts: &'a Parts,
    query: &'a [(String, String)],
    client: &'a Client<'a>,
    audit_id: &'a HeaderValue,
    started: Instant,
}

async fn answer(state: &Arc<ServerState>, head: &ParsedHead<'_>, body: &mut RequestBody) -> Reply {
    let ParsedHead {
        parts,
        query,
        client,
        started,
        ..
    } = *head;
    let route = match Route::parse(parts.uri.path()) {
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
        Err(error) => {
            let error = ApiError::bad_request(format!("{error}, {}", parts.uri));
            return refuse(client, &error.into());
        }
    };
    let mut pipeline = Pipeline::new(state, head, &route, &info, body);
    let labels = pipeline.labels;
    let mut reply = match pipeline.process(route.plane, None).await {
        Ok(reply) => reply,
        Err(refusal) => refuse(client, &refusal),
    };
    if let RequestInfo::Resource(info) = &info
        && info.is_long_running()
        && info.verb != Some(Verb::Watch)
    {
        reply.extensions_mut().insert(Unqueued);
    }
    let is_forwarded = reply.extensions().get::<Forwarded>().is_some();
    if is_forwarded || reply.status() == StatusCode::MISDIRECTED_REQUEST {
        // Whoever answered it has counted it, or whoever is head next will: one request is one in
        // the sum of all replicas.
        if is_forwarded {
            let took = started.elapsed().as_secs_f64();
            state.metrics.forwarding.took.observe(took);
        }
        return reply;
    }
    let counted = if pipeline.known_kind {
        labels
    } else {
        Labels {
            verb: labels.verb,
            ..Labels::default()
        }
    };
    let bytes = http_body::Body::size_hint(reply.body()).exact();
    state
        .metrics
        .request(counted, reply.status().as_u16(), started.elapsed(), bytes);
    reply
}

/// One request on its way, with everything that was read from its head.
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
    /// The labels name a kind that exists, so they may become a series.
    known_kind: bool,
    body: &'a mut RequestBody,
    pub(crate) started: Instant,
}

impl<'a> Pipeline<'a> {
    fn new(
        state: &'a Arc<ServerState>,
        head: &ParsedHead<'a>,
        route: &'a Route<'a>,
        info: &'a RequestInfo<'a>,
        body: &'a mut RequestBody,
    ) -> Self {
        Self {
            state,
            caller: head.caller,
            parts: head.parts,
            query: head.query,
            client: head.client,
            path: &route.path,
            info,
            audit_id: head.audit_id,
            labels: labels_of(&head.parts.method, &head.parts.headers, info, head.query),
            known_kind: false,
            body,
            started: head.started,
        }
    }
}

impl Pipeline<'_> {
    async fn process(
        &mut self,
        plane: PlaneReference<'_>,
        hint: Option<MovedTo>,
    ) -> Result<Reply, Refusal> {
        let deadline = match self.deadline() {
            Ok(deadline) => deadline,
            Err(refusal) => {
                let mut reply = refuse(self.client, &refusal);
                reply.extensions_mut().insert(Unqueued);
                return Ok(reply);
            }
        };
        if self.is_nobody() {
            return self.answer_nobody(plane).await;
        }
        let search = Search::new(deadline).hinted(hint);
        let is_drain = plane == PlaneReference::Root && self.path == DRAIN_PATH;
        let owned = self.owned(plane, search, deadline);
        if is_drain {
            // Takes what it takes.
            return owned.await;
        }
        within(deadline, owned).await
    }

    /// Has whoever owns the plane answer.
    async fn owned(
        &mut self,
        plane: PlaneReference<'_>,
        mut search: Search,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        loop {
            let (located, proven) = self.locate(plane).await?;
            self.admit(plane)?;
            let record = &**located.record();
            if plane == PlaneReference::Root && self.is_about_this_replica(record) {
                return self.about_this_replica(&proven, plane).await;
            }
            match self.destination(record, &mut search).await? {
                Destination::Moved => return Ok(moved_reply(self.state, record)),
                Destination::Unknown => {}
                Destination::Peer(peer) => {
                    // In a box, for those that are answered here are smaller by far.
                    let forwarded = Box::pin(self.forward(&peer, &located, deadline, &mut search));
                    if let Some(reply) = forwarded.await? {
                        return Ok(reply);
                    }
                }
                Destination::Here => match self.here(&located, &proven, plane, deadline).await {
                    Err(refusal) if !refusal.is_moved() => return Err(refusal),
                    // Nothing was done, so whoever owns the plane now may be head.
                    Err(_) if self.is_direct() => search.pause().await?,
                    Err(_) => return Ok(moved_reply(self.state, record)),
                    Ok(reply) => return Ok(reply),
                },
            }
        }
    }

    /// The stages at the owner.
    async fn here(
        &mut self,
        located: &Located,
        proven: &Proven,
        plane: PlaneReference<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        let _seat = self.take_seat()?;
        let awake = self.wake(located, proven).await?;
        let mut gate = awake.gate(deadline).await?;
        let user = effective_user(proven.user(), &self.parts.headers, &mut gate).await?;
        let authorized = authorize(gate, user, self.info, self.query, &self.parts.method).await?;
        match self.info {
            RequestInfo::Path(path) if plane == PlaneReference::Root && *path == DRAIN_PATH => {
                self.drain(&authorized.into_user()).await
            }
            RequestInfo::Path(path)
                if plane == PlaneReference::Root && path.starts_with(REPORTS) =>
            {
                self.report(&authorized.into_user()).await
            }
            RequestInfo::Path(_) => paths::serve(&self.path_request(plane), &awake.kinds()),
            RequestInfo::Resource(info) => {
                let kinds = awake.kinds();
                let verb = match resolve(&kinds, info, &self.parts.method) {
                    Ok(verb) => verb,
                    // That something is not served is an answer, so it has to be settled.
                    Err(_) => {
                        let wanted = (info.group, info.version, info.resource);
                        let kinds = awake.settled_kinds(wanted, deadline).await?;
                        resolve(&kinds, info, &self.parts.method)?
                    }
                };
                self.known_kind = true;
                self.carry_out(&*awake, located, info, verb, authorized, deadline)
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

    async fn carry_out(
        &mut self,
        plane: &dyn PlaneApi,
        located: &Located,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        let body = match verb {
            Verb::Get | Verb::List | Verb::Watch => Bytes::new(),
            _ => self.body(located).await?,
        };
        let request = self.resource_request(info, verb, authorized, body, deadline);
        let answer = plane.handle(request).await?;
        let delivery = Delivery {
            client: self.client,
            verb,
            read_limits: self.state.answer_read_limits(),
            abandoned: &self.state.abandoned_answers,
            memory: &self.state.memory,
        };
        delivery
            .reply(answer, |stream| self.watch(located.record(), stream))
            .await
    }

    /// The whole body; read once, however often it is sent on.
    pub(crate) async fn body(&mut self, located: &Located) -> Result<Bytes, Refusal> {
        let coming = match self.body {
            RequestBody::Read { bytes, .. } => return Ok(bytes.clone()),
            RequestBody::Coming(coming) => coming,
        };
        let bytes_max = self.state.limits.body_bytes_max;
        let mut reservation = self.state.metrics.bodies.reserve(located.record());
        match read_body(coming, bytes_max, &mut reservation).await {
            Ok(bytes) => {
                *self.body = RequestBody::Read {
                    bytes: bytes.clone(),
                    _room: Some(reservation),
                };
                Ok(bytes)
            }
            Err(BodyError::NoRoom(whose)) => {
                let whose = match whose {
                    Exhausted::Process => "this server",
                    Exhausted::Plane => "this control plane",
                };
                let message = format!(
                    "Request bodies in flight take all the memory that {whose} has for them, \
                     please try again later."
                );
                Err(ApiError::too_many_requests(message, 1).into())
            }
            Err(BodyError::TooLong) => {
                Err(ApiError::request_entity_too_large(format!("limit is {bytes_max}")).into())
            }
            Err(BodyError::Broken(source)) => {
                Err(ApiError::bad_request(format!("error reading the body: {source}")).into())
            }
        }
    }

    fn resource_request(
        &self,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        body: Bytes,
        deadline: tokio::time::Instant,
    ) -> ResourceRequest {
        let (user, permit) = authorized.into_parts();
        let present = |text: &str| (!text.is_empty()).then(|| text.into());
        let mut query = self.query.to_vec();
        let mut name = present(info.name);
        if verb == Verb::Watch
            && let Some(single) = name.take()
        {
            // The old form of watching one object is a selector in the new one.
            let selector = format!("metadata.name={single}");
            query.insert(0, (FIELD_SELECTOR.row().name.to_owned(), selector));
        }
        let namespace = if info.resource == "namespaces" && info.group.is_empty() {
            ""
        } else {
            info.namespace
        };
        ResourceRequest {
            verb,
            group: info.group.into(),
            version: info.version.into(),
            resource: info.resource.into(),
            namespace: present(namespace),
            name,
            subresource: present(info.subresource),
            query,
            accept: self.client.accept.to_owned(),
            content_type: header(&self.parts.headers, CONTENT_TYPE),
            user_agent: self.client.user_agent.to_owned(),
            body,
            user,
            permit,
            deadline,
            seats: self.seats().map(|seats| Arc::clone(seats) as _),
        }
    }

    pub(crate) fn gauge(&self) -> WatchGauge {
        OpenWatch::count(self.state, self.labels)
    }

    pub(crate) fn path_request<'p>(&'p self, plane: PlaneReference<'p>) -> paths::PathRequest<'p> {
        paths::PathRequest {
            state: self.state,
            client: self.client,
            method: &self.parts.method,
            headers: &self.parts.headers,
            query: self.query,
            path: self.path,
            plane,
        }
    }
}

/// Runs `work`, which ends with the head of the answer, until a deadline.
fn within(
    deadline: tokio::time::Instant,
    work: impl Future<Output = Result<Reply, Refusal>>,
) -> impl Future<Output = Result<Reply, Refusal>> {
    // No async block, which would take the room of `work` twice.
    tokio::time::timeout_at(deadline, work).map(|done| {
        done.unwrap_or_else(|_| {
            let message = "request did not complete within the allotted timeout";
            Err(ApiError::timeout(message, 0).into())
        })
    })
}

fn header(headers: &HeaderMap, name: http::HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|value: &HeaderValue| value.to_str().ok())
        .map(str::to_owned)
}

/// A reply to `HEAD` is the reply to `GET` without its body.
fn without_body(mut reply: Reply) -> Reply {
    if let Some(length) = http_body::Body::size_hint(reply.body()).exact() {
        reply
            .headers_mut()
            .insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    *reply.body_mut() = ResponseBody::empty();
    reply
}
