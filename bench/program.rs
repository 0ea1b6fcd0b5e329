//! The programs that commands start: that of this tree, and the tagged release.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use polyplane_tests::golden;
use polyplane_tests::programs::polyplane;

/// Returns the program of this tree: `POLYPLANE_BIN`, or the one that cargo built. If `bench` itself
/// is the tree's release build, cargo brings the program up to date first, so that no old one is
/// measured.
///
/// # Errors
/// Returns an error if there is no program, or it does not build.
pub fn current() -> Result<PathBuf> {
    let tree = golden::folder().join("..").canonicalize()?;
    let is_release = std::env::current_exe()?.starts_with(tree.join("target/release"));
    let is_named = std::env::var_os("POLYPLANE_BIN").is_some_and(|path| !path.is_empty());
    if is_release && !is_named {
        let arguments = ["build", "--release", "-p", "polyplane"];
        output_of(Command::new("cargo").args(arguments).current_dir(&tree))?;
    }
    polyplane()
}

/// Returns the optimized program of the tagged release, which is built first if it has not been,
/// and its commit.
///
/// # Errors
/// Returns an error if the commit is not in this clone or does not build.
pub fn tagged() -> Result<(PathBuf, String)> {
    let script = golden::folder().join("tagged-binary");
    let program = output_of(Command::new(script).arg("--release"))?;
    let file = std::fs::read_to_string(golden::folder().join("fixtures/tagged-release"))?;
    let commit = file.lines().find(|line| !line.starts_with('#'));
    let commit = commit.context("tests/fixtures/tagged-release names no commit")?;
    Ok((PathBuf::from(program.trim()), commit.to_owned()))
}

/// Returns the standard output of a command.
///
/// # Errors
/// Returns an error if it cannot be run or fails.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
