//! `polyplane up`: one server, or a small ring, on a store of its own, in the foreground.

pub mod contexts;
pub mod keys;
pub mod plugin_link;
pub mod writable;

use crate::audit;
use crate::cli::limits;
use crate::cli::memory;
use crate::cli::{StoreKind, UpOptions, flag_values};
use crate::process::{self, Signals};
use crate::replica::access::authority;
use crate::replica::token_file::ServerTokens;
use crate::replica::{Drain, Replica, ReplicaParts};
use crate::store;
use crate::up::contexts::Contexts;
use crate::up::writable::while_writable;
use anyhow::{Context, anyhow, bail};
use polyplane_audit::Auditor;
use polyplane_batteries::bootstrap::Release;
use polyplane_ownership::ReplicaOptions;
use polyplane_pki::{PeerTls, Pki, make_root_secret};
use polyplane_server::{CompletedOptions, Config, Options, PeerLimits, PeerTransport, StopPolicy};
use polyplane_storage::{OpenError, Store, check_unlocked, engine_of};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long requests in flight may take when the server stops. After that their connections are
/// aborted.
const GRACE: Duration = Duration::from_secs(10);
/// How long the planes may take to close, and then the store. Without the limits a disk that hangs would
/// keep the process alive.
const CLOSE: Duration = Duration::from_secs(10);

/// Runs until a signal ends it.
///
/// # Errors
/// Returns the reason why the server cannot run, in one line with what to do.
pub fn run(options: UpOptions, release: Arc<Release>) -> anyhow::Result<()> {
    let began = Instant::now();
    let level = std::env::var("POLYPLANE_LOG").unwrap_or_else(|_| "warn".to_owned());
    process::run(&level, serve(options, release, began))
}

async fn serve(options: UpOptions, release: Arc<Release>, began: Instant) -> anyhow::Result<()> {
    let completed = complete(&options)?;
    // Only logged, because on a laptop nobody opens that many connections.
    if let Err(error) = limits::raise_open_files(&completed.limits, options.replicas.into()) {
        tracing::debug!("{error}");
    }
    let delegated = options.authentication.open()?;
    let admission = options.admission.open()?;
    let auditor = options.audit.settings().open(&delegated.outbound)?;
    let listening = listen_all(&completed, options.replicas).await;
    let (addresses, spread) = listening.map_err(|error| unless_in_use(&options, error))?;
    let endpoint = endpoint(&completed, &addresses)?;
    let (folder, store) = open_store(&options, &completed.certs_folder).await?;
    let mut replicas = Vec::new();
    let (mut pki, mut tokens) = (None, None);
    for (number, (completed, listeners)) in spread.into_iter().enumerate() {
        let folder = completed.certs_folder.clone();
        make_root_secret(&folder)?;
        let config = configure(completed, &options, auditor.as_ref())?;
        pki.get_or_insert_with(|| Arc::clone(&config.pki));
        let tokens = tokens.get_or_insert_with(|| ServerTokens::of_admin(&config.pki));
        let name = format!("polyplane-{number}");
        let setup = ReplicaParts {
            store: Arc::clone(&store),
            release: Arc::clone(&release),
            replica: ReplicaOptions::alone(name.parse()?, endpoint.parse()?),
            peering: None,
            root_secret: config.pki.root_secret().cloned(),
            config,
            listeners,
            endpoint: endpoint.clone(),
            authority: authority(delegated.access.as_ref()),
            idle: Duration::from_secs(options.sleep_after),
            tokens: tokens.clone(),
            wait: None,
            plain: None,
            lifetimes: options.lifetimes.lifetimes(),
            delegated: delegated.clone(),
            admission: polyplane_admission::configured(&admission),
            encryption: options.encryption.open()?,
            memory: memory::shares(&options.memory, &options.limits, options.replicas),
        };
        let mut setup = match options.replicas {
            1 => setup,
            _ => with_peers(setup, &folder, &name).await?,
        };
        setup.replica.raise_floor_after = Duration::from_secs(options.raise_floor_after);
        replicas.push(while_writable(&*store, Replica::start(setup)).await?);
    }
    while_writable(&*store, wake_roots(&replicas)).await?;
    let pki = pki.context("there is always one replica")?;
    let stop = CancellationToken::new();
    let path = folder.join("kubeconfig");
    keep_contexts(&path, &endpoint, pki, &replicas[0], stop.clone())?;
    plugin_link::write_plugin(&folder);
    write_pid(&folder)?;
    // Before the announcement, because a script that has read it may send SIGTERM at once.
    let signals = Signals::new()?;
    announce(&options, &path, &addresses, began);
    run_all(replicas, signals).await;
    let last = async {
        close_store(&*store).await;
        audit::close(auditor).await;
    };
    process::last_steps(last).await?;
    stop.cancel();
    remove_pid(&folder);
    Ok(())
}

/// The options of one replica, and where it listens.
type Listening = (CompletedOptions, Vec<TcpListener>);

/// Opens the ports of all replicas, and returns the addresses of the first. Before the store is opened: a start
/// that finds a port taken must not leave a new folder, in particular not where another server had its own.
async fn listen_all(
    completed: &CompletedOptions,
    replicas: u16,
) -> anyhow::Result<(Vec<SocketAddr>, Vec<Listening>)> {
    let listeners = listen(completed).await?;
    let addresses = addresses_of(&listeners);
    let mut spread = vec![(completed.clone(), listeners)];
    for number in 1..replicas {
        spread.push(neighbour(completed, &addresses, number).await?);
    }
    Ok((addresses, spread))
}

/// Returns the reason why a server that could not listen cannot start: another process has its folder, if one has.
/// That one probably has the port too, and on another port it would be the reason.
fn unless_in_use(options: &UpOptions, error: anyhow::Error) -> anyhow::Error {
    if options.store == StoreKind::Memory {
        return error;
    }
    let folder = std::path::absolute(&options.dir).map(|folder| folder.join("store"));
    match folder.map(|folder| check_unlocked(&folder)) {
        Ok(Err(in_use @ OpenError::Locked { .. })) => in_use.into(),
        Ok(Ok(()) | Err(_)) | Err(_) => error,
    }
}

/// Opens the store in the folder of the server, and returns both.
async fn open_store(
    options: &UpOptions,
    certs: &Path,
) -> anyhow::Result<(PathBuf, Arc<dyn Store>)> {
    make_folder(&options.dir)?;
    let folder = std::path::absolute(&options.dir)?;
    keys::warn_of_new_store(options.store, &folder, certs);
    let store = store::embedded(options.store, &folder).await?;
    keys::check_root_secret(&store, certs).await?;
    Ok((folder, store))
}

/// Returns the configuration of the server of one replica.
fn configure(
    completed: CompletedOptions,
    options: &UpOptions,
    auditor: Option<&Arc<Auditor>>,
) -> anyhow::Result<Config> {
    Ok(Config {
        audit: auditor.cloned(),
        flags: flag_values().into(),
        ..completed.configure()?.with_nodes(options.kubelets.open()?)
    })
}

fn addresses_of(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    let addresses = listeners.iter().flat_map(TcpListener::local_addr);
    addresses.collect()
}

/// Writes the process id, for scripts.
fn write_pid(folder: &Path) -> anyhow::Result<()> {
    let id = std::process::id().to_string();
    std::fs::write(folder.join("pid"), id).context("--dir: cannot write the file `pid`")
}

/// Removes the file with the process id. If the folder was replaced, the one there is another server's.
fn remove_pid(folder: &Path) {
    let path = folder.join("pid");
    let own = std::process::id().to_string();
    if std::fs::read_to_string(&path).is_ok_and(|id| id == own) {
        let _ = std::fs::remove_file(path);
    }
}

fn complete(options: &UpOptions) -> anyhow::Result<CompletedOptions> {
    let memory = memory::shares(&options.memory, &options.limits, options.replicas);
    let typed = Options {
        data_folder: options.dir.clone(),
        listen: options.listen.clone(),
        host_names: options.host_name.clone(),
        advertise: options.advertise.clone(),
        stop: StopPolicy {
            ready_delay: Duration::ZERO,
            grace: GRACE,
        },
        limits: options.limits.limits(&memory),
        browsers: options.browsers.options(),
        ..Options::default()
    };
    Ok(typed.complete()?)
}

/// Returns the host and port that kubeconfigs name.
fn endpoint(completed: &CompletedOptions, listen: &[SocketAddr]) -> anyhow::Result<String> {
    match (&completed.advertise, listen.first()) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(address)) => Ok(address.to_string()),
        (None, None) => bail!("--listen: no address was given"),
    }
}

async fn listen(completed: &CompletedOptions) -> anyhow::Result<Vec<TcpListener>> {
    let listeners = completed.listen().await;
    listeners.map_err(|error| {
        let error = anyhow::Error::from(error);
        anyhow!("--listen: {error:#}; give a free address of this machine")
    })
}

/// Returns options and configuration of a further replica of this process, on the ports that follow
/// those of the first.
async fn neighbour(
    first: &CompletedOptions,
    addresses: &[SocketAddr],
    number: u16,
) -> anyhow::Result<Listening> {
    let mut completed = first.clone();
    for (address, known) in completed.listen.iter_mut().zip(addresses) {
        let port = match address.port() {
            0 => 0,
            _ => known
                .port()
                .checked_add(number)
                .with_context(|| {
                    format!("--listen: replica {number} needs the port {number} above that of {known}, which is above 65535")
                })?,
        };
        address.set_port(port);
    }
    let listeners = listen(&completed).await?;
    Ok((completed, listeners))
}

/// Adds to a replica the peer port and the transport that it needs beside others of the same
/// process.
async fn with_peers(
    mut setup: ReplicaParts,
    certs: &Path,
    name: &str,
) -> anyhow::Result<ReplicaParts> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let tls = PeerTls::load_or_create(certs, name)?;
    let expiries = Arc::clone(tls.expiries());
    setup.config.expiries.push(expiries);
    let transport = PeerTransport::new(tls, PeerLimits::default());
    setup.replica = ReplicaOptions::new(name.parse()?, address.parse()?);
    setup.peering = Some((transport, vec![listener]));
    Ok(setup)
}

/// Creates the folder so that only its owner can read it.
fn make_folder(path: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    if path.exists() && !path.is_dir() {
        bail!("--dir: {} is not a folder", path.display());
    }
    made.with_context(|| format!("--dir: cannot create the folder {}", path.display()))
}

/// Wakes the root plane at the replica to which it belongs, and completes the start of a new store.
async fn wake_roots(replicas: &[Replica]) -> anyhow::Result<()> {
    for replica in replicas {
        replica.wake_root().await?;
    }
    begin_at_own_level(&replicas[0]).await;
    for replica in replicas {
        // At once, because users may write as soon as the server has said that it is up.
        replica.encryption.look(&replica.directory).await?;
    }
    Ok(())
}

/// Raises the level floor of a store in which nobody has made a plane yet. No other process uses an
/// embedded store, so there is no earlier release to wait for.
async fn begin_at_own_level(replica: &Replica) {
    let directory = &replica.directory;
    if directory.rows.is_empty()
        && let Err(error) = directory.planes.raise_floor().await
    {
        let error = anyhow::Error::from(error);
        tracing::warn!("the store's level floor stays as it is: {error:#}");
    }
}

/// Writes the kubeconfig, and keeps it up to date until `stop`.
fn keep_contexts(
    path: &Path,
    endpoint: &str,
    pki: Arc<Pki>,
    replica: &Replica,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let identity = pki.issue_client("admin", &["system:masters"])?;
    let contexts = Contexts {
        path: path.to_owned(),
        server: format!("https://{endpoint}"),
        pki,
        identity,
        directory: Arc::clone(&replica.directory),
    };
    contexts.write("root")?;
    tokio::spawn(contexts.run(stop));
    Ok(())
}

/// Serves until a signal; a second signal ends the requests in flight.
async fn run_all(replicas: Vec<Replica>, signals: Signals) {
    let handles = replicas.iter().map(Replica::stop_handle).collect();
    let signals = tokio::spawn(signals.stop(handles));
    let running = TaskTracker::new();
    let is_ring = replicas.len() > 1;
    for replica in replicas {
        if is_ring {
            tokio::spawn(drain_if_requested(replica.drain()));
        }
        running.spawn(replica.run(CLOSE));
    }
    running.close();
    running.wait().await;
    signals.abort();
}

async fn close_store(store: &dyn Store) {
    if tokio::time::timeout(CLOSE, store.close()).await.is_err() {
        tracing::warn!("the store did not close in time; every acknowledged write is on disk");
    }
}

/// Hands the planes of one replica over once a client requests it. The replica stays, without planes, because
/// the process ends with all of them.
async fn drain_if_requested(drain: Arc<Drain>) {
    drain.requested().await;
    if !drain.run(tokio::time::Instant::now() + GRACE).await {
        tracing::warn!("not all control planes were handed over in time");
    }
    drain.finish();
}

/// Returns the lines of the announcement that say what a store keeps: one at its beginning, if any, and its
/// last one.
fn what_is_kept(store: StoreKind) -> [&'static str; 2] {
    match store {
        StoreKind::Memory => [
            "store: memory, nothing is kept when this process ends\n",
            "Ctrl-C stops it, and everything in it is lost.",
        ],
        StoreKind::Sled | StoreKind::Fjall => {
            ["", "Ctrl-C stops it; every acknowledged write is on disk."]
        }
    }
}

/// Returns the line of the announcement that says that another engine than `--store` names keeps the data,
/// if one does: the engine `found`, which made the store in the folder.
fn other_engine(store: StoreKind, found: Option<&str>) -> String {
    let named = match store {
        StoreKind::Memory => return String::new(),
        StoreKind::Sled => "sled",
        StoreKind::Fjall => "fjall",
    };
    match found {
        Some(found) if found != named => format!(
            "store: {found}, which made the store in this folder; --store {named} would be for a new one\n"
        ),
        Some(_) | None => String::new(),
    }
}

/// Prints the addresses and a first command to try. A failed print is ignored, because standard
/// output may be closed or on a full disk, and the server serves all the same.
fn announce(options: &UpOptions, kubeconfig: &Path, addresses: &[SocketAddr], began: Instant) {
    let took = began.elapsed().as_millis();
    let listening: Vec<String> = addresses
        .iter()
        .map(|address| format!("https://{address}"))
        .collect();
    let path = kubeconfig.display();
    let bin = kubeconfig.with_file_name("bin");
    let [memory, end] = what_is_kept(options.store);
    // The store is open, so its format can be read; without it there is only a line less.
    let found = engine_of(&kubeconfig.with_file_name("store"));
    let engine = other_engine(options.store, found.ok().flatten().as_deref());
    let ring = match options.replicas {
        1 => String::new(),
        many => format!("replicas: {many} in this process; `kubectl plane ring` shows them\n"),
    };
    let text = format!(
        "polyplane is up after {took} ms: {}\n\
         kubeconfig: {path}\n{memory}{engine}{ring}\n\
         try, in another terminal:\n  \
         export KUBECONFIG={path}\n  \
         export PATH={}:$PATH          # for `kubectl plane`\n  \
         kubectl plane create team-a\n  \
         kubectl --context team-a get namespaces\n\n\
         {end}\n",
        listening.join(", "),
        bin.display(),
    );
    let mut output = std::io::stdout().lock();
    let _ = output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn a_store_in_memory_promises_nothing_on_disk() {
        for store in StoreKind::value_variants() {
            let said = what_is_kept(*store).concat();
            let is_in_memory = *store == StoreKind::Memory;
            assert_eq!(said.contains("on disk"), !is_in_memory, "{said}");
            assert_eq!(said.contains("lost"), is_in_memory, "{said}");
        }
    }

    #[test]
    fn an_engine_other_than_the_named_one_is_announced() {
        let said = other_engine(StoreKind::Sled, Some("fjall"));
        assert!(
            said.starts_with("store: fjall") && said.ends_with('\n'),
            "{said}"
        );
        let said = other_engine(StoreKind::Fjall, Some("sled"));
        assert!(
            said.contains("--store fjall would be for a new one"),
            "{said}"
        );
        for (store, found) in [
            (StoreKind::Fjall, Some("fjall")),
            (StoreKind::Sled, Some("sled")),
            (StoreKind::Fjall, None),
            (StoreKind::Memory, Some("fjall")),
        ] {
            assert_eq!(other_engine(store, found), "");
        }
    }
}
