//! A whole ring: store, certificates, pods, balancer, and the command lines of pods.
//!
//! This module owns the order in which the parts start and end. It does not judge a run.

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

/// The source of a pod's command line, hooks and grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldBy {
    /// The flags of `polyplane serve`.
    Flags,
    /// The chart's Deployment, rendered by helm.
    Chart,
}

/// A description of the wanted ring.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The number of pods.
    pub replicas: usize,
    /// The number of etcd members.
    pub members: usize,
    /// True to run pods and members on machines of their own, so that a test can partition them.
    pub parted: bool,
    /// The deadline of a drain. A pod's grace is a little longer.
    pub grace: Duration,
    /// The source of a pod's command line.
    pub told_by: ToldBy,
    /// Further arguments of etcd.
    pub etcd: Vec<String>,
    /// Further arguments of `serve`, unless the chart sets them; `replica::REPLICA` in one stands for
    /// the pod's name.
    pub options: Vec<String>,
    /// The program with which pods start; `None` for the program under test.
    pub program: Option<PathBuf>,
    /// A snapshot of etcd with which its one member starts.
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

/// A running ring. Dropping this ends all parts, the processes before the network.
pub struct Ring {
    /// The pods and the balancer.
    pub controller: Controller,
    /// The store.
    pub cluster: Cluster,
    /// The machines, if `wish` has some.
    pub network: Option<Network>,
    /// The program with which pods start.
    pub program: Program,
    folder: tempfile::TempDir,
}

impl Ring {
    /// Starts the store, the balancer and the pods, and waits until all pods are ready. Returns
    /// `None` if `wish` needs machines and this user may not create any; a line on stdout gives the
    /// reason.
    ///
    /// # Errors
    /// Returns an error if a part does not start, or if `CI` is set and machines cannot be created.
    pub async fn start(wish: &Wish) -> Result<Option<Self>> {
        let folder = folder()?;
        let network = if wish.parted {
            // One machine more, for the pod that a rolling update adds.
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

    /// Runs the kubectl plugin of a program as the ring's administrator; returns its output.
    ///
    /// # Errors
    /// Returns an error with the output if the plugin fails.
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

    /// Returns the number of lines with these words in the logs of all pods, also of former ones.
    ///
    /// # Errors
    /// Returns an error if a log cannot be read.
    pub fn said(&self, words: &str) -> Result<usize> {
        let mut lines = 0;
        for log in std::fs::read_dir(self.folder.path().join("logs"))? {
            let text = std::fs::read(log?.path())?;
            let text = String::from_utf8_lossy(&text);
            lines += text.lines().filter(|line| line.contains(words)).count();
        }
        Ok(lines)
    }

    /// Checks that no pod ever panicked, even in a task whose end the process survives.
    ///
    /// # Errors
    /// Returns an error with the pods' last lines, or if a log cannot be read.
    pub fn ensure_no_panic(&self) -> Result<()> {
        let panics = self.said("panicked at")?;
        ensure!(panics == 0, "{panics} panics\n{}", self.last_words());
        Ok(())
    }

    /// Returns the last lines of all pods' logs, for the text of an error.
    pub fn last_words(&self) -> String {
        let pods = self.controller.replicas.iter();
        let words = pods.map(|one| format!("--- {}\n{}\n", one.pod.name, one.last_words()));
        words.collect()
    }
}

/// Returns a kubeconfig for the ring's administrator, with the files that every folder of
/// certificates has. JSON is valid YAML.
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

/// The content of the mounted Secret with the token for metrics.
const METRICS_TOKEN: &str = "metrics-0123456789abcdef";

/// Returns a pod's processes as a rendered Deployment has them. Values that differ between a pod
/// and this machine are replaced: the program, the mounted folders, and, on loopback, the
/// addresses.
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

/// Returns a field of the pod that the downward API names.
fn field_of(pod: &Pod, field: &str) -> Result<String> {
    match field {
        "metadata.name" => Ok(pod.name.clone()),
        "metadata.namespace" => Ok(crate::chart::NAMESPACE.to_owned()),
        "status.podIP" => Ok(pod.address.to_string()),
        // Kubernetes sets this label from 1.35 on; before, it is empty.
        "metadata.labels['topology.kubernetes.io/zone']" => Ok(String::new()),
        "spec.nodeName" | "status.hostIP" => Ok("node".to_owned()),
        other => Err(anyhow::anyhow!("a field nobody set: {other}")).context("downward API"),
    }
}
