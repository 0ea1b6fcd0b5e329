//! The server's backend: finds planes by name, wakes them for authenticated requests, and passes
//! requests to the registry. This module does not know HTTP.

mod bootstrap_tokens;
mod kubelets;

use crate::replica::access::Access;
use crate::replica::access_change::AccessChange;
use crate::replica::encryption::Encryption;
use crate::replica::metrics;
use crate::replica::plane_directory::{LocatedPlane, LookupError, NameOrId, PlaneDirectory};
use crate::replica::ring_report;
use crate::replica::start_checks::start_checks;
use crate::replica::unproven_wakes::UnprovenWakes;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::{
    Authenticator, BootstrapToken, ChainJudge, ClientChain, Credentials, UserInfo, Verdict,
};
use polyplane_controllers::Reconcilers;
use polyplane_fairness::{PlaneMeter, VirtualTime};
use polyplane_ownership::{self as ownership, Member, Unavailable, ViewNumber, WakeError};
use polyplane_plane::{Key, Memory, OpenError, Prefix, Reservation, Share, Snapshot};
use polyplane_registry::environment::{Environment as _, System};
use polyplane_registry::{AccessCheck, Answer, Kinds, Registry, ResourceRequest, Tenant};
use polyplane_server::{
    Backend, BoxFuture, CheckScope, Exposition, HealthCheck, KubeletTls, KubeletTlsError,
    LocateError, Location, NotJudged, Peer, PlaneApi, PlaneRecord, PlaneReference,
};
use polyplane_storage::Health;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// How long a forwarded request waits for the view that its sender has seen. After that the replica
/// uses its older view; at worst the request is forwarded once more.
const VIEW_PATIENCE: Duration = Duration::from_millis(200);

/// What a client reads if the store's answers come too late for the read lease. The client may be a
/// stranger, so the numbers and the command that helps are in the log and in `/readyz/read-lease`.
const STORE_TOO_LATE: &str = "the server's store answers too late for the read lease, so no control \
                              plane is available; /readyz/read-lease says what to do";

/// What a client reads if the store does not answer. The reason names the store's addresses, so it is in the
/// log and in `/readyz/etcd` alone.
const STORE_AWAY: &str = "the server's store does not answer, so no control plane is available; \
                          /readyz/etcd says why";

/// What a client reads if nothing has come from the store for a while, and it is not known why.
const STORE_SILENT: &str = "the server has heard nothing from its store for longer than the read lease lasts, so no \
                            control plane is available at the moment";

/// What a client reads if this replica has lost its place in the ring and cannot come back. The reason is in
/// the log and in `/readyz/ring`, for those who can do something about it.
const STORE_FULL: &str = "the server's store takes no writes, so the server cannot join its ring, and no control \
                          plane is available here; /readyz/ring says why";

/// The planes of one replica, as the server sees them.
pub struct ReplicaBackend {
    shared: Arc<BackendState>,
}

/// The state that all planes of the replica share.
pub struct BackendState {
    /// The directory of planes by name and id.
    pub directory: Arc<PlaneDirectory>,
    /// The registry, which carries out requests.
    pub registry: Arc<Registry>,
    /// The reconcilers, which are notified when a plane wakes.
    pub reconcilers: Arc<Reconcilers>,
    access: Access,
    encryption: Arc<Encryption>,
    unproven_wakes: UnprovenWakes,
}

impl ReplicaBackend {
    /// Creates the backend from its parts.
    pub fn new(
        directory: Arc<PlaneDirectory>,
        registry: Arc<Registry>,
        reconcilers: Arc<Reconcilers>,
        access: Access,
        encryption: Arc<Encryption>,
    ) -> Self {
        let shared = BackendState {
            directory,
            registry,
            reconcilers,
            access,
            encryption,
            unproven_wakes: UnprovenWakes::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the state that all planes share.
    pub fn shared(&self) -> &Arc<BackendState> {
        &self.shared
    }
}

impl Backend for ReplicaBackend {
    fn schemas(&self) -> Arc<Schemas> {
        polyplane_batteries::kind_tables::schemas()
    }

    fn virtual_time(&self) -> Arc<VirtualTime> {
        self.shared.reconcilers.virtual_time()
    }

    fn memory(&self) -> Arc<Memory> {
        Arc::clone(self.shared.directory.planes.memory())
    }

    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        let shared = Arc::clone(&self.shared);
        let asked = match plane {
            PlaneReference::Root | PlaneReference::Id("root") => {
                let root = shared.directory.root().cloned();
                let root = root.ok_or_else(|| shared.explained(LocateError::Unavailable));
                return Verdict::now(record(shared, root));
            }
            PlaneReference::Named(name) => NameOrId::Name(name.into()),
            PlaneReference::Id(id) => NameOrId::Id(id.into()),
        };
        match shared.directory.find(&asked) {
            Err(LookupError::NotFound) => Verdict::later(async move {
                let found = shared.directory.seek(&asked).await;
                let found = found.map_err(|missing| shared.explained(missing.into()));
                record(shared, found)
            }),
            found => {
                let found = found.map_err(|missing| shared.explained(missing.into()));
                Verdict::now(record(shared, found))
            }
        }
    }

    fn is_fresh(&self) -> Verdict<'_, bool> {
        let directory = &self.shared.directory;
        match directory.freshness.holds() {
            true => Verdict::now(true),
            false => Verdict::later(directory.await_freshness()),
        }
    }

    fn may_answer(&self) -> bool {
        self.shared.directory.planes.ring().holds_read_lease()
    }

    fn stale_reason(&self) -> Option<&'static str> {
        let directory = &self.shared.directory;
        let ring = directory.planes.ring();
        let is_late = || ring.read_lease_problem().is_some();
        let is_outside = || ring.holder().is_none() && self.shared.is_store_read_only();
        match (self.shared.is_store_away(), directory.freshness.holds()) {
            (true, _) => Some(STORE_AWAY),
            (false, _) if is_outside() => Some(STORE_FULL),
            (false, _) if is_late() => Some(STORE_TOO_LATE),
            // Nothing has come from the store for longer than a read lease.
            (false, false) => Some(STORE_SILENT),
            (false, true) => None,
        }
    }

    fn view(&self) -> u64 {
        self.shared.directory.planes.ring().view().number().get()
    }

    fn reach_view(&self, view: u64) -> BoxFuture<'_, ()> {
        let ring = Arc::clone(self.shared.directory.planes.ring());
        Box::pin(async move {
            ring.reach(ViewNumber::new(view), VIEW_PATIENCE).await;
        })
    }

    fn answers(&self, peer: &Peer) -> bool {
        !self.shared.directory.planes.ring().is_silent(&peer.replica)
    }

    fn report<'a>(&'a self, path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        ring_report::of(&self.shared.directory, path)
    }

    fn command<'a>(&'a self, path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        ring_report::command(&self.shared.directory, path)
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let store = Arc::clone(self.shared.directory.planes.store());
        let ring = Arc::clone(self.shared.directory.planes.ring());
        let lease = Arc::clone(&ring);
        let rows = Arc::clone(&self.shared.directory.rows);
        let secret = Arc::clone(self.shared.access.secret());
        let encryption = Arc::clone(&self.shared.encryption);
        let directory = Arc::clone(&self.shared.directory);
        let of_store = |name, scope| {
            let store = Arc::clone(&store);
            HealthCheck {
                name,
                scope,
                // Of reads alone, as upstream: without an endpoint nobody could read, or make room. That
                // the store takes no writes is in the log, in `polyplane_store_writable` and in the
                // answers to writes.
                check: Arc::new(move || match store.health() {
                    Health::Ok | Health::ReadOnly { .. } => Ok(()),
                    Health::Failed { reason } => Err(reason),
                }),
            }
        };
        let mut checks = vec![
            of_store("etcd", CheckScope::Ready),
            of_store("etcd-readiness", CheckScope::ReadyOnly),
            HealthCheck {
                name: "ring",
                scope: CheckScope::Ready,
                check: Arc::new(move || match (ring.join_problem(), ring.holder()) {
                    (Some(why), _) => Err(why),
                    (None, Some(_)) => Ok(()),
                    (None, None) => Err("this replica is not a member of the ring".to_owned()),
                }),
            },
            HealthCheck {
                name: "read-lease",
                scope: CheckScope::Ready,
                check: Arc::new(move || lease.read_lease_failure().map_or(Ok(()), Err)),
            },
            HealthCheck {
                name: "root-secret",
                scope: CheckScope::Ready,
                check: Arc::new(move || secret.check()),
            },
            HealthCheck {
                name: "encryption",
                scope: CheckScope::Ready,
                check: Arc::new(move || encryption.check()),
            },
            HealthCheck {
                name: "directory",
                scope: CheckScope::Ready,
                check: Arc::new(move || match rows.failure() {
                    None => Ok(()),
                    Some(why) => Err(why),
                }),
            },
        ];
        // The root plane tells which planes there are, and is known for good once it is known.
        checks.extend(start_checks(move || directory.root().is_some()));
        checks
    }

    fn expose_metrics(&self, out: &mut Exposition) {
        metrics::expose(&self.shared.directory, out);
        metrics::outbound(self.shared.access.outbound().metrics(), out);
        let ring = self.shared.directory.planes.ring();
        metrics::delegated(&self.shared.access, ring.options().id.as_str(), out);
        out.families(&self.shared.registry.metrics());
    }
}

impl From<LookupError> for LocateError {
    fn from(missing: LookupError) -> Self {
        match missing {
            LookupError::NotFound => Self::NotFound,
            LookupError::Deleting => Self::Deleting,
            LookupError::Unproven => Self::Unavailable,
        }
    }
}

/// A plane that a request has named.
struct BackendRecord {
    shared: Arc<BackendState>,
    located: Arc<LocatedPlane>,
}

fn record(
    shared: Arc<BackendState>,
    found: Result<Arc<LocatedPlane>, LocateError>,
) -> Result<Arc<dyn PlaneRecord>, LocateError> {
    found.map(|located| Arc::new(BackendRecord { shared, located }) as Arc<dyn PlaneRecord>)
}

/// Converts a member of the ring to the server's type for replicas.
fn peer(member: &Member) -> Peer {
    Peer {
        replica: member.id.as_str().to_owned(),
        address: member.address.to_string(),
    }
}

impl PlaneRecord for BackendRecord {
    fn id(&self) -> &str {
        &self.located.birth.id
    }

    fn name(&self) -> &str {
        &self.located.name
    }

    fn meter(&self) -> &Arc<PlaneMeter> {
        &self.located.meter
    }

    fn clients(&self) -> &dyn ChainJudge {
        match self.id() {
            ownership::ROOT => &self.shared.access.root().clients,
            _ => self.located.access(&self.shared.access),
        }
    }

    fn bearer(&self) -> &dyn Authenticator {
        match self.id() {
            ownership::ROOT => self.shared.access.root_bearer(),
            _ => self.located.access(&self.shared.access),
        }
    }

    fn takes_bootstrap_tokens(&self) -> bool {
        match self.id() {
            ownership::ROOT => self.shared.access.root_takes_bootstrap_tokens(),
            // A suspended plane proves nobody whom only an awake one can prove.
            _ => self.located.takes_bootstrap_tokens && !self.located.suspended,
        }
    }

    fn bootstrapper<'a>(
        &'a self,
        token: &'a BootstrapToken,
        credentials: &'a Credentials<'a>,
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Option<Arc<UserInfo>>, NotJudged>> {
        let (shared, located) = (&self.shared, &*self.located);
        Box::pin(shared.user_of_bootstrap_token(located, token, credentials, deadline))
    }

    fn token_reviewer(&self) -> Option<Arc<dyn Authenticator>> {
        match self.id() {
            ownership::ROOT => self.shared.access.root_reviewer(),
            _ => self.located.access(&self.shared.access).issuers().cloned(),
        }
    }

    fn token_issuer(&self) -> Option<Arc<TokenIssuer>> {
        self.shared.access.token_issuer(self.id())
    }

    fn renew(&self, chain: &ClientChain, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        if self.id() == ownership::ROOT {
            let why = "the users of the root plane have no certificates of its own";
            return Err(ApiError::bad_request(why));
        }
        let now = System.now();
        let access = &self.shared.access;
        self.located.renew(access, chain, body, now)
    }

    fn kubelet_tls(&self) -> Result<KubeletTls, KubeletTlsError> {
        kubelets::kubelet_tls(&self.shared.access, &self.shared.directory, self.id())
    }

    fn is_suspended(&self) -> bool {
        self.located.suspended
    }

    fn is_current(&self) -> bool {
        self.located.is_current(&self.shared.directory)
    }

    fn location(&self) -> Location {
        match self.shared.directory.planes.location(&self.located.birth) {
            ownership::PlaneLocation::Here => Location::Here,
            ownership::PlaneLocation::There(member) => Location::There(peer(&member)),
            ownership::PlaneLocation::Nobody => Location::Nobody,
        }
    }

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        if let Some(api) = self.located.awake(&self.shared.directory) {
            return Verdict::now(Ok(api as Arc<dyn PlaneApi>));
        }
        Verdict::later(async move {
            let woken = self.shared.wake(&self.located).await;
            woken.map(|api| api as Arc<dyn PlaneApi>)
        })
    }
}

impl BackendState {
    /// Lets the reconcilers know of planes that were taken at their predecessor's word: its work goes on here, although
    /// no request may come. Ends with `stop`.
    pub async fn follow_taken(self: Arc<Self>, stop: CancellationToken) {
        let mut taken = self.directory.planes.taken();
        loop {
            let id = tokio::select! {
                // First: a stopping replica wakes nothing.
                biased;
                () = stop.cancelled() => return,
                id = taken.recv() => id,
            };
            let ids = match id {
                Ok(id) => vec![id],
                Err(RecvError::Lagged(_)) => {
                    let awake = self.directory.planes.all_awake();
                    awake.iter().map(|plane| plane.id().to_owned()).collect()
                }
                Err(RecvError::Closed) => return,
            };
            for id in ids {
                // One that cannot be found or woken any more has moved on.
                if let Ok(located) = self.directory.find(&NameOrId::Id(id.as_str().into())) {
                    drop(self.wake(&located).await);
                }
            }
        }
    }

    /// Wakes a plane and notifies the reconcilers.
    ///
    /// # Errors
    /// Returns [`LocateError::Deleting`], [`LocateError::Suspended`] or [`LocateError::Moved`], or for
    /// any other failure [`LocateError::Sealed`], [`LocateError::StoreReadOnly`],
    /// [`LocateError::StoreAway`] or [`LocateError::Unavailable`], which this function logs.
    pub async fn wake(
        self: &Arc<Self>,
        located: &LocatedPlane,
    ) -> Result<Arc<TenantApi>, LocateError> {
        let shared = Arc::clone(self);
        let woken = located.wake(&self.directory, |tenant| {
            shared.registry.observe(&tenant);
            shared.reconcilers.plane_woke(&tenant);
            TenantApi { shared, tenant }
        });
        match woken.await {
            Ok(api) => Ok(api),
            Err(WakeError::Deleted) => Err(LocateError::Deleting),
            Err(WakeError::Suspended) => Err(LocateError::Suspended),
            Err(WakeError::Moved(member)) => Err(LocateError::Moved(member.as_deref().map(peer))),
            Err(error) => {
                let shown = match &error {
                    WakeError::Open(open) if matches!(**open, OpenError::Sealed(_)) => {
                        LocateError::Sealed
                    }
                    // Whatever else keeps it: nobody can take the plane while the store takes no writes.
                    WakeError::Unavailable(why)
                        if *why == Unavailable::StoreReadOnly || self.is_store_read_only() =>
                    {
                        LocateError::StoreReadOnly(self.why_read_only())
                    }
                    _ => self.explained(LocateError::Unavailable),
                };
                // While the store takes no writes, or the ring changes, each request meets this, and the state of
                // the store or of the ring is logged.
                let is_expected =
                    matches!(shown, LocateError::StoreReadOnly(_)) || is_change_of_ring(&error);
                let error = anyhow::Error::from(error);
                match is_expected {
                    true => tracing::debug!(plane = %located.name, "cannot wake: {error:#}"),
                    false => tracing::error!(plane = %located.name, "cannot wake: {error:#}"),
                }
                Err(shown)
            }
        }
    }

    /// Returns whether the store answers neither reads nor writes.
    fn is_store_away(&self) -> bool {
        let health = self.directory.planes.store().health();
        matches!(health, Health::Failed { .. })
    }

    /// Returns whether the store answers reads and takes no writes.
    fn is_store_read_only(&self) -> bool {
        let health = self.directory.planes.store().health();
        matches!(health, Health::ReadOnly { .. })
    }

    /// Returns the error with what is amiss, if that is known.
    fn explained(&self, error: LocateError) -> LocateError {
        match error {
            LocateError::Unavailable if self.is_store_away() => LocateError::StoreAway,
            error => error,
        }
    }

    /// Returns why the store has just refused a write.
    fn why_read_only(&self) -> String {
        match self.directory.planes.store().health() {
            Health::ReadOnly { reason } | Health::Failed { reason } => reason,
            Health::Ok => "it has refused one".to_owned(),
        }
    }
}

/// Returns whether a plane does not wake only because this replica, or the plane's holder, has changed in the
/// ring meanwhile.
fn is_change_of_ring(error: &WakeError) -> bool {
    matches!(
        error,
        WakeError::Unavailable(
            Unavailable::NotInRing
                | Unavailable::MemberKeyLost
                | Unavailable::FenceLost
                | Unavailable::FenceChanged
        )
    )
}

/// An awake plane.
pub struct TenantApi {
    shared: Arc<BackendState>,
    /// The plane with its kinds.
    pub tenant: Tenant,
}

impl PlaneApi for TenantApi {
    fn kinds(&self) -> Kinds {
        self.tenant.accepted_kinds()
    }

    fn settled_kinds<'a>(
        &'a self,
        wanted: (&'a str, &'a str, &'a str),
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Kinds, ApiError>> {
        Box::pin(async move {
            self.tenant.settled_kind(wanted, deadline).await?;
            Ok(self.tenant.kinds())
        })
    }

    fn state(&self) -> Option<Snapshot> {
        Some(self.tenant.plane.snapshot())
    }

    fn access_check(&self, deadline: tokio::time::Instant) -> AccessCheck<'_> {
        self.shared.registry.access_check(&self.tenant, deadline)
    }

    fn held_token_used(&self, namespace: &str, secret: &str) {
        let secret = Key::new("", "secrets", Some(namespace), secret);
        self.shared.reconcilers.token_used(&self.tenant, &secret);
    }

    fn object_bytes(&self, request: &ResourceRequest) -> usize {
        let kinds = self.tenant.kinds();
        let row = kinds.resolve(&request.group, &request.version, &request.resource);
        let Some(row) = row else {
            return 0;
        };
        let (group, resource) = (&row.storage.group, &row.storage.resource);
        let namespace = request.namespace.as_deref();
        let cut = self.tenant.plane.snapshot();
        let Some(name) = request.name.as_deref() else {
            let all = Prefix::resource(group, resource);
            let prefix = namespace.map_or(all, |name| Prefix::namespaced(group, resource, name));
            return usize::try_from(cut.bytes(&prefix)).unwrap_or(usize::MAX);
        };
        let object = cut.get(&Key::new(group, resource, namespace, name));
        object.map_or(0, |object| object.body_len())
    }

    fn take_memory(&self, share: Share, bytes: usize) -> Option<Reservation> {
        self.tenant.plane.take_memory(share, bytes)
    }

    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(async move {
            let takes_away = AccessChange::begin(&self.shared.directory, &self.tenant, &request);
            let answer = self.shared.registry.handle(&self.tenant, &request).await?;
            if takes_away.is_some_and(|change| change.has_happened(&self.tenant)) {
                self.shared.directory.known_everywhere().await;
            }
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_that_does_not_wake_is_an_error_of_the_log_unless_the_ring_has_changed() {
        let of_ring = |why| is_change_of_ring(&WakeError::Unavailable(why));
        assert!(of_ring(Unavailable::NotInRing));
        assert!(of_ring(Unavailable::MemberKeyLost));
        assert!(of_ring(Unavailable::FenceLost));
        assert!(!of_ring(Unavailable::TaskEnded));
        assert!(!of_ring(Unavailable::HolderFailed("why".to_owned())));
    }
}
