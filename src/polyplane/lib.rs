//! The program behind the `polyplane` binary: a server on an embedded store, a replica of a ring on
//! a shared one, the kubectl plugin, and the programs that test harnesses start.
//!
//! It is a library so that a test can build a binary of another release from it: the difference
//! between two releases for stores and planes is a [`Release`], which [`run`] gets as an argument.
//!
//! `cli` has every flag; `up`, `serve`, `drain` and `store copy` are the commands; `plugin` is `kubectl plane`. A
//! command opens a `store` and assembles a `replica`: its membership of the ring, its planes, and
//! the backend of the server.
//!
//! Invariant: this crate assembles; it knows no keys, no transactions and no kinds beyond names.

mod audit;
mod cli;
mod drain;
mod envtest;
mod plugin;
mod process;
mod replica;
mod serve;
mod store;
mod up;

use crate::cli::envtest::EnvtestAction;
use crate::cli::store_command::StoreAction;
use clap::{CommandFactory, Parser};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

pub use polyplane_batteries::bootstrap::Release;

/// Returns all commands and flags, for a test that compares them with the recorded ones.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    cli::Cli::command()
}

/// Parses the command line and runs the command, as the binary of a release.
#[must_use]
pub fn run(release: Arc<Release>) -> ExitCode {
    let called_as = std::env::args_os().next();
    if let Some(program) = envtest::path::called_as(called_as.as_deref()) {
        return envtest::run(program);
    }
    let called_as_plugin = std::env::args_os().next().is_some_and(|name| {
        std::path::Path::new(&name)
            .file_stem()
            .is_some_and(|stem| stem == "kubectl-plane")
    });
    let result = if called_as_plugin {
        plugin::run(cli::PluginCommand::parse())
    } else {
        match cli::Cli::parse().command {
            cli::Command::Up(options) => up::run(*options, release),
            cli::Command::Serve(options) => serve::run(*options, release),
            cli::Command::Drain(options) => drain::run(options),
            cli::Command::Certs(options) => serve::certs(&options),
            cli::Command::Envtest(command) => match command.action {
                EnvtestAction::Path { dir } => envtest::path::run(dir),
            },
            cli::Command::Store(command) => match command.action {
                StoreAction::Copy(options) => store::copy::run(*options, release),
            },
            cli::Command::Credentials(options) => plugin::credentials::run(&options),
            cli::Command::Plane(command) => plugin::run(command),
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: the error and its causes, outermost first. A failed write is ignored,
            // because standard error may be closed or on a full disk.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
