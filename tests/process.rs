//! A server that a test starts, stops, kills and starts again in a folder of its own choice.
//!
//! Owns the process and what it printed. Must not know what is asked of it.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::kubeconfig::Endpoint;
use crate::programs::polyplane;

/// The longest a server may take to come up, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The longest a server may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(40);

/// A running `polyplane up`. Dropping it kills the process.
pub struct Up {
    child: Child,
    /// Not in the server's folder, whose disk may be full.
    log: tempfile::NamedTempFile,
    /// The kubeconfig it wrote.
    pub kubeconfig: PathBuf,
    /// Its first line: how long it took and where it listens.
    pub greeting: String,
}

/// Returns the command line of `polyplane up` in a folder, on a free port unless `options` name
/// one.
fn command(program: &Path, folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("up").arg("--dir").arg(folder);
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command
        .args(options)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

impl Up {
    /// Starts a server in `folder` and waits until it says that it is up.
    ///
    /// # Errors
    /// When it ends instead, with what it said.
    pub async fn start(folder: &Path, options: &[&str]) -> Result<Self> {
        Self::start_program(&polyplane()?, folder, options).await
    }

    /// The same with a program that is not the one under test.
    ///
    /// # Errors
    /// As [`Up::start`].
    pub async fn start_program(program: &Path, folder: &Path, options: &[&str]) -> Result<Self> {
        let log = tempfile::NamedTempFile::new()?;
        let mut command = command(program, folder, options);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log.reopen()?)
            .spawn()?;
        let output = child.stdout.take().context("the server has no output")?;
        let mut lines = BufReader::new(output).lines();
        let line = timeout(START_LIMIT, lines.next_line())
            .await
            .context("the server says nothing")??;
        let Some(greeting) = line else {
            let status = child.wait().await?;
            bail!(
                "the server ended with {status}: {}",
                std::fs::read_to_string(log.path())?
            );
        };
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let kubeconfig = folder.join("kubeconfig");
        Ok(Self {
            child,
            log,
            kubeconfig,
            greeting,
        })
    }

    /// Returns the root plane.
    ///
    /// # Errors
    /// When the kubeconfig is not what a client can use.
    pub fn root(&self) -> Result<Endpoint> {
        Endpoint::from_kubeconfig(&self.kubeconfig, Some("root"))
    }

    /// Returns the plane of this name, whether or not the kubeconfig has a context for it already.
    ///
    /// # Errors
    /// As [`Up::root`].
    pub fn plane(&self, name: &str) -> Result<Endpoint> {
        Ok(self.root()?.at_base_path(&format!("/clusters/{name}")))
    }

    /// Its process id.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.child.id().context("the server has ended")
    }

    /// Memory it holds now, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn memory_bytes(&self) -> Result<u64> {
        memory_bytes(self.pid()?)
    }

    /// What it said on standard error.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log.path())?)
    }

    /// Ends it at once, as SIGKILL does.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the server")
    }

    /// Sends SIGTERM and returns at once.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn terminate(&self) -> Result<()> {
        let status = std::process::Command::new("kill")
            .arg(self.pid()?.to_string())
            .status()?;
        if !status.success() {
            bail!("SIGTERM was not sent");
        }
        Ok(())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(mut self) -> Result<ExitStatus> {
        let waited = timeout(STOP_LIMIT, self.child.wait()).await;
        Ok(waited.context("the server does not end")??)
    }

    /// Asks it to end and waits until it has.
    ///
    /// # Errors
    /// When it does not.
    pub async fn stop(self) -> Result<ExitStatus> {
        self.terminate()?;
        self.ended().await
    }
}

/// Memory that a process holds now, in bytes.
///
/// # Errors
/// When it has ended.
pub fn memory_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// Runs `polyplane up` where it is expected to refuse.
///
/// # Errors
/// When it goes on running.
pub async fn refused(folder: &Path, options: &[&str]) -> Result<Output> {
    let mut command = command(&polyplane()?, folder, options);
    let output = timeout(START_LIMIT, command.output()).await;
    Ok(output.context("the server runs where it should have refused")??)
}
