//! The server of a replica whose store does not answer yet: it answers health checks on the same
//! sockets, and reports why the replica is not ready. This module does not know what the replica
//! waits for.

use crate::replica::access::{Access, authority};
use crate::replica::metrics;
use crate::replica::start_checks::start_checks;
use crate::store::wait::StoreWait;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Authenticator, ChainJudge, Verdict};
use polyplane_batteries::kind_tables;
use polyplane_fairness::PlaneMeter;
use polyplane_ownership::ROOT;
use polyplane_registry::{AccessCheck, Answer, Authority, Kinds, ResourceRequest};
use polyplane_server::{
    Backend, BoxFuture, CheckScope, Config, Exposition, HealthCheck, LocateError, Location,
    PlaneApi, PlaneRecord, PlaneReference, Server, StopHandle, StopPolicy, Stopped,
};
use polyplane_storage::Health;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How long requests to the waiting server may take once the replica itself serves. More would
/// delay the start.
const GRACE: Duration = Duration::from_secs(1);

/// A server on the listeners of a replica that has not joined the ring. It answers health, version,
/// metrics and `/drain` to callers that are allowed to request them, and 503 to everything that
/// needs the store.
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
    /// Prepares a server on the same sockets as `listeners`, which stay as they are.
    ///
    /// # Errors
    /// Returns an error if the system refuses a further handle of a socket.
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
            browsers: config.browsers.clone(),
            stop: StopPolicy {
                ready_delay: Duration::ZERO,
                grace: GRACE,
            },
            peering: None,
            // This replica holds no planes, so it is drained already.
            drain_requested: Some(Box::new(|| Box::pin(std::future::ready(Ok(()))))),
            // It answers about health alone.
            audit: None,
            single: None,
            nodes: None,
            flags: Arc::clone(&config.flags),
            goaway_chance: config.goaway_chance,
            expiries: config.expiries.clone(),
        };
        let backend = WaitingBackend(Arc::new(WaitingState {
            meter: Arc::default(),
            wait,
            access,
            authority: authority(None),
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

/// Returns a second handle of a listener's socket. Both handles accept from one queue.
fn same_socket(listener: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd;
    let handle = listener.as_fd().try_clone_to_owned()?;
    TcpListener::from_std(handle.into())
}

struct WaitingBackend(Arc<WaitingState>);

/// The root plane, as far as it is known without a store.
struct WaitingState {
    meter: Arc<PlaneMeter>,
    wait: Arc<StoreWait>,
    access: Access,
    /// Decides on requests that need no object of the plane: administrators, health, version,
    /// metrics.
    authority: Authority,
}

impl Backend for WaitingBackend {
    fn schemas(&self) -> Arc<Schemas> {
        kind_tables::schemas()
    }

    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        Verdict::now(match plane {
            PlaneReference::Root | PlaneReference::Id(ROOT) => {
                Ok(Arc::new(WaitingRoot(Arc::clone(&self.0))) as Arc<dyn PlaneRecord>)
            }
            PlaneReference::Named(_) | PlaneReference::Id(_) => {
                Err(LocateError::NotJoined(self.0.why_unavailable()))
            }
        })
    }

    fn knows_planes(&self) -> bool {
        false
    }

    /// For every path: which of them exist is known once the replica itself serves.
    fn report<'a>(&'a self, _: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        Some(Box::pin(std::future::ready(Err(self.0.refusal()))))
    }

    fn command<'a>(&'a self, path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        self.report(path)
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let (waiting, joining) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let store = move || {
            let health = waiting.wait.store().map(|store| store.health());
            match (health, waiting.wait.join_problem()) {
                (Some(Health::Failed { reason }), _) => Err(reason),
                // It waits for other replicas, or until its store takes writes, so the store has answered.
                (_, Some(_)) => Ok(()),
                (_, None) => Err(waiting.reason()),
            }
        };
        let ring = move || {
            let problem = joining.wait.join_problem();
            Err(problem.unwrap_or_else(|| "this replica is not a member of the ring".to_owned()))
        };
        let store = Arc::new(store);
        let readiness = Arc::clone(&store);
        let mut checks = vec![
            HealthCheck {
                name: "etcd",
                scope: CheckScope::Ready,
                check: store,
            },
            HealthCheck {
                name: "etcd-readiness",
                scope: CheckScope::ReadyOnly,
                check: readiness,
            },
            HealthCheck {
                name: "ring",
                scope: CheckScope::Ready,
                check: Arc::new(ring),
            },
        ];
        checks.extend(start_checks(|| false));
        checks
    }

    fn expose_metrics(&self, out: &mut Exposition) {
        if let Some(store) = self.0.wait.store() {
            metrics::store(&**store, out);
        }
    }
}

impl WaitingState {
    /// Returns the answer to a request that needs the store or the ring.
    fn refusal(&self) -> ApiError {
        ApiError::service_unavailable(self.why_unavailable()).with_retry_after(1)
    }

    fn why_unavailable(&self) -> String {
        match self.wait.join_problem() {
            Some(why) => why,
            None => format!("this replica waits for its store: {}", self.reason()),
        }
    }

    fn reason(&self) -> String {
        let reason = self.wait.reason();
        reason.unwrap_or_else(|| "this replica has not joined the ring yet".to_owned())
    }
}

struct WaitingRoot(Arc<WaitingState>);

impl PlaneRecord for WaitingRoot {
    fn name(&self) -> &str {
        ROOT
    }

    fn id(&self) -> &str {
        ROOT
    }

    fn meter(&self) -> &Arc<PlaneMeter> {
        &self.0.meter
    }

    /// `Here`, so that the server does not forward the request: this replica knows no other one.
    fn location(&self) -> Location {
        Location::Here
    }

    fn clients(&self) -> &dyn ChainJudge {
        &self.0.access.root().clients
    }

    fn bearer(&self) -> &dyn Authenticator {
        self.0.access.root_bearer()
    }

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        Verdict::now(Ok(Arc::new(Self(Arc::clone(&self.0))) as Arc<dyn PlaneApi>))
    }
}

impl PlaneApi for WaitingRoot {
    fn kinds(&self) -> Kinds {
        Kinds::new(kind_tables::root_kinds(), None)
    }

    fn access_check(&self, _: tokio::time::Instant) -> AccessCheck<'_> {
        self.0.authority.access_check_without_plane()
    }

    fn handle(&self, _: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(std::future::ready(Err(self.0.refusal())))
    }
}
