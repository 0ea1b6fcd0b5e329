//! What can be typed.

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
    Up(UpOptions),
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
    /// Prints a kubeconfig for one control plane.
    Kubeconfig {
        /// Its name.
        name: String,
    },
    /// Makes a control plane the current context of the kubeconfig.
    Use {
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
