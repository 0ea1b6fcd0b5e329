//! A ring on this machine: etcd, and replicas of `polyplane serve` on it.
//!
//! This module owns the processes and their folder; all of them end when the value is dropped. It
//! does not know what is measured.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::{Method, StatusCode};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::ring::addresses::free_ports;
use polyplane_tests::ring::etcd::Cluster;
use polyplane_tests::ring::process::{Launch, Process as Child, Told};
use serde_json::Value;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::planes::CONTROL_PLANES;
use crate::proc::Process;
use crate::program;
use crate::target::Target;

/// The longest time that a process may take to answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The longest time that a plane may take to move to the wanted replica.
const MOVE_LIMIT: Duration = Duration::from_secs(30);
/// The longest time that a replica may take to end: it hands its planes over first.
const END_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// One replica process.
struct Replica {
    child: Child,
    pid: u32,
    port: u16,
}

/// The processes of a ring, and their addresses.
pub struct Ring {
    replicas: Vec<Replica>,
    /// Declared after the replicas, so that they end first.
    etcd: Cluster,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Ring {
    /// Starts etcd and `replicas` replicas, and waits until all are ready.
    ///
    /// # Errors
    /// Returns an error if a program is missing or does not become ready.
    pub async fn start(replicas: usize) -> Result<Self> {
        Self::start_program(&program::current()?, replicas).await
    }

    /// Starts a ring of another program, like [`Ring::start`].
    ///
    /// # Errors
    /// Returns the errors of [`Ring::start`].
    pub async fn start_program(program: &Path, replicas: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let etcd = Cluster::start(1, &[], &[]).await?;
        let mut ring = Self {
            replicas: Vec::new(),
            etcd,
            program: program.to_owned(),
            folder,
        };
        ring.tool(&["certs"]).await?;
        for index in 0..replicas {
            let replica = ring.replica(index)?;
            ring.replicas.push(replica);
        }
        for index in 0..replicas {
            ring.ready(index).await?;
        }
        ring.all_see(replicas).await?;
        Ok(ring)
    }

    /// Returns the name of a replica in the ring.
    pub fn name(index: usize) -> String {
        format!("polyplane-{index}")
    }

    fn certs(&self) -> String {
        let certs = self.folder.path().join("certs");
        certs.to_string_lossy().into_owned()
    }

    /// Runs a subcommand that ends soon.
    async fn tool(&self, words: &[&str]) -> Result<()> {
        let launch = Launch::of(&self.program).with(words.iter().copied());
        let launch = launch.with(["--certs", &self.certs()]);
        let output = launch.command(None).output().await?;
        ensure!(
            output.status.success(),
            "polyplane {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn replica(&self, index: usize) -> Result<Replica> {
        let ports = free_ports(Ipv4Addr::LOCALHOST, 2)?;
        let peer = format!("127.0.0.1:{}", ports[1]);
        let launch = Launch::of(&self.program)
            .with(["serve", "--store", &self.etcd.url()])
            .with(["--listen", &format!("127.0.0.1:{}", ports[0])])
            .with(["--peer-listen", &peer, "--advertise", &peer])
            .with(["--host-name", "127.0.0.1", "--certs", &self.certs()])
            .with(["--replica-id", &Self::name(index)])
            .with(["--drain-notice", "0", "--log", "warn"]);
        let child = Child::start(&Self::name(index), &launch, None, self.folder.path())?;
        Ok(Replica {
            pid: child.id().context("a replica ended at once")?,
            child,
            port: ports[0],
        })
    }

    async fn ready(&mut self, index: usize) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = self.replicas[index].child.ended()? {
                bail!(
                    "{} ended with {status}: {}",
                    Self::name(index),
                    self.last_words(index)
                );
            }
            if let Ok(lane) = self.lane(index, "").await
                && let Ok(request) = lane.request(Method::GET, "/readyz", Content::None)
                && lane.exchange(request, StatusCode::OK).await.is_ok()
            {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{} is not ready: {}",
                Self::name(index),
                self.last_words(index)
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every replica sees `count` serving members.
    async fn all_see(&self, count: usize) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        for index in 0..self.replicas.len() {
            let lane = self.lane(index, "").await?;
            loop {
                let ring = lane
                    .call(Method::GET, "/polyplane/ring", Content::None)
                    .await?;
                let ring: Value = serde_json::from_slice(&ring)?;
                let seen = ring["replicas"].as_array().into_iter().flatten();
                if seen.filter(|one| one["state"] == "Serving").count() == count {
                    break;
                }
                ensure!(Instant::now() < deadline, "not all are in the ring: {ring}");
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    fn last_words(&self, index: usize) -> String {
        self.replicas[index].child.last_words()
    }

    /// Returns the folder of the store's data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the administrator's endpoint at a replica, below a path. An empty path means the
    /// root plane.
    fn endpoint(&self, index: usize, base_path: &str) -> Result<Endpoint> {
        let kubeconfig = self.folder.path().join("certs/admin.kubeconfig");
        let mut endpoint = Endpoint::from_kubeconfig(&kubeconfig, None)?.at_base_path(base_path);
        "127.0.0.1".clone_into(&mut endpoint.host);
        endpoint.port = self.replicas[index].port;
        Ok(endpoint)
    }

    /// Opens a connection to a replica.
    ///
    /// # Errors
    /// Returns an error if the replica cannot be reached.
    pub async fn lane(&self, index: usize, base_path: &str) -> Result<Arc<Lane>> {
        let endpoint = self.endpoint(index, base_path)?;
        Ok(Arc::new(Lane::open(&endpoint).await?))
    }

    /// Returns the address of etcd.
    pub fn etcd_url(&self) -> String {
        format!("http://{}", self.etcd.endpoints().concat())
    }

    /// Returns the processes: replicas by their names, and etcd.
    pub fn processes(&self) -> Vec<Process> {
        let replicas = self.replicas.iter().enumerate();
        let replicas = replicas.map(|(index, replica)| Process {
            pid: replica.pid,
            name: Self::name(index),
        });
        let etcd = self.etcd.ids().into_iter().map(|pid| Process {
            pid,
            name: "etcd".to_owned(),
        });
        replicas.chain(etcd).collect()
    }

    /// Returns a plane as a target, through one replica, with the CPU times of all processes.
    ///
    /// # Errors
    /// Returns an error if the replica cannot be reached.
    pub async fn target(&self, index: usize, plane: &str, connections: usize) -> Result<Target> {
        let label = format!("through {}", Self::name(index));
        let endpoint = self.endpoint(index, &format!("/clusters/{plane}"))?;
        Target::connect(&label, &endpoint, self.processes(), connections).await
    }

    /// Creates a plane whose placement names replica `index`, wakes it with a request, and waits
    /// until that replica owns it.
    ///
    /// # Errors
    /// Returns an error if the root plane refuses the plane, or the replica does not own it in
    /// time.
    pub async fn plane_at(&self, name: &str, index: usize) -> Result<()> {
        let body = format!(
            r#"{{"apiVersion":"polyplane.dev/v1alpha1","kind":"ControlPlane","metadata":{{"name":"{name}"}},"spec":{{"placement":{{"replica":"{}"}}}}}}"#,
            Self::name(index)
        );
        let root = self.lane(0, "").await?;
        let content = Content::Json(body.into());
        root.call(Method::POST, CONTROL_PLANES, content).await?;
        let path = format!("/clusters/{name}/api/v1/namespaces");
        root.call(Method::GET, &path, Content::None).await?;
        self.arrived(&root, name, index).await
    }

    /// Sets the plane's placement to replica `index`.
    ///
    /// # Errors
    /// Returns an error if the root plane refuses the change.
    pub async fn want(&self, root: &Lane, name: &str, index: usize) -> Result<()> {
        let body = format!(
            r#"{{"spec":{{"placement":{{"replica":"{}"}}}}}}"#,
            Self::name(index)
        );
        let path = format!("{CONTROL_PLANES}/{name}");
        let content = Content::MergePatch(body.into());
        root.call(Method::PATCH, &path, content).await?;
        Ok(())
    }

    /// Waits until a replica owns a plane.
    ///
    /// # Errors
    /// Returns an error if the replica does not own it in time.
    pub async fn arrived(&self, root: &Lane, name: &str, index: usize) -> Result<()> {
        let deadline = Instant::now() + MOVE_LIMIT;
        let path = format!("/polyplane/locate/{name}");
        loop {
            let found = root.call(Method::GET, &path, Content::None).await?;
            let found: Value = serde_json::from_slice(&found)?;
            if found["owner"] == Self::name(index) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{name} does not move: {found}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Runs `polyplane drain`; returns when the replica has handed all its planes over.
    ///
    /// # Errors
    /// Returns an error if the drain fails.
    pub async fn drain(&self, index: usize) -> Result<()> {
        let server = format!("127.0.0.1:{}", self.replicas[index].port);
        self.tool(&["drain", "--server", &server]).await
    }

    /// Ends the replicas with SIGTERM, one after the other, then etcd with the value.
    ///
    /// # Errors
    /// Returns an error if a replica has failed or does not end.
    pub async fn stop(mut self) -> Result<()> {
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            replica.child.tell(Told::End)?;
            let ended = replica.child.end(END_LIMIT).await?;
            ensure!(
                ended.is_some_and(|status| status.success()),
                "{} ended with {ended:?}: {}",
                Self::name(index),
                replica.child.last_words()
            );
        }
        Ok(())
    }

    /// Kills a replica and starts it again.
    ///
    /// # Errors
    /// Returns an error if it does not become ready.
    pub async fn restart(&mut self, index: usize) -> Result<()> {
        // The replica has handed its planes over, so there is nothing left for which SIGTERM would
        // wait.
        self.replicas[index].child.kill().await?;
        self.replicas[index] = self.replica(index)?;
        self.ready(index).await?;
        self.all_see(self.replicas.len()).await
    }
}
