//! What can be typed.

pub mod limits;
pub mod memory;

use crate::cli::limits::LimitOptions;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Serves the Kubernetes API for a very large number of control planes.
#[derive(Debug, Parser)]
#[command(name = "polyplane", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a server on an embedded store, in the foreground, until Ctrl-C.
    Up(Box<UpOptions>),
    /// Runs one replica of a ring on etcd, in the foreground, until SIGTERM.
    Serve(Box<ServeOptions>),
    /// Makes a replica give its control planes to the others, and waits until it has.
    Drain(DrainOptions),
    /// Fills a folder with the keys and certificates of a ring.
    Certs(CertsOptions),
    /// Manages control planes of a running server (the same as `kubectl plane`).
    Plane(PluginCommand),
}

/// Options of `up`.
#[derive(Debug, Args)]
pub struct UpOptions {
    /// Folder for keys, kubeconfig and data; made if it is not there.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = ".polyplane",
        env = "POLYPLANE_DIR"
    )]
    pub dir: PathBuf,
    /// Address to listen on; port 0 takes any free one. May be given several times.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    pub listen: Vec<String>,
    /// Further host name or address under which clients reach the server.
    #[arg(long, value_name = "NAME")]
    pub host_name: Vec<String>,
    /// Host and port that kubeconfigs name, if clients do not reach the first listener itself.
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Where to keep the data: `sled` in the folder, or `memory`, which forgets it at the end.
    #[arg(long, value_name = "STORE", default_value = "sled")]
    pub store: StoreKind,
    /// Seconds after which a control plane that nobody uses goes to sleep.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub sleep_after: u64,
    /// How much memory is used beside the objects.
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Seconds that all replicas must have been of a newer release before its level becomes the
    /// store's floor: control planes then come to its bootstrap objects, and no older release
    /// starts any more. `kubectl plane ring --raise-floor` does it at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub raise_floor_after: u64,
    /// Replicas in this one process, to try the ring: the first listens on --listen, the others on
    /// the ports that follow it.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub replicas: u16,
    /// Bounds on what clients may take.
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// Options of `serve`. Each can be given in the environment instead, as `POLYPLANE_` and its name.
#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Options of the store.
    #[command(flatten)]
    pub store: StoreOptions,
    /// Address to listen on for clients.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:6443",
        env = "POLYPLANE_LISTEN"
    )]
    pub listen: String,
    /// Address to listen on for the other replicas.
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
    /// Host and port under which clients reach the ring; kubeconfigs name it. The address this
    /// replica listens on if absent.
    #[arg(long, value_name = "HOST:PORT", env = "POLYPLANE_ENDPOINT")]
    pub endpoint: Option<String>,
    /// Further host name or address in the serving certificate.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "POLYPLANE_HOST_NAME"
    )]
    pub host_name: Vec<String>,
    /// Name of this replica in the ring; no two that run at once may share it.
    #[arg(long, value_name = "NAME", env = "POLYPLANE_REPLICA_ID")]
    pub replica_id: String,
    /// Zone this replica runs in; standbys are chosen in other zones.
    #[arg(long, value_name = "ZONE", env = "POLYPLANE_ZONE")]
    pub zone: Option<String>,
    /// Share of the control planes, in relation to the other replicas'.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, env = "POLYPLANE_WEIGHT", value_parser = clap::value_parser!(u16).range(1..))]
    pub weight: u16,
    /// Folder with keys and certificates; what is missing is made if it may be written.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "certs",
        env = "POLYPLANE_CERTS"
    )]
    pub certs: PathBuf,
    /// File with a bearer token that may read /metrics and nothing else. Without it only
    /// administrators read metrics. A replaced file is read again.
    #[arg(long, value_name = "FILE", env = "POLYPLANE_METRICS_TOKEN_FILE")]
    pub metrics_token_file: Option<PathBuf>,
    /// Take peers for replicas whose certificates lack the DNS name peer.polyplane, while
    /// certificates that were made by hand for the first release are replaced.
    #[arg(long, env = "POLYPLANE_ACCEPT_UNMARKED_PEERS")]
    pub accept_unmarked_peers: bool,
    /// Seconds after which the ring takes a silent replica for dead. Replicas of one ring may differ in
    /// it: to change it, restart them one after another.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, env = "POLYPLANE_MEMBER_TTL", value_parser = clap::value_parser!(u64).range(1..=60))]
    pub member_ttl: u64,
    /// Seconds that a stop may take: control planes are handed over, then requests in flight end.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 25,
        env = "POLYPLANE_GRACE"
    )]
    pub grace: u64,
    /// Seconds that a stopping replica serves on at least, so that load balancers notice that it is
    /// not ready any more.
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
    /// How much memory is used beside the objects.
    #[command(flatten)]
    pub memory: MemoryOptions,
    /// Seconds that all replicas must have been of a newer release before its level becomes the
    /// store's floor: control planes then come to its bootstrap objects, and no older release
    /// starts any more. `kubectl plane ring --raise-floor` does it at once.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        env = "POLYPLANE_RAISE_FLOOR_AFTER"
    )]
    pub raise_floor_after: u64,
    /// What is logged: off, error, warn, info, debug, trace, or directives such as
    /// `polyplane_ownership=debug`.
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "info",
        env = "POLYPLANE_LOG"
    )]
    pub log: String,
    /// Bounds on what clients may take.
    #[command(flatten)]
    pub limits: LimitOptions,
    /// Requests that wait for another replica's answer at a time, watches not counted. Above it a
    /// request is refused with 429.
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

/// How much memory the process uses beside the objects of its control planes.
#[derive(Debug, Args)]
pub struct MemoryOptions {
    /// Bytes, such as 512Mi or 2Gi, for logs of changes, caches, and requests and answers on their
    /// way; objects are not counted. Half of the memory of the container or machine if absent.
    #[arg(long, value_name = "BYTES", env = "POLYPLANE_MEMORY_BUDGET", value_parser = crate::cli::memory::parse)]
    pub memory_budget: Option<usize>,
}

/// Where the shared store is and how to reach it.
#[derive(Debug, Args)]
pub struct StoreOptions {
    /// The store: etcd://HOST:PORT,HOST:PORT or, over TLS, etcds://HOST:PORT.
    #[arg(long, value_name = "URL", env = "POLYPLANE_STORE")]
    pub store: String,
    /// Certificates that sign etcd's, PEM; the store must be etcds://. Like the other files below it
    /// is read again when it changes.
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
    /// Key of that certificate, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_STORE_KEY",
        requires = "store_cert"
    )]
    pub store_key: Option<PathBuf>,
    /// User for etcd.
    #[arg(
        long,
        value_name = "NAME",
        env = "POLYPLANE_STORE_USER",
        requires = "store_password_file"
    )]
    pub store_user: Option<String>,
    /// File with the user's password.
    #[arg(
        long,
        value_name = "FILE",
        env = "POLYPLANE_STORE_PASSWORD_FILE",
        requires = "store_user"
    )]
    pub store_password_file: Option<PathBuf>,
    /// What every key in etcd begins with; two rings on one etcd need two.
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
    /// The replica.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6443")]
    pub server: String,
    /// Seconds to wait for it.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    pub timeout: u64,
}

/// Options of `certs`.
#[derive(Debug, Args)]
pub struct CertsOptions {
    /// The folder.
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
    /// Further host name or address in the serving certificate.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "POLYPLANE_HOST_NAME"
    )]
    pub host_name: Vec<String>,
}

/// Where data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// In files of the folder.
    Sled,
    /// In memory.
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
    /// Kubeconfig file; else $KUBECONFIG, else ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig that names the server; else the current one. Its control plane
    /// does not matter, the server does.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub action: PluginAction,
}

/// What the plugin does.
#[derive(Debug, Subcommand)]
pub enum PluginAction {
    /// Creates a control plane and waits until it is ready.
    Create {
        /// Its name: lower-case letters, digits and dashes.
        name: String,
        /// Refuse to delete it until this is switched off.
        #[arg(long)]
        protect: bool,
        /// Seconds to wait for it.
        #[arg(long, default_value_t = 30, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Lists control planes.
    List,
    /// Shows one control plane.
    Get {
        /// Its name.
        name: String,
    },
    /// Prints a kubeconfig for one control plane, with the credentials of the user who asks.
    Kubeconfig {
        /// Its name.
        name: String,
        /// Copy the credentials of the current user into it. They are valid in every control plane:
        /// whoever gets the file can do all that this user can. Without this flag nothing is printed,
        /// for a control plane has no users of its own yet.
        #[arg(long)]
        with_my_credentials: bool,
    },
    /// Makes a control plane the current context of the kubeconfig.
    Use {
        /// Its name, or `root`.
        name: String,
    },
    /// Shows the replicas of the ring and what each of them owns.
    Ring {
        /// Make the lowest level of all replicas the store's floor first, without waiting: control
        /// planes come to that release's bootstrap objects, and no older one starts any more.
        #[arg(long)]
        raise_floor: bool,
    },
    /// Shows the terms of the read lease, or changes them on the ring in use.
    ///
    /// A replica answers from memory for the length of the read lease after the store last confirmed
    /// it, and the replicas that take the planes of a dead one wait for the read lease and the margin.
    /// A change is a step of all replicas together. This command begins it and waits until it is done;
    /// if interrupted, the replicas go on, and the same command waits again.
    Terms {
        /// The new read lease, 200 to 60000: longer bridges a slower store, shorter lets planes of a
        /// dead replica go on sooner.
        #[arg(long, value_name = "MILLISECONDS", requires = "margin")]
        read_lease: Option<u64>,
        /// The new margin, at least a tenth of the read lease: by how much clocks may differ over it.
        #[arg(long, value_name = "MILLISECONDS", requires = "read_lease")]
        margin: Option<u64>,
        /// Seconds to wait until all replicas go by the new terms.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Shows which replica owns a control plane.
    Locate {
        /// Its name, or `root`.
        name: String,
    },
    /// Deletes a control plane with everything in it.
    Delete {
        /// Its name.
        name: String,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
        /// Seconds to wait until it is gone.
        #[arg(long, default_value_t = 60, value_name = "SECONDS")]
        timeout: u64,
    },
}
