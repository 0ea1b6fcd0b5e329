//! The drop-in's `kube-apiserver`: one plane at `/`, whose users, authorizers and admission plug-ins come
//! from flags, with its state in the etcd that they name.
//!
//! No controllers run, as beside the real one: namespaces stay Terminating, nobody collects garbage,
//! and no service accounts appear, unless a controller manager is started.

use crate::audit;
use crate::envtest::etcd::print;
use crate::envtest::flags::{FlagTable, Wording};
use crate::envtest::identity;
use crate::envtest::service_ranges;
use crate::envtest::settings::{IN_FLIGHT_MAX, Settings, has_meaning};
use crate::process::{self, Signals};
use crate::replica::plain_root::PlainRoot;
use crate::replica::token_file::ServerTokens;
use crate::replica::{Replica, ReplicaParts};
use anyhow::{Context, anyhow};
use polyplane_auth::ClientCa;
use polyplane_batteries::bootstrap::ranges;
use polyplane_ownership::ReplicaOptions;
use polyplane_pki::{CertificateUse, Pki, write_private};
use polyplane_plane::Memory;
use polyplane_server::{FlagValues, Limits, Options, SinglePlane, StopPolicy};
use polyplane_storage::{EtcdOptions, EtcdStore, EtcdTls, Secret, Store};
use rustls::DistinguishedName;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The flags of kube-apiserver.
pub const FLAGS: FlagTable = FlagTable {
    program: "kube-apiserver",
    lines: include_str!("kube-apiserver.flags"),
    wording: Wording::Pflag,
};
/// The version of Kubernetes that this program is like.
pub const VERSION: &str = "v1.37.0";

const HEAD: &str = "\
The kube-apiserver of Polyplane's test drop-in. It serves one control plane at / and keeps its state
in the etcd that --etcd-servers names: the drop-in's own, or a real one.";

/// How long requests in flight may take when the server stops. Watches do not delay the stop.
const GRACE: Duration = Duration::from_secs(5);
/// How long the plane may take to close.
const CLOSE: Duration = Duration::from_secs(10);
/// How long the first connection to etcd may take: as long as a harness waits.
const OPEN: Duration = Duration::from_secs(20);
/// The time after which an unused plane sleeps: longer than any test. The only plane is always in use.
const NEVER: Duration = Duration::from_secs(365 * 86_400);
/// Bytes of memory beside the objects. A test needs little, and many run side by side; with less, long
/// lists in parallel would be refused.
const MEMORY_BUDGET: usize = 256 << 20;

/// Runs until a signal ends it.
///
/// # Errors
/// Returns the reason why it cannot run.
pub fn run(arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let flags = FLAGS.parse(arguments)?;
    if flags.switch("help", false) {
        return print(&FLAGS.help(HEAD, has_meaning));
    }
    if let Some("true" | "raw") = flags.last("version") {
        return print(&format!("Kubernetes {VERSION}\n"));
    }
    let verbosity = flags
        .text("v")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let level = match verbosity {
        0..4 => "info",
        4..8 => "debug",
        _ => "trace",
    };
    process::run(level, async move {
        let settings = Settings::read(&flags).map_err(|problems| anyhow!(problems))?;
        for name in flags.names().filter(|name| !has_meaning(name)) {
            tracing::info!("--{name} has no effect here");
        }
        serve(settings, flags.given().into()).await
    })
}

async fn serve(mut settings: Settings, given: FlagValues) -> anyhow::Result<()> {
    let signals = Signals::new()?;
    let auditor = settings.audit.open(&settings.delegated.outbound)?;
    let endpoint = SocketAddr::new(settings.advertise, settings.listen.port()).to_string();
    let completed = options(&settings, &endpoint).complete()?;
    // As upstream: whoever can connect finds the certificate in its folder.
    let pki = pki(&settings, &completed.host_names)?;
    let pki = Arc::new(pki.with_named(std::mem::take(&mut settings.named_serving)));
    let listeners = completed.listen().await?;
    let store = EtcdStore::connect(etcd_options(&settings)).await?;
    let config = completed.configure_with(Arc::clone(&pki), client_cas(&settings))?;
    let mut config = config.with_nodes(settings.nodes.take());
    config.audit.clone_from(&auditor);
    config.flags = given;
    config.goaway_chance = settings.goaway_chance;
    let (front_proxy, front_proxy_ca_pem) = settings.front_proxy.take().unzip();
    config.single = Some(SinglePlane {
        anonymous: std::mem::take(&mut settings.anonymous),
        front_proxy,
        version: Some(
            settings
                .version
                .take()
                .unwrap_or_else(|| VERSION.to_owned()),
        ),
    });
    let authority = settings.authority.clone();
    let release = service_ranges::release(&settings.service_ranges, settings.advertise)?;
    let name = format!("kube-apiserver-{}", settings.listen.port());
    let delegated = std::mem::take(&mut settings.delegated);
    let admission = std::mem::take(&mut settings.admission);
    let lifetimes = settings.lifetimes;
    let plain = plain_root(settings, &pki, front_proxy_ca_pem)?;
    let parts = ReplicaParts {
        encryption: None,
        store: Arc::clone(&store) as _,
        release,
        replica: ReplicaOptions::new(name.parse()?, endpoint.parse()?),
        peering: None,
        root_secret: None,
        config,
        listeners,
        endpoint,
        authority,
        idle: NEVER,
        tokens: ServerTokens::of_admin(&pki),
        wait: None,
        memory: Memory::with_limits(|share| share.part_of(MEMORY_BUDGET)),
        plain: Some(Arc::new(plain)),
        lifetimes,
        delegated,
        admission,
    };
    let replica = Replica::start(parts).await?;
    replica.wake_root().await?;
    // Nobody else uses the prefix, so there is no earlier release to wait for.
    replica.directory.planes.raise_floor().await?;
    tracing::info!("serving");
    let stopping = tokio::spawn(signals.stop(vec![replica.stop_handle()]));
    replica.run(CLOSE).await;
    store.close().await;
    stopping.abort();
    audit::close(auditor).await;
    Ok(())
}

/// Returns the seats that priority levels share: as upstream, all that may be in flight.
fn seats(settings: &Settings) -> Option<NonZeroU32> {
    let (reads, writes) = settings.in_flight_max;
    let seats = u32::try_from(reads.saturating_add(writes));
    NonZeroU32::new(seats.unwrap_or(u32::MAX))
}

fn options(settings: &Settings, endpoint: &str) -> Options {
    // Where priority levels limit requests, those beyond their seats wait in queues, as upstream.
    let (reads, writes) = match settings.has_priorities {
        true => (IN_FLIGHT_MAX, IN_FLIGHT_MAX),
        false => settings.in_flight_max,
    };
    Options {
        listen: vec![settings.listen.to_string()],
        host_names: names(settings),
        advertise: Some(endpoint.to_owned()),
        stop: StopPolicy {
            ready_delay: Duration::ZERO,
            grace: GRACE,
        },
        limits: Limits {
            reads_in_flight_max: reads,
            writes_in_flight_max: writes,
            plane_seats: seats(settings).filter(|_| settings.has_priorities),
            ..Limits::default()
        },
        browsers: settings.browsers.clone(),
        ..Options::default()
    }
}

/// Returns the names of the CAs whose client certificates are accepted, as the real one tells clients.
fn client_cas(settings: &Settings) -> Vec<DistinguishedName> {
    let clients = settings.clients.iter().map(|(ca, _)| ca);
    let proxies = settings.front_proxy.iter().map(|(proxy, _)| proxy.ca());
    let names = clients.chain(proxies).flat_map(ClientCa::names);
    names.cloned().collect()
}

/// Returns the names of the serving certificate beside the listener's own.
fn names(settings: &Settings) -> Vec<String> {
    let first = ranges::kubernetes_address(&settings.service_ranges);
    let mut names = vec![settings.advertise.to_string(), first.to_string()];
    let services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    names.extend(services.map(str::to_owned));
    names
}

fn etcd_options(settings: &Settings) -> EtcdOptions {
    let is_tls = settings
        .etcd_servers
        .iter()
        .any(|url| url.starts_with("https://"));
    let file = |path: &PathBuf| Secret::File(path.clone());
    EtcdOptions {
        endpoints: settings.etcd_servers.clone(),
        // Below the prefix, because a real kube-apiserver's objects may be beside it.
        prefix: format!("{}/polyplane/", settings.etcd_prefix.trim_end_matches('/')).into(),
        tls: is_tls.then(|| EtcdTls {
            ca: settings.etcd_ca.as_ref().map(file),
            cert_and_key: settings
                .etcd_pair
                .as_ref()
                .map(|(certificate, key)| (file(certificate), file(key))),
            server_name: None,
        }),
        open_timeout: OPEN,
        ..EtcdOptions::default()
    }
}

/// Returns the keys of the server. As the real one it leaves a certificate in the folder that is named
/// for it, if there is none.
fn pki(settings: &Settings, names: &[String]) -> anyhow::Result<Pki> {
    if settings.serving.is_some() {
        return Ok(Pki::in_memory(settings.serving.clone())?);
    }
    let Some(folder) = &settings.cert_dir else {
        return Ok(Pki::in_memory(None)?);
    };
    let pair = (folder.join("apiserver.crt"), folder.join("apiserver.key"));
    if !pair.0.exists() && !pair.1.exists() {
        leave_certificate(folder, &pair, names)
            .with_context(|| format!("--cert-dir: cannot write to {}", folder.display()))?;
    }
    Ok(Pki::in_memory(Some(pair))?)
}

fn leave_certificate(
    folder: &Path,
    (certificate, key): &(PathBuf, PathBuf),
    names: &[String],
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let issuer = Pki::in_memory(None)?;
    let issued = issuer.issue_serving(names)?;
    let chain = format!("{}{}", issued.certificate_pem, issuer.root_pem());
    write_private(key, issued.key_pem.as_bytes())?;
    Ok(std::fs::write(certificate, chain)?)
}

fn plain_root(
    settings: Settings,
    pki: &Pki,
    front_proxy_ca_pem: Option<String>,
) -> anyhow::Result<PlainRoot> {
    let (clients, client_ca_pem) = match settings.clients {
        Some(given) => given,
        // Nobody has a certificate of this CA, whose key is in this process alone.
        None => {
            let nobody = ClientCa::new(std::slice::from_ref(pki.root()))?;
            (nobody, String::new())
        }
    };
    let front_proxy_ca_pem = front_proxy_ca_pem.unwrap_or_default();
    for (used_as, pem) in [
        (CertificateUse::ClientCa, &client_ca_pem),
        (CertificateUse::FrontProxyCa, &front_proxy_ca_pem),
    ] {
        pki.expiries().record_pem(used_as, pem.as_bytes());
    }
    Ok(PlainRoot {
        identity: identity::of_server(),
        clients,
        client_ca_pem,
        front_proxy_ca_pem,
        bearer: settings.tokens,
        takes_bootstrap_tokens: settings.takes_bootstrap_tokens,
        issuer: settings.issuer,
        kinds: settings.kinds,
        service_ranges: settings.service_ranges,
        node_ports: settings.node_ports,
        watch_seconds_min: settings.watch_seconds_min,
        privileged: settings.privileged,
    })
}
