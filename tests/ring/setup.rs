//! A whole ring: store, certificates, pods, balancer, and the way a pod's command line is made.
//!
//! Owns the order in which these come and go. Must not judge what happens in it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::chart::Chart;
use crate::deployment::{Deployment, Hook, Source};
use crate::programs::polyplane;

use super::addresses::Block;
use super::balancer::{Balancer, Probing};
use super::controller::{Controller, Manners, Places, Template};
use super::etcd::Cluster;
use super::network::Network;
use super::process::{Launch, folder};
use super::replica::{CLIENT_PORT, Common, PEER_PORT, Pod, Program, Start};

/// Where a pod's command line, hooks and grace come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldBy {
    /// The flags of `polyplane serve`.
    Flags,
    /// The chart's Deployment, rendered by helm.
    Chart,
}

/// What ring is wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Pods.
    pub replicas: usize,
    /// Members of etcd.
    pub members: usize,
    /// Machines of their own for pods and members, so that they can be parted.
    pub parted: bool,
    /// The drain's deadline; the pod's own is a little longer.
    pub grace: Duration,
    /// Where a pod's command line comes from.
    pub told_by: ToldBy,
    /// More words for etcd.
    pub etcd: Vec<String>,
    /// More words for `serve`, without the chart.
    pub options: Vec<String>,
    /// What pods run at first; none for the program under test.
    pub program: Option<PathBuf>,
    /// A snapshot of etcd that its one member begins with.
    pub snapshot: Option<PathBuf>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            replicas: 3,
            members: 1,
            parted: false,
            grace: Duration::from_secs(25),
            told_by: ToldBy::Flags,
            etcd: Vec::new(),
            options: Vec::new(),
            program: None,
            snapshot: None,
        }
    }
}

/// A running ring. Dropping it ends all of it; the processes go before the network.
pub struct Ring {
    /// The pods and the balancer.
    pub controller: Controller,
    /// The store.
    pub cluster: Cluster,
    /// The machines, if they were asked for.
    pub network: Option<Network>,
    /// What pods run.
    pub program: Program,
    folder: tempfile::TempDir,
}

impl Ring {
    /// Starts the store, the balancer and the pods, and waits until all pods are ready. `None` if
    /// `wish` needs machines and this user may not make any; a line on stdout says why.
    ///
    /// # Errors
    /// When a part does not come up, or when `CI` is set and machines cannot be made.
    pub async fn start(wish: &Wish) -> Result<Option<Self>> {
        let folder = folder()?;
        let network = if wish.parted {
            // One more for the pod that a rolling update adds.
            let Some(network) = Network::make(wish.members + wish.replicas + 1)? else {
                return Ok(None);
            };
            Some(network)
        } else {
            None
        };
        let nodes = network.as_ref().map_or(&[][..], Network::nodes);
        let (store_nodes, pod_nodes) = nodes.split_at(wish.members.min(nodes.len()));
        let words: Vec<&str> = wish.etcd.iter().map(String::as_str).collect();
        let cluster = match &wish.snapshot {
            None => Cluster::start(wish.members, store_nodes, &words).await?,
            Some(snapshot) => Cluster::restore(snapshot, &words).await?,
        };
        let (own, places) = match &network {
            Some(network) => (network.own(), Places::Nodes(pod_nodes.to_vec())),
            None => {
                let block = Block::take()?;
                (block.first(), Places::Loopback(block))
            }
        };
        let address = SocketAddr::from((own, CLIENT_PORT));
        let certs = folder.path().join("certs");
        let program = match &wish.program {
            Some(program) => program.clone(),
            None => polyplane()?,
        };
        let program = Program::new(program);
        let common = Common {
            program: program.clone(),
            store: cluster.url(),
            certs: certs.clone(),
            endpoint: address,
            grace: wish.grace,
            options: wish.options.clone(),
        };
        common.make_certs(&[address.ip().to_string()]).await?;
        let admin = folder.path().join("kubeconfig");
        std::fs::write(&admin, kubeconfig(&certs, address).to_string())?;
        let balancer = Balancer::start(address, Probing::default()).await?;
        let logs = folder.path().join("logs");
        std::fs::create_dir(&logs)?;
        let (template, grace) = match wish.told_by {
            ToldBy::Flags => {
                let template: Template = Box::new(move |pod| Ok(common.start(pod)));
                (template, wish.grace + Duration::from_secs(5))
            }
            ToldBy::Chart => {
                let values = json!({
                    "replicas": wish.replicas,
                    "etcd": {"endpoints": cluster.endpoints()},
                    "server": {
                        "endpoint": address.to_string(),
                        "hostNames": [address.ip().to_string()],
                        "graceSeconds": wish.grace.as_secs(),
                    },
                });
                let manifest = Chart::find()?.render(&values)?;
                let deployment = Deployment::from_manifest(&manifest)?;
                let grace = deployment.termination_grace;
                (rendered(deployment, common, folder.path()), grace)
            }
        };
        let manners = Manners {
            grace,
            ..Manners::default()
        };
        let mut controller = Controller::new(
            "polyplane",
            template,
            balancer,
            &admin,
            manners,
            places,
            &logs,
        );
        controller.scale(wish.replicas).await?;
        Ok(Some(Self {
            controller,
            cluster,
            network,
            program,
            folder,
        }))
    }

    /// Returns the folder with certificates and logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the output of the kubectl plugin of a program, which the ring's administrator runs.
    ///
    /// # Errors
    /// When it fails; the text is what it said.
    pub fn plugin(
        &self,
        program: &Path,
        words: &[&str],
    ) -> impl Future<Output = Result<String>> + use<> {
        let kubeconfig = self.folder().join("certs/admin.kubeconfig");
        let launch = Launch::of(program)
            .with(["plane", "--kubeconfig", &kubeconfig.to_string_lossy()])
            .with(words.iter().copied());
        let words = words.join(" ");
        async move {
            let output = launch.command(None).output().await?;
            let (out, err) = (&output.stdout, &output.stderr);
            let said = [err, out].map(|text| String::from_utf8_lossy(text).into_owned());
            ensure!(output.status.success(), "{words}: {said:?}");
            Ok(said.concat())
        }
    }

    /// How many lines with these words the logs of all pods have that ever were.
    ///
    /// # Errors
    /// When a log cannot be read.
    pub fn said(&self, words: &str) -> Result<usize> {
        let mut lines = 0;
        for log in std::fs::read_dir(self.folder.path().join("logs"))? {
            let text = std::fs::read(log?.path())?;
            let text = String::from_utf8_lossy(&text);
            lines += text.lines().filter(|line| line.contains(words)).count();
        }
        Ok(lines)
    }

    /// Fails if a pod ever panicked, even in a task that the rest survives.
    ///
    /// # Errors
    /// The pods' last words, or that a log cannot be read.
    pub fn ensure_no_panic(&self) -> Result<()> {
        let panics = self.said("panicked at")?;
        ensure!(panics == 0, "{panics} panics\n{}", self.last_words());
        Ok(())
    }

    /// What all pods said last, for an error's text.
    pub fn last_words(&self) -> String {
        let pods = self.controller.replicas.iter();
        let words = pods.map(|one| format!("--- {}\n{}\n", one.pod.name, one.last_words()));
        words.collect()
    }
}

/// Returns the administrator of the ring, by the files that every folder of certificates has. JSON
/// is YAML.
fn kubeconfig(certs: &Path, address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "root",
        "contexts": [{"name": "root", "context": {"cluster": "ring", "user": "admin"}}],
        "clusters": [{"name": "ring", "cluster": {
            "server": format!("https://{address}/clusters/root"),
            "certificate-authority": certs.join("ca.crt"),
        }}],
        "users": [{"name": "admin", "user": {"tokenFile": certs.join("admin.token")}}],
    })
}

/// What stands in the mounted Secret with the token for metrics.
const METRICS_TOKEN: &str = "metrics-0123456789abcdef";

/// Returns a pod's processes as a rendered Deployment has them. What a machine has elsewhere than a
/// pod is put in its place: the program, the mounted folders, and, on loopback, the addresses.
fn rendered(deployment: Deployment, common: Common, folder: &Path) -> Template {
    let folder = folder.to_owned();
    Box::new(move |pod| {
        let container = &deployment.container;
        let resolve = |source: &Source| match source {
            Source::Field(field) => field_of(pod, field),
            Source::Text(text) => Ok(text.clone()),
            Source::Secret { name, key } => bail!("the Secret {name} with {key} is not there"),
        };
        let mut launch = container.launch(resolve)?;
        for mount in &container.mounts {
            let from = mount.path.to_string_lossy().into_owned();
            let to: PathBuf = match mount.volume.as_str() {
                "certificates" => common.certs.clone(),
                _ => folder.join(from.trim_start_matches('/')),
            };
            std::fs::create_dir_all(&to)?;
            if mount.volume == "metrics-token" {
                std::fs::write(to.join("token"), METRICS_TOKEN)?;
            }
            launch = launch.relocated(&from, &to.to_string_lossy());
        }
        if pod.node.is_none() {
            for port in [CLIENT_PORT, PEER_PORT] {
                let at = format!("{}:{port}", pod.address);
                for any in ["0.0.0.0", "[::]", "127.0.0.1", "localhost"] {
                    launch = launch.relocated(&format!("{any}:{port}"), &at);
                }
            }
        }
        let start = |arguments: Vec<String>| Launch {
            program: common.program.path(),
            arguments,
            environment: launch.environment.clone(),
        };
        let pre_stop = match &launch.pre_stop {
            Some(Hook::Exec(words)) => Some(start(words.get(1..).unwrap_or_default().to_vec())),
            Some(Hook::Sleep(time)) => {
                let sleep = Launch::of("sleep").with([time.as_secs().to_string()]);
                Some(sleep)
            }
            None => None,
        };
        Ok(Start {
            serve: start(launch.arguments.clone()),
            pre_stop,
        })
    })
}

/// Returns a field of the pod, as the downward API names it.
fn field_of(pod: &Pod, field: &str) -> Result<String> {
    match field {
        "metadata.name" => Ok(pod.name.clone()),
        "metadata.namespace" => Ok(crate::chart::NAMESPACE.to_owned()),
        "status.podIP" => Ok(pod.address.to_string()),
        // Set from Kubernetes 1.35 on, and empty before.
        "metadata.labels['topology.kubernetes.io/zone']" => Ok(String::new()),
        "spec.nodeName" | "status.hostIP" => Ok("node".to_owned()),
        other => Err(anyhow::anyhow!("a field nobody set: {other}")).context("downward API"),
    }
}
