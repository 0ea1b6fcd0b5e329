//! `polyplane serve`: one replica of a ring on a shared store, in the foreground.
//!
//! While the store cannot be reached the replica waits: `/livez` succeeds, `/readyz` fails, the log
//! names the reason, and `serve` exits at once if it receives SIGTERM. A problem that does not pass
//! by itself, such as a wrong password, ends the process with an error. The replica waits in the same
//! way while it and the members of the ring do not trust each other's peer certificates, while another
//! replica answers at its advertised address, and while the store takes no writes, without which a replica
//! cannot join.
//!
//! How `serve` stops: at the first SIGTERM or at a POST to `/drain` the replica writes Draining
//! into its member key, `/readyz` fails, and the replica still serves every request while it hands
//! its planes over. Once it owns no plane, or at the deadline, requests in flight get a last few
//! seconds and the process exits. After `/drain` it first waits for SIGTERM. A second signal stops
//! it at once. A store that does not answer delays nothing beyond the deadline.

pub mod waiting_server;

use crate::audit;
use crate::cli::limits;
use crate::cli::memory;
use crate::cli::{CertsOptions, ServeOptions, flag_values};
use crate::process::{self, Signals};
use crate::replica::access::{Access, Delegated, authority};
use crate::replica::root_secret::SharedSecret;
use crate::replica::token_file::ServerTokens;
use crate::replica::{Replica, ReplicaParts};
use crate::serve::waiting_server::WaitingServer;
use crate::store;
use crate::store::wait::StoreWait;
use anyhow::{Context, anyhow, ensure};
use polyplane_admission::AdmissionConfig;
use polyplane_audit::Auditor;
use polyplane_auth::RootSecret;
use polyplane_batteries::bootstrap::Release;
use polyplane_ownership::{ReplicaOptions, Weight};
use polyplane_pki::kubeconfig::{Kubeconfig, UserCredential};
use polyplane_pki::{PeerTls, Pki, PkiError, Unmarked, make_root_secret, read_root_secret};
use polyplane_plane::Memory;
use polyplane_sealing::EncryptionConfig;
use polyplane_server::{Config, Options, PeerLimits, PeerTransport, StopPolicy};
use polyplane_storage::Store;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// The part of --grace that is reserved for requests in flight after the planes are handed over.
/// Without it they would be aborted if the hand-over needs all the time.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
/// How long each of the three last steps may take: planes that were not handed over, the store and the last events of
/// the audit, and the runtime's threads. Without the limits an etcd that does not answer would keep the process alive.
const LAST_CLOSE: Duration = Duration::from_secs(1);
/// The part of --grace that is left when the planes have to be handed over.
const LAST: Duration = LAST_REQUESTS.saturating_add(LAST_CLOSE.saturating_mul(3));
/// How long a start may take before the waiting server answers health checks. Most starts take
/// less, and starting a second server for them would only delay them.
const QUIET: Duration = Duration::from_millis(500);

/// Runs until a signal ends it.
///
/// # Errors
/// Returns the reason why the replica cannot run, in one line with what to do.
pub fn run(options: ServeOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let level = options.log.clone();
    process::run(&level, serve(options, release))
}

async fn serve(options: ServeOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let began = Instant::now();
    let times = Times {
        grace: Duration::from_secs(options.grace),
        notice: Duration::from_secs(options.drain_notice),
    };
    let times = times.checked()?;
    let mut signals = Signals::new()?;
    let prepared = tokio::select! {
        // `signals` first: a replica that does not serve yet holds nothing and may exit at once.
        biased;
        () = signals.next() => return Ok(()),
        prepared = prepare(&options) => prepared?,
    };
    let mut started = tokio::select! {
        // `signals` first: a replica that does not serve yet may exit at once.
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
    let handover = started.waiting.take().map(WaitingServer::stop);
    let handover = handover.map(tokio::spawn);
    let signalled = finish(started.replica, signals, times).await;
    let audit_until = times.audit_until(signalled, tokio::time::Instant::now());
    let (auditor, store) = (started.auditor, started.store);
    process::last_steps(close(auditor, &*store, audit_until)).await?;
    drop(handover);
    Ok(())
}

/// Closes the audit, at the latest at a moment, and the store.
async fn close(
    auditor: Option<Arc<Auditor>>,
    store: &dyn Store,
    audit_until: tokio::time::Instant,
) {
    // At the same time, because neither needs the other.
    let (sent, closed) = tokio::join!(
        tokio::time::timeout_at(audit_until, audit::close(auditor)),
        tokio::time::timeout(LAST_CLOSE, store.close()),
    );
    if sent.is_err() {
        tracing::error!("the grace ended before all audit events were written or sent");
    }
    if closed.is_err() {
        tracing::warn!("the store did not close in time");
    }
}

/// The parts of a replica that can be prepared without the store.
struct Prepared {
    replica: ReplicaOptions,
    config: Config,
    listeners: Vec<TcpListener>,
    transport: Arc<PeerTransport>,
    peer_listener: TcpListener,
    endpoint: String,
    tokens: ServerTokens,
    root_secret: Option<Arc<RootSecret>>,
    memory: Arc<Memory>,
    delegated: Delegated,
    admission: AdmissionConfig,
    encryption: Option<EncryptionConfig>,
}

/// A replica that has joined the ring.
struct Started {
    replica: Replica,
    store: Arc<dyn Store>,
    /// The server that has answered health checks until now, if the start took long.
    waiting: Option<WaitingServer>,
    auditor: Option<Arc<Auditor>>,
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
        browsers: options.browsers.options(),
        ..Options::default()
    };
    let completed = typed.complete()?;
    if let Err(error) = limits::raise_open_files(&completed.limits, 1) {
        tracing::warn!("{error}");
    }
    let listeners = completed.listen().await.map_err(|error| {
        let error = anyhow::Error::from(error);
        anyhow!("--listen: {error:#}; give a free address of this machine")
    })?;
    let peer_listener = TcpListener::bind(&options.peer_listen)
        .await
        .map_err(|error| {
            anyhow!(
                "--peer-listen: cannot listen on {:?}: {error}; give a free address of this machine, such as 0.0.0.0:7443",
                options.peer_listen
            )
        })?;
    let config = completed.configure();
    let mut config = config.with_context(|| format!("--certs {}", options.certs.display()))?;
    let delegated = options.authentication.open()?;
    let admission = options.admission.open()?;
    config.audit = options.audit.settings().open(&delegated.outbound)?;
    let encryption = options.encryption.open()?;
    config = config.with_nodes(options.kubelets.open()?);
    config.flags = flag_values().into();
    let tokens = match &options.metrics_token_file {
        Some(file) => ServerTokens::with_metrics(&config.pki, file)?,
        None => ServerTokens::of_admin(&config.pki),
    };
    let root_secret = root_secret(options, &config.pki)?;
    let endpoint = endpoint(options, &listeners);
    write_kubeconfig(&options.certs, &endpoint, &config.pki);
    let tls = peer_tls(options)?;
    config.expiries.push(Arc::clone(tls.expiries()));
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
        tokens,
        root_secret,
        memory,
        delegated,
        admission,
        encryption,
    })
}

/// Reads or makes the certificates for other replicas.
fn peer_tls(options: &ServeOptions) -> Result<Arc<PeerTls>, PkiError> {
    let unmarked = match options.accept_unmarked_peers {
        true => Unmarked::Accepted,
        false => Unmarked::Refused,
    };
    PeerTls::load_or_create_with(&options.certs, &options.replica_id, unmarked)
}

/// Returns the host and port under which clients reach the ring.
fn endpoint(options: &ServeOptions, listeners: &[TcpListener]) -> String {
    let local = listeners.first().and_then(|one| one.local_addr().ok());
    match (&options.endpoint, local) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(address)) => address.to_string(),
        (None, None) => options.listen.clone(),
    }
}

/// Starts the replica. If that takes longer than [`QUIET`], because the store does not answer, a
/// waiting server answers health checks meanwhile, so that no supervisor restarts the replica, and
/// `/readyz` names the reason.
async fn start_with_health(
    options: &ServeOptions,
    release: Arc<Release>,
    prepared: Prepared,
) -> anyhow::Result<Started> {
    let wait = Arc::new(StoreWait::default());
    let access = Access::new(
        &prepared.config.pki,
        &prepared.tokens,
        SharedSecret::new(None),
    )?;
    let health = WaitingServer::prepare(
        &prepared.config,
        &prepared.listeners,
        Arc::clone(&wait),
        access,
    )?;
    let mut starting = std::pin::pin!(start(options, release, prepared, wait));
    let at_once = tokio::select! {
        // The start first: a replica that has started needs no waiting server.
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

/// Connects to the store, joins the ring, and wakes the root plane if it belongs to this replica.
async fn start(
    options: &ServeOptions,
    release: Arc<Release>,
    prepared: Prepared,
    wait: Arc<StoreWait>,
) -> anyhow::Result<Started> {
    let store = store::shared(&options.store, &wait).await?;
    wait.record_store(&store);
    let auditor = prepared.config.audit.clone();
    let setup = ReplicaParts {
        store: Arc::clone(&store),
        release,
        replica: prepared.replica,
        peering: Some((prepared.transport, vec![prepared.peer_listener])),
        config: prepared.config,
        listeners: prepared.listeners,
        endpoint: prepared.endpoint,
        authority: authority(prepared.delegated.access.as_ref()),
        idle: Duration::from_secs(options.sleep_after),
        tokens: prepared.tokens,
        root_secret: prepared.root_secret,
        wait: Some(wait),
        plain: None,
        lifetimes: options.lifetimes.lifetimes(),
        delegated: prepared.delegated,
        admission: polyplane_admission::configured(&prepared.admission),
        encryption: prepared.encryption,
        memory: prepared.memory,
    };
    let replica = Replica::start(setup).await?;
    // Only logged, because `keep_root` tries again while the replica runs.
    if let Err(error) = replica.wake_root().await {
        tracing::warn!("{error:#}");
    }
    Ok(Started {
        replica,
        store,
        waiting: None,
        auditor,
    })
}

/// The times for stopping.
#[derive(Clone, Copy)]
struct Times {
    /// The time from the first request to stop until the process exits.
    grace: Duration,
    /// The time for which the replica keeps serving at least, so that load balancers notice that it
    /// is not ready.
    notice: Duration,
}

impl Times {
    /// Returns the times if they fit together.
    ///
    /// # Errors
    /// Returns an error if the replica would still serve when its last steps have to begin, because the
    /// process would then exit after its grace, or be killed before.
    fn checked(self) -> anyhow::Result<Self> {
        let longest = self.grace.saturating_sub(LAST);
        ensure!(
            self.notice <= longest,
            "--drain-notice: {} s do not fit into a --grace of {} s, of which the last {} are for requests in \
             flight; give at most {}, or a longer --grace",
            self.notice.as_secs(),
            self.grace.as_secs(),
            LAST.as_secs(),
            longest.as_secs()
        );
        Ok(self)
    }

    /// Returns until when the audit may write and send, if the signal came then. An audit webhook that does not
    /// answer would keep the process alive beyond its grace.
    fn audit_until(
        self,
        signalled: tokio::time::Instant,
        now: tokio::time::Instant,
    ) -> tokio::time::Instant {
        // The runtime's threads need the rest.
        let until = signalled + self.grace.saturating_sub(LAST_CLOSE);
        until.max(now + LAST_CLOSE)
    }
}

/// Serves until a signal or `/drain`, hands the planes over, and stops. Returns when the signal came.
async fn finish(replica: Replica, mut signals: Signals, times: Times) -> tokio::time::Instant {
    let stop = replica.stop_handle();
    let drain = replica.drain();
    let (note, noted) = tokio::sync::oneshot::channel();
    let ending = tokio::spawn(async move {
        let signalled = tokio::select! {
            // The signal first: after a signal no client waits for a drain.
            biased;
            () = signals.next() => true,
            () = drain.requested() => false,
        };
        tracing::info!(seconds = times.grace.as_secs(), "draining");
        let deadline = times.grace.saturating_sub(LAST);
        stop.unready();
        let mut draining = std::pin::pin!(async {
            let drained = drain.run(tokio::time::Instant::now() + deadline);
            let (drained, ()) = tokio::join!(drained, tokio::time::sleep(times.notice));
            if !drained {
                tracing::warn!("not all control planes were handed over in time");
            }
            drain.finish();
        });
        let mut drained = false;
        if !signalled {
            tokio::select! {
                // The signal first: it may follow the hook before the drain has ended.
                biased;
                () = signals.next() => {}
                () = &mut draining => {
                    drained = true;
                    signals.next().await;
                }
            }
        }
        let _ = note.send(tokio::time::Instant::now());
        tokio::select! {
            // The second signal first, because it stops the drain.
            biased;
            () = signals.next(), if !drained => return stop.abort(),
            () = &mut draining, if !drained => {}
            else => {}
        }
        stop.stop();
        signals.next().await;
        stop.abort();
    });
    replica.run(LAST_CLOSE).await;
    ending.abort();
    noted.await.unwrap_or_else(|_| tokio::time::Instant::now())
}

/// Returns the secret from which the keys of planes derive: that of --root-secret-file, or that of
/// the certificate folder, which has none if an earlier release made it.
fn root_secret(options: &ServeOptions, pki: &Pki) -> anyhow::Result<Option<Arc<RootSecret>>> {
    let Some(file) = &options.root_secret_file else {
        if pki.root_secret().is_none() {
            tracing::warn!(
                "there is no root secret, so control planes have no users of their own: \
                 `polyplane certs` makes one in the folder of --certs; every replica needs the same"
            );
        }
        return Ok(pki.root_secret().cloned());
    };
    let secret = read_root_secret(file).context("--root-secret-file")?;
    let secret = secret
        .with_context(|| format!("--root-secret-file: there is no file {}", file.display()))?;
    Ok(Some(Arc::new(secret)))
}

fn replica_options(options: &ServeOptions) -> anyhow::Result<ReplicaOptions> {
    let id = options.replica_id.parse().context("--replica-id")?;
    let address = options.advertise.parse().context("--advertise")?;
    let zone = options.zone.as_deref().filter(|zone| !zone.is_empty());
    Ok(ReplicaOptions {
        zone: zone.map(str::parse).transpose().context("--zone")?,
        weight: Weight::new(options.weight)
            .context("--weight: 0 is not a weight; give 1 or more")?,
        member_ttl: Duration::from_secs(options.member_ttl),
        raise_floor_after: Duration::from_secs(options.raise_floor_after),
        ..ReplicaOptions::new(id, address)
    })
}

/// Returns the names in the serving certificate: those of --host-name, and the host of --endpoint.
fn host_names(given: &[String], endpoint: Option<&str>) -> Vec<String> {
    let host = endpoint.and_then(|endpoint| endpoint.rsplit_once(':'));
    let host = host.map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    let names = given.iter().map(String::as_str).chain(host);
    names.map(str::to_owned).collect()
}

/// Creates the missing files of the folder and prints what the folder contains.
///
/// # Errors
/// Returns an error if the folder cannot be used.
pub fn certs(options: &CertsOptions) -> anyhow::Result<()> {
    make_root_secret(&options.certs)?;
    let pki = Pki::load_or_create(&options.certs)?;
    PeerTls::prepare(&options.certs)?;
    let endpoint = options.endpoint.as_deref().unwrap_or("127.0.0.1:6443");
    write_kubeconfig(&options.certs, endpoint, &pki);
    println!(
        "the folder {} holds the keys and certificates; the administrator's kubeconfig is {}",
        options.certs.display(),
        options.certs.join("admin.kubeconfig").display()
    );
    Ok(())
}

/// Writes the administrator's kubeconfig if the folder has none. In a read-only folder it only logs
/// the failure, because the replica can serve without that file.
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
        tracing::warn!("cannot write {}: {error:#}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_that_leaves_no_time_for_the_last_requests_is_refused() {
        let checked = |grace: u64, notice: u64| {
            let [grace, notice] = [grace, notice].map(Duration::from_secs);
            Times { grace, notice }.checked()
        };
        // The flags' defaults, the chart's, the limit, and a replica that hands nothing over.
        for (grace, notice) in [(25, 3), (25, 6), (25, 19), (7, 1), (6, 0), (0, 0)] {
            assert!(checked(grace, notice).is_ok(), "{grace} {notice}");
        }
        for (grace, notice, longest) in [(25, 20, 19), (7, 3, 1), (6, 3, 0), (0, 1, 0)] {
            let error = checked(grace, notice).err().map(|error| error.to_string());
            let text = error.unwrap_or_default();
            for words in [
                format!("--drain-notice: {notice} s"),
                format!("--grace of {grace} s"),
                format!("at most {longest},"),
            ] {
                assert!(text.contains(&words), "{words}: {text}");
            }
        }
    }

    #[test]
    fn the_audit_ends_within_the_grace_and_has_as_long_as_the_store() {
        let [grace, notice] = [25, 3].map(Duration::from_secs);
        let times = Times { grace, notice };
        let signalled = tokio::time::Instant::now();
        let ends_after = |passed: u64| {
            let now = signalled + Duration::from_secs(passed);
            let until = times.audit_until(signalled, now);
            until.duration_since(signalled).as_secs()
        };
        // Nothing was to be handed over; all that comes before took as long as it may.
        let longest = (grace.saturating_sub(LAST) + LAST_REQUESTS + LAST_CLOSE).as_secs();
        assert_eq!([3, longest].map(ends_after), [24, 24]);
        assert_eq!(ends_after(30), 31);
    }
}
