//! The `polyplane` binary: a server on an embedded store, a replica of a ring on a shared one, and
//! the kubectl plugin.
//!
//! Called as `kubectl-plane` (a link to the same file on PATH) it is the plugin behind
//! `kubectl plane`; `polyplane plane` is the same.

mod backend;
mod cli;
mod contexts;
mod drain;
mod link;
mod measure;
mod plugin;
mod process;
mod replica;
mod report;
mod serve;
mod store;
mod up;
mod world;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let called_as_plugin = std::env::args_os().next().is_some_and(|name| {
        std::path::Path::new(&name)
            .file_stem()
            .is_some_and(|stem| stem == "kubectl-plane")
    });
    let result = if called_as_plugin {
        plugin::run(cli::PluginCommand::parse())
    } else {
        match cli::Cli::parse().command {
            cli::Command::Up(options) => up::run(options),
            cli::Command::Serve(options) => serve::run(*options),
            cli::Command::Drain(options) => drain::run(options),
            cli::Command::Certs(options) => serve::certs(&options),
            cli::Command::Plane(command) => plugin::run(command),
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: what went wrong and why, outermost first.
            // It may go to a disk that is full, which is no reason to panic.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
