//! One replica: its membership of the ring, its planes, and the server in front of them.
//!
//! `up` runs one or several of these on one embedded store, `serve` runs one on a shared store.

pub mod access;
pub mod access_change;
pub mod authorizers_file;
pub mod backend;
pub mod credentials;
mod drain_report;
pub mod encryption;
pub mod fences;
pub mod follow_access;
pub mod followed_file;
pub mod issuers_file;
mod join;
pub mod metrics;
pub mod plain_root;
pub mod plane_directory;
pub mod plane_info;
pub mod plane_issuers;
mod plane_settings;
pub mod plane_tokens;
mod registry;
pub mod ring_report;
pub mod root_secret;
pub mod start_checks;
pub mod token_file;
pub mod unproven_wakes;
pub mod usage_report;

use crate::replica::access::{Access, Delegated, accepted_pem, named_pem};
use crate::replica::backend::{BackendState, ReplicaBackend};
use crate::replica::drain_report::DrainReport;
use crate::replica::encryption::Encryption;
use crate::replica::follow_access::FollowAccess;
use crate::replica::join::join;
use crate::replica::plain_root::PlainRoot;
use crate::replica::plane_directory::{PlaneDirectory, layer_params};
use crate::replica::plane_info::DirectoryInfo;
use crate::replica::plane_settings::settings;
use crate::replica::plane_tokens::plane_tokens;
use crate::replica::registry::build_registry;
use crate::replica::root_secret::SharedSecret;
use crate::replica::token_file::ServerTokens;
use crate::store::wait::StoreWait;
use anyhow::Context;
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::{Purpose, RootSecret};
use polyplane_batteries::bootstrap::{Release, params};
use polyplane_batteries::kind_tables;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_controllers::{OwnClient, Reconcilers, Sweeper, WriteObserver};
use polyplane_ownership::directory::Directory;
use polyplane_ownership::{
    DeriveParams, Freshness, NoPeers, Peers, PlaneLocation, Planes, PlanesOptions, ReplicaOptions,
    Ring,
};
use polyplane_plane::{LogBounds, Memory};
use polyplane_registry::settings::Lifetimes;
use polyplane_registry::{Admission, Authority, PlaneSummaries};
use polyplane_sealing::EncryptionConfig;
use polyplane_server::{Config, PeerService, PeerTransport, Peering, Server};
use polyplane_storage::Store;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pause between two attempts to wake the root plane at the replica to which it belongs. Less would
/// load a store that fails.
const ROOT_RETRY: Duration = Duration::from_secs(1);
/// Pause between two looks for old certificate signing requests. These stay an hour anyway.
const CLEAN_EVERY: Duration = Duration::from_secs(600);
/// Pause between two checks of all awake planes for an older layer. Replicas notice a raised floor
/// at once; this check only finds planes that woke meanwhile.
const FLOOR_LOOK: Duration = Duration::from_secs(60);

/// The parts from which a replica is assembled.
pub struct ReplicaParts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The program's release.
    pub release: Arc<Release>,
    /// The replica as a member of the ring: name, address, weight, level, times.
    pub replica: ReplicaOptions,
    /// The transport to other replicas and the listeners for them; `None` for a replica that is
    /// alone.
    pub peering: Option<(Arc<PeerTransport>, Vec<TcpListener>)>,
    /// The server's configuration.
    pub config: Config,
    /// The listeners of the server.
    pub listeners: Vec<TcpListener>,
    /// The host and port under which clients reach the ring.
    pub endpoint: String,
    /// The authorizers.
    pub authority: Authority,
    /// The time without use after which a plane goes to sleep.
    pub idle: Duration,
    /// The tokens of the administrator and for metrics.
    pub tokens: ServerTokens,
    /// The secret from which the keys of planes derive. Without it planes have no users of their own.
    pub root_secret: Option<Arc<RootSecret>>,
    /// Records why the replica waits for a shared store. Without it, the first call that the store
    /// does not answer ends the start with its error.
    pub wait: Option<Arc<StoreWait>>,
    /// How long Events and the tokens of service accounts last.
    pub lifetimes: Lifetimes,
    /// The memory budget of this replica. Replicas in one process have one each.
    pub memory: Arc<Memory>,
    /// Set if the root plane is that of a plain kube-apiserver.
    pub plain: Option<Arc<PlainRoot>>,
    /// What servers of others decide about the root's users.
    pub delegated: Delegated,
    /// The admission plug-ins of all planes, in their order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// The keys of encryption at rest; `None` without a configuration.
    pub encryption: Option<EncryptionConfig>,
}

/// The context of every error that occurs while joining.
const CANNOT_JOIN: &str = "cannot join the ring";

/// A replica that has joined the ring.
pub struct Replica {
    /// The planes of this replica by name and id.
    pub directory: Arc<PlaneDirectory>,
    /// The keys of encryption at rest.
    pub encryption: Arc<Encryption>,
    shared: Arc<BackendState>,
    /// For requests of the server itself.
    own_client: OwnClient,
    server: Server,
    peers: PeerService,
    drain: Arc<Drain>,
    stop: CancellationToken,
}

impl Replica {
    /// Assembles the parts and joins the ring. Peers are served before the replica joins, because
    /// they hand planes to every member and evict one that does not answer. Clients are served only
    /// by [`Self::run`].
    ///
    /// # Errors
    /// Returns an error if the store cannot be used or the replica may not join.
    pub async fn start(mut setup: ReplicaParts) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let pki = Arc::clone(&setup.config.pki);
        let secret = SharedSecret::new(setup.root_secret.take());
        let encryption = prepare_encryption(&setup).await?;
        let directory = build_directory(&setup, (&secret, &encryption), stop.clone()).await?;
        settled(&setup, async || secret.compare(&directory).await).await?;
        settled(&setup, async || encryption.look(&directory).await).await?;
        secret.admit()?;
        let reconcilers = Arc::new(Reconcilers::default());
        let observers = vec![Arc::new(WriteObserver(Arc::clone(&reconcilers))) as _];
        let registry = build_registry(&mut setup, &directory, &secret, observers);
        let tokens = plane_tokens(&secret, &setup.endpoint, &directory);
        let registry = plain_root::with_issuers(registry, setup.plain.as_ref(), tokens.as_ref());
        let registry = Arc::new(registry);
        let own_client = OwnClient::new(&registry, setup.config.audit.as_ref());
        reconcilers.attach(
            own_client.clone(),
            Arc::clone(&directory.planes),
            Arc::new(DirectoryInfo::new(&directory, &secret)),
            Arc::clone(&setup.release),
        );
        let access = Access::new(&pki, &setup.tokens, Arc::clone(&secret))?;
        let access = access.with_users(setup.plain.as_ref(), tokens, &setup.delegated);
        tokio::spawn(secret.follow(Arc::clone(&directory), stop.clone()));
        let keys = Arc::clone(&encryption);
        let backend =
            ReplicaBackend::new(Arc::clone(&directory), registry, reconcilers, access, keys);
        let shared = Arc::clone(backend.shared());
        let drain = Arc::new(Drain {
            directory: Arc::clone(&directory),
            requested: CancellationToken::new(),
            finished: CancellationToken::new(),
        });
        peer_with_others(&mut setup, &drain, &stop);
        let mut server = setup.config.build(Arc::new(backend), setup.listeners);
        // Before anybody can open a watch, so that no change is missed.
        tokio::spawn(FollowAccess::new(&shared, server.watch_guard()).run(stop.clone()));
        let peers = server.serve_peers();
        join(directory.planes.ring(), setup.wait.as_deref()).await?;
        Ok(Self {
            directory,
            encryption,
            shared,
            own_client,
            server,
            peers,
            drain,
            stop,
        })
    }

    /// Wakes the root plane if it belongs to this replica; otherwise its own replica wakes it.
    ///
    /// # Errors
    /// Returns an error if the plane belongs here and cannot be loaded.
    pub async fn wake_root(&self) -> anyhow::Result<()> {
        wake_root(&self.shared).await
    }

    /// Serves until the server is stopped, then releases the planes and leaves the ring. The store
    /// stays open. Planes may take `close` for it: without a limit a store that does not answer would
    /// keep the process alive.
    pub async fn run(self, close: Duration) {
        let tasks = tokio_util::task::TaskTracker::new();
        tasks.spawn(keep_root(Arc::clone(&self.shared), self.stop.clone()));
        let root = {
            let directory = Arc::clone(&self.directory);
            move || directory.root_here()
        };
        let sweeper = Sweeper::new(
            self.own_client.clone(),
            Arc::clone(&self.directory.planes),
            Arc::clone(&self.shared.reconcilers),
            Box::new(root),
        );
        tasks.spawn(sweeper.run(self.stop.clone()));
        tasks.spawn(sweep_directory(
            Arc::clone(&self.directory),
            self.stop.clone(),
        ));
        tasks.spawn(clean_certificates(
            Arc::clone(&self.shared),
            self.stop.clone(),
        ));
        tasks.spawn(follow_floor(Arc::clone(&self.shared), self.stop.clone()));
        tasks.spawn(Arc::clone(&self.shared).follow_taken(self.stop.clone()));
        tasks.spawn(follow_controllers(
            Arc::clone(&self.shared),
            self.stop.clone(),
        ));
        self.follow_encryption(&tasks);
        self.server.run().await;
        self.stop.cancel();
        tasks.close();
        let closing = async {
            // At the same time, because a reconcile may wait for longer than `close`. What it still
            // asks for finds its plane moved.
            let planes = self.directory.planes.close_within(close / 2);
            tokio::join!(self.shared.reconcilers.stop(), planes);
            tasks.wait().await;
        };
        if tokio::time::timeout(close, closing).await.is_err() {
            tracing::warn!("the planes did not close in time; what was acknowledged is kept");
        }
        // Only after leaving the ring, because other members evict one that refuses connections.
        self.peers.close().await;
    }

    fn follow_encryption(&self, tasks: &tokio_util::task::TaskTracker) {
        let with = || (Arc::clone(&self.directory), self.stop.clone());
        let encryption = || Arc::clone(&self.encryption);
        let (directory, stop) = with();
        tasks.spawn(encryption().follow(directory, stop));
        let (directory, stop) = with();
        tasks.spawn(encryption().sweep(directory, stop));
        let (directory, stop) = with();
        tasks.spawn(encryption().rewrap(directory, stop));
    }

    /// Returns a handle to drain the replica.
    pub fn drain(&self) -> Arc<Drain> {
        Arc::clone(&self.drain)
    }

    /// Returns a handle to stop the replica's server.
    pub fn stop_handle(&self) -> polyplane_server::StopHandle {
        self.server.stop_handle()
    }
}

/// Lets the server take part in the ring: it serves the other replicas, and drains for a client.
fn peer_with_others(setup: &mut ReplicaParts, drain: &Arc<Drain>, stop: &CancellationToken) {
    let Some((transport, listeners)) = setup.peering.take() else {
        return;
    };
    let planes = &drain.directory.planes;
    let ring = Arc::clone(planes.ring());
    tokio::spawn(drop_old_pools(Arc::clone(&transport), ring, stop.clone()));
    setup.config.peering = Some(Peering {
        transport,
        handler: Arc::clone(planes) as _,
        listeners,
    });
    let drain = Arc::clone(drain);
    setup.config.drain_requested = Some(Box::new(move || {
        let drain = Arc::clone(&drain);
        Box::pin(async move { drain.requested_by_client().await })
    }));
}

/// Controls how a replica hands its planes over before it ends.
pub struct Drain {
    directory: Arc<PlaneDirectory>,
    requested: CancellationToken,
    /// Cancelled once no further plane will be handed over.
    finished: CancellationToken,
}

impl Drain {
    /// Waits until a client has requested the drain.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }

    /// Writes Draining into the member key and hands all planes over. Returns true if the replica
    /// holds no plane at the deadline.
    pub async fn run(&self, deadline: Instant) -> bool {
        self.directory.planes.drain(deadline).await
    }

    /// Reports that no further plane will be handed over, so that clients that wait for the drain
    /// get their answer.
    pub fn finish(&self) {
        self.finished.cancel();
    }

    /// Requests the drain for a client and waits for its end.
    async fn requested_by_client(&self) -> Result<(), String> {
        self.requested.cancel();
        self.finished.cancelled().await;
        DrainReport::of(&self.directory).outcome()
    }
}

async fn wake_root(shared: &Arc<BackendState>) -> anyhow::Result<()> {
    let Some(root) = shared.directory.root() else {
        return Ok(());
    };
    let here = shared.directory.planes.location(&root.birth) == PlaneLocation::Here;
    if !here || root.awake(&shared.directory).is_some() {
        return Ok(());
    }
    match shared.wake(root).await {
        Ok(_) | Err(polyplane_server::LocateError::Moved(_)) => Ok(()),
        Err(error) => Err(error).context("the root plane cannot be loaded"),
    }
}

/// Keeps the root plane awake while it belongs to this replica, because its reconcilers work
/// without requests.
async fn keep_root(shared: Arc<BackendState>, stop: CancellationToken) {
    let mut views = shared.directory.planes.ring().view_changes();
    let mut logged = None;
    loop {
        let failed = wake_root(&shared).await.err();
        let failed = failed.map(|error| format!("{error:#}"));
        // A store that is full for hours would fill the log otherwise.
        if let Some(why) = failed.as_ref().filter(|_| failed != logged) {
            tracing::warn!("{why}");
        }
        logged = failed;
        tokio::select! {
            // First: a stopping replica wakes nothing.
            biased;
            () = stop.cancelled() => return,
            _ = views.changed() => {}
            () = tokio::time::sleep(ROOT_RETRY) => {}
        }
    }
}

/// Drops the connections to replicas that have left the ring, and that to the replica itself, with which it
/// has tested its address before it joined.
async fn drop_old_pools(transport: Arc<PeerTransport>, ring: Arc<Ring>, stop: CancellationToken) {
    let mut views = ring.view_changes();
    loop {
        tokio::select! {
            // First, because the transport itself drops all connections at the end.
            biased;
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() {
                return;
            }
        }
        let view = ring.view();
        transport.retain(|peer| {
            let mut members = view.members().filter(|member| member.id != *ring.id());
            members.any(|member| {
                member.id.as_str() == peer.replica && member.address.to_string() == peer.address
            })
        });
    }
}

async fn sweep_directory(directory: Arc<PlaneDirectory>, stop: CancellationToken) {
    loop {
        tokio::select! {
            // First: a stopped replica answers nobody.
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(60)) => directory.sweep(),
        }
    }
}

/// Lets old certificate signing requests of awake planes be deleted.
async fn clean_certificates(shared: Arc<BackendState>, stop: CancellationToken) {
    loop {
        tokio::select! {
            // First: a stopping replica starts no work.
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(CLEAN_EVERY) => {}
        }
        for tenant in shared.directory.tenants_awake() {
            shared.reconcilers.clean(&tenant);
        }
    }
}

/// Lets awake planes step to this program's layer once the store's floor allows it, and show once
/// replaced keys are accepted no longer. A plane that wakes later is checked when it wakes.
async fn follow_floor(shared: Arc<BackendState>, stop: CancellationToken) {
    let mut floor = shared.directory.planes.floor_changes();
    loop {
        for tenant in shared.directory.tenants_awake() {
            shared.reconcilers.check_layer(&tenant);
            // The time for which replaced keys are accepted may have ended.
            if shared.directory.has_replaced_keys(tenant.plane.id()) {
                shared.reconcilers.keys_changed(&tenant);
            }
        }
        tokio::select! {
            // First: a stopping replica starts no step.
            biased;
            () = stop.cancelled() => return,
            _ = floor.changed() => {}
            // Look again, because a plane that woke while the list was made is not in it.
            () = tokio::time::sleep(FLOOR_LOOK) => {}
        }
    }
}

/// Lets a plane that is awake be searched for work once its ControlPlane switches other controllers
/// on. A plane that wakes later is searched when it wakes.
async fn follow_controllers(shared: Arc<BackendState>, stop: CancellationToken) {
    let mut changes = shared.directory.rows.switch_changes();
    loop {
        let changed = tokio::select! {
            // First: a stopping replica starts no work.
            biased;
            () = stop.cancelled() => return,
            changed = changes.recv() => changed,
        };
        let changed = match changed {
            Ok(id) => Some(id),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
        for tenant in shared.directory.tenants_awake() {
            if changed.as_ref().is_none_or(|id| id == tenant.plane.id()) {
                shared.reconcilers.controllers_changed(&tenant);
            }
        }
    }
}

/// Prepares the keys of encryption at rest. On a shared store this is repeated until the store and the
/// key management services answer.
async fn prepare_encryption(setup: &ReplicaParts) -> anyhow::Result<Arc<Encryption>> {
    let step = async || Encryption::prepare(&setup.store, setup.encryption.as_ref()).await;
    match &setup.wait {
        Some(wait) => wait.out(step).await,
        None => step().await,
    }
}

async fn build_directory(
    setup: &ReplicaParts,
    (secret, encryption): (&Arc<SharedSecret>, &Encryption),
    stop: CancellationToken,
) -> anyhow::Result<Arc<PlaneDirectory>> {
    let ca = setup.config.pki.root_pem();
    let rows_known = Arc::new(OnceLock::new());
    let layer = setup.release.layer();
    let now = Timestamp::from(SystemTime::now()).to_rfc3339();
    let peers: Arc<dyn Peers> = match &setup.peering {
        Some((transport, _)) => Arc::clone(transport) as _,
        None => Arc::new(NoPeers),
    };
    let replica = ReplicaOptions {
        level: setup.release.level(),
        layer: layer.hash().clone(),
        ..setup.replica.clone()
    };
    let ring = Ring::newcomer(Arc::clone(&setup.store), replica, peers);
    let ring = ring.await.context(CANNOT_JOIN)?;
    let options = PlanesOptions {
        derived_params: Some(match &setup.plain {
            Some(plain) => plain.derived_params(),
            None => plane_cas(secret, ca, &rows_known),
        }),
        indexes: polyplane_admission::indexes(),
        derivation: Some(kind_tables::custom_kinds()),
        summarize: Some(Arc::new(PlaneSummaries)),
        log: LogBounds::default(),
        idle: setup.idle,
        memory: Arc::clone(&setup.memory),
        sealing: encryption.sealing().cloned(),
    };
    let started = settled(setup, async || {
        Planes::start(Arc::clone(&ring), options.clone(), &now, layer.hash()).await
    });
    let (planes, root_layer) = started.await?;
    settled(setup, async || planes.layers().bring(layer).await).await?;
    let rows = settled(setup, async || {
        let store = Arc::clone(&setup.store);
        let prefix = plane_directory::directory_prefix();
        let (read, numbering) = (plane_directory::read_row, planes.numbering());
        Directory::follow(store, prefix, read, numbering, stop.clone()).await
    });
    let rows = rows.await?;
    drop(rows_known.set(Arc::downgrade(&rows)));
    planes.attach_directory(&rows);
    let settings = settings(setup, &planes, &rows);
    let (host, port) = setup
        .endpoint
        .rsplit_once(':')
        .context("the endpoint has no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let params = layer_params(ca, ca, host, port.parse()?);
    let root = planes.root_birth(root_layer, params.clone());
    let kinds = kind_tables::tenant_kinds();
    let freshness = Freshness::follow(&ring, &rows, stop);
    let root_kinds = match &setup.plain {
        Some(plain) => Arc::clone(&plain.kinds),
        None => kind_tables::root_kinds(),
    };
    let limits = setup.config.limits.plane;
    let settings = Arc::new(settings);
    let directory = PlaneDirectory::new(planes, rows, kinds, settings, params, freshness, limits);
    directory.set_root(root, root_kinds);
    Ok(Arc::new(directory))
}

/// Returns what computes the certificates of the CAs of planes. Without a root secret, and in the
/// root plane, clients are those of the server's CA.
fn plane_cas(
    secret: &Arc<SharedSecret>,
    server_ca: &str,
    rows: &Arc<OnceLock<Weak<Directory>>>,
) -> DeriveParams {
    let (secret, rows) = (Arc::clone(secret), Arc::clone(rows));
    let server_ca = server_ca.to_owned();
    Arc::new(move |id: &str| {
        let entry = rows.get().and_then(Weak::upgrade);
        let entry = entry.and_then(|rows| rows.by_id(id));
        let says: &[u8] = entry.as_ref().map_or(&[], |entry| &entry.access);
        let spec = PlaneAccessSpec::read(says);
        let of = |purpose| match secret.secret() {
            Some(secret) => accepted_pem(secret, purpose, id, &spec),
            None => server_ca.clone(),
        };
        let clients = match id {
            polyplane_ownership::ROOT => server_ca.clone(),
            _ => of(Purpose::ClientCa) + &named_pem(says),
        };
        vec![
            (params::PLANE_CLIENT_CA.to_owned(), clients),
            (
                params::PLANE_FRONT_PROXY_CA.to_owned(),
                of(Purpose::FrontProxyCa),
            ),
        ]
    })
}

/// Carries out a step that needs the store. On a shared store the step is repeated until the store
/// answers.
async fn settled<T, E>(
    setup: &ReplicaParts,
    step: impl AsyncFn() -> Result<T, E>,
) -> anyhow::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let step = async || step().await.context("the store cannot be used");
    match &setup.wait {
        Some(wait) => wait.out(step).await,
        None => step().await,
    }
}

#[cfg(test)]
mod tests;
