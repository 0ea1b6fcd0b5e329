//! `polyplane serve`: one replica of a ring on a shared store, in the foreground.
//!
//! How it ends: at the first SIGTERM, or when somebody posts to `/drain`, it says Draining in its
//! lease, `/readyz` fails, and everything is still served while its planes are handed over. When it
//! owns nothing any more, or at the deadline, requests in flight end and the process exits. One
//! that was asked by `/drain` waits for the signal. A second signal ends it at once. A lost store
//! delays nothing beyond the deadline.

use crate::cli::{CertsOptions, ServeOptions};
use crate::limits;
use crate::process::{self, Signals};
use crate::replica::{Replica, Setup};
use crate::store;
use anyhow::{Context, anyhow};
use polyplane_batteries::bootstrap::Release;
use polyplane_ownership::{ReplicaOptions, Weight};
use polyplane_server::kubeconfig::{Kubeconfig, UserCredential};
use polyplane_server::{Options, PeerLimits, PeerTls, PeerTransport, Pki, StopPolicy};
use polyplane_storage::Store;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Of the grace, what is kept for requests in flight once the planes are gone.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
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
    let prepared = async {
        let (setup, store) = prepare(&options, release).await?;
        let replica = Replica::start(setup).await?;
        // It is tried again and again while the replica runs; until then others wait.
        if let Err(error) = replica.wake_root().await {
            tracing::warn!("{error:#}");
        }
        Ok::<_, anyhow::Error>((replica, store))
    };
    let (replica, store) = tokio::select! {
        // Who is told to end while the store is not there ends.
        biased;
        () = signals.next() => return Ok(()),
        prepared = prepared => prepared?,
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
    finish(replica, signals, times).await;
    if tokio::time::timeout(CLOSE, store.close()).await.is_err() {
        tracing::warn!("the store did not answer the goodbye");
    }
    Ok(())
}

/// Checks the options, opens the listeners, and connects to the store.
async fn prepare(
    options: &ServeOptions,
    release: Arc<Release>,
) -> anyhow::Result<(Setup, Arc<dyn Store>)> {
    let replica = replica_options(options)?;
    let typed = Options {
        certs_folder: Some(options.certs.clone()),
        listen: vec![options.listen.clone()],
        host_names: host_names(&options.host_name, options.endpoint.as_deref()),
        advertise: options.endpoint.clone(),
        stop: StopPolicy {
            ready_delay: Duration::ZERO,
            grace: LAST_REQUESTS,
        },
        limits: options.limits.limits(),
        ..Options::default()
    };
    let completed = typed.complete()?;
    limits::raise_open_files(&completed.limits, 1);
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
    let local = listeners.first().and_then(|l| l.local_addr().ok());
    let endpoint = match (&options.endpoint, local) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(address)) => address.to_string(),
        (None, None) => options.listen.clone(),
    };
    write_kubeconfig(&options.certs, &endpoint, &config.pki);
    let tls = PeerTls::load_or_create(&options.certs, &options.replica_id)?;
    let peer_limits = PeerLimits {
        forwards_in_flight_max: options.forwards_in_flight_max,
        ..PeerLimits::default()
    };
    let transport = PeerTransport::new(tls, peer_limits);
    let store = store::shared(&options.store).await?;
    let setup = Setup {
        store: Arc::clone(&store),
        release,
        replica,
        peering: Some((transport, vec![peer_listener])),
        config,
        listeners,
        endpoint,
        idle: Duration::from_secs(options.sleep_after),
    };
    Ok((setup, store))
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
