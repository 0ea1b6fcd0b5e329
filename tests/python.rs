//! A Python with the official client of Kubernetes and what that one brings along.
//!
//! Owns the environment below the cache of programs. Must not know what is run in it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::golden::folder;

/// What is installed; it brings `websocket-client`.
const PACKAGE: &str = "kubernetes==37.0.2";

/// Returns the interpreter, made ready once; `None` if that cannot be done on a machine that need not
/// have one, which is said on standard error.
///
/// # Errors
/// When it cannot be made ready where all tests must run.
pub fn python() -> Result<Option<PathBuf>> {
    match environment() {
        Ok(python) => Ok(Some(python)),
        Err(error) => {
            let line = format!(
                "tests: nothing is tested with Python (apt-get install python3-venv, then again): {error:#}"
            );
            ensure!(std::env::var_os("CI").is_none(), "{line}");
            // Past the capture of the test driver, so that it is seen.
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
