//! The stage that connects a client to a node or pod.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_registry::{ConnectMode, ConnectTarget, TargetServer, Verb, no_address};
use rustls::pki_types::ServerName;

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Refusal, Reply, bare};
use crate::backend::PlaneRecord;
use crate::connection::requests::move_to_own_task;
use crate::nodes::dial::{DialError, dial};
use crate::nodes::exchange::{Asking, ExchangeError, exchange};
use crate::nodes::seats::Nodes;
use crate::nodes::trust::{KubeletIdentity, unverified};
use crate::nodes::tunnel::{Held, NodeBody, READ_LIMITS, Tunnel};
use crate::nodes::upgrade::{TunnelOfReply, UpgradeOffer};
use crate::peer::channel::stream::PeerStream;
use crate::peer::headers::CONNECT_TO;
use crate::pipeline::Pipeline;
use crate::request::body::RequestBody;
use crate::request::caller::Origin;
use crate::request::request_info::{CONNECTED, RequestInfo};
use crate::watch::open_watches::OpenWatchEntry;

/// Bytes of a failed answer that its client gets in a message, as upstream.
const FAILURE_BYTES_MAX: usize = 50_000;
/// Longest target that another replica sends, in bytes. It has at most the query of a request.
const TARGET_BYTES_MAX: usize = 1024 * 1024;
/// How long the text of a failed answer may take. Without the limit, a node that sends slowly would keep
/// the request until its deadline.
const FAILURE_TIME_MAX: Duration = Duration::from_secs(5);

impl Pipeline<'_> {
    /// Returns whether the request is one that connects to a node or pod.
    pub(crate) fn may_connect(&self) -> bool {
        match self.info {
            RequestInfo::Resource(info) => {
                let is_log = info.subresource == "log" && info.verb == Some(Verb::Get);
                info.prefix == "api" && (is_log || CONNECTED.contains(&info.subresource))
            }
            RequestInfo::Path(_) => false,
        }
    }

    /// Answers at the owner: connects the client, or sends the target to the replica that does.
    pub(crate) async fn connect_from_owner(
        &mut self,
        record: &dyn PlaneRecord,
        target: ConnectTarget,
    ) -> Result<Reply, Refusal> {
        let Origin::Peer { connects: true, .. } = self.caller.origin else {
            return self.connect(record, target).await;
        };
        let target = serde_json::to_vec(&target);
        let target = target.map_err(|error| ApiError::internal(error.to_string()))?;
        let mut reply = bare(StatusCode::OK, ResponseBody::whole(target));
        reply
            .headers_mut()
            .insert(CONNECT_TO, HeaderValue::from_static("1"));
        Ok(reply)
    }

    /// Connects the client to the target that the owner has sent.
    pub(crate) async fn connect_for_owner(
        &mut self,
        record: &dyn PlaneRecord,
        answer: PeerStream,
    ) -> Result<Reply, Refusal> {
        let unusable = |_| ApiError::internal("the owner of the control plane sent no target");
        let target = Limited::new(answer, TARGET_BYTES_MAX).collect().await;
        let target = target.map_err(unusable)?.to_bytes();
        let target = serde_json::from_slice(&target);
        let target = target.map_err(|_| unusable("".into()))?;
        self.connect(record, target).await
    }

    async fn connect(
        &mut self,
        record: &dyn PlaneRecord,
        target: ConnectTarget,
    ) -> Result<Reply, Refusal> {
        let offer = match target.mode {
            ConnectMode::Log => None,
            ConnectMode::Stream | ConnectMode::Proxy => self.parts.extensions.get::<UpgradeOffer>(),
        };
        if target.mode == ConnectMode::Stream && offer.is_none() {
            return Err(ApiError::bad_request("Upgrade request required").into());
        }
        let asking = Asking {
            parts: self.parts,
            path: self.path,
            remote: self.caller.connection.remote(),
            offer,
        };
        if let Some(redirect) = to_the_root(&asking, &target) {
            return Ok(redirect);
        }
        let Some(nodes) = &self.state.nodes else {
            let name = &target.name;
            let message = format!("no node of this control plane can be reached for {name:?}");
            return Err(ApiError::service_unavailable(message).into());
        };
        let seat = nodes.take(record.id()).ok_or_else(|| {
            let message = "too many connections to nodes and pods, please try again later";
            ApiError::too_many_requests(message, 1)
        })?;
        let (connection, headers) = (&self.caller.connection, &self.parts.headers);
        let entry = OpenWatchEntry::open(self.state, record, connection, headers);
        let place = Place::of(nodes, &target)?;
        let body = std::mem::replace(self.body, RequestBody::empty());
        let answered = reach(nodes, record, &asking, &target, &place, body).await;
        let (response, driver) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                return Err(self.failed(nodes, &target, &place, offer.is_some(), &error));
            }
        };
        nodes.opened.fetch_add(1, Ordering::Relaxed);
        let held = Held {
            _seat: seat,
            entry,
            _driver: driver,
        };
        match (target.mode, offer) {
            (ConnectMode::Log, _) => self.log(response, held).await,
            (_, Some(_)) => self.upgraded(response, held, &asking, &place).await,
            (_, None) => Ok(self.proxied(response, held, &asking, &place)),
        }
    }

    /// Returns the refusal for a server that gave no answer, with upstream's texts.
    fn failed(
        &self,
        nodes: &Nodes,
        target: &ConnectTarget,
        place: &Place,
        is_upgrade: bool,
        error: &ExchangeError,
    ) -> Refusal {
        let counter = match error {
            ExchangeError::Dial(DialError::NotAllowed) => &nodes.refused,
            _ => &nodes.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let audit_id = self.audit_id.to_str().unwrap_or_default();
        tracing::debug!(%error, authority = place.authority(), audit_id, "no connection to a node or pod");
        match (error, target.mode) {
            (ExchangeError::Dial(error), _) if error.is_hidden() => {
                ApiError::bad_request("address not allowed")
            }
            (_, ConnectMode::Log) => {
                let path = target.path.as_deref().unwrap_or_default();
                let query = target.query.as_deref().unwrap_or_default();
                let mark = if query.is_empty() { "" } else { "?" };
                let authority = place.authority();
                let message = format!("Get \"https://{authority}{path}{mark}{query}\": {error}");
                ApiError::new(Reason::Unknown, message)
            }
            (_, ConnectMode::Proxy) if !is_upgrade => {
                let message = format!("error trying to reach service: {error}");
                ApiError::service_unavailable(message)
            }
            (_, ConnectMode::Stream | ConnectMode::Proxy) => {
                ApiError::new(Reason::Unknown, format!("error dialing backend: {error}"))
            }
        }
        .into()
    }

    async fn log(&self, response: Response<Incoming>, held: Held) -> Result<Reply, Refusal> {
        let status = response.status().as_u16();
        if !(200..=206).contains(&status) {
            let text = failure_text(response).await;
            let name = match self.info {
                RequestInfo::Resource(info) => info.name,
                RequestInfo::Path(_) => "",
            };
            return Err(match status {
                500 => ApiError::internal(text),
                400 => ApiError::bad_request(text),
                _ => ApiError::generic(status, "", Qualified::new("", "pods/log"), name, &text),
            }
            .into());
        }
        let mut reply = self.streamed(response, held);
        *reply.status_mut() = StatusCode::OK;
        let text = HeaderValue::from_static("text/plain");
        reply.headers_mut().insert(CONTENT_TYPE, text);
        Ok(reply)
    }

    async fn upgraded(
        &self,
        response: Response<Incoming>,
        held: Held,
        asking: &Asking<'_>,
        place: &Place,
    ) -> Result<Reply, Refusal> {
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            if status.is_client_error() || status.is_server_error() {
                return Ok(self.proxied(response, held, asking, place));
            }
            let status = status.as_u16();
            let message = format!("invalid upgrade response: status code {status}");
            return Err(ApiError::new(Reason::Unknown, message).into());
        }
        let mut headers = response.headers().clone();
        crate::peer::headers::strip(&mut headers);
        let server = hyper::upgrade::on(response).await.map_err(|error| {
            ApiError::new(Reason::Unknown, format!("error dialing backend: {error}"))
        })?;
        let mut reply = bare(StatusCode::SWITCHING_PROTOCOLS, ResponseBody::empty());
        *reply.headers_mut() = headers;
        let tunnel = TunnelOfReply::new(Tunnel { server, held });
        reply.extensions_mut().insert(tunnel);
        Ok(reply)
    }

    fn proxied(
        &self,
        response: Response<Incoming>,
        held: Held,
        asking: &Asking<'_>,
        place: &Place,
    ) -> Reply {
        let (status, headers) = (response.status(), response.headers());
        let headers = asking.answered(headers, &place.authority());
        let mut reply = self.streamed(response, held);
        *reply.status_mut() = status;
        *reply.headers_mut() = headers;
        reply
    }

    fn streamed(&self, response: Response<Incoming>, held: Held) -> Reply {
        let body = NodeBody::new(response.into_body(), held);
        let abandoned = &self.state.abandoned_answers;
        bare(
            StatusCode::OK,
            ResponseBody::guarded(body, READ_LIMITS, abandoned),
        )
    }
}

/// Returns the redirect for a path that ends with `proxy`: relative links of a page would lead elsewhere.
fn to_the_root(asking: &Asking<'_>, target: &ConnectTarget) -> Option<Reply> {
    let reads = matches!(asking.parts.method, Method::GET | Method::HEAD);
    let is_bare = target.path.is_none() && asking.path_behind_proxy().is_empty();
    if asking.offer.is_some() || !reads || !is_bare {
        return None;
    }
    let query = asking.parts.uri.query();
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let location = format!("{}/{query}", asking.parts.uri.path());
    let location = HeaderValue::try_from(location).ok()?;
    let mut reply = bare(StatusCode::MOVED_PERMANENTLY, ResponseBody::empty());
    reply.headers_mut().insert(LOCATION, location);
    Some(reply)
}

/// The server of a target, with the preferred one of its addresses.
struct Place {
    host: String,
    port: u16,
    /// `None` without TLS.
    tls: Option<Trust>,
}

/// The server that TLS has to prove.
#[derive(Clone, Copy)]
enum Trust {
    Kubelet { is_verified: bool },
    Nobody,
}

impl Place {
    fn of(nodes: &Nodes, target: &ConnectTarget) -> Result<Self, ApiError> {
        let preferred = |addresses: &[_]| {
            let found = nodes.access.preferred(addresses);
            found
                .map(str::to_owned)
                .ok_or_else(|| no_address(addresses))
        };
        let tls_to_anybody = |is_tls: bool| is_tls.then_some(Trust::Nobody);
        Ok(match &target.server {
            TargetServer::Kubelet {
                addresses,
                port,
                is_verified,
            } => Self {
                host: preferred(addresses)?,
                port: *port,
                tls: Some(Trust::Kubelet {
                    is_verified: *is_verified,
                }),
            },
            TargetServer::NodePort {
                addresses,
                port,
                is_tls,
            } => Self {
                host: preferred(addresses)?,
                port: *port,
                tls: tls_to_anybody(*is_tls),
            },
            TargetServer::Pod {
                address,
                port,
                is_tls,
            } => Self {
                host: address.to_string(),
                port: port.unwrap_or(if *is_tls { 443 } else { 80 }),
                tls: tls_to_anybody(*is_tls),
            },
        })
    }

    /// Returns host and port as in a URL.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

type Answered = (Response<Incoming>, tokio_util::task::AbortOnDropHandle<()>);

/// Connects to the server of a target and sends the request.
async fn reach(
    nodes: &Arc<Nodes>,
    record: &dyn PlaneRecord,
    asking: &Asking<'_>,
    target: &ConnectTarget,
    place: &Place,
    body: RequestBody,
) -> Result<Answered, ExchangeError> {
    // A handshake with the target is a part of the work.
    move_to_own_task().await;
    let tls = match place.tls {
        None => None,
        Some(trust) => {
            let config = match (trust, &nodes.access.identity) {
                (Trust::Nobody, _) => Ok(unverified()),
                (Trust::Kubelet { is_verified }, KubeletIdentity::Shared(tls)) => {
                    tls.config(is_verified)
                }
                (Trust::Kubelet { is_verified }, KubeletIdentity::OfPlane) => {
                    record.kubelet_tls().and_then(|tls| tls.config(is_verified))
                }
            };
            let name = ServerName::try_from(place.host.clone());
            let name = name.map_err(|_| DialError::Unknown(place.host.clone()))?;
            Some((config.map_err(DialError::from)?, name))
        }
    };
    let request = asking.request(target, &place.authority(), body)?;
    let stream = dial(&place.host, place.port, &nodes.access.reach).await?;
    exchange(stream, tls, request).await
}

/// Returns the beginning of the text of a failed answer.
async fn failure_text(response: Response<Incoming>) -> String {
    let mut text = Vec::new();
    let mut body = response.into_body();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let room = FAILURE_BYTES_MAX - text.len();
            text.extend_from_slice(&data[..data.len().min(room)]);
            if text.len() == FAILURE_BYTES_MAX {
                return;
            }
        }
    };
    // What has arrived by then is shown.
    let _in_time = tokio::time::timeout(FAILURE_TIME_MAX, read).await;
    String::from_utf8_lossy(&text).into_owned()
}
