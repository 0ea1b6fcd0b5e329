//! A Python environment with the official client of Kubernetes and its dependencies.
//!
//! This module owns the environment, which is below the cache of programs. It does not know what
//! runs in it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::golden::folder;

/// The package to install. It depends on `websocket-client`.
const PACKAGE: &str = "kubernetes==37.0.2";

/// Returns the interpreter, and installs the environment once. If that is impossible on a machine
/// where the test is optional, it prints the reason on standard error and returns `None`.
///
/// # Errors
/// Returns an error if it cannot be installed on a machine where all tests must run.
pub fn python() -> Result<Option<PathBuf>> {
    match environment() {
        Ok(python) => Ok(Some(python)),
        Err(error) => {
            let line = format!(
                "tests: nothing is tested with Python (apt-get install python3-venv, then again): {error:#}"
            );
            ensure!(std::env::var_os("CI").is_none(), "{line}");
            // Written directly, so that the test driver does not capture the line.
            writeln!(std::io::stderr(), "{line}")?;
            Ok(None)
        }
    }
}

fn environment() -> Result<PathBuf> {
    let cache = match std::env::var_os("POLYPLANE_PROGRAMS") {
        Some(cache) => PathBuf::from(cache),
        None => folder().join("../target/programs"),
    };
    let environment = cache.join("python");
    let python = environment.join("bin/python");
    if works(&python) {
        return Ok(python);
    }
    std::fs::create_dir_all(&cache)?;
    let made = environment.to_string_lossy();
    run(Path::new("python3"), &["-m", "venv", &made])?;
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PACKAGE,
    ];
    run(&python, &install)?;
    ensure!(works(&python), "the Python client does not import");
    Ok(python)
}

fn works(python: &Path) -> bool {
    let check = Command::new(python)
        .args(["-c", "import kubernetes, websocket"])
        .output();
    check.is_ok_and(|output| output.status.success())
}

fn run(program: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("no {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}",
        text.lines().last().unwrap_or_default()
    );
    Ok(())
}
