//! `polyplane up`: one server on a store of its own, in the foreground.

use crate::backend::{self, Planes};
use crate::cli::{StoreKind, UpOptions};
use crate::contexts::{Changed, Contexts, PlaneObserver};
use crate::directory::{World, layer_params};
use anyhow::{Context, anyhow, bail};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::time::Timestamp;
use polyplane_batteries::{bootstrap, catalog};
use polyplane_controllers::{PlaneInfo, Reconcilers, Sweeper, WriteObserver};
use polyplane_ownership::{Birth, NoPeers, PlanesOptions, ReplicaOptions, Ring};
use polyplane_plane::LogBounds;
use polyplane_registry::environment::System;
use polyplane_registry::strategy::ServiceRange;
use polyplane_registry::{PlaneSettings, Registry, Tenant};
use polyplane_server::{CompletedOptions, Options, Server, StopPolicy};
use polyplane_storage::{MemoryOptions, MemoryStore, SledOptions, SledStore, Store};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long requests in flight may take when the server stops.
const GRACE: Duration = Duration::from_secs(10);
/// How long planes and the store may take to close.
const CLOSE: Duration = Duration::from_secs(10);
/// Node ports that services get.
const NODE_PORTS: (u16, u16) = (30_000, 32_767);

/// Runs until a signal ends it.
///
/// # Errors
/// What keeps the server from running, in one line with what to do.
pub fn run(options: UpOptions) -> anyhow::Result<()> {
    let began = Instant::now();
    let filter = tracing_subscriber::EnvFilter::try_from_env("POLYPLANE_LOG")
        .unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        bail!("another TLS provider is installed already");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(options, began));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Everything that runs beside the server.
struct Running {
    world: Arc<World>,
    reconcilers: Arc<Reconcilers>,
    store: Arc<dyn Store>,
    stop: CancellationToken,
}

async fn serve(options: UpOptions, began: Instant) -> anyhow::Result<()> {
    let completed = complete(&options)?;
    make_folder(&options.dir)?;
    let folder = std::path::absolute(&options.dir)?;
    let store = open_store(options.store, &folder).await?;
    let listeners = completed.listen().await.map_err(|error| {
        anyhow!(
            "{:#}; stop what uses it or choose another address with --listen",
            anyhow::Error::from(error)
        )
    })?;
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    let advertised = match (&completed.advertise, addresses.first()) {
        (Some(text), _) => text.clone(),
        (None, Some(address)) => address.to_string(),
        (None, None) => bail!("nothing to listen on"),
    };
    let endpoint = format!("https://{advertised}");
    let config = completed.configure()?;
    let pki = Arc::clone(&config.pki);
    let (world, root_layer) = build_world(
        &options,
        Arc::clone(&store),
        &endpoint,
        &advertised,
        pki.root_pem(),
    )
    .await?;
    let reconcilers = Arc::new(Reconcilers::default());
    let changed = Arc::new(Changed::default());
    let authorizer = backend::authorizer();
    let registry = Arc::new(Registry::new(
        Arc::new(System),
        Arc::clone(&authorizer),
        vec![
            Arc::new(WriteObserver(Arc::clone(&reconcilers))),
            Arc::new(PlaneObserver(Arc::clone(&changed))),
        ],
    ));
    reconcilers.attach(
        Arc::clone(&registry),
        Arc::clone(&world.planes),
        Arc::new(Info(Arc::clone(&world))),
    );
    let root = wake_root(&world, root_layer).await?;
    reconcilers.woke(&root);
    let planes = Planes::new(
        Arc::clone(&world),
        Arc::clone(&registry),
        Arc::clone(&reconcilers),
        authorizer,
        &pki,
    )?;
    let server = config.build(Arc::new(planes), listeners);
    let identity = pki.issue_client("admin", &["system:masters"])?;
    let path = folder.join("kubeconfig");
    let contexts = Contexts {
        path: path.clone(),
        server: endpoint,
        pki,
        identity,
        world: Arc::clone(&world),
    };
    contexts.write()?;
    crate::link::write_plugin(&folder);
    std::fs::write(folder.join("pid"), std::process::id().to_string())
        .context("cannot write the file `pid`")?;
    let stop = CancellationToken::new();
    tokio::spawn(contexts.run(changed, stop.clone()));
    tokio::spawn(Sweeper::new(registry, Arc::clone(&world.planes), root).run(stop.clone()));
    // Whoever reads that the server is up may ask it to end at once.
    let signals = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    announce(&options, &path, &addresses, began);
    finish(
        server,
        signals,
        Running {
            world,
            reconcilers,
            store,
            stop,
        },
    )
    .await;
    let _ = std::fs::remove_file(folder.join("pid"));
    Ok(())
}

fn complete(options: &UpOptions) -> anyhow::Result<CompletedOptions> {
    let typed = Options {
        data_folder: options.dir.clone(),
        listen: options.listen.clone(),
        host_names: options.host_name.clone(),
        advertise: options.advertise.clone(),
        stop: StopPolicy {
            ready_delay: Duration::ZERO,
            grace: GRACE,
        },
        ..Options::default()
    };
    Ok(typed.complete()?)
}

/// Makes the folder so that only its owner can look into it.
fn make_folder(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.with_context(|| {
        format!(
            "cannot use the folder {}; choose another with --dir",
            path.display()
        )
    })
}

async fn open_store(kind: StoreKind, folder: &Path) -> anyhow::Result<Arc<dyn Store>> {
    if kind == StoreKind::Memory {
        return Ok(Arc::new(MemoryStore::new(MemoryOptions::default())));
    }
    let path: PathBuf = folder.join("store");
    let opened =
        tokio::task::spawn_blocking(move || SledStore::open(&path, SledOptions::default()));
    Ok(Arc::new(
        opened.await.context("opening the store was cut off")??,
    ))
}

async fn build_world(
    options: &UpOptions,
    store: Arc<dyn Store>,
    endpoint: &str,
    advertised: &str,
    ca: &str,
) -> anyhow::Result<(Arc<World>, polyplane_plane::LayerHash)> {
    let layer = bootstrap::layer();
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = Timestamp::from_seconds(i64::try_from(since.as_secs())?).to_rfc3339();
    let planes_options = PlanesOptions {
        indexes: polyplane_batteries::indexes(),
        log: LogBounds::default(),
        idle: Duration::from_secs(options.sleep_after),
    };
    // Nobody asks for the address of the only replica.
    let replica = ReplicaOptions::alone("polyplane-0".parse()?, "localhost:7443".parse()?);
    let ring = Ring::join(store, replica, Arc::new(NoPeers)).await;
    let ring = ring.context("cannot join the ring")?;
    let started =
        polyplane_ownership::Planes::start(ring, planes_options, &now, layer.hash()).await;
    let (planes, root_layer) = started.context("the store cannot be used")?;
    planes.layers().bring(&layer).await?;
    let (base, bits) = bootstrap::SERVICE_RANGE;
    let settings = PlaneSettings {
        service_range: ServiceRange {
            base: base.into(),
            bits,
        },
        node_ports: NODE_PORTS,
        serving_ca: ca.into(),
        endpoint: endpoint.into(),
    };
    let (host, port) = advertised
        .rsplit_once(':')
        .context("the advertised address has no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let params = layer_params(ca, ca, host, port.parse()?);
    let world = World::new(planes, catalog::tenant_kinds(), Arc::new(settings), params);
    Ok((Arc::new(world), root_layer))
}

async fn wake_root(world: &World, layer: polyplane_plane::LayerHash) -> anyhow::Result<Tenant> {
    let birth = world.planes.root_birth(layer, world.params.clone());
    let plane = world
        .planes
        .wake(&birth)
        .await
        .context("the root plane cannot be loaded")?;
    let tenant = Tenant {
        name: "root".into(),
        plane,
        kinds: catalog::root_kinds(),
        settings: Arc::clone(&world.settings),
    };
    Ok(world.root.get_or_init(|| tenant).clone())
}

/// What reconcilers ask.
struct Info(Arc<World>);

impl PlaneInfo for Info {
    fn param(&self, name: &str) -> Option<Str> {
        self.0.param(name)
    }

    fn birth(&self, name: &str) -> Option<Birth> {
        self.0.birth(name)
    }

    fn forgotten(&self, name: &str) {
        self.0.forget(name);
    }
}

/// Says where everything is. Nobody may be listening any more, or the disk that it goes to may be
/// full: no reason not to serve.
fn announce(options: &UpOptions, kubeconfig: &Path, addresses: &[SocketAddr], began: Instant) {
    let took = began.elapsed().as_millis();
    let listening: Vec<String> = addresses
        .iter()
        .map(|address| format!("https://{address}"))
        .collect();
    let path = kubeconfig.display();
    let bin = kubeconfig.with_file_name("bin");
    let memory = match options.store {
        StoreKind::Memory => "store: memory, nothing is kept when this process ends\n",
        StoreKind::Sled => "",
    };
    let text = format!(
        "polyplane is up after {took} ms: {}\n\
         kubeconfig: {path}\n{memory}\n\
         try, in another terminal:\n  \
         export KUBECONFIG={path}\n  \
         export PATH={}:$PATH          # for `kubectl plane`\n  \
         kubectl plane create team-a\n  \
         kubectl --context team-a get namespaces\n\n\
         Ctrl-C stops it; everything acknowledged is on disk.\n",
        listening.join(", "),
        bin.display(),
    );
    let mut output = std::io::stdout().lock();
    let _ = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
}

/// Serves until a signal; a second one ends it at once.
async fn finish(server: Server, signals: (Signal, Signal), running: Running) {
    let handle = server.stop_handle();
    let signals = tokio::spawn(async move {
        let (mut interrupt, mut terminate) = signals;
        for times in 0.. {
            tokio::select! {
                // Either will do.
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if times == 0 {
                handle.stop();
            } else {
                handle.abort();
            }
        }
    });
    server.run().await;
    running.stop.cancel();
    let closing = async {
        running.reconcilers.stop().await;
        running.world.planes.close().await;
        running.store.close().await;
    };
    if tokio::time::timeout(CLOSE, closing).await.is_err() {
        tracing::warn!("the store did not close in time; what was acknowledged is on disk");
    }
    signals.abort();
}
