//! One server process of a ring, with the address that a pod would have.
//!
//! This module owns the process through restarts. The caller supplies its command line: the flags
//! of `polyplane serve`, or a rendered Deployment. The module does not know the replica's peers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::connection::Connection;
use crate::kubeconfig::{Caller, Endpoint, Protocol};
use crate::process::memory_bytes;
use crate::programs::ask;

use super::network::Node;
use super::process::{Launch, Process, Told};

/// The longest time until a replica is ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Restarts of a container that ends before it is ready. With more, a wrong command line would be
/// tried for minutes.
const RESTARTS_MAX: u32 = 10;
/// The longest time of one probe, as in a kubelet's defaults.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// The port for clients within a pod.
pub const CLIENT_PORT: u16 = 6443;
/// The port for other replicas within a pod.
pub const PEER_PORT: u16 = 7443;

/// The commands by which a replica is started and ended.
#[derive(Clone, Debug)]
pub struct Start {
    /// The command of the server.
    pub serve: Launch,
    /// The command that runs before SIGTERM, if any.
    pub pre_stop: Option<Launch>,
}

/// The place of a replica.
#[derive(Clone, Debug)]
pub struct Pod {
    /// The pod's name, unique among all pods of a run.
    pub name: String,
    /// The pod's address; the ports are the same for all pods.
    pub address: Ipv4Addr,
    /// The pod's network, if it is not the test's own.
    pub node: Option<Node>,
}

impl Pod {
    /// Returns the address for clients.
    pub fn client(&self) -> SocketAddr {
        SocketAddr::from((self.address, CLIENT_PORT))
    }

    /// Returns the address for peers.
    pub fn peer(&self) -> SocketAddr {
        SocketAddr::from((self.address, PEER_PORT))
    }
}

/// The program with which pods start. An upgrade replaces it.
#[derive(Clone, Debug)]
pub struct Program(Arc<Mutex<PathBuf>>);

impl Program {
    /// Creates a program.
    pub fn new(path: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(path)))
    }

    /// Returns the program of pods that start now.
    pub fn path(&self) -> PathBuf {
        let path = self.0.lock();
        path.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the program of pods that start from now on.
    pub fn becomes(&self, path: PathBuf) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = path;
    }
}

/// The settings that all replicas of a ring share.
#[derive(Clone, Debug)]
pub struct Common {
    /// The program.
    pub program: Program,
    /// `--store`.
    pub store: String,
    /// `--certs`.
    pub certs: PathBuf,
    /// `--endpoint`: the address for clients.
    pub endpoint: SocketAddr,
    /// `--grace`.
    pub grace: Duration,
    /// Further arguments of `serve`, in which [`REPLICA`] stands for the pod's name.
    pub options: Vec<String>,
}

/// Stands for the pod's name in the further arguments of `serve`.
pub const REPLICA: &str = "{replica}";

impl Common {
    /// Returns the command of `polyplane serve` for a pod, and that of the drain before its end.
    pub fn start(&self, pod: &Pod) -> Start {
        let certs = self.certs.to_string_lossy().into_owned();
        let serve = Launch::of(self.program.path())
            .with(["serve", "--store", &self.store, "--certs", &certs])
            .with(["--listen", &pod.client().to_string()])
            .with(["--peer-listen", &pod.peer().to_string()])
            .with(["--advertise", &pod.peer().to_string()])
            .with(["--endpoint", &self.endpoint.to_string()])
            .with(["--host-name", &self.endpoint.ip().to_string()])
            .with(["--replica-id", &pod.name])
            .with(["--grace", &self.grace.as_secs().to_string()])
            .with(
                self.options
                    .iter()
                    .map(|one| one.replace(REPLICA, &pod.name)),
            );
        let drain = Launch::of(self.program.path())
            .with(["drain", "--certs", &certs])
            .with(["--server", &pod.client().to_string()]);
        Start {
            serve,
            pre_stop: Some(drain),
        }
    }

    /// Fills the folder of certificates that all replicas share.
    ///
    /// # Errors
    /// Returns an error if the program fails.
    pub async fn make_certs(&self, hosts: &[String]) -> Result<()> {
        let mut launch = Launch::of(self.program.path())
            .with(["certs", "--endpoint", &self.endpoint.to_string(), "--certs"])
            .with([self.certs.to_string_lossy().into_owned()]);
        for host in hosts {
            launch = launch.with(["--host-name", host]);
        }
        let output = launch.command(None).output().await?;
        if !output.status.success() {
            bail!(
                "no certificates: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }
}

/// A replica, through restarts of its process. Dropping this ends the process.
pub struct Replica {
    /// The replica's pod.
    pub pod: Pod,
    start: Start,
    logs: PathBuf,
    process: Option<Process>,
}

impl Replica {
    /// Starts a replica.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn start(pod: Pod, start: Start, logs: &Path) -> Result<Self> {
        let mut replica = Self {
            pod,
            start,
            logs: logs.to_owned(),
            process: None,
        };
        replica.again()?;
        Ok(replica)
    }

    /// Starts the process again after it has ended.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn again(&mut self) -> Result<()> {
        let Pod { name, node, .. } = &self.pod;
        let process = Process::start(name, &self.start.serve, node.as_ref(), &self.logs)?;
        self.process = Some(process);
        Ok(())
    }

    /// Returns whether a readiness probe succeeds now.
    pub async fn is_ready(&self, admin: &Endpoint) -> bool {
        is_ready(admin, self.pod.client()).await
    }

    /// Waits until the replica is ready. A container that ends before that is started again, as by
    /// a kubelet, but only a few times.
    ///
    /// # Errors
    /// Returns an error with the end of the log if it ends too often or takes too long.
    pub async fn wait_ready(&mut self, admin: &Endpoint) -> Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        let mut restarts = 0;
        while !self.is_ready(admin).await {
            let name = &self.pod.name;
            let process = self.process.as_mut().context("it does not run")?;
            if let Some(status) = process.ended()? {
                let words = process.last_words();
                if restarts == RESTARTS_MAX {
                    bail!("{name} ended with {status}: {words}");
                }
                println!("{name} ended with {status} and is started again: {words}");
                restarts += 1;
                self.again()?;
                continue;
            }
            if Instant::now() > deadline {
                bail!("{name} is not ready: {}", process.last_words());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Returns whether the process runs.
    ///
    /// # Errors
    /// Returns an error if the system does not report it.
    pub fn runs(&mut self) -> Result<bool> {
        match &mut self.process {
            Some(process) => Ok(process.ended()?.is_none()),
            None => Ok(false),
        }
    }

    /// Returns the resident memory in bytes.
    ///
    /// # Errors
    /// Returns an error if the process does not run.
    pub fn memory_bytes(&self) -> Result<u64> {
        let id = self.process.as_ref().and_then(Process::id);
        memory_bytes(id.context("the replica does not run")?)
    }

    /// Sends SIGSTOP, SIGCONT or SIGTERM.
    ///
    /// # Errors
    /// Returns an error if the process does not run.
    pub fn tell(&self, told: Told) -> Result<()> {
        let process = self.process.as_ref();
        process.context("the replica does not run")?.tell(told)
    }

    /// Kills the process with SIGKILL.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill().await?;
        }
        Ok(())
    }

    /// Ends the replica as a kubelet does: the pre-stop hook, SIGTERM, and SIGKILL when `grace` is
    /// over, which counts from the hook's start. Returns the exit status, or `None` if the process
    /// had to be killed.
    ///
    /// # Errors
    /// Returns an error if a process cannot be started or signalled.
    pub async fn end(&mut self, grace: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + grace;
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(hook) = &self.start.pre_stop {
            let output = hook.command(self.pod.node.as_ref()).output();
            match timeout(left(), output).await {
                Ok(Ok(output)) if output.status.success() => {}
                // A kubelet only reports this in an event and continues.
                Ok(Ok(output)) => println!(
                    "{}: the pre-stop hook failed with {}: {}",
                    self.pod.name,
                    output.status,
                    String::from_utf8_lossy(&output.stderr).trim()
                ),
                Ok(Err(error)) => return Err(error).context("no pre-stop hook"),
                Err(_) => println!("{}: the pre-stop hook took too long", self.pod.name),
            }
        }
        let Some(mut process) = self.process.take() else {
            return Ok(None);
        };
        process.tell(Told::End)?;
        let ended = process.end(left()).await?;
        if ended.is_none() {
            println!(
                "{}: killed after its grace: {}",
                self.pod.name,
                process.last_words()
            );
            process.kill().await?;
        }
        Ok(ended)
    }

    /// Returns the end of the log.
    pub fn last_words(&self) -> String {
        let process = self.process.as_ref();
        process.map(Process::last_words).unwrap_or_default()
    }
}

/// Returns whether a GET of /readyz at this address succeeds in time.
pub async fn is_ready(admin: &Endpoint, at: SocketAddr) -> bool {
    let probed = async {
        let endpoint = at_address(admin, at);
        let connection = Connection::open(&endpoint, Caller::Anonymous, Protocol::Http1).await?;
        let ask = ask(Method::GET, "/readyz", &Value::Null);
        anyhow::Ok(connection.send(ask).await?.status == 200)
    };
    matches!(timeout(PROBE_LIMIT, probed).await, Ok(Ok(true)))
}

/// Returns the same server at another address. The name in the certificate stays.
pub fn at_address(endpoint: &Endpoint, at: SocketAddr) -> Endpoint {
    let mut endpoint = endpoint.at_base_path("");
    endpoint.host = at.ip().to_string();
    endpoint.port = at.port();
    endpoint
}
