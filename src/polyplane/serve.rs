//! `polyplane serve`: one replica of a ring on a shared store, in the foreground.
//!
//! While the store cannot be reached the replica waits: `/livez` is well, `/readyz` fails, the log says
//! why, and SIGTERM ends it at once. What waiting does not heal, such as a wrong password, ends it.
//!
//! How it ends: at the first SIGTERM, or when somebody posts to `/drain`, it says Draining in its
//! lease, `/readyz` fails, and everything is still served while its planes are handed over. When it
//! owns nothing any more, or at the deadline, requests in flight end and the process exits. One
//! that was asked by `/drain` waits for the signal. A second signal ends it at once. A lost store
//! delays nothing beyond the deadline.

pub mod waiting_server;

use crate::cli::limits;
use crate::cli::memory;
use crate::cli::{CertsOptions, ServeOptions};
use crate::process::{self, Signals};
use crate::replica::access::{Access, MetricsFile, authority};
use crate::replica::{Replica, Setup};
use crate::serve::waiting_server::{StoreWait, WaitingServer};
use crate::store;
use anyhow::{Context, anyhow};
use polyplane_batteries::bootstrap::Release;
use polyplane_ownership::{ReplicaOptions, Weight};
use polyplane_pki::kubeconfig::{Kubeconfig, UserCredential};
use polyplane_pki::{PeerTls, Pki, Unmarked};
use polyplane_plane::Memory;
use polyplane_server::{Config, Options, PeerLimits, PeerTransport, StopPolicy};
use polyplane_storage::Store;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Of the grace, what is kept for requests in flight once the planes are gone.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
/// How long a start may take before the replica answers for its health: most are done by then.
const QUIET: Duration = Duration::from_millis(500);
/// How long the store may take to close.
const CLOSE: Duration = Duration::from_secs(2);

/// Runs until a signal ends it.
///
/// # Errors
/// What keeps the replica from running, in one line with what to do.
pub fn run(options: ServeOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let level = options.log.clone();
    process::run(&level, serve(options, release))
}

async fn serve(options: ServeOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut signals = Signals::new()?;
    let prepared = tokio::select! {
        // A signal ends a replica that has not begun to serve; it holds nothing.
        biased;
        () = signals.next() => return Ok(()),
        prepared = prepare(&options) => prepared?,
    };
    let mut started = tokio::select! {
        // As above.
        biased;
        () = signals.next() => return Ok(()),
        started = start_with_health(&options, release, prepared) => started?,
    };
    tracing::info!(
        replica = options.replica_id,
        listen = options.listen,
        peers = options.peer_listen,
        millis = began.elapsed().as_millis(),
        "serving"
    );
    let times = Times {
        grace: Duration::from_secs(options.grace),
        notice: Duration::from_secs(options.drain_notice),
    };
    let handover = started.waiting.take().map(WaitingServer::stop);
    let handover = handover.map(tokio::spawn);
    finish(started.replica, signals, times).await;
    drop(handover);
    if tokio::time::timeout(CLOSE, started.store.close())
        .await
        .is_err()
    {
        tracing::warn!("the store did not answer the goodbye");
    }
    Ok(())
}

/// A replica that needs nothing more than its store.
struct Prepared {
    replica: ReplicaOptions,
    config: Config,
    listeners: Vec<TcpListener>,
    transport: Arc<PeerTransport>,
    peer_listener: TcpListener,
    endpoint: String,
    metrics: Option<MetricsFile>,
    memory: Arc<Memory>,
}

/// A replica that has joined the ring.
struct Started {
    replica: Replica,
    store: Arc<dyn Store>,
    /// What has answered until now.
    waiting: Option<WaitingServer>,
}

/// Checks the options and opens the listeners.
async fn prepare(options: &ServeOptions) -> anyhow::Result<Prepared> {
    let replica = replica_options(options)?;
    let memory = memory::shares(&options.memory, &options.limits, 1);
    store::check(&options.store)?;
    let typed = Options {
        certs_folder: Some(options.certs.clone()),
        listen: vec![options.listen.clone()],
        host_names: host_names(&options.host_name, options.endpoint.as_deref()),
        advertise: options.endpoint.clone(),
        stop: StopPolicy {
            ready_delay: Duration::ZERO,
            grace: LAST_REQUESTS,
        },
        limits: options.limits.limits(&memory),
        ..Options::default()
    };
    let completed = typed.complete()?;
    if let Err(error) = limits::raise_open_files(&completed.limits, 1) {
        tracing::warn!("{error}");
    }
    let listeners = completed.listen().await?;
    let peer_listener = TcpListener::bind(&options.peer_listen)
        .await
        .map_err(|error| {
            anyhow!(
                "cannot listen on {} for peers: {error}",
                options.peer_listen
            )
        })?;
    let config = completed.configure()?;
    let metrics = options.metrics_token_file.as_deref();
    let metrics = metrics.map(|file| MetricsFile::read(file, config.pki.admin_token()));
    let local = listeners.first().and_then(|l| l.local_addr().ok());
    let endpoint = match (&options.endpoint, local) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(address)) => address.to_string(),
        (None, None) => options.listen.clone(),
    };
    write_kubeconfig(&options.certs, &endpoint, &config.pki);
    let unmarked = match options.accept_unmarked_peers {
        true => Unmarked::Accepted,
        false => Unmarked::Refused,
    };
    let tls = PeerTls::load_or_create_with(&options.certs, &options.replica_id, unmarked)?;
    let peer_limits = PeerLimits {
        forwards_in_flight_max: options.forwards_in_flight_max,
        ..PeerLimits::default()
    };
    Ok(Prepared {
        replica,
        config,
        listeners,
        transport: PeerTransport::new(tls, peer_limits),
        peer_listener,
        endpoint,
        metrics: metrics.transpose()?,
        memory,
    })
}

/// Starts the replica. One that cannot start at once, for the store is not there, answers for its own
/// health meanwhile: nobody restarts it, and everybody can see why it is not ready.
async fn start_with_health(
    options: &ServeOptions,
    release: Arc<Release>,
    prepared: Prepared,
) -> anyhow::Result<Started> {
    let wait = Arc::new(StoreWait::default());
    let access = Access::new(&prepared.config.pki, prepared.metrics.as_ref())?;
    let health = WaitingServer::prepare(
        &prepared.config,
        &prepared.listeners,
        Arc::clone(&wait),
        access,
    )?;
    let mut starting = std::pin::pin!(start(options, release, prepared, wait));
    let at_once = tokio::select! {
        // A replica that has started needs no other server.
        biased;
        started = &mut starting => Some(started?),
        () = tokio::time::sleep(QUIET) => None,
    };
    if let Some(started) = at_once {
        return Ok(started);
    }
    let waiting = health.run();
    let started = starting.await?;
    Ok(Started {
        waiting: Some(waiting),
        ..started
    })
}

/// Connects to the store, joins the ring, and wakes the root plane if it belongs here.
async fn start(
    options: &ServeOptions,
    release: Arc<Release>,
    prepared: Prepared,
    wait: Arc<StoreWait>,
) -> anyhow::Result<Started> {
    let store = store::shared(&options.store, &wait).await?;
    let setup = Setup {
        store: Arc::clone(&store),
        release,
        replica: prepared.replica,
        peering: Some((prepared.transport, vec![prepared.peer_listener])),
        config: prepared.config,
        listeners: prepared.listeners,
        endpoint: prepared.endpoint,
        authority: authority(),
        idle: Duration::from_secs(options.sleep_after),
        metrics: prepared.metrics,
        wait: Some(wait),
        memory: prepared.memory,
    };
    let replica = Replica::start(setup).await?;
    // It is tried again and again while the replica runs; until then others wait.
    if let Err(error) = replica.wake_root().await {
        tracing::warn!("{error:#}");
    }
    Ok(Started {
        replica,
        store,
        waiting: None,
    })
}

/// How long an end may and must take.
#[derive(Clone, Copy)]
struct Times {
    /// From the request to the end.
    grace: Duration,
    /// Served on at least, so that load balancers notice that the replica is not ready.
    notice: Duration,
}

/// Serves until it is told to end, drains, and stops.
async fn finish(replica: Replica, mut signals: Signals, times: Times) {
    let stop = replica.stop_handle();
    let drain = replica.drain();
    let ending = tokio::spawn(async move {
        let signalled = tokio::select! {
            // Either will do.
            biased;
            () = signals.next() => true,
            () = drain.requested() => false,
        };
        tracing::info!(seconds = times.grace.as_secs(), "draining");
        let deadline = times.grace.saturating_sub(LAST_REQUESTS);
        stop.unready();
        let mut draining = std::pin::pin!(async {
            let drained = drain.run(tokio::time::Instant::now() + deadline);
            let (drained, ()) = tokio::join!(drained, tokio::time::sleep(times.notice));
            if !drained {
                tracing::warn!("not everything was handed over in time");
            }
            drain.finish();
        });
        let mut drained = false;
        if !signalled {
            tokio::select! {
                // The signal that follows the hook may come before the end.
                biased;
                () = signals.next() => {}
                () = &mut draining => {
                    drained = true;
                    signals.next().await;
                }
            }
        }
        tokio::select! {
            // Who asks twice waits for nothing.
            biased;
            () = signals.next(), if !drained => return stop.abort(),
            () = &mut draining, if !drained => {}
            else => {}
        }
        stop.stop();
        signals.next().await;
        stop.abort();
    });
    replica.run().await;
    ending.abort();
}

fn replica_options(options: &ServeOptions) -> anyhow::Result<ReplicaOptions> {
    let id = options.replica_id.parse().context("--replica-id")?;
    let address = options.advertise.parse().context("--advertise")?;
    let zone = options.zone.as_deref().filter(|zone| !zone.is_empty());
    Ok(ReplicaOptions {
        zone: zone.map(str::parse).transpose().context("--zone")?,
        weight: Weight::new(options.weight).context("--weight must not be zero")?,
        member_ttl: Duration::from_secs(options.member_ttl),
        raise_floor_after: Duration::from_secs(options.raise_floor_after),
        ..ReplicaOptions::new(id, address)
    })
}

/// What the serving certificate names: what was given, and the host of the endpoint.
fn host_names(given: &[String], endpoint: Option<&str>) -> Vec<String> {
    let host = endpoint.and_then(|endpoint| endpoint.rsplit_once(':'));
    let host = host.map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    let names = given.iter().map(String::as_str).chain(host);
    names.map(str::to_owned).collect()
}

/// `polyplane certs`: fills the folder and says what is in it.
///
/// # Errors
/// If the folder cannot be used.
pub fn certs(options: &CertsOptions) -> anyhow::Result<()> {
    let pki = Pki::load_or_create(&options.certs)?;
    PeerTls::load_or_create(&options.certs, "certs")?;
    let endpoint = options.endpoint.as_deref().unwrap_or("127.0.0.1:6443");
    write_kubeconfig(&options.certs, endpoint, &pki);
    println!(
        "keys and certificates are in {}; the administrator's kubeconfig is {}",
        options.certs.display(),
        options.certs.join("admin.kubeconfig").display()
    );
    Ok(())
}

/// Writes the administrator's kubeconfig where there is none; a folder that may not be written is
/// no reason not to serve.
fn write_kubeconfig(certs: &Path, endpoint: &str, pki: &Pki) {
    let path = certs.join("admin.kubeconfig");
    if path.exists() {
        return;
    }
    let config = Kubeconfig {
        server: &format!("https://{endpoint}"),
        root_pem: pki.root_pem(),
        user: UserCredential::Token(pki.admin_token()),
        planes: &[],
        current: "root",
    };
    if let Err(error) = config.write(&path) {
        tracing::warn!("no kubeconfig in {}: {error:#}", certs.display());
    }
}
