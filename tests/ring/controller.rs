//! A Deployment's moves: pods come, become ready, are endpoints, are ended with grace.
//!
//! Owns the pods and what is behind the balancer. The rules are the Deployment controller's with
//! maxSurge 1 and maxUnavailable 0, and the kubelet's for one pod: a pod is an endpoint once its
//! readiness probe succeeds, and stops being one, a little after its deletion began, while the
//! pre-stop hook already runs. Must not know how a pod's command line is made.

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

/// How pods are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// From the deletion to SIGKILL.
    pub grace: Duration,
    /// How much later than a pod's deletion its address leaves the endpoints everywhere.
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

/// Where pods live.
#[derive(Debug)]
pub enum Places {
    /// On machines of their own.
    Nodes(Vec<Node>),
    /// On the test's machine, each at an address of its own.
    Loopback(Block),
}

/// The pods of one Deployment behind one balancer.
pub struct Controller {
    /// The Service in front.
    pub balancer: Balancer,
    /// The pods that are meant to be there, in the order of their birth.
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
    /// Creates a Deployment without pods. `admin` is a kubeconfig by which the pods are probed; it
    /// may appear with the first pod.
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

    /// Returns the administrator of the ring, at the balancer.
    ///
    /// # Errors
    /// When the kubeconfig is not there yet.
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

    /// Starts one pod, waits until it is ready, makes it an endpoint.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn add(&mut self) -> Result<()> {
        let pod = self.pod()?;
        let start = (self.template)(&pod)?;
        self.replicas.push(Replica::start(pod, start, &self.logs)?);
        self.readied(self.replicas.len() - 1).await
    }

    /// Waits for a pod's readiness and puts it behind the balancer.
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

    /// Ends one pod in the way a rolling update or a scale down does; returns how long it took.
    /// Whether it ended by itself in its grace is an error if not.
    ///
    /// # Errors
    /// When it had to be killed, or ended with a failure.
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

    /// Scales to a number of pods: up one after another, down from the youngest, as the
    /// controller ranks pods that are equal otherwise.
    ///
    /// # Errors
    /// When a pod does not become ready or does not end.
    pub async fn scale(&mut self, pods: usize) -> Result<()> {
        while self.replicas.len() < pods {
            self.add().await?;
        }
        while self.replicas.len() > pods {
            self.remove(self.replicas.len() - 1).await?;
        }
        Ok(())
    }

    /// A rolling update: each old pod is ended once a new one more is ready. Returns how long the
    /// end of each took.
    ///
    /// # Errors
    /// When a pod does not become ready or does not end.
    pub async fn roll(&mut self) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        for _ in 0..self.replicas.len() {
            self.add().await?;
            took.push(self.remove(0).await?);
        }
        Ok(took)
    }

    /// kill -9 of a pod's process; its container is started again at the same address, as a
    /// kubelet does. The address leaves the endpoints by its probe, and comes back by it.
    ///
    /// # Errors
    /// When it does not become ready again.
    pub async fn kill(&mut self, place: usize) -> Result<()> {
        self.replicas[place].kill().await
    }

    /// Starts a killed pod's container again and waits for its readiness.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn restart(&mut self, place: usize) -> Result<()> {
        let admin = self.admin()?;
        let replica = &mut self.replicas[place];
        replica.again()?;
        replica.wait_ready(&admin).await
    }

    /// Starts a pod's container again if it has ended by itself, and waits for its readiness.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn revive(&mut self, place: usize) -> Result<()> {
        if self.replicas[place].runs()? {
            let admin = self.admin()?;
            return self.replicas[place].wait_ready(&admin).await;
        }
        self.restart(place).await
    }

    /// Stops a pod's process, or lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn tell(&self, place: usize, told: Told) -> Result<()> {
        self.replicas[place].tell(told)
    }
}
