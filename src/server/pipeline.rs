//! The life of a request, from its head to the head of its answer.
//!
//! [`Pipeline::process`] reads top to bottom. Each stage returns a value that only it can make, so
//! no stage can be left out: without [`Located`] nothing can be proven, without [`Proven`] nothing
//! wakes, and the registry only takes what is authorized.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{
    ALL_UNAUTHENTICATED, Authentication, Authenticator as _, Credentials, Denied, UserInfo,
};
use polyplane_registry::{ResourceRequest, Verb};

use crate::audit_id;
use crate::authorize::{Authorized, authorize};
use crate::backend::{LocateError, PlaneApi, PlaneRecord};
use crate::body::{Patience, ResponseBody, WatchGauge};
use crate::connection::Connection;
use crate::impersonate::effective_user;
use crate::limits::{BodyError, Place, parse_go_duration, read_body};
use crate::metrics::Labels;
use crate::observe::{OpenWatch, labels_of};
use crate::paths;
use crate::request_info::{RequestInfo, ResourceInfo};
use crate::resolve::resolve;
use crate::respond::{AUDIT_ID, Client, Delivery, Refusal, RefusedEarly, Reply, refuse};
use crate::route::{PlaneReference, Route, RouteError, parse_query};
use crate::shared::Shared;

/// A watch has no deadline of its own; its source ends it.
const NO_DEADLINE: Duration = Duration::from_secs(7 * 86_400);
/// Answers a request. Never fails: whatever happens becomes a reply.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Reply {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let audit_id = match parts.headers.get(AUDIT_ID) {
        Some(given) if !given.is_empty() => given.clone(),
        _ => audit_id::new(),
    };
    let query = parse_query(parts.uri.query());
    let client = Client::of(&parts.headers, &query);
    let work = answer(&shared, &connection, &parts, body, &query, &client, started);
    let mut reply = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(reply) => reply,
        Err(_) => {
            Shared::count(&shared.metrics.panics);
            tracing::error!(path = parts.uri.path(), ?audit_id, "a request panicked");
            let text = "This request caused apiserver to panic. Look in the logs for details.\n";
            refuse(
                &client,
                &Refusal::Text(StatusCode::INTERNAL_SERVER_ERROR, text.into()),
            )
        }
    };
    if parts.method == Method::HEAD {
        reply = without_body(reply);
    }
    shared.common_headers.add(&mut reply, audit_id);
    reply
}

async fn answer(
    shared: &Arc<Shared>,
    connection: &Connection,
    parts: &Parts,
    body: Incoming,
    query: &[(String, String)],
    client: &Client<'_>,
    started: Instant,
) -> Reply {
    let route = match Route::parse(parts.uri.path()) {
        Ok(route) => route,
        Err(RouteError::NoPlane) => return refuse(client, &Refusal::no_such_path()),
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
    let labels = labels_of(&parts.method, &parts.headers, &info, query);
    let mut pipeline = Pipeline {
        shared,
        connection,
        parts,
        query,
        client,
        path: &route.path,
        info: &info,
        labels,
        known_kind: false,
        started,
    };
    let reply = match pipeline.process(route.plane, body).await {
        Ok(reply) => reply,
        Err(refusal) => refuse(client, &refusal),
    };
    let counted = if pipeline.known_kind {
        labels
    } else {
        Labels {
            verb: labels.verb,
            ..Labels::default()
        }
    };
    let bytes = http_body::Body::size_hint(reply.body()).exact();
    shared
        .metrics
        .request(counted, reply.status().as_u16(), started.elapsed(), bytes);
    reply
}

/// One request on its way, with everything that was read from its head.
struct Pipeline<'a> {
    shared: &'a Arc<Shared>,
    connection: &'a Connection,
    parts: &'a Parts,
    query: &'a [(String, String)],
    client: &'a Client<'a>,
    path: &'a str,
    info: &'a RequestInfo<'a>,
    labels: Labels<'a>,
    /// The labels name a kind that exists, so they may become a series.
    known_kind: bool,
    started: Instant,
}

impl Pipeline<'_> {
    async fn process(
        &mut self,
        plane: PlaneReference<'_>,
        body: Incoming,
    ) -> Result<Reply, Refusal> {
        let deadline = match self.deadline() {
            Ok(deadline) => deadline,
            Err(refusal) => {
                let mut reply = refuse(self.client, &refusal);
                reply.extensions_mut().insert(RefusedEarly);
                return Ok(reply);
            }
        };
        let located = self.locate(plane).await?;
        let proven = self.prove(&located).await?;
        let _place = self.take_place()?;
        if proven.user.in_group(ALL_UNAUTHENTICATED) {
            return paths::public(&self.path_request(plane), &proven.user);
        }
        let awake = self.wake(&located, &proven).await?;
        let user = effective_user(&proven.user, &self.parts.headers, awake.authorizer()).await?;
        let authorized = authorize(
            awake.authorizer(),
            user,
            self.info,
            self.query,
            &self.parts.method,
        )
        .await?;
        match self.info {
            RequestInfo::Path(_) => paths::serve(&self.path_request(plane), &awake.kinds()),
            RequestInfo::Resource(info) => {
                let kinds = awake.kinds();
                let verb = resolve(&kinds, info, &self.parts.method)?;
                self.known_kind = true;
                let work = self.carry_out(&*awake, info, verb, authorized, body, deadline);
                within(deadline, info, work).await
            }
        }
    }

    /// When the answer is of no use any more.
    fn deadline(&self) -> Result<tokio::time::Instant, Refusal> {
        let start = tokio::time::Instant::from_std(self.started);
        if let RequestInfo::Resource(info) = self.info
            && info.is_long_running()
        {
            return Ok(start + NO_DEADLINE);
        }
        let longest = self.shared.limits.request_time_max;
        let asked = self.query.iter().find(|(key, _)| key == "timeout");
        let time = match asked
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
        {
            None => longest,
            Some(text) => {
                let asked = parse_go_duration(text).map_err(|why| {
                    let message = format!("invalid timeout specified in the request URL - {why}");
                    ApiError::bad_request(message)
                })?;
                if asked.is_zero() {
                    longest
                } else {
                    asked.min(longest)
                }
            }
        };
        Ok(start + time)
    }

    /// Finds the plane. Strangers do not learn which planes there are.
    async fn locate(&self, plane: PlaneReference<'_>) -> Result<Located, Refusal> {
        let error = match self.shared.backend.locate(plane).await {
            Ok(record) => return Ok(Located { record }),
            Err(error) => error,
        };
        if self.bearer().is_none() && self.connection.chain().is_none() {
            return Err(ApiError::unauthorized("Unauthorized").into());
        }
        let (PlaneReference::Named(name) | PlaneReference::Id(name)) = plane else {
            return Err(unreachable_plane(error, "root"));
        };
        Err(unreachable_plane(error, name))
    }

    /// Proves the caller by the plane's record alone: first its certificate, then its token.
    async fn prove(&self, located: &Located) -> Result<Proven, Refusal> {
        let record = &*located.record;
        let now = SystemTime::now();
        let (bearer, chain) = (self.bearer(), self.connection.chain());
        let mut denied = None;
        if chain.is_some() {
            match self.connection.user_of_chain(record.client_ca(), now) {
                Ok(user) => return Ok(Proven { user }),
                Err(why) => denied = Some(why),
            }
        }
        let credentials = Credentials {
            bearer,
            chain,
            path: self.path,
            now,
        };
        let judged = match bearer {
            Some(_) => record.bearer().authenticate(&credentials).await,
            None => self.shared.anonymous.authenticate(&credentials).await,
        };
        match judged {
            Authentication::User(user) => Ok(Proven { user }),
            Authentication::Denied(why) => Err(unauthorized(record, &denied.unwrap_or(why))),
            Authentication::NoOpinion => {
                Err(unauthorized(record, &denied.unwrap_or(Denied::Nothing)))
            }
        }
    }

    fn bearer(&self) -> Option<&str> {
        let text = self.parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
        let mut words = text.trim().splitn(3, ' ');
        let scheme = words.next()?;
        let token = words.next()?;
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }

    /// A place among the requests in flight; long-running ones and health need none.
    fn take_place(&self) -> Result<Option<Place>, Refusal> {
        let places = match self.info {
            RequestInfo::Path(_) => return Ok(None),
            RequestInfo::Resource(info) if info.is_long_running() => return Ok(None),
            RequestInfo::Resource(ResourceInfo { verb, .. }) => match verb {
                Some(Verb::Get | Verb::List | Verb::Watch) => &self.shared.metrics.reads,
                _ => &self.shared.metrics.writes,
            },
        };
        places.take().map(Some).ok_or_else(|| {
            Shared::count(&self.shared.metrics.rejected);
            let message = "Too many requests, please try again later.";
            ApiError::too_many_requests(message, 1).into()
        })
    }

    async fn wake(&self, located: &Located, _: &Proven) -> Result<Arc<dyn PlaneApi>, Refusal> {
        let record = &located.record;
        record
            .wake()
            .await
            .map_err(|error| unreachable_plane(error, record.name()))
    }

    async fn carry_out(
        &self,
        plane: &dyn PlaneApi,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        body: Incoming,
        deadline: tokio::time::Instant,
    ) -> Result<Reply, Refusal> {
        let body = match verb {
            Verb::Get | Verb::List | Verb::Watch => Bytes::new(),
            _ => self.body(body).await?,
        };
        let request = self.resource_request(info, verb, authorized, body, deadline);
        let answer = plane.handle(request).await?;
        let delivery = Delivery {
            client: self.client,
            verb,
            drain: &self.shared.drain,
            patience: Patience {
                total_max: self.shared.limits.answer_time_max,
                stall_max: self.shared.limits.answer_stall_max,
            },
            abandoned: &self.shared.abandoned_answers,
        };
        delivery.reply(answer, || self.gauge()).await
    }

    async fn body(&self, body: Incoming) -> Result<Bytes, Refusal> {
        let bytes_max = self.shared.limits.body_bytes_max;
        read_body(body, bytes_max)
            .await
            .map_err(|error| match error {
                BodyError::TooLong => {
                    ApiError::request_entity_too_large(format!("limit is {bytes_max}")).into()
                }
                BodyError::Broken(source) => {
                    ApiError::bad_request(format!("error reading the body: {source}")).into()
                }
            })
    }

    fn resource_request(
        &self,
        info: &ResourceInfo<'_>,
        verb: Verb,
        authorized: Authorized,
        body: Bytes,
        deadline: tokio::time::Instant,
    ) -> ResourceRequest {
        let present = |text: &str| (!text.is_empty()).then(|| text.into());
        let mut query = self.query.to_vec();
        let mut name = present(info.name);
        if verb == Verb::Watch
            && let Some(single) = name.take()
        {
            // The old form of watching one object is a selector in the new one.
            let selector = format!("metadata.name={single}");
            query.insert(0, ("fieldSelector".to_owned(), selector));
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
            user: authorized.into_user(),
            deadline,
        }
    }

    fn gauge(&self) -> WatchGauge {
        OpenWatch::count(self.shared, self.labels)
    }

    fn path_request<'p>(&'p self, plane: PlaneReference<'p>) -> paths::PathRequest<'p> {
        paths::PathRequest {
            shared: self.shared,
            client: self.client,
            method: &self.parts.method,
            headers: &self.parts.headers,
            query: self.query,
            path: self.path,
            plane,
        }
    }
}

/// Proof that the plane exists. Made only by `locate`.
struct Located {
    record: Arc<dyn PlaneRecord>,
}

/// Proof of who the caller is. Made only by `prove`.
struct Proven {
    user: Arc<UserInfo>,
}

fn unauthorized(record: &dyn PlaneRecord, why: &Denied) -> Refusal {
    tracing::debug!(plane = record.name(), %why, "unauthorized");
    ApiError::unauthorized("Unauthorized").into()
}

fn unreachable_plane(error: LocateError, name: &str) -> Refusal {
    let what = Qualified::new("polyplane.dev", "controlplanes");
    match error {
        LocateError::NotFound | LocateError::Deleting => ApiError::not_found(what, name),
        LocateError::Forbidden => ApiError::forbidden(what, name, error),
        LocateError::Unavailable => {
            ApiError::service_unavailable(error.to_string()).with_retry_after(1)
        }
    }
    .into()
}

/// Runs `work` until the deadline of a request that has one.
async fn within(
    deadline: tokio::time::Instant,
    info: &ResourceInfo<'_>,
    work: impl Future<Output = Result<Reply, Refusal>>,
) -> Result<Reply, Refusal> {
    if info.is_long_running() {
        return work.await;
    }
    tokio::time::timeout_at(deadline, work)
        .await
        .unwrap_or_else(|_| {
            let message = "request did not complete within the allotted timeout";
            Err(ApiError::timeout(message, 0).into())
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
