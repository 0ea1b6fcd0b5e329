//! The command `store` and its flags. This module does not know what a copy does.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Works on stores that no server uses.
#[derive(Debug, Args)]
pub struct StoreCommand {
    /// The command to run.
    #[command(subcommand)]
    pub action: StoreAction,
}

/// The commands on stores.
#[derive(Debug, Subcommand)]
pub enum StoreAction {
    /// Copies everything of a store into another, empty one.
    ///
    /// The copy has the same objects with the same versions and uids, and the history from which open
    /// watches resume. FROM and TO are the folder of `polyplane up --dir`, or an etcd:
    ///
    ///   FOLDER                                   the engine that the folder has, else fjall
    ///   fjall:FOLDER, sled:FOLDER                this engine
    ///   etcd://HOST:PORT[,HOST:PORT][/PREFIX/]   etcd; the prefix is /polyplane/ if none is given
    ///   etcds://...                              etcd over TLS
    ///
    /// A folder with the name of an engine is written with ./, as ./sled.
    ///
    /// No server may run on FROM or TO meanwhile. FROM stays as it is. The store TO must be empty, or hold
    /// the beginning of this very copy: interrupt the command at any time and run it again, and it
    /// goes on. The store of a FOLDER is the folder `store` in it; other files there are left alone and do
    /// not count. A server refuses TO until the copy is complete. Keys and certificates are files and not
    /// in the store: copy the folder `pki` of `up`, which `serve` gets as --certs, as well.
    #[command(
        verbatim_doc_comment,
        after_help = "Example: move a laptop's planes to a cluster\n  polyplane store copy .polyplane \
                      etcds://etcd-0:2379,etcd-1:2379/polyplane/ --to-ca ca.crt --to-cert tls.crt --to-key tls.key"
    )]
    Copy(Box<StoreCopyOptions>),
}

/// Options of `store copy`.
#[derive(Debug, Args)]
pub struct StoreCopyOptions {
    /// The store to copy.
    #[arg(value_name = "FROM")]
    pub from: String,
    /// The empty store to fill.
    #[arg(value_name = "TO")]
    pub to: String,
    /// CA certificates of the etcd FROM, PEM; only with etcds://.
    #[arg(long, value_name = "FILE", help_heading = "Options of FROM")]
    pub from_ca: Option<PathBuf>,
    /// Client certificate for the etcd FROM, PEM.
    #[arg(
        long,
        value_name = "FILE",
        requires = "from_key",
        help_heading = "Options of FROM"
    )]
    pub from_cert: Option<PathBuf>,
    /// Key of that certificate, PEM.
    #[arg(
        long,
        value_name = "FILE",
        requires = "from_cert",
        help_heading = "Options of FROM"
    )]
    pub from_key: Option<PathBuf>,
    /// User name at the etcd FROM.
    #[arg(
        long,
        value_name = "NAME",
        requires = "from_password_file",
        help_heading = "Options of FROM"
    )]
    pub from_user: Option<String>,
    /// File with the password of that user.
    #[arg(
        long,
        value_name = "FILE",
        requires = "from_user",
        help_heading = "Options of FROM"
    )]
    pub from_password_file: Option<PathBuf>,
    /// CA certificates of the etcd TO, PEM; only with etcds://.
    #[arg(long, value_name = "FILE", help_heading = "Options of TO")]
    pub to_ca: Option<PathBuf>,
    /// Client certificate for the etcd TO, PEM.
    #[arg(
        long,
        value_name = "FILE",
        requires = "to_key",
        help_heading = "Options of TO"
    )]
    pub to_cert: Option<PathBuf>,
    /// Key of that certificate, PEM.
    #[arg(
        long,
        value_name = "FILE",
        requires = "to_cert",
        help_heading = "Options of TO"
    )]
    pub to_key: Option<PathBuf>,
    /// User name at the etcd TO.
    #[arg(
        long,
        value_name = "NAME",
        requires = "to_password_file",
        help_heading = "Options of TO"
    )]
    pub to_user: Option<String>,
    /// File with the password of that user.
    #[arg(
        long,
        value_name = "FILE",
        requires = "to_user",
        help_heading = "Options of TO"
    )]
    pub to_password_file: Option<PathBuf>,
}
