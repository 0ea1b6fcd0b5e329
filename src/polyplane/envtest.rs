//! The test drop-in: the programs that test harnesses start, in one file. It acts by the name that it
//! is called by: `kube-apiserver` serves one plane at `/`, `etcd` keeps its state in memory, `kubectl`
//! leads to the one on PATH.
//!
//! Flags of the real programs come from tables that were made of their `--help`. Each has a meaning
//! here, has none (the log says so), or is refused with the reason.

mod audit;
mod authorizers;
mod browsers;
mod credentials;
pub mod etcd;
mod feature_gates;
pub mod flags;
mod identity;
pub mod kube_apiserver;
mod kubelets;
mod lifetimes;
mod oidc_flags;
pub mod path;
mod runtime_config;
mod service_ranges;
pub mod settings;
mod webhooks;

use flags::FlagError;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs the program that this process was called as.
pub fn run(program: &str) -> ExitCode {
    // Go's programs take their arguments for text too.
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let result = match program {
        "etcd" => etcd::run(arguments),
        "kube-apiserver" => kube_apiserver::run(arguments),
        _ => path::kubectl(),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // In the form of the real programs. A failed write is ignored, because standard error may be
    // closed.
    let text = match error.downcast_ref::<FlagError>() {
        Some(mistake) if program == "etcd" => mistake.to_string(),
        Some(mistake) => format!("Error: {mistake}"),
        None => format!("Error: {error:#}"),
    };
    let _ = writeln!(std::io::stderr(), "{text}");
    match program {
        "etcd" => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}
