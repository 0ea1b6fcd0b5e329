//! One server that is called.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::address::Reach;
use crate::caller::PlaneCaller;
use crate::circuit::Circuit;
use crate::resolver::{AddressRefused, GuardedResolver};
use crate::trust::Trust;

/// Calls to one target in flight.
const OF_TARGET_MAX: usize = 32;
/// Calls to one target that wait for a place. A call beyond them would most likely wait in vain.
const WAITING_MAX: usize = 128;
/// How long a connection may take. Less than the deadlines, so that another address is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Unused connections that are kept for one target.
const IDLE_MAX: usize = 8;

type HttpClient = Client<HttpsConnector<HttpConnector<GuardedResolver>>, Full<Bytes>>;

/// A server, with its connections.
pub struct Target {
    plane: Arc<PlaneCaller>,
    url: Uri,
    reach: Reach,
    client: HttpClient,
    circuit: Circuit,
    /// In flight and waiting.
    entrance: Semaphore,
    seats: Semaphore,
}

/// Whether a call waits for the circuit of its target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Circuits {
    /// No call is made while it is open.
    Obeyed,
    /// The call is made.
    Ignored,
}

/// A request to a target.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query, if they are not those of the target's URL.
    pub path: Option<PathAndQuery>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// How long the call may take, waiting for a place included.
    pub timeout: Duration,
    /// Bytes of the longest answer.
    pub answer_bytes_max: usize,
}

/// The answer to a call. Redirects are answers like others.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// The URL cannot be a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text is no URL with a host.
    #[error("{0:?} is no URL with a scheme and a host")]
    Url(String),
    /// The scheme is neither https nor, for the operator's targets, http.
    #[error("{0:?} does not begin with https://")]
    Scheme(String),
    /// The URL has a user or password, which would be in logs.
    #[error("the URL of host {0:?} has a user or a password")]
    User(String),
}

/// The reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The target has failed too often; it is tried again after this time.
    #[error("the last calls failed, so the next is made in {} ms", .0.as_millis())]
    Open(Duration),
    /// Too many calls are under way.
    #[error("too many calls are under way")]
    Busy,
    /// The target has no address that may be called.
    #[error("no address of {0:?} is one that the operator allows")]
    Address(String),
    /// There was no answer in time.
    #[error("there was no answer in time")]
    Deadline,
    /// The answer is longer than this number of bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// There is no connection, no trust, or no answer. The text has the whole chain of causes.
    #[error("{0}")]
    Transport(String),
}

impl Target {
    /// Creates a target. Nothing is connected before the first call.
    ///
    /// # Errors
    /// Returns an error if `url` is none that may be called.
    pub fn new(plane: &Arc<PlaneCaller>, url: &str, trust: &Trust) -> Result<Self, TargetError> {
        let wrong = || TargetError::Url(url.to_owned());
        let parsed: Uri = url.parse().map_err(|_| wrong())?;
        let host = parsed.host().ok_or_else(wrong)?;
        if parsed
            .authority()
            .is_some_and(|all| all.as_str().contains('@'))
        {
            return Err(TargetError::User(host.to_owned()));
        }
        let is_plain = parsed.scheme() == Some(&Scheme::HTTP);
        let may_be_plain = matches!(plane.reach, Reach::Anywhere);
        if parsed.scheme() != Some(&Scheme::HTTPS) && !(is_plain && may_be_plain) {
            return Err(TargetError::Scheme(url.to_owned()));
        }
        let reach = plane.reach_of(host);
        Ok(Self {
            client: client(&reach, trust),
            reach,
            plane: Arc::clone(plane),
            url: parsed,
            circuit: Circuit::default(),
            entrance: Semaphore::new(OF_TARGET_MAX + WAITING_MAX),
            seats: Semaphore::new(OF_TARGET_MAX),
        })
    }

    /// Returns the URL.
    #[must_use]
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Makes a call.
    ///
    /// # Errors
    /// Returns the reason why there is no answer. The call may have arrived, unless the error is
    /// [`CallError::Open`], [`CallError::Busy`] or [`CallError::Address`].
    ///
    /// # Cancel safety
    /// A call that is dropped may have arrived; its place is free again.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let outcome = self.guarded(call, Circuits::Obeyed).await;
        self.plane.caller.count(outcome.as_ref().err());
        outcome
    }

    /// Makes a call even if the target has failed too often. Only for a last call, whose body is lost otherwise.
    ///
    /// # Errors
    /// As [`Self::call`], but never [`CallError::Open`].
    ///
    /// # Cancel safety
    /// As [`Self::call`].
    pub async fn call_despite_circuit(&self, call: Call) -> Result<Answer, CallError> {
        let outcome = self.guarded(call, Circuits::Ignored).await;
        self.plane.caller.count(outcome.as_ref().err());
        outcome
    }

    async fn guarded(&self, call: Call, circuits: Circuits) -> Result<Answer, CallError> {
        self.check_literal()?;
        let attempt = match self.circuit.begin(Instant::now()) {
            Ok(attempt) => Some(attempt),
            Err(_) if circuits == Circuits::Ignored => None,
            Err(wait) => return Err(CallError::Open(wait)),
        };
        let entered = self.entrance.try_acquire().map_err(|_| CallError::Busy)?;
        let deadline = tokio::time::Instant::now() + call.timeout;
        let seats = tokio::time::timeout_at(deadline, self.seats());
        let seats = seats.await.map_err(|_| CallError::Busy)?;
        let sent = tokio::time::timeout_at(deadline, self.send(call)).await;
        drop((seats, entered));
        let outcome = sent.unwrap_or(Err(CallError::Deadline));
        let is_sound = match &outcome {
            Ok(answer) => !is_gateway_failure(answer.status),
            // The target answered; the answer is of no use to us alone.
            Err(CallError::TooLong(_)) => true,
            // Nothing was tried.
            Err(CallError::Address(_) | CallError::Open(_) | CallError::Busy) => return outcome,
            Err(CallError::Deadline | CallError::Transport(_)) => false,
        };
        match (attempt, is_sound) {
            (None, _) => {}
            (Some(attempt), true) => attempt.succeeded(),
            (Some(attempt), false) => attempt.failed(Instant::now()),
        }
        outcome
    }

    /// Refuses a URL with an address in it that may not be called: nothing looks it up.
    fn check_literal(&self) -> Result<(), CallError> {
        let host = self.url.host().unwrap_or("");
        let address = host.trim_start_matches('[').trim_end_matches(']');
        match address.parse::<IpAddr>() {
            Ok(address) if !self.reach.allows(address) => Err(CallError::Address(host.to_owned())),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn seats(&self) -> [SemaphorePermit<'_>; 3] {
        let of_target = self.seats.acquire().await;
        let of_plane = self.plane.seats.acquire().await;
        let of_process = self.plane.caller.seats.acquire().await;
        [of_target, of_plane, of_process].map(|seat| seat.expect("seats are never closed"))
    }

    async fn send(&self, call: Call) -> Result<Answer, CallError> {
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = call.method;
        *request.headers_mut() = call.headers;
        *request.uri_mut() = match call.path {
            None => self.url.clone(),
            Some(path) => {
                let mut parts = self.url.clone().into_parts();
                parts.path_and_query = Some(path);
                Uri::from_parts(parts).map_err(|error| CallError::Transport(error.to_string()))?
            }
        };
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| self.transport_error(&error))?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, call.answer_bytes_max).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => CallError::TooLong(call.answer_bytes_max),
            false => CallError::Transport(chain(&*error)),
        })?;
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes(),
        })
    }

    fn transport_error(&self, error: &(dyn Error + 'static)) -> CallError {
        match causes(error).any(is_address_refused) {
            true => CallError::Address(self.url.host().unwrap_or("").to_owned()),
            false => CallError::Transport(chain(error)),
        }
    }
}

fn client(reach: &Reach, trust: &Trust) -> HttpClient {
    let mut connector = HttpConnector::new_with_resolver(GuardedResolver(reach.clone()));
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    let builder = HttpsConnectorBuilder::new()
        .with_tls_config((*trust.config).clone())
        .https_or_http();
    let builder = match &trust.server_name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
        None => builder,
    };
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_MAX)
        .build(builder.enable_all_versions().wrap_connector(connector))
}

/// Returns whether an answer says that the server behind it did not answer.
fn is_gateway_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn is_address_refused(error: &(dyn Error + 'static)) -> bool {
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    error.is::<AddressRefused>() || inner.is_some_and(|inner| inner.is::<AddressRefused>())
}

/// Returns the texts of an error and its causes, each once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}
