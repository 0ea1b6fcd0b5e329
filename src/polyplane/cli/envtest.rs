//! The command `envtest`: its flags and help texts.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Prepares the programs that test harnesses start.
#[derive(Debug, Args)]
pub struct EnvtestCommand {
    /// The command to run.
    #[command(subcommand)]
    pub action: EnvtestAction,
}

/// The commands of `envtest`.
#[derive(Debug, Subcommand)]
pub enum EnvtestAction {
    /// Makes a folder with `kube-apiserver`, `etcd` and `kubectl`, and prints its path.
    ///
    /// `kube-apiserver`, which serves one control plane at / without any controllers, and `etcd`, which
    /// keeps its state in memory, are links to this program. `kubectl` is a link to the one on PATH. For
    /// example: KUBEBUILDER_ASSETS=$(polyplane envtest path) go test ./...
    Path {
        /// The folder. Without it, one in the user's cache folder.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
}
