//! Opens the store that the flags name: an embedded one for `up`, a shared one for `serve`, two of any
//! kind for `store copy`. This module does not know what the store contains.

pub mod copy;
pub mod location;
pub mod progress;
pub mod wait;

use crate::cli::{StoreKind, StoreOptions};
use crate::store::wait::StoreWait;
use anyhow::{Context, bail};
use polyplane_storage::{
    EtcdOptions, EtcdStore, EtcdTls, FjallOptions, FjallStore, MemoryOptions, MemoryStore, Secret,
    SledOptions, SledStore, Store, engine_of,
};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the first attempt may look for a usable etcd member: longer than a slow member needs to
/// answer, and short enough that `/readyz` names the reason soon.
const ATTEMPT_FIRST: Duration = Duration::from_secs(3);
/// How long a later attempt may take. Each attempt reads the credentials again, so with a longer
/// one a replaced password would be noticed later.
const ATTEMPT_MAX: Duration = Duration::from_secs(60);

/// Opens the embedded store of a folder: with the engine that created it, or, if there is none yet,
/// with the one that is named.
///
/// # Errors
/// Returns an error if the store is in use, damaged, or cannot be read.
pub async fn embedded(kind: StoreKind, folder: &Path) -> anyhow::Result<Arc<dyn Store>> {
    if kind == StoreKind::Memory {
        return Ok(Arc::new(MemoryStore::new(MemoryOptions::default())));
    }
    let path: PathBuf = folder.join("store");
    let opened = tokio::task::spawn_blocking(move || open(kind, &path));
    opened.await.context("opening the store panicked")?
}

fn open(kind: StoreKind, path: &Path) -> anyhow::Result<Arc<dyn Store>> {
    let named = kind == StoreKind::Fjall;
    let is_on_fjall = engine_of(path)?.map_or(named, |engine| engine == "fjall");
    if is_on_fjall != named {
        let engine = if is_on_fjall { "fjall" } else { "sled" };
        tracing::info!(
            engine,
            path = %path.display(),
            "the store was created by another engine than --store names, and is opened by that one"
        );
    }
    Ok(match is_on_fjall {
        true => Arc::new(FjallStore::open(path, FjallOptions::default())?),
        false => Arc::new(SledStore::open(path, SledOptions::default())?),
    })
}

/// Connects to the shared store, and waits until it can be reached.
///
/// Returns an error that waiting does not change: the options do not fit together, a file cannot be
/// read, or the store refuses the credentials.
pub async fn shared(options: &StoreOptions, wait: &StoreWait) -> anyhow::Result<Arc<dyn Store>> {
    let open_timeout = Cell::new(ATTEMPT_FIRST);
    wait.out(async || {
        let this_time = open_timeout.get();
        open_timeout.set((this_time * 2).min(ATTEMPT_MAX));
        // Built in each attempt, because somebody may have replaced a password or a certificate.
        let etcd = EtcdOptions {
            open_timeout: this_time,
            ..etcd_options(options, SERVE)?
        };
        let endpoints = etcd.endpoints.join(", ");
        let store = EtcdStore::connect(etcd).await;
        let store = store.with_context(|| format!("cannot use the store at {endpoints}"))?;
        Ok(store as Arc<dyn Store>)
    })
    .await
}

/// Checks the options and the files that they name, without connecting to the store.
///
/// # Errors
/// Returns an error if the options do not fit together, or a file that they name cannot be used.
pub fn check(options: &StoreOptions) -> anyhow::Result<()> {
    etcd_options(options, SERVE).map(drop)
}

/// How messages name the options of a store.
#[derive(Debug, Clone, Copy)]
pub struct Naming {
    /// The option with the URL.
    pub url: &'static str,
    /// The beginning of the names of the other options.
    pub option: &'static str,
}

/// The options of `serve`.
const SERVE: Naming = Naming {
    url: "--store",
    option: "--store-",
};

/// Returns how to connect to etcd.
///
/// # Errors
/// Returns an error if the options do not fit together, or a file that they name cannot be used.
pub fn etcd_options(options: &StoreOptions, naming: Naming) -> anyhow::Result<EtcdOptions> {
    let Naming { url, option } = naming;
    let (secure, hosts) = match options.store.split_once("://") {
        Some(("etcd", hosts)) => (false, hosts),
        Some(("etcds", hosts)) => (true, hosts),
        _ => bail!(
            "{url}: {:?} has an unknown scheme; use etcd://HOST:PORT[,HOST:PORT], or etcds:// for TLS",
            options.store
        ),
    };
    let scheme = if secure { "https" } else { "http" };
    let mut endpoints = Vec::new();
    for host in hosts.trim_end_matches('/').split(',') {
        let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(port)) if port > 0) {
            bail!("{url}: {host:?} is not HOST:PORT; write for example etcd://etcd-0:2379");
        }
        endpoints.push(format!("{scheme}://{host}"));
    }
    let named = [&options.store_ca, &options.store_cert, &options.store_key];
    if !secure && named.iter().any(|file| file.is_some()) {
        bail!(
            "{url}: {:?} does not use TLS, but certificates are given; use etcds://{hosts}, or leave out \
             {option}ca, {option}cert and {option}key",
            options.store
        );
    }
    if !options.store_prefix.ends_with('/') {
        bail!(
            "{option}prefix: {0:?} does not end with a slash, so the keys of another ring could begin \
             with it; use \"{0}/\"",
            options.store_prefix
        );
    }
    let tls = secure.then(|| tls(options));
    let user = options.store_user.clone();
    let user = user.zip(options.store_password_file.clone().map(Secret::File));
    let etcd = EtcdOptions {
        endpoints,
        prefix: options.store_prefix.clone().into(),
        user,
        tls,
        ..EtcdOptions::default()
    };
    etcd.check()
        .with_context(|| format!("{option}ca, {option}cert, {option}key, {option}password-file"))?;
    Ok(etcd)
}

fn tls(options: &StoreOptions) -> EtcdTls {
    let file = |path: &Option<PathBuf>| path.clone().map(Secret::File);
    EtcdTls {
        ca: file(&options.store_ca),
        cert_and_key: file(&options.store_cert).zip(file(&options.store_key)),
        server_name: None,
    }
}
