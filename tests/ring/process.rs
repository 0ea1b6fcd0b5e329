//! One child process: its log, its signals, its end.
//!
//! Invariant: signals go to a process's own id, never to a name.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::network::Node;

/// Creates a folder for logs and data. It is removed when dropped, unless `RING_KEEP` names a
/// folder: then it is created there and stays, for an analysis of the run.
///
/// # Errors
/// Returns an error if the folder cannot be created.
pub fn folder() -> Result<TempDir> {
    let mut made = tempfile::Builder::new();
    made.prefix("ring-");
    let Some(kept) = std::env::var_os("RING_KEEP") else {
        return Ok(made.tempdir()?);
    };
    std::fs::create_dir_all(&kept)?;
    Ok(made.disable_cleanup(true).tempdir_in(kept)?)
}

/// Lines of a log that an error shows.
const SHOWN_LINES: usize = 12;

/// A command that can be started any number of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// The arguments.
    pub arguments: Vec<String>,
    /// Environment variables beside those of the test.
    pub environment: Vec<(String, String)>,
}

impl Launch {
    /// Creates a command without arguments.
    pub fn of(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn with<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Returns the command, within a node's network if there is one. `ip netns exec` replaces
    /// itself by the program, so the id is the program's own.
    pub fn command(&self, node: Option<&Node>) -> Command {
        let mut command = match node {
            None => Command::new(&self.program),
            Some(node) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &node.namespace]);
                command.arg(&self.program);
                command
            }
        };
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

/// A signal to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// SIGTERM: end in good order.
    End,
    /// SIGKILL: end at once.
    BeGone,
    /// SIGSTOP: pause.
    Stand,
    /// SIGCONT: continue.
    GoOn,
}

/// A process that runs, or has ended by itself. Dropping this kills it.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the process. Both outputs are appended to `<name>.log` in the folder.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn start(name: &str, launch: &Launch, node: Option<&Node>, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let child = launch
            .command(node)
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {}", launch.program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Returns the process id, while the process runs or its end has not been collected.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn tell(&self, told: Told) -> Result<()> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw);
        let id = id.with_context(|| format!("{} has ended: {}", self.name, self.last_words()))?;
        let signal = match told {
            Told::End => Signal::TERM,
            Told::BeGone => Signal::KILL,
            Told::Stand => Signal::STOP,
            Told::GoOn => Signal::CONT,
        };
        kill_process(id, signal).with_context(|| format!("{told:?} to {}", self.name))
    }

    /// Returns the exit status if the process has ended.
    ///
    /// # Errors
    /// Returns an error if the system does not report it.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process; returns `None` if it still runs after `limit`.
    ///
    /// # Errors
    /// Returns an error if the system does not report it.
    pub async fn end(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        match timeout(limit, self.child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => Ok(None),
        }
    }

    /// Sends SIGKILL and collects the process.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        let killed = self.child.kill().await;
        killed.with_context(|| format!("cannot kill {}", self.name))
    }

    /// Returns the file of both outputs.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the end of the log, for the text of an error.
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(SHOWN_LINES);
        lines[from..].join("\n")
    }
}
