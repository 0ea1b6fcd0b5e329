//! A replica whose store does not answer yet: it waits for the store, answers health checks
//! meanwhile, and reports why it is not ready.
//!
//! The replica waits for causes that pass by themselves: etcd members that do not answer, an
//! election, a full quota. A cause that somebody has to mend (an invalid address, a certificate
//! that is not trusted, a wrong password, an etcd that is too old) ends the process with an error.

use crate::replica::access::{Access, authority};
use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Authenticator, ClientCa, Verdict};
use polyplane_batteries::kind_tables;
use polyplane_ownership::ROOT;
use polyplane_registry::{AccessCheck, Answer, Authority, Kinds, ResourceRequest};
use polyplane_server::{
    Backend, BoxFuture, CheckScope, Config, HealthCheck, LocateError, Location, PlaneApi,
    PlaneRecord, PlaneReference, Server, StopHandle, StopPolicy, Stopped,
};
use polyplane_storage::{CommitError, ReadError, Rejection};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The first pause before the store is tried again.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause. A store that is back is noticed that much later at most.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// The longest time between two lines in the log.
const LOG_EVERY_MAX: Duration = Duration::from_secs(60);
/// How long requests to the waiting server may take once the replica itself serves.
const GRACE: Duration = Duration::from_secs(1);

/// The wait for a store: when it began, and the last reason why it goes on.
pub struct StoreWait {
    since: Instant,
    state: Mutex<WaitState>,
}

#[derive(Default)]
struct WaitState {
    /// None while nothing has failed.
    reason: Option<String>,
    /// When the reason is logged next, and the pause until then. The pause doubles, so that a long
    /// wait does not fill the log.
    log_at: Option<Instant>,
    log_every: Duration,
}

impl Default for StoreWait {
    /// A wait that begins now.
    fn default() -> Self {
        Self {
            since: Instant::now(),
            state: Mutex::default(),
        }
    }
}

impl StoreWait {
    /// Repeats `attempt` until it succeeds or fails for good.
    ///
    /// # Errors
    /// The first error that does not pass by itself.
    pub async fn out<T>(&self, attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut pause = PAUSE_FIRST;
        loop {
            match attempt().await {
                Err(error) if passes(&error) => self.note(format!("{error:#}")),
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Why the replica waits; none while nothing has failed.
    fn reason(&self) -> Option<String> {
        self.state.lock().reason.clone()
    }

    fn note(&self, reason: String) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.log_at.is_none_or(|at| at <= now) {
            state.log_every = (state.log_every * 2).clamp(Duration::from_secs(1), LOG_EVERY_MAX);
            state.log_at = Some(now + state.log_every);
            tracing::warn!(
                seconds = self.since.elapsed().as_secs(),
                "waiting for the store; /livez succeeds, /readyz fails: {reason}"
            );
        }
        state.reason = Some(reason);
    }
}

/// Whether an error passes by itself, so that waiting helps.
fn passes(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let opened = cause
            .downcast_ref()
            .map(|open| matches!(open, polyplane_storage::OpenError::Unreachable { .. }));
        let read = cause
            .downcast_ref()
            .map(|read| matches!(read, ReadError::Unavailable(_)));
        let committed = cause.downcast_ref().map(|commit| {
            matches!(
                commit,
                CommitError::Unknown(_)
                    | CommitError::Rejected(Rejection::NoSpace(_) | Rejection::ReadOnly(_))
            )
        });
        opened.or(read).or(committed).unwrap_or(false)
    })
}

/// A server on the listeners of a replica that has not joined the ring. It answers health, version,
/// metrics and `/drain` to callers who may ask for them, and 503 to everything that needs the
/// store.
pub struct WaitingServer {
    stop: StopHandle,
    running: JoinHandle<Stopped>,
}

/// A [`WaitingServer`] that does not run yet.
pub struct PreparedServer(Server);

impl PreparedServer {
    /// Serves from now on.
    pub fn run(self) -> WaitingServer {
        WaitingServer {
            stop: self.0.stop_handle(),
            running: tokio::spawn(self.0.run()),
        }
    }
}

impl WaitingServer {
    /// A server on the same sockets as `listeners`, which stay as they are.
    ///
    /// # Errors
    /// If the system gives no further handle of a socket.
    pub fn prepare(
        config: &Config,
        listeners: &[TcpListener],
        wait: Arc<StoreWait>,
        access: Access,
    ) -> anyhow::Result<PreparedServer> {
        let same = listeners
            .iter()
            .map(same_socket)
            .collect::<std::io::Result<_>>()?;
        let config = Config {
            pki: Arc::clone(&config.pki),
            tls: Arc::clone(&config.tls),
            advertise: config.advertise.clone(),
            limits: config.limits.clone(),
            stop: StopPolicy {
                ready_delay: Duration::ZERO,
                grace: GRACE,
            },
            peering: None,
            // This replica holds no planes, so it is drained already.
            drain_requested: Some(Box::new(|| Box::pin(std::future::ready(Ok(()))))),
        };
        let backend = Waiting(Arc::new(Root {
            wait,
            access,
            authority: authority(),
        }));
        Ok(PreparedServer(config.build(Arc::new(backend), same)))
    }

    /// Stops the waiting server. New connections wait in the sockets' queues for the replica.
    pub async fn stop(mut self) {
        self.stop.stop();
        if let Err(error) = (&mut self.running).await {
            tracing::error!(%error, "the waiting server failed");
        }
    }
}

impl Drop for WaitingServer {
    fn drop(&mut self) {
        self.stop.abort();
    }
}

/// A second handle of a listener's socket: both take from one queue.
fn same_socket(listener: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd;
    let handle = listener.as_fd().try_clone_to_owned()?;
    TcpListener::from_std(handle.into())
}

struct Waiting(Arc<Root>);

/// The root plane as far as it is known without a store.
struct Root {
    wait: Arc<StoreWait>,
    access: Access,
    /// Decides what needs no object of the plane: administrators, health, version, metrics.
    authority: Authority,
}

impl Backend for Waiting {
    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        Verdict::now(match plane {
            PlaneReference::Root | PlaneReference::Id(ROOT) => {
                Ok(Arc::new(Handle(Arc::clone(&self.0))) as Arc<dyn PlaneRecord>)
            }
            PlaneReference::Named(_) | PlaneReference::Id(_) => Err(LocateError::Unavailable),
        })
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let root = Arc::clone(&self.0);
        let store = move || Err(root.why());
        let ring = || Err("this replica is not a member of the ring".to_owned());
        vec![
            HealthCheck {
                name: "etcd",
                scope: CheckScope::Ready,
                check: Arc::new(store),
            },
            HealthCheck {
                name: "ring",
                scope: CheckScope::Ready,
                check: Arc::new(ring),
            },
        ]
    }
}

impl Root {
    fn unavailable(&self) -> ApiError {
        let text = format!("this replica waits for its store: {}", self.why());
        ApiError::service_unavailable(text).with_retry_after(1)
    }

    fn why(&self) -> String {
        let reason = self.wait.reason();
        reason.unwrap_or_else(|| "this replica has not joined the ring yet".to_owned())
    }
}

struct Handle(Arc<Root>);

impl PlaneRecord for Handle {
    fn name(&self) -> &str {
        ROOT
    }

    fn id(&self) -> &str {
        ROOT
    }

    /// `Here`, so that the request is not forwarded: this replica knows no other one.
    fn location(&self) -> Location {
        Location::Here
    }

    fn client_ca(&self) -> &ClientCa {
        &self.0.access.client_ca
    }

    fn bearer(&self) -> &dyn Authenticator {
        &*self.0.access.root_bearer
    }

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        Verdict::now(Ok(Arc::new(Self(Arc::clone(&self.0))) as Arc<dyn PlaneApi>))
    }
}

impl PlaneApi for Handle {
    fn kinds(&self) -> Kinds {
        Kinds::new(kind_tables::root_kinds(), None)
    }

    fn access_check(
        &self,
        _: tokio::time::Instant,
    ) -> Verdict<'_, Result<AccessCheck<'_>, ApiError>> {
        let access_check = self.0.authority.fixed_access_check();
        Verdict::now(access_check.ok_or_else(|| self.0.unavailable()))
    }

    fn handle(&self, _: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(std::future::ready(Err(self.0.unavailable())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use polyplane_storage::OpenError;
    use std::cell::Cell;

    #[test]
    fn what_somebody_has_to_set_right_is_not_waited_for() {
        let reason = || "why".to_owned();
        let refused = OpenError::Refused {
            endpoint: reason(),
            reason: reason(),
        };
        for (error, waits) in [
            (
                anyhow::Error::from(OpenError::Unreachable { reason: reason() }),
                true,
            ),
            (OpenError::Untrusted { reason: reason() }.into(), false),
            (OpenError::Login { reason: reason() }.into(), false),
            (OpenError::Options { reason: reason() }.into(), false),
            (refused.into(), false),
            (ReadError::Unavailable(reason()).into(), true),
            (ReadError::Corrupt(reason()).into(), false),
            (CommitError::Unknown(reason()).into(), true),
            (
                CommitError::Rejected(Rejection::NoSpace(reason())).into(),
                true,
            ),
            (CommitError::Rejected(Rejection::Closed).into(), false),
            (anyhow::anyhow!("--store is none"), false),
        ] {
            let error = error.context("the store cannot be used");
            assert_eq!(passes(&error), waits, "{error:#}");
        }
    }

    #[tokio::test]
    async fn a_step_is_repeated_until_the_store_answers_or_never_will() {
        let wait = StoreWait::default();
        let tries = Cell::new(0);
        let away = || ReadError::Unavailable("no leader".to_owned());
        let step = async || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 => Err(away()).context("cannot read"),
                _ => Ok("here"),
            }
        };
        assert!(wait.reason().is_none());
        assert_eq!(wait.out(step).await.expect("it comes"), "here");
        let reason = wait.reason().expect("it waited");
        assert!(
            reason.contains("cannot read") && reason.contains("no leader"),
            "{reason}"
        );
        let never: anyhow::Result<()> = wait.out(async || anyhow::bail!("a wrong password")).await;
        assert_eq!(never.expect_err("it ends").to_string(), "a wrong password");
    }
}
