//! A Deployment's moves: pods start, become ready, become endpoints, and are ended with grace.
//!
//! This module owns the pods and the balancer's list of servers. The rules are the Deployment
//! controller's with maxSurge 1 and maxUnavailable 0, and the kubelet's for one pod: a pod is an
//! endpoint once its readiness probe succeeds, and stops being one a short time after its deletion
//! began, while the pre-stop hook already runs. The module does not know how a pod's command line
//! is made.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::kubeconfig::Endpoint;

use super::addresses::Block;
use super::balancer::Balancer;
use super::network::Node;
use super::process::Told;
use super::replica::{Pod, Replica, Start};

/// The times for ending a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// The time from the deletion to SIGKILL.
    pub grace: Duration,
    /// The time from a pod's deletion until its address has left the endpoints everywhere.
    pub endpoints_lag: Duration,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(30),
            endpoints_lag: Duration::from_millis(300),
        }
    }
}

/// Makes the command line of a pod.
pub type Template = Box<dyn Fn(&Pod) -> Result<Start> + Send + Sync>;

/// The machines on which pods run.
#[derive(Debug)]
pub enum Places {
    /// Each pod on a machine of its own.
    Nodes(Vec<Node>),
    /// All pods on the test's machine, each at an address of its own.
    Loopback(Block),
}

/// The pods of one Deployment behind one balancer.
pub struct Controller {
    /// The balancer, in place of the Service.
    pub balancer: Balancer,
    /// The pods that should exist, oldest first.
    pub replicas: Vec<Replica>,
    name: String,
    template: Template,
    admin: PathBuf,
    manners: Manners,
    born: u8,
    logs: PathBuf,
    places: Places,
}

impl Controller {
    /// Creates a Deployment without pods. `admin` is the kubeconfig by which pods are probed; the
    /// first pod may create it.
    pub fn new(
        name: &str,
        template: Template,
        balancer: Balancer,
        admin: &Path,
        manners: Manners,
        places: Places,
        logs: &Path,
    ) -> Self {
        Self {
            balancer,
            replicas: Vec::new(),
            name: name.to_owned(),
            template,
            admin: admin.to_owned(),
            manners,
            born: 0,
            logs: logs.to_owned(),
            places,
        }
    }

    /// Returns the administrator's endpoint of the ring, at the balancer.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig does not exist yet.
    pub fn admin(&self) -> Result<Endpoint> {
        let mut endpoint = Endpoint::from_kubeconfig(&self.admin, None)?;
        endpoint.host = self.balancer.address.ip().to_string();
        endpoint.port = self.balancer.address.port();
        Ok(endpoint)
    }

    fn pod(&mut self) -> Result<Pod> {
        self.born = self.born.checked_add(1).context("too many pods")?;
        let (address, node) = match &self.places {
            Places::Loopback(block) => (block.nth(self.born)?, None),
            Places::Nodes(nodes) => {
                let used: Vec<Ipv4Addr> = self.replicas.iter().map(|one| one.pod.address).collect();
                let mut free = nodes.iter().filter(|node| !used.contains(&node.address));
                let node = free.next().context("every node has a pod")?;
                (node.address, Some(node.clone()))
            }
        };
        Ok(Pod {
            name: format!("{}-{}", self.name, self.born),
            address,
            node,
        })
    }

    /// Starts one pod, waits until it is ready, and makes it an endpoint.
    ///
    /// # Errors
    /// Returns an error if the pod does not become ready.
    pub async fn add(&mut self) -> Result<()> {
        let pod = self.pod()?;
        let start = (self.template)(&pod)?;
        self.replicas.push(Replica::start(pod, start, &self.logs)?);
        self.readied(self.replicas.len() - 1).await
    }

    /// Waits until a pod is ready and adds it to the balancer.
    async fn readied(&mut self, place: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.admin.is_file() {
            let words = self.replicas[place].last_words();
            ensure!(Instant::now() < deadline, "no kubeconfig appears: {words}");
            sleep(Duration::from_millis(20)).await;
        }
        let admin = self.admin()?;
        let replica = &mut self.replicas[place];
        replica.wait_ready(&admin).await?;
        self.balancer.add(replica.pod.client()).await
    }

    /// Ends one pod as a rolling update or a scale down does; returns how long that took.
    ///
    /// # Errors
    /// Returns an error if the pod had to be killed, or ended with a failure.
    pub async fn remove(&mut self, place: usize) -> Result<Duration> {
        let began = Instant::now();
        let mut replica = self.replicas.remove(place);
        let client = replica.pod.client();
        let (grace, lag) = (self.manners.grace, self.manners.endpoints_lag);
        let balancer = &mut self.balancer;
        let removed = async {
            sleep(lag).await;
            balancer.remove(client).await
        };
        let (ended, removed) = tokio::join!(replica.end(grace), removed);
        removed?;
        let name = &replica.pod.name;
        let status = ended?.with_context(|| format!("{name} did not end in its grace"))?;
        ensure!(status.success(), "{name} ended with {status}");
        Ok(began.elapsed())
    }

    /// Scales to a number of pods: up one after another; down from the youngest, as the controller
    /// does with pods that are equal otherwise.
    ///
    /// # Errors
    /// Returns an error if a pod does not become ready or does not end.
    pub async fn scale(&mut self, pods: usize) -> Result<()> {
        while self.replicas.len() < pods {
            self.add().await?;
        }
        while self.replicas.len() > pods {
            self.remove(self.replicas.len() - 1).await?;
        }
        Ok(())
    }

    /// Does a rolling update: each old pod is ended once one more new pod is ready. Returns how
    /// long the end of each took.
    ///
    /// # Errors
    /// Returns an error if a pod does not become ready or does not end.
    pub async fn roll(&mut self) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        for _ in 0..self.replicas.len() {
            self.add().await?;
            took.push(self.remove(0).await?);
        }
        Ok(took)
    }

    /// Kills a pod's process with SIGKILL. Its container is started again at the same address, as a
    /// kubelet does. The address leaves the endpoints and returns to them by its readiness probe.
    ///
    /// # Errors
    /// Returns an error if the pod does not become ready again.
    pub async fn kill(&mut self, place: usize) -> Result<()> {
        self.replicas[place].kill().await
    }

    /// Starts a killed pod's container again and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the pod does not become ready.
    pub async fn restart(&mut self, place: usize) -> Result<()> {
        let admin = self.admin()?;
        let replica = &mut self.replicas[place];
        replica.again()?;
        replica.wait_ready(&admin).await
    }

    /// Starts a pod's container again if it has ended by itself, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the pod does not become ready.
    pub async fn revive(&mut self, place: usize) -> Result<()> {
        if self.replicas[place].runs()? {
            let admin = self.admin()?;
            return self.replicas[place].wait_ready(&admin).await;
        }
        self.restart(place).await
    }

    /// Sends a signal to a pod's process.
    ///
    /// # Errors
    /// Returns an error if the process does not run.
    pub fn tell(&self, place: usize, told: Told) -> Result<()> {
        self.replicas[place].tell(told)
    }
}
