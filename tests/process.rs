//! A server that a test starts, stops, kills and starts again in a folder of its own choice.
//!
//! This module owns the process and its output. It does not know the requests.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::kubeconfig::Endpoint;
use crate::programs::polyplane;

/// The longest time until a server answers, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The longest time until a server has ended.
const STOP_LIMIT: Duration = Duration::from_secs(40);

/// A running `polyplane up`. Dropping it kills the process.
pub struct Up {
    child: Child,
    /// The server's output. Not in its folder, because that disk may be full.
    log: tempfile::NamedTempFile,
    /// The kubeconfig that the server wrote.
    pub kubeconfig: PathBuf,
    /// The first line of output: how long the start took and where the server listens.
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
    /// Starts a server in `folder` and waits until it reports that it is up.
    ///
    /// # Errors
    /// Returns an error with the output if the server ends instead.
    pub async fn start(folder: &Path, options: &[&str]) -> Result<Self> {
        Self::start_program(&polyplane()?, folder, options).await
    }

    /// Starts another program than the one under test, like [`Up::start`].
    ///
    /// # Errors
    /// Returns the errors of [`Up::start`].
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
    /// Returns an error if a client cannot use the kubeconfig.
    pub fn root(&self) -> Result<Endpoint> {
        Endpoint::from_kubeconfig(&self.kubeconfig, Some("root"))
    }

    /// Returns the server as the holder of a client certificate sees it. The certificate, its key and a
    /// kubeconfig are written into `folder`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or the key does not fit.
    pub fn as_holder(&self, folder: &Path, certificate: &str, key: &str) -> Result<Endpoint> {
        std::fs::write(folder.join("user.crt"), certificate)?;
        std::fs::write(folder.join("user.key"), key)?;
        let text = std::fs::read_to_string(&self.kubeconfig)?;
        let mut config: Value = serde_saphyr::from_str(&text)?;
        for user in config["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"client-certificate": "user.crt", "client-key": "user.key"});
        }
        let path = folder.join("kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Endpoint::from_kubeconfig(&path, None)
    }

    /// Returns the plane of this name, whether or not the kubeconfig has a context for it already.
    ///
    /// # Errors
    /// Returns the errors of [`Up::root`].
    pub fn plane(&self, name: &str) -> Result<Endpoint> {
        Ok(self.root()?.at_base_path(&format!("/clusters/{name}")))
    }

    /// Returns the process id.
    ///
    /// # Errors
    /// Returns an error if the server has ended.
    pub fn pid(&self) -> Result<u32> {
        self.child.id().context("the server has ended")
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// Returns an error if the server has ended.
    pub fn memory_bytes(&self) -> Result<u64> {
        memory_bytes(self.pid()?)
    }

    /// Returns the server's standard error.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log.path())?)
    }

    /// Kills the server with SIGKILL.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the server")
    }

    /// Sends SIGTERM and returns at once.
    ///
    /// # Errors
    /// Returns an error if the server has ended already.
    pub fn terminate(&self) -> Result<()> {
        let status = std::process::Command::new("kill")
            .arg(self.pid()?.to_string())
            .status()?;
        if !status.success() {
            bail!("SIGTERM was not sent");
        }
        Ok(())
    }

    /// Returns whether the server has ended.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// Returns an error if the server does not end in time.
    pub async fn ended(mut self) -> Result<ExitStatus> {
        let waited = timeout(STOP_LIMIT, self.child.wait()).await;
        Ok(waited.context("the server does not end")??)
    }

    /// Sends SIGTERM and waits until the server has ended.
    ///
    /// # Errors
    /// Returns an error if the server does not end in time.
    pub async fn stop(self) -> Result<ExitStatus> {
        self.terminate()?;
        self.ended().await
    }
}

/// Returns the resident memory of a process in bytes.
///
/// # Errors
/// Returns an error if the process has ended.
pub fn memory_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// Runs `polyplane up`, which is expected to refuse.
///
/// # Errors
/// Returns an error if the server keeps running.
pub async fn refused(folder: &Path, options: &[&str]) -> Result<Output> {
    let mut command = command(&polyplane()?, folder, options);
    let output = timeout(START_LIMIT, command.output()).await;
    Ok(output.context("the server runs where it should have refused")??)
}
