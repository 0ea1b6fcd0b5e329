//! The parts that all commands share: the TLS provider and the runtime; for servers also the log
//! and the signals that stop them. This module does not know what a command does.

use anyhow::{anyhow, bail};
use polyplane_batteries::{bootstrap, kind_tables};
use polyplane_registry::environment;
use polyplane_server::StopHandle;
use polyplane_storage::is_expected_record;
use std::future::Future;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Runs a command on a runtime of its own.
///
/// # Errors
/// Returns the command's error, or an error if `level` is not a log filter, if the system refuses a
/// thread or runtime, or if another TLS provider is installed.
pub fn run(level: &str, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    start_log(level)?;
    warm_up()?;
    install_tls()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// What is logged of the HTTP/2 library, unless the user says otherwise.
const H2: &str = "h2=error";

/// Starts the process log, on standard error.
///
/// # Errors
/// Returns an error if `level` is not a log filter.
pub fn start_log(level: &str) -> anyhow::Result<()> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false);
    log.finish().with(Unexpected).init();
    Ok(())
}

fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    match level.parse::<EnvFilter>() {
        // It warns of each connection that resets its streams fast, so a client could fill the log.
        Ok(filter) if !level.contains("h2=") => Ok(filter.add_directive(H2.parse()?)),
        Ok(filter) => Ok(filter),
        Err(error) => bail!(
            "--log or POLYPLANE_LOG: {level:?} is not a log filter: {error}; use off, error, warn, \
             info, debug, trace, or MODULE=LEVEL such as polyplane_ownership=debug"
        ),
    }
}

/// Keeps records out of the log with which an engine of stores reports as an error what its store does on
/// purpose: operators are alerted by errors. The engines log with the crate `log`, so each of their records is
/// asked for on the thread that makes it.
struct Unexpected;

impl<S: Subscriber> Layer<S> for Unexpected {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        !is_expected_record(metadata.target())
    }
}

/// Computes two values on separate threads that take tens of milliseconds once per process and are
/// needed soon: the seed of the random generator, which waits for noise of the CPU, and the tables
/// of kinds. A task that needs one of them earlier waits for it.
fn warm_up() -> std::io::Result<()> {
    let seed = || _ = environment::random_uuid();
    let tables = || _ = (bootstrap::layer(), kind_tables::root_kinds());
    for (name, work) in [("warm-seed", seed as fn()), ("warm-tables", tables)] {
        // Not joined: the thread ends by itself, and a task that needs its result waits for the
        // result.
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)?;
    }
    Ok(())
}

/// Runs a short command on a runtime with one thread.
///
/// # Errors
/// Returns the command's error, or an error if the system refuses a runtime or another TLS provider
/// is installed.
pub fn once<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    install_tls()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

fn install_tls() -> anyhow::Result<()> {
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    installed.map_err(|_| anyhow!("another TLS provider is installed already"))
}

/// The signals by which a process is asked to end.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Registers the handlers: from now on a signal no longer kills the process.
    ///
    /// # Errors
    /// Returns an error if the system refuses a handler.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            // Both signals mean the same, so the order does not matter.
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Stops servers gracefully at the first signal, and aborts them at each further one.
    pub async fn stop(mut self, servers: Vec<StopHandle>) {
        self.next().await;
        servers.iter().for_each(StopHandle::stop);
        loop {
            self.next().await;
            servers.iter().for_each(StopHandle::abort);
        }
    }
}

/// Takes the last steps of a server, once nothing is served any more. A signal ends them: whoever sends a further one
/// does not want to wait for a disk that hangs or a webhook that is away.
///
/// # Errors
/// Returns an error if the system refuses a handler.
pub async fn last_steps(steps: impl Future<Output = ()>) -> std::io::Result<()> {
    let mut signals = Signals::new()?;
    tokio::select! {
        // The steps first: what is done was not cut short.
        biased;
        () = steps => {}
        () = signals.next() => tracing::error!(
            "a further signal ended the server before its store was closed and all audit events were written or sent"
        ),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use polyplane_storage::{Disk, FjallOptions, FjallStore, Op, Revision, Store, SystemDisk, Txn};
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    /// What was logged.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A disk on which there is room for rows, and none for merging their tables.
    struct TightDisk;

    impl Disk for TightDisk {
        fn after_sync(&self, head: Revision) -> io::Result<()> {
            SystemDisk.after_sync(head)
        }

        fn free_bytes(&self, _folder: &Path) -> io::Result<u64> {
            Ok(6 << 20)
        }
    }

    /// Returns a transaction with a row that does not compress.
    fn row(number: u64) -> Txn {
        let mut state = number | 1;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 56).to_le_bytes()[0]
        };
        let value: Vec<u8> = std::iter::repeat_with(&mut next).take(10_000).collect();
        Txn {
            compares: Vec::new(),
            ops: vec![Op::Put {
                key: format!("{:03}", number * 97 % 250).into(),
                value: value.into(),
                lease: None,
            }],
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_is_closed_while_a_merge_waits_for_room_logs_no_error() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter("error,polyplane_storage=debug").expect("a filter"))
            .with_writer(move || writer.clone())
            .with_ansi(false);
        // For the whole process, because the engine logs on a thread of its own.
        log.finish().with(Unexpected).init();
        let folder = tempfile::tempdir().expect("a folder");
        let options = FjallOptions {
            ballast_bytes: 0,
            memtable_bytes: 128 * 1024,
            disk: Arc::new(TightDisk),
            ..FjallOptions::default()
        };
        let store = FjallStore::open(folder.path(), options).expect("the store opens");
        for number in 0..250 {
            store.commit(row(number)).await.expect("committed");
        }
        store.close().await;
        let lines = String::from_utf8_lossy(&lines.0.lock()).into_owned();
        assert!(lines.contains("a merge ends early"), "none waited: {lines}");
        for error in ["Compaction failed", "crashed"] {
            assert!(!lines.contains(error), "{lines}");
        }
    }
}
