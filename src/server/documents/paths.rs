//! Answers requests for paths that are not resources: discovery, OpenAPI, version, health and
//! metrics.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::service_account::issuer::{CONFIGURATION_PATH, JWKS_PATH, TokenIssuer};
use polyplane_auth::{Attributes, METRICS_PATH, Subject, UserInfo};
use polyplane_fairness::PlaneMeter;
use polyplane_plane::Share;
use polyplane_registry::answer::media_range;
use polyplane_registry::answer::negotiate::{PRODUCED, consumed_among, produced_among};
use polyplane_registry::authority::forbidden;
use polyplane_registry::{Kinds, ServedGroups};
use serde::Serialize;

use crate::answer::body::{ResponseBody, compressed};
use crate::answer::negotiate::{self, Form};
use crate::answer::respond::{
    Client, Refusal, Reply, bare, object, raw_json, text, typed_object, whole_object,
};
use crate::backend::PlaneApi;
use crate::documents::Take;
use crate::documents::discovery::{AGGREGATED, Aggregated, AggregatedVersion, Discovery, to_json};
use crate::documents::openapi::{self, Served};
use crate::documents::openid::OpenIdDocument;
use crate::documents::version;
use crate::operations::exposition::Exposition;
use crate::operations::health::{Endpoint, Health};
use crate::operations::local::SLIS_PATH;
use crate::operations::status_pages::Page;
use crate::pipeline::Pipeline;
use crate::request::flow::FlowSeat;
use crate::request::route::PlaneReference;
use crate::server_state::ServerState;

/// A request for a path that is not a resource.
pub(crate) struct PathRequest<'a> {
    pub state: &'a Arc<ServerState>,
    /// The plane that pays for the answer, once it is known.
    pub meter: Option<&'a Arc<PlaneMeter>>,
    pub client: &'a Client<'a>,
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: &'a [(String, String)],
    pub path: &'a str,
    pub plane: PlaneReference<'a>,
    /// The seats of the request at its priority level, which it keeps until its answer is written.
    pub seat: Option<&'a Arc<FlowSeat>>,
}

impl Pipeline<'_> {
    pub(crate) fn path_request<'p>(&'p self, plane: PlaneReference<'p>) -> PathRequest<'p> {
        PathRequest {
            state: self.state,
            meter: self.charge.plane(),
            client: self.client,
            method: &self.parts.method,
            headers: &self.parts.headers,
            query: self.query,
            path: self.path,
            plane,
            seat: self.flow.seat.as_ref(),
        }
    }

    /// Answers an authorized request for a path of a plane. Documents about kinds are made anew once a definition has
    /// changed, which takes milliseconds for a thousand definitions, so they take a turn of the plane. OpenAPI
    /// documents take up to a second then, and are always made aside; the longest ones wait for each other.
    pub(crate) async fn path_of(
        &self,
        plane: PlaneReference<'_>,
        meter: &Arc<PlaneMeter>,
        awake: &dyn PlaneApi,
        issuer: Option<&TokenIssuer>,
    ) -> Result<Reply, Refusal> {
        let request = self.path_request(plane);
        // Without a turn, because health must not wait for other work of the plane.
        if let Some(answer) = of_this_replica(&request) {
            return answer;
        }
        let kinds = awake.kinds();
        if openapi::is_path(request.path) {
            let work = async {
                let groups = kinds.served();
                let served = Served {
                    table: &groups,
                    issues_tokens: issuer.is_some(),
                };
                openapi::serve(&request, served, awake, meter).await
            };
            return self.in_turn_or_aside(meter, true, Box::pin(work)).await;
        }
        let take = |bytes: usize| awake.take_memory(Share::Answers, bytes);
        let work = poll_fn(|_| Poll::Ready(serve(&request, &kinds, issuer, &take)));
        self.in_turn_or_aside(meter, false, work).await
    }
}

/// Answers a request without a credential for health or the version, without waking a plane.
pub(crate) fn public(request: &PathRequest<'_>, user: &UserInfo) -> Result<Reply, Refusal> {
    if *request.method != Method::GET {
        let verb = request.method.as_str().to_ascii_lowercase();
        let subject = Subject::Path(request.path);
        return Err(forbidden(
            &Attributes {
                user,
                verb: &verb,
                subject,
            },
            "",
        )
        .into());
    }
    match Endpoint::of(request.path) {
        Some((endpoint, None)) => health(request, endpoint, None),
        Some((_, Some(_))) => Err(Refusal::no_such_path()),
        None => version(request),
    }
}

/// Answers an authorized request for a document of a plane, which may issue tokens. OpenAPI is not among them.
fn serve(
    request: &PathRequest<'_>,
    kinds: &Kinds,
    issuer: Option<&TokenIssuer>,
    take: Take<'_>,
) -> Result<Reply, Refusal> {
    if let Some(document) = OpenIdDocument::of(request.path) {
        return document.serve(request, issuer);
    }
    let served = &kinds.served();
    if matches!(request.path, "/" | "/index.html") {
        return Ok(index(request, served, issuer));
    }
    // The nameless group is below another path.
    let is_built_in = |group: &str| !group.is_empty() && kinds.base().group(group).is_some();
    discovery(request, served, is_built_in, take)
}

/// Answers a path that needs no plane; `None` if the path needs one.
pub(crate) fn of_this_replica(request: &PathRequest<'_>) -> Option<Result<Reply, Refusal>> {
    if let Some((endpoint, check)) = Endpoint::of(request.path) {
        return Some(health(request, endpoint, check));
    }
    match request.path {
        "/version" | "/version/" => Some(version(request)),
        _ if request.plane != PlaneReference::Root => None,
        METRICS_PATH => Some(Ok(metrics(request.headers, request.state.expose()))),
        SLIS_PATH => Some(Ok(slis(request))),
        path => Some(Page::of(path)?.serve(request.client, &request.state.process)),
    }
}

fn health(
    request: &PathRequest<'_>,
    endpoint: Endpoint,
    check: Option<&str>,
) -> Result<Reply, Refusal> {
    let checks = &request.state.checks;
    let health = match check {
        Some(name) => checks.one(endpoint, name),
        None => checks.all(endpoint, request.query),
    };
    match health {
        Health::Well(listing) => {
            let mut reply = text(StatusCode::OK, listing);
            if check.is_some() {
                reply.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
            }
            Ok(reply)
        }
        Health::Unwell(listing) => Ok(text(StatusCode::INTERNAL_SERVER_ERROR, listing)),
        Health::Unknown => Err(Refusal::no_such_path()),
    }
}

fn version(request: &PathRequest<'_>) -> Result<Reply, Refusal> {
    require_route(request, &[Form::Json.content_type()])?;
    let single = request.state.single.as_ref();
    let shown = version::shown(single.and_then(|single| single.version.as_deref()));
    Ok(raw_json(StatusCode::OK, &to_json(&shown)))
}

/// Returns how the health checks went as an answer.
pub(crate) fn slis(request: &PathRequest<'_>) -> Reply {
    let mut out = Exposition::default();
    request.state.checks.expose(&mut out);
    metrics(request.headers, out.into_text())
}

/// Returns metrics as an answer to a request with these headers.
pub(crate) fn metrics(headers: &HeaderMap, exposed: String) -> Reply {
    let mut reply = match negotiate::takes_gzip_of_metrics(headers) {
        true => {
            let mut reply = text(StatusCode::OK, compressed(exposed.as_bytes()));
            let gzip = HeaderValue::from_static("gzip");
            reply.headers_mut().insert(CONTENT_ENCODING, gzip);
            reply
        }
        false => text(StatusCode::OK, exposed),
    };
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
    reply
}

#[derive(Serialize)]
struct RootPaths {
    paths: Vec<String>,
}

fn index(request: &PathRequest<'_>, kinds: &ServedGroups, issuer: Option<&TokenIssuer>) -> Reply {
    let mut paths = request.state.checks.paths();
    let fixed = [
        "/api",
        "/apis",
        "/apis/",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/version",
        METRICS_PATH,
        SLIS_PATH,
    ];
    paths.extend(fixed.map(str::to_owned));
    if request.plane == PlaneReference::Root {
        let own = ["/flagz", "/statusz"];
        paths.extend(own.map(str::to_owned));
    }
    if issuer.is_some() {
        paths.extend([CONFIGURATION_PATH, JWKS_PATH].map(str::to_owned));
    }
    for group in &kinds.groups {
        let root = if group.name.is_empty() {
            "/api".to_owned()
        } else {
            paths.push(format!("/apis/{}", group.name));
            format!("/apis/{}", group.name)
        };
        let versions = group.versions.iter();
        paths.extend(versions.map(|version| format!("{root}/{}", version.version)));
    }
    paths.sort_unstable();
    paths.dedup();
    raw_json(StatusCode::OK, &to_json(&RootPaths { paths }))
}

pub(crate) fn require_get(request: &PathRequest<'_>) -> Result<(), Refusal> {
    if *request.method == Method::GET {
        return Ok(());
    }
    Err(ApiError::generic(405, "", Qualified::new("", ""), "", "").into())
}

/// Returns the error of upstream's router for a document that comes in these media types. The router compares them
/// as text with what the client accepts, and before that with what it says to have sent.
fn require_route(request: &PathRequest<'_>, media_types: &[&str]) -> Result<(), Refusal> {
    require_get(request)?;
    let sent = request.headers.get(CONTENT_TYPE);
    let sent = sent.map_or(Cow::Borrowed(""), |value| {
        String::from_utf8_lossy(value.as_bytes())
    });
    if !consumed_among(&sent, media_types) {
        return Err(ApiError::not_consumed().into());
    }
    match produced_among(request.client.accept, media_types) {
        true => Ok(()),
        false => Err(ApiError::not_produced(media_types).into()),
    }
}

/// Answers a path of discovery. The documents of groups that are not built in are not behind upstream's
/// router: they are answered to every method, and other paths are unknown to the server, not to the group.
fn discovery(
    request: &PathRequest<'_>,
    kinds: &ServedGroups,
    is_built_in: impl Fn(&str) -> bool,
    take: Take<'_>,
) -> Result<Reply, Refusal> {
    // Upstream compares the beginning of a path as text.
    if request.path.starts_with("//") {
        return Err(Refusal::no_such_path());
    }
    let mut segments = request.path.trim_matches('/').split('/');
    let prefix = segments.next().unwrap_or("");
    let (first, second, more) = (segments.next(), segments.next(), segments.next());
    let documents = &request.state.documents;
    // Made of all kinds, so only for the paths that show them.
    let discovery = || documents.discovery(kinds, take);
    let resources = |group, version| {
        let part = documents.version(kinds, (group, version), take)?;
        Ok::<_, ApiError>(part.map(|part| part.resources()))
    };
    let found = match (prefix, first, second, more) {
        ("api" | "apis", None, None, None) => return root(request, &*discovery()?, prefix),
        ("api", Some(version), None, None) => resources("", version)?,
        ("apis", Some(group), None, None) => discovery()?.group(group),
        ("apis", Some(""), _, _) => None,
        ("apis", Some(group), Some(version), None) => resources(group, version)?,
        _ => None,
    };
    let is_routed = match prefix {
        "api" | "version" => true,
        "apis" => first.is_some_and(is_built_in),
        _ => false,
    };
    match found {
        Some(document) => {
            // Upstream answers the document of a group to every method.
            if is_routed && (prefix == "api" || second.is_some()) {
                require_route(request, &PRODUCED)?;
            }
            Ok(object(request.client, StatusCode::OK, document))
        }
        // Behind the router, 404 has the form of an object.
        None if is_routed => Err(ApiError::generic(404, "", Qualified::new("", ""), "", "").into()),
        None => Err(Refusal::no_such_path()),
    }
}

/// Answers `/api` and `/apis`, each in the legacy form or as one aggregated document.
fn root(request: &PathRequest<'_>, discovery: &Discovery, prefix: &str) -> Result<Reply, Refusal> {
    let client = request.client;
    // Upstream's aggregator answers the list of groups to every method, and has no router.
    if prefix == "api" {
        require_route(request, &PRODUCED)?;
    }
    if let Some((form, version)) = aggregated(client) {
        let document = discovery.aggregated(prefix, version);
        return Ok(tagged(request, form, version, document));
    }
    let document = match prefix {
        "api" => discovery.versions(),
        _ => discovery.groups(),
    };
    Ok(object(client, StatusCode::OK, document))
}

/// Returns the form and version in which a client accepts the aggregated document; `None` if it does not.
/// As upstream, a client that accepts it gets it, however much more it would like the legacy one.
fn aggregated(client: &Client<'_>) -> Option<(Form, AggregatedVersion)> {
    media_range::ranges(client.accept).iter().find_map(|range| {
        let is_kind = range.param("as") == AGGREGATED;
        let is_wanted = is_kind && range.param("g") == "apidiscovery.k8s.io";
        let version = AggregatedVersion::of(range.param("v")).filter(|_| is_wanted)?;
        Some((negotiate::form_of(range)?, version))
    })
}

fn tagged(
    request: &PathRequest<'_>,
    form: Form,
    version: AggregatedVersion,
    document: &Aggregated,
) -> Reply {
    let (client, etag) = (request.client, document.etag());
    let mut reply = if request.headers.get(IF_NONE_MATCH) == Some(&etag) {
        bare(StatusCode::NOT_MODIFIED, ResponseBody::empty())
    } else {
        let content_type: Cow<'_, str> = format!(
            "{};g=apidiscovery.k8s.io;v={};as={AGGREGATED}",
            form.content_type(),
            version.name()
        )
        .into();
        let content_type = HeaderValue::try_from(&*content_type).expect("made of ASCII");
        let packed = match form {
            Form::Protobuf => document.protobuf(client.schemas),
            Form::Json | Form::Yaml => None,
        };
        match packed {
            Some(packed) => whole_object(client, StatusCode::OK, packed, content_type),
            None => typed_object(client, StatusCode::OK, document.json(), form, content_type),
        }
    };
    let headers = reply.headers_mut();
    headers.insert(ETAG, etag);
    // Upstream names it before the header that decides on compression.
    let coding = headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Some(coding) = coding {
        headers.append(VARY, coding);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    reply
}
