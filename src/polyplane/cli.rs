//! The commands and flags of the binary and of the plugin: their names, defaults and help texts.
//! This module does not know what a command does.

pub mod access;
pub mod admission;
pub mod audit;
pub mod authentication;
pub mod browsers;
pub mod encryption;
pub mod envtest;
pub mod kubelets;
pub mod lifetimes;
pub mod limited_file;
pub mod limits;
pub mod memory;
pub mod output;
pub mod store_command;
pub mod usage;

use crate::cli::access::{CredentialsOptions, KubeconfigOptions, RevokeOptions, RotateOptions};
use crate::cli::admission::AdmissionOptions;
use crate::cli::audit::AuditOptions;
use crate::cli::authentication::AuthenticationOptions;
use crate::cli::browsers::BrowserFlags;
use crate::cli::encryption::EncryptionOptions;
use crate::cli::envtest::EnvtestCommand;
use crate::cli::kubelets::KubeletOptions;
use crate::cli::lifetimes::LifetimeOptions;
use crate::cli::limits::LimitOptions;
use crate::cli::output::OutputFormat;
use crate::cli::store_command::StoreCommand;
use crate::cli::usage::{SpecLimitOptions, TopOptions};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Serves the Kubernetes API for a very large number of control planes.
#[derive(Debug, Parser)]
#[command(name = "polyplane", version, about, max_term_width = 100)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the values of all flags of the command that runs, by name: those of the command line and of the
/// environment, and defaults. Several values are separated by commas. No value of a flag is a secret, but an
/// URL may have a login, which is left out.
pub fn flag_values() -> BTreeMap<String, String> {
    let command = Cli::command();
    // It was parsed before.
    let matches = command.clone().get_matches();
    let Some((name, given)) = matches.subcommand() else {
        return BTreeMap::new();
    };
    let arguments = command.find_subcommand(name).into_iter();
    let arguments = arguments.flat_map(clap::Command::get_arguments);
    let flags = arguments.filter_map(|flag| Some((flag.get_long()?, flag.get_id().as_str())));
    flags
        .map(|(flag, id)| {
            let values = given.get_raw(id).into_iter().flatten();
            let values = values.map(|value| without_login(&value.to_string_lossy()));
            (flag.to_owned(), values.collect::<Vec<_>>().join(","))
        })
        .collect()
}

fn without_login(value: &str) -> String {
    let login = value.split_once("://").and_then(|(scheme, rest)| {
        let (login, place) = rest.split_once('@')?;
        (!login.contains('/')).then(|| format!("{scheme}://{place}"))
    });
    login.unwrap_or_else(|| value.to_owned())
}

/// The commands of the binary.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a server on an embedded store, in the foreground, until Ctrl-C.
    Up(Box<UpOptions>),
    /// Runs one replica of a ring on etcd, in the foreground, until SIGTERM.
    Serve(Box<ServeOptions>),
    /// Makes a replica on this machine hand its control planes over, and waits until it has.
    Drain(DrainOptions),
    /// Creates the keys and certificates of a ring in a folder, and prints where they are.
    Certs(CertsOptions),
    /// Prepares the programs that test harnesses start: kube-apiserver, etcd and kubectl.
    Envtest(EnvtestCommand),
    /// Works on stores that no server uses: copies one into another.
    Store(StoreCommand),
    /// Prints a client certificate for kubectl and other clients, and renews it before it expires.
    ///
    /// Kubeconfigs of `kubectl plane kubeconfig --renewable` run this as an exec plug-in.
    Credentials(CredentialsOptions),
    /// Manages control planes of a running server, like `kubectl plane`.
    Plane(PluginCommand),
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct UpOptions {
    /// Folder for keys, kubeconfig and data; created if it is missing. `pki/admin.token` in it, the
    /// administrator's bearer token, is read again when it changes.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = ".polyplane",
        env = "POLYPLANE_DIR"
    )]
    pub dir: PathBuf,
    /// IP address and port to listen on. With port 0 the system chooses a free one. May be given
    /// several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    pub listen: Vec<String>,
    /// Additional host name or IP address in the serving certificate. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub host_name: Vec<String>,
    /// Host and port under which clients reach the server; kubeconfigs name it. Without it they
    /// name the first --listen address.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The store: `fjall` and `sled` keep the data in the folder. A store that is in the folder already
    /// is opened by the engine that created it, whichever of the two is named. `memory` begins empty,
    /// loses everything when the process ends, and leaves a store in the folder as it is.
    #[arg(long, value_name = "STORE", default_value = "fjall")]
    pub store: StoreKind,
    /// Seconds after which a control plane that nobody uses goes to sleep.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub sleep_after: u64,
    /// The memory that the process may use beside the objects.
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Seconds for which all replicas must have run a newer release before the store's level floor
    /// rises to its level: control planes then get its bootstrap objects, and no older release can
    /// start. `kubectl plane ring --raise-floor` raises it at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub raise_floor_after: u64,
    /// Replicas in this one process, to try a ring: the first listens on --listen, each further one
    /// on the next port.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub replicas: u16,
    /// Authentication by others.
    #[command(flatten)]
    pub authentication: AuthenticationOptions,
    /// The admission plug-ins.
    #[command(flatten)]
    pub admission: AdmissionOptions,
    /// How long Events and tokens last.
    #[command(flatten)]
    pub lifetimes: LifetimeOptions,
    /// What browsers get.
    #[command(flatten)]
    pub browsers: BrowserFlags,
    /// The audit.
    #[command(flatten)]
    pub audit: AuditOptions,
    /// Encryption at rest.
    #[command(flatten)]
    pub encryption: EncryptionOptions,
    /// The connections to nodes and pods.
    #[command(flatten)]
    pub kubelets: KubeletOptions,
    /// Limits on what clients may use.
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Options of `serve`. Each can be set in the environment instead, as `POLYPLANE_` and its name.
#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Options of the store.
    #[command(flatten)]
    pub store: StoreOptions,
    /// IP address and port to listen on for clients.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:6443",
        env = "POLYPLANE_LISTEN"
    )]
    pub listen: String,
    /// IP address and port to listen on for the other replicas.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:7443",
        env = "POLYPLANE_PEER_LISTEN"
    )]
    pub peer_listen: String,
    /// Host and port under which the other replicas reach this one.
    #[arg(long, value_name = "HOST:PORT", env = "POLYPLANE_ADVERTISE")]
    pub advertise: String,
    /// Host and port under which clients reach the ring; kubeconfigs name it. Without it they name
    /// the --listen address of this replica.
    #[arg(long, value_name = "HOST:PORT", env = "POLYPLANE_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Additional host name or IP address in the serving certificate. Several are separated by
    /// commas.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "POLYPLANE_HOST_NAME"
    )]
    pub host_name: Vec<String>,
    /// Name of this replica in the ring; no two replicas that run at once may share it.
    #[arg(long, value_name = "NAME", env = "POLYPLANE_REPLICA_ID")]
    pub replica_id: String,
    /// Zone this replica runs in; a control plane may be pinned to a zone.
    #[arg(long, value_name = "ZONE", env = "POLYPLANE_ZONE")]
    pub zone: Option<String>,
    /// Share of the control planes, relative to the weights of the other replicas.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, env = "POLYPLANE_WEIGHT", value_parser = clap::value_parser!(u16).range(1..))]
    pub weight: u16,
    /// Folder with keys and certificates; missing ones are created if the folder is writable. The
    /// administrator's token, peer certificates and a given serving certificate are read again when
    /// they change.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "certs",
        env = "POLYPLANE_CERTS"
    )]
    pub certs: PathBuf,
    /// File with a bearer token that may read /metrics and nothing else. Without it only
    /// administrators may read them. The server reads a replaced file again.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_METRICS_TOKEN_FILE")]
    pub metrics_token_file: Option<PathBuf>,
    /// File with the root secret, from which the keys of all control planes derive; without it,
    /// `root.secret` in the folder of --certs. Every replica needs the same one.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_ROOT_SECRET_FILE")]
    pub root_secret_file: Option<PathBuf>,
    /// Accept peers whose certificates lack the DNS name peer.polyplane. Only needed while
    /// certificates made by hand for the first release are being replaced.
    #[arg(long, env = "POLYPLANE_ACCEPT_UNMARKED_PEERS")]
    pub accept_unmarked_peers: bool,
    /// Seconds after which the ring treats a silent replica as dead. Replicas of one ring may have
    /// different values: to change it, restart them one after another.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, env = "POLYPLANE_MEMBER_TTL", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub member_ttl: u64,
    /// Seconds that stopping may take. In this time the replica hands its control planes over and, in
    /// the last six of them, finishes requests in flight. With six or fewer it hands nothing over.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 25,
        env = "POLYPLANE_GRACE"
    )]
    pub grace: u64,
    /// Seconds for which a stopping replica keeps serving at least, so that load balancers notice
    /// that it is not ready. At most --grace without its last six seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3,
        env = "POLYPLANE_DRAIN_NOTICE"
    )]
    pub drain_notice: u64,
    /// Seconds after which a control plane that nobody uses goes to sleep.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        env = "POLYPLANE_SLEEP_AFTER"
    )]
    pub sleep_after: u64,
    /// The memory that the process may use beside the objects.
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Seconds for which all replicas must have run a newer release before the store's level floor
    /// rises to its level: control planes then get its bootstrap objects, and no older release can
    /// start. `kubectl plane ring --raise-floor` raises it at once.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        env = "POLYPLANE_RAISE_FLOOR_AFTER"
    )]
    pub raise_floor_after: u64,
    /// What to log: off, error, warn, info, debug, trace, or MODULE=LEVEL such as
    /// `polyplane_ownership=debug`.
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "info",
        env = "POLYPLANE_LOG"
    )]
    pub log: String,
    /// Authentication by others.
    #[command(flatten)]
    pub authentication: AuthenticationOptions,
    /// The admission plug-ins.
    #[command(flatten)]
    pub admission: AdmissionOptions,
    /// How long Events and tokens last.
    #[command(flatten)]
    pub lifetimes: LifetimeOptions,
    /// What browsers get.
    #[command(flatten)]
    pub browsers: BrowserFlags,
    /// The audit.
    #[command(flatten)]
    pub audit: AuditOptions,
    /// Encryption at rest.
    #[command(flatten)]
    pub encryption: EncryptionOptions,
    /// The connections to nodes and pods.
    #[command(flatten)]
    pub kubelets: KubeletOptions,
    /// Limits on what clients may use.
    #[command(flatten)]
    pub limits: LimitOptions,
    /// Requests that may wait for another replica's answer at a time, not counting watches. One
    /// more is refused with 429.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 8000,
        env = "POLYPLANE_FORWARDS_IN_FLIGHT_MAX",
        help_heading = "Limits",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
    )]
    pub forwards_in_flight_max: usize,
}

/// The memory that the process may use beside the objects of its control planes.
#[derive(Debug, Args)]
pub struct MemoryOptions {
    /// Bytes, such as 512Mi or 2Gi, for logs of changes, caches, and requests and answers in
    /// flight; objects are not counted. Without it, half of the memory of the container or machine.
    #[arg(long, value_name = "BYTES", env = "POLYPLANE_MEMORY_BUDGET", value_parser = crate::cli::memory::parse)]
    pub memory_budget: Option<usize>,
}

/// The address of the shared store, and how to connect to it.
#[derive(Debug, Args)]
pub struct StoreOptions {
    /// The store: etcd://HOST:PORT,HOST:PORT or, over TLS, etcds://HOST:PORT.
    #[arg(long, value_name = "URL", env = "POLYPLANE_STORE")]
    pub store: String,
    /// CA certificates of etcd, PEM; only with etcds://. The server reads this file and the ones
    /// below again when they change.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_STORE_CA")]
    pub store_ca: Option<PathBuf>,
    /// Client certificate for etcd, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_STORE_CERT",
        requires = "store_key"
    )]
    pub store_cert: Option<PathBuf>,
    /// Key of the client certificate, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_STORE_KEY",
        requires = "store_cert"
    )]
    pub store_key: Option<PathBuf>,
    /// User name at etcd.
    #[arg(
        long,
        value_name = "NAME",
        env = "POLYPLANE_STORE_USER",
        requires = "store_password_file"
    )]
    pub store_user: Option<String>,
    /// File with the password of that user.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_STORE_PASSWORD_FILE",
        requires = "store_user"
    )]
    pub store_password_file: Option<PathBuf>,
    /// Prefix of every key in etcd, ending with a slash. Two rings on one etcd need different ones.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "/polyplane/",
        env = "POLYPLANE_STORE_PREFIX"
    )]
    pub store_prefix: String,
}

/// Options of `drain`.
#[derive(Debug, Args)]
pub struct DrainOptions {
    /// Folder with the keys and certificates of the replica.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "certs",
        env = "POLYPLANE_CERTS"
    )]
    pub certs: PathBuf,
    /// Address of the replica.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6443")]
    pub server: String,
    /// Seconds to wait until the replica has handed its control planes over.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    pub timeout: u64,
}

/// Options of `certs`.
#[derive(Debug, Args)]
pub struct CertsOptions {
    /// Folder for the keys and certificates. Files that exist are kept.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "certs",
        env = "POLYPLANE_CERTS"
    )]
    pub certs: PathBuf,
    /// Host and port under which clients reach the ring, for the kubeconfig in the folder.
    #[arg(long, value_name = "HOST:PORT", env = "POLYPLANE_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Additional host name or IP address in the serving certificate. Several are separated by
    /// commas.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "POLYPLANE_HOST_NAME"
    )]
    pub host_name: Vec<String>,
}

/// The place where data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// Files in the folder, those of a log-structured merge tree.
    Fjall,
    /// Files in the folder, as the releases before had them.
    Sled,
    /// Memory.
    Memory,
}

/// Manages the control planes of a Polyplane server.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-plane",
    bin_name = "kubectl plane",
    version,
    max_term_width = 100
)]
pub struct PluginCommand {
    /// Kubeconfig file. Without it $KUBECONFIG, then ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig that names the server. Without it the current one. The control
    /// plane that the context names does not matter.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The command to run.
    #[command(subcommand)]
    pub action: PluginAction,
}

/// The commands of the plugin.
#[derive(Debug, Subcommand)]
pub enum PluginAction {
    /// Creates a control plane and waits until it is ready.
    Create {
        /// Name of the control plane: lower-case letters, digits and dashes.
        name: String,
        /// Protect the control plane: it cannot be deleted until spec.deletionProtection is set to
        /// false.
        #[arg(long)]
        protect: bool,
        /// Seconds to wait until the control plane is ready.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Lists control planes.
    ///
    /// OBJECTS is what `kubectl plane limits --objects` counts: those that each control plane has from
    /// the start count once they are changed or made anew. The number follows within seconds while the control
    /// plane is in use; `-` means that they have not been counted yet.
    List {
        /// Form of the output. Without it a table.
        #[arg(long, short, value_name = "FORMAT")]
        output: Option<OutputFormat>,
    },
    /// Shows one control plane.
    Get {
        /// Name of the control plane.
        name: String,
        /// Form of the output. Without it a text for people.
        #[arg(long, short, value_name = "FORMAT")]
        output: Option<OutputFormat>,
    },
    /// Prints a kubeconfig for a user of one control plane, who is nobody in every other one.
    Kubeconfig(KubeconfigOptions),
    /// Ends the credentials that a user of a control plane has now, with the user's next request.
    Revoke(RevokeOptions),
    /// Replaces the keys that sign a control plane's credentials.
    Rotate(RotateOptions),
    /// Suspends a control plane: every request to it is refused, and nothing of it runs, until it is
    /// resumed. Its objects, users and keys stay.
    Suspend {
        /// Name of the control plane.
        name: String,
    },
    /// Ends the suspension of a control plane.
    Resume {
        /// Name of the control plane.
        name: String,
    },
    /// Limits what a control plane may use of the server, or shows its limits.
    Limits(SpecLimitOptions),
    /// Shows the control planes in use that take the most CPU time.
    Top(TopOptions),
    /// Makes a control plane the current context of the kubeconfig.
    Use {
        /// Name of the control plane, or `root`.
        name: String,
    },
    /// Shows the replicas of the ring and how many control planes each of them owns.
    Ring {
        /// First raise the store's level floor to the lowest level of all replicas: control planes
        /// get that release's bootstrap objects, and no older release can start.
        #[arg(long)]
        raise_floor: bool,
    },
    /// Shows the terms of the read lease, or changes them on the ring in use.
    ///
    /// A replica answers from memory for the length of the read lease after the store last
    /// confirmed it, and the replicas that take the planes of a dead one wait for the read lease
    /// and the margin. All replicas change together. This command starts the change and waits until
    /// it has ended. If the command is interrupted, the change continues; run the command again to
    /// wait.
    Terms {
        /// The new read lease, 200 to 60000. A longer one tolerates a slower store; a shorter one
        /// lets the planes of a dead replica be served again sooner.
        #[arg(long, value_name = "MILLISECONDS", requires = "margin")]
        read_lease: Option<u64>,
        /// The new margin, at least a tenth of the read lease: how far two clocks may drift apart
        /// during one read lease.
        #[arg(long, value_name = "MILLISECONDS", requires = "read_lease")]
        margin: Option<u64>,
        /// Seconds to wait until all replicas follow the new terms.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Shows which replica owns a control plane.
    Locate {
        /// Name of the control plane, or `root`.
        name: String,
    },
    /// Deletes a control plane with everything in it.
    Delete {
        /// Name of the control plane.
        name: String,
        /// Delete without asking for confirmation.
        #[arg(long, short)]
        yes: bool,
        /// Seconds to wait until the control plane is deleted.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
}
