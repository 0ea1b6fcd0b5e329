//! The real kubectl, run as a user runs it.
//!
//! This module owns its environment: kubeconfig, home and PATH. It does not know the commands.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::golden::folder;

/// kubectl with an environment.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    path: std::ffi::OsString,
    context: Option<String>,
    environment: Vec<(String, String)>,
}

impl Kubectl {
    /// Finds kubectl with `tests/programs`. Its caches are below `home`, its plugins in `bin`.
    ///
    /// # Errors
    /// Returns an error if there is no kubectl and it cannot be built.
    pub fn find(kubeconfig: &Path, home: &Path, bin: &Path) -> Result<Self> {
        let found = Command::new(folder().join("programs"))
            .arg("kubectl")
            .stderr(Stdio::inherit())
            .output()?;
        let line = String::from_utf8(found.stdout)?;
        let program = line
            .trim()
            .strip_prefix("kubectl ")
            .context("tests/programs finds no kubectl")?;
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&old));
        Ok(Self {
            program: program.into(),
            home: home.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            path: std::env::join_paths(folders)?,
            context: None,
            environment: Vec::new(),
        })
    }

    /// Returns kubectl with another kubeconfig.
    pub fn with_kubeconfig(&self, path: &Path) -> Self {
        Self {
            kubeconfig: path.to_owned(),
            context: None,
            ..self.clone()
        }
    }

    /// Returns kubectl in another context of the kubeconfig.
    pub fn in_context(&self, context: &str) -> Self {
        Self {
            context: Some(context.to_owned()),
            ..self.clone()
        }
    }

    /// Returns kubectl with an environment variable.
    pub fn with_variable(&self, name: &str, value: &str) -> Self {
        let mut other = self.clone();
        other.environment.push((name.to_owned(), value.to_owned()));
        other
    }

    /// Returns the command, ready to run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // Last, because kubectl accepts this option only after a plugin's name.
        command
            .args(arguments)
            .env("HOME", &self.home)
            .env("PATH", &self.path);
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(context) = &self.context {
            command.arg(format!("--context={context}"));
        }
        command
    }

    /// Runs kubectl, and returns its output even if it fails.
    ///
    /// # Errors
    /// Returns an error if kubectl cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments)
            .output()
            .context("cannot start kubectl")
    }

    /// Runs kubectl, which must succeed, and returns its standard output.
    ///
    /// # Errors
    /// Returns an error with the whole output if kubectl fails.
    pub fn ok(&self, arguments: &[&str]) -> Result<String> {
        succeeded(arguments, self.run(arguments)?)
    }

    /// Does the same as [`Kubectl::ok`], with standard input.
    ///
    /// # Errors
    /// Returns the errors of [`Kubectl::ok`].
    pub fn ok_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut pipe = child.stdin.take().context("kubectl has no input")?;
        pipe.write_all(input.as_bytes())?;
        drop(pipe);
        succeeded(arguments, child.wait_with_output()?)
    }

    /// Runs kubectl, which must fail, and returns its standard error.
    ///
    /// # Errors
    /// Returns an error if kubectl succeeds.
    pub fn fails(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        if output.status.success() {
            bail!(
                "kubectl {arguments:?} succeeded: {}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn succeeded(arguments: &[&str], output: Output) -> Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "kubectl {arguments:?} failed with {}: {errors}{text}",
            output.status
        );
    }
    Ok(text)
}
