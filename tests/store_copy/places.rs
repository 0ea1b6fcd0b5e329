//! The places of stores, the servers on them, and the command that copies from one to the other.
//!
//! This module owns processes and folders. It does not know what is compared.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::addresses::Block;
use polyplane_tests::ring::etcd::Cluster;
use polyplane_tests::ring::process::{Launch, Process, Told};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// The prefix of the copy in etcd: not the default, so that it must be passed on.
const PREFIX: &str = "/a/copy/";
/// The longest time that a copy may take: of 100 000 planes, on a busy machine.
const COPY_PATIENCE: Duration = Duration::from_secs(3600);
/// The longest time until a server has started or stopped, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A place that stores are copied from and to.
pub enum Place<'a> {
    Folder { data: PathBuf, engine: &'static str },
    Etcd(&'a Cluster),
}

/// A server on a place.
pub enum Served {
    Up(Up),
    Serve(Process, Endpoint),
}

impl Place<'_> {
    pub fn text(&self) -> String {
        match self {
            Self::Folder { data, engine } => format!("{engine}:{}", data.display()),
            Self::Etcd(cluster) => format!("{}{PREFIX}", cluster.url()),
        }
    }

    /// Starts a server with the keys in `pki`.
    pub async fn serve(&self, pki: &Path, block: &Block) -> Result<Served> {
        match self {
            Self::Folder { data, .. } => {
                copy_folder(pki, &data.join("pki"))?;
                Ok(Served::Up(Up::start(data, &["--sleep-after", "2"]).await?))
            }
            Self::Etcd(cluster) => serve(cluster, pki, block).await,
        }
    }
}

/// Starts a replica on the copy in etcd.
async fn serve(cluster: &Cluster, pki: &Path, block: &Block) -> Result<Served> {
    let address = block.nth(100)?;
    let folder = pki.parent().context("it is a folder")?;
    let certs = folder.join("certs");
    copy_folder(pki, &certs)?;
    let launch = Launch::of(polyplane()?)
        .with(["serve", "--store", &cluster.url()])
        .with(["--store-prefix", PREFIX, "--replica-id", "copied"])
        .with(["--certs", &certs.to_string_lossy()])
        .with(["--endpoint", &format!("{address}:6443")])
        .with(["--listen", &format!("{address}:6443")])
        .with(["--peer-listen", &format!("{address}:7443")])
        .with(["--advertise", &format!("{address}:7443")])
        .with(["--sleep-after", "2", "--drain-notice", "0"]);
    let process = Process::start("serve", &launch, None, folder)?;
    let kubeconfig = certs.join("admin.kubeconfig");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(endpoint) = Endpoint::from_kubeconfig(&kubeconfig, Some("root"))
            && let Ok(client) = Client::open(&endpoint).await
            && client
                .get(CONTROL_PLANES)
                .await
                .is_ok_and(|reply| reply.status == 200)
        {
            return Ok(Served::Serve(process, endpoint));
        }
        ensure!(
            Instant::now() < deadline,
            "the replica does not serve: {}",
            process.last_words()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Served {
    pub fn root(&self) -> Result<Endpoint> {
        match self {
            Self::Up(up) => up.root(),
            Self::Serve(_, root) => Ok(root.clone()),
        }
    }

    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Up(up) => ensure!(up.stop().await?.success(), "it does not stop well"),
            Self::Serve(mut process, _) => {
                process.tell(Told::End)?;
                let deadline = Instant::now() + PATIENCE;
                while process.ended()?.is_none() {
                    ensure!(Instant::now() < deadline, "the replica does not stop");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        Ok(())
    }
}

pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if from == to {
        return Ok(());
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

pub fn copy_command(from: &str, to: &str) -> Result<Command> {
    let mut command = Command::new(polyplane()?);
    command
        .args(["store", "copy", from, to])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// A copy that has said its first line: how far it is, or why it does not begin.
pub struct Run {
    pub child: Child,
    first: String,
    rest: BufReader<ChildStderr>,
}

impl Run {
    pub async fn begin(from: &str, to: &str) -> Result<Self> {
        let mut child = copy_command(from, to)?.spawn()?;
        let mut rest = BufReader::new(child.stderr.take().context("it is piped")?);
        let mut first = String::new();
        timeout(COPY_PATIENCE, rest.read_line(&mut first)).await??;
        if first.starts_with("checking that the target takes") {
            first.clear();
            timeout(COPY_PATIENCE, rest.read_line(&mut first)).await??;
        }
        Ok(Self { child, first, rest })
    }

    /// Returns whether it goes on with what another run has left.
    pub fn goes_on(&self) -> bool {
        self.first.starts_with("going on with the copy")
    }

    /// Waits for its end. Returns how it ended, and what it said.
    pub async fn ended(mut self) -> Result<(ExitStatus, String)> {
        let mut said = self.first;
        self.rest.read_to_string(&mut said).await?;
        let output = self.child.wait_with_output().await?;
        said += &String::from_utf8_lossy(&output.stdout);
        Ok((output.status, said))
    }
}

/// Runs a copy to its end.
pub async fn copy(from: &str, to: &str) -> Result<Output> {
    let output = timeout(COPY_PATIENCE, copy_command(from, to)?.output()).await;
    Ok(output.context("the copy does not end")??)
}

/// Runs a copy that must succeed, and returns what it says.
pub async fn copied(from: &str, to: &str) -> Result<String> {
    let output = copy(from, to).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{from} to {to}: {said}");
    let summary = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        summary.contains("is complete and may be served"),
        "{summary}"
    );
    Ok(said + &summary)
}

/// Checks that a copy is refused with one line that has these words.
pub async fn copy_refused(from: &str, to: &str, words: &str) -> Result<()> {
    let output = copy(from, to).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{from} to {to} was copied");
    let (lines, found) = (said.trim_end().lines().count(), said.contains(words));
    ensure!(lines == 1 && found, "{words:?} is not in {said:?}");
    Ok(())
}
