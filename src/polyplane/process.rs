//! The parts that all commands share: the TLS provider and the runtime; for servers also the log
//! and the signals that stop them. This module does not know what a command does.

use anyhow::{anyhow, bail};
use polyplane_batteries::{bootstrap, kind_tables};
use polyplane_registry::environment;
use polyplane_server::StopHandle;
use std::future::Future;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

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
    let filter = match level.parse::<tracing_subscriber::EnvFilter>() {
        // It warns of each connection that resets its streams fast, so a client could fill the log.
        Ok(filter) if !level.contains("h2=") => filter.add_directive(H2.parse()?),
        Ok(filter) => filter,
        Err(error) => bail!(
            "--log or POLYPLANE_LOG: {level:?} is not a log filter: {error}; use off, error, warn, \
             info, debug, trace, or MODULE=LEVEL such as polyplane_ownership=debug"
        ),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .init();
    Ok(())
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
