//! The `polyplane` binary: this release of the program.
//!
//! Under the name `kubectl-plane` (a link to the same file on PATH) it is the plugin behind
//! `kubectl plane`; `polyplane plane` is the same.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    polyplane::run(polyplane::Release::own())
}
