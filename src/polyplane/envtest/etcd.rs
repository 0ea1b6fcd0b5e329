//! The drop-in's `etcd`: it keeps the state of the API servers that name it in memory.

use crate::envtest::flags::{FlagTable, Flags, Wording};
use crate::process::{self, Signals};
use anyhow::{Context, bail};
use polyplane_storage::{ETCD_VERSION, EtcdServer, MemoryOptions, MemoryStore};
use std::io::Write as _;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The flags of etcd.
pub const FLAGS: FlagTable = FlagTable {
    program: "etcd",
    lines: include_str!("etcd.flags"),
    wording: Wording::Go,
};

/// The flags that have a meaning here.
const MEANINGFUL: [&str; 4] = ["help", "listen-client-urls", "log-level", "version"];
/// The flags that must not be ignored: somebody relies on what they promise.
const REFUSED: [(&str, &str); 3] = [
    ("cert-file", "this etcd serves no TLS"),
    ("client-cert-auth", "this etcd serves no TLS"),
    ("discovery", "this etcd has one member"),
];

const HEAD: &str = "\
The etcd of Polyplane's test drop-in. It keeps its keys in memory, writes nothing to the data folder,
has one member and serves the part of etcd's API that API servers use.";

/// Runs until a signal ends it.
///
/// # Errors
/// Returns the reason why it cannot run.
pub fn run(arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let flags = FLAGS.parse(arguments)?;
    if flags.switch("help", false) {
        let has_meaning = |name: &str| MEANINGFUL.contains(&name);
        return print(&FLAGS.help(HEAD, has_meaning));
    }
    if flags.last("version").is_some() {
        return print(&format!(
            "etcd Version: {ETCD_VERSION}\nGit SHA: polyplane-{}\nGo Version: none\nGo OS/Arch: linux/{}\n",
            env!("CARGO_PKG_VERSION"),
            if cfg!(target_arch = "aarch64") {
                "arm64"
            } else {
                "amd64"
            },
        ));
    }
    process::start_log(log_level(&flags))?;
    for (name, why) in REFUSED {
        if flags.text(name).is_some_and(|value| value != "false") {
            bail!("--{name}: {why}");
        }
    }
    for name in flags.names().filter(|name| !MEANINGFUL.contains(name)) {
        tracing::info!("--{name} has no effect: the keys are kept in memory");
    }
    process::once(serve(&flags))
}

/// Prints a text. A failed print is an error, because the text is all that was asked for.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn log_level(flags: &Flags) -> &'static str {
    match flags.last("log-level") {
        Some("debug") => "debug",
        Some("warn") => "warn",
        Some("error" | "panic" | "fatal") => "error",
        _ => "info",
    }
}

async fn serve(flags: &Flags) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let urls = match flags.list("listen-client-urls") {
        urls if urls.is_empty() => vec!["http://localhost:2379".to_owned()],
        urls => urls,
    };
    let mut listeners = Vec::new();
    for url in urls {
        let Some(address) = url.strip_prefix("http://") else {
            bail!(
                "--listen-client-urls: {url:?} is not of the form http://HOST:PORT; this etcd serves no TLS"
            );
        };
        let listener = TcpListener::bind(address.trim_end_matches('/')).await;
        listeners.push(
            listener.with_context(|| format!("--listen-client-urls: cannot listen on {url}"))?,
        );
    }
    let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let server = EtcdServer::new(store).await?;
    tracing::info!("ready to serve client requests");
    tokio::select! {
        // Signals first: nothing is kept, so there is nothing to finish.
        biased;
        () = signals.next() => Ok(()),
        ended = server.run(listeners) => ended.context("a listener failed"),
    }
}
