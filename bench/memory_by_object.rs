//! Memory by object: what very many objects of one plane take in the server beyond their own bytes,
//! after they were created, after changes, and once the history is old.
//!
//! Memory is what the kernel counts as anonymous, so that pages of files do not count. Caches of
//! the store and of the process fill while objects come. The second half of the load therefore
//! tells more about one object than the whole of it: by then the caches are full.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::Args;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use polyplane_tests::kubeconfig::Endpoint;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use crate::lane::{Ask, Content, Lane};
use crate::report::Format;
use crate::results::{Kind, Results, Side};
use crate::servers::{Build, Plane, Server};
use crate::table;
use crate::target::{Place, Target};

const NAMESPACE: &str = "memory-by-object";
/// Objects that are read to learn how many bytes one has.
const SAMPLED: u64 = 200;
/// Pause before memory is read, so that what requests still held is released.
const REST: Duration = Duration::from_secs(5);
/// The name of a store's process, which is not part of the server.
const STORE: &str = "etcd";

/// What is loaded, and into what.
#[derive(Args)]
pub struct MemoryArguments {
    /// ConfigMaps
    #[arg(long, default_value_t = 1_000_000)]
    config_maps: u64,
    /// Bytes of a ConfigMap as it is sent
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(256..=65_536))]
    config_map_bytes: u64,
    /// Deployments
    #[arg(long, default_value_t = 100_000)]
    deployments: u64,
    /// Hundredths of the objects that are changed, and that are deleted and created anew
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=100))]
    churn: u64,
    /// Seconds between the last write and the last look, five minutes being the age of the history
    #[arg(long, default_value_t = 330)]
    settle: u64,
    /// Streams over all connections
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    streams: u64,
    /// The store of the program that is started: `etcd`, or a value of `up --store`
    #[arg(long, conflicts_with = "kubeconfig")]
    store: Option<String>,
    /// The server: kubeconfig, or kubeconfig:context; default: this tree's program is started
    #[arg(long)]
    kubeconfig: Option<Place>,
    /// Process ids of the server and its store; default: the pids or pid file beside the kubeconfig
    #[arg(long, value_delimiter = ',', requires = "kubeconfig")]
    pids: Vec<u32>,
    /// Name of the result file in bench/results; default: one that git ignores
    #[arg(long)]
    out: Option<String>,
}

/// A kind of object that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    ConfigMaps { bytes: usize },
    Deployments,
}

/// The memory of a server with very many objects of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Weighed {
    /// The resource.
    pub resource: String,
    /// Bytes of one object, as a GET returns it.
    pub own_bytes: f64,
    /// The looks at the memory, in their order. The first one is before the load.
    pub looks: Vec<Look>,
}

/// One look at the memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Look {
    /// What went before it.
    pub after: String,
    /// The number of objects.
    pub objects: u64,
    /// Anonymous memory of the server's processes.
    pub server_bytes: u64,
    /// Anonymous memory of the store's process, if it is another one.
    pub store_bytes: u64,
    /// Bytes of the history and its frames, by the server's own count, if it has one.
    pub log_bytes: Option<u64>,
    /// The most that these may have.
    pub log_bytes_max: Option<u64>,
}

impl Weighed {
    /// Returns the bytes of the server for each object that came between two looks.
    fn per_object(&self, before: usize, after: usize) -> f64 {
        let (before, after) = (&self.looks[before], &self.looks[after]);
        let objects = after.objects.saturating_sub(before.objects).max(1);
        (after.server_bytes as f64 - before.server_bytes as f64) / objects as f64
    }

    /// Returns the rows of the table: for each look what it follows, the memory, and what an object
    /// takes.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.looks.iter().enumerate().map(|(at, look)| {
            let mut row = vec![
                self.resource.clone(),
                look.after.clone(),
                look.objects.to_string(),
                mebibytes(look.server_bytes),
                look.log_bytes.map_or_else(String::new, mebibytes),
            ];
            row.extend(match at {
                0 => [String::new(), String::new(), String::new()],
                _ => {
                    let each = self.per_object(0, at);
                    let above = each - self.own_bytes;
                    [self.own_bytes, each, above].map(|bytes| format!("{bytes:.0}"))
                }
            });
            row
        });
        rows.collect()
    }

    /// Returns the lines that judged.toml reads.
    fn lines(&self) -> Vec<String> {
        let (resource, own) = (&self.resource, self.own_bytes);
        let above = |before, after| self.per_object(before, after) - own;
        let mut lines = vec![format!(
            "{resource}: {own:.0} bytes of its own, {:.0} above them for each of the second half of the load",
            above(1, 2)
        )];
        for (at, look) in self.looks.iter().enumerate().skip(1) {
            let mut line = format!(
                "{resource}, after {}: {:.0} bytes above its own for each of {}",
                look.after,
                above(0, at),
                look.objects
            );
            if let (Some(used), Some(most)) = (look.log_bytes, look.log_bytes_max) {
                line += &format!("; history and frames {used} bytes of at most {most}");
            }
            lines.push(line);
        }
        lines
    }

    /// Returns an error if the history took more than its part of the budget at some look, or has
    /// not shrunk once it is old.
    fn check_history(&self) -> Result<()> {
        for look in &self.looks {
            let (Some(used), Some(most)) = (look.log_bytes, look.log_bytes_max) else {
                continue;
            };
            ensure!(
                used <= most,
                "after {}: history and frames have {used} bytes, more than the {most} of their share",
                look.after
            );
        }
        Ok(())
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Prints what an object of each kind takes, and writes the result file.
///
/// # Errors
/// Returns an error if the server does not start, refuses a request, or keeps more history than its
/// budget allows.
pub async fn run(arguments: &MemoryArguments, format: Format) -> Result<()> {
    let build = match arguments.kubeconfig {
        None => Some(Build::current(arguments.store.clone())?),
        Some(_) => None,
    };
    let side = match &build {
        Some(build) => build.side("server")?,
        None => Side::named("server"),
    };
    let recorded = json!({"config_maps": arguments.config_maps,
        "config_map_bytes": arguments.config_map_bytes, "deployments": arguments.deployments,
        "churn": arguments.churn, "settle": arguments.settle, "streams": arguments.streams});
    let out = arguments.out.as_deref();
    let mut results = Results::begin(Kind::MemoryByObject, recorded, vec![side], out)?;
    let bytes = usize::try_from(arguments.config_map_bytes)?;
    let loads = [
        (Loaded::ConfigMaps { bytes }, arguments.config_maps),
        (Loaded::Deployments, arguments.deployments),
    ];
    for (loaded, count) in loads.into_iter().filter(|(_, count)| *count > 0) {
        let weighed = match (&build, &arguments.kubeconfig) {
            (Some(build), _) => {
                let server = Server::start("server", build, Plane::Tenant).await?;
                let weighed = weigh(&server.plane, &server.root, loaded, count, arguments).await?;
                server.stop().await?;
                weighed
            }
            (None, Some(place)) => {
                let target = Target::open("server", place, &arguments.pids, 4).await?;
                weigh(&target, &target, loaded, count, arguments).await?
            }
            (None, None) => bail!("neither a program nor a kubeconfig"),
        };
        match format {
            Format::Text => weighed.lines().iter().for_each(|line| println!("{line}")),
            Format::Json => println!("{}", serde_json::to_string(&weighed)?),
        }
        results.memory.push(weighed);
    }
    if format == Format::Text {
        print!("\n{}", table::markdown(&results));
    }
    let path = results.write(out)?;
    eprintln!("written: {}", path.display());
    results.memory.iter().try_for_each(Weighed::check_history)
}

/// Loads a plane and looks at the memory. A watch of all objects is open from before the load to the
/// last look: it keeps the plane awake, and has frames made of all events.
async fn weigh(
    plane: &Target,
    root: &Target,
    loaded: Loaded,
    count: u64,
    arguments: &MemoryArguments,
) -> Result<Weighed> {
    ensure!(!plane.processes.is_empty(), "no process id: give --pids");
    let namespace = format!(r#"{{"metadata":{{"name":"{NAMESPACE}"}}}}"#);
    let lane = plane.lane();
    // A server that is given by a kubeconfig may have the namespace from the kind before.
    let content = Content::Json(namespace.into());
    let made = lane.request(Method::POST, "/api/v1/namespaces", content)?;
    let (status, _) = lane.start(made).await?;
    ensure!(
        status == StatusCode::CREATED || status == StatusCode::CONFLICT,
        "the namespace: {status}"
    );
    let watcher = Watcher::open(plane, loaded).await?;
    let mut weighed = Weighed {
        resource: loaded.resource().to_owned(),
        own_bytes: 0.0,
        looks: Vec::new(),
    };
    let half = count / 2;
    let changed = count * arguments.churn / 100;
    weighed.looks.push(look("start", 0, plane, root).await?);
    let create = |name: u64| Change::Create(name);
    write_all(plane, arguments.streams, 0..half, loaded, create).await?;
    let after_half = look("half of the load", half, plane, root).await?;
    weighed.looks.push(after_half);
    write_all(plane, arguments.streams, half..count, loaded, create).await?;
    weighed.own_bytes = own_bytes(plane, loaded, count).await?;
    weighed.looks.push(look("load", count, plane, root).await?);
    write_all(plane, arguments.streams, 0..changed, loaded, Change::Patch).await?;
    write_all(plane, arguments.streams, 0..changed, loaded, Change::Delete).await?;
    let anew = count..count + changed;
    write_all(plane, arguments.streams, anew, loaded, create).await?;
    weighed.looks.push(look("churn", count, plane, root).await?);
    tokio::time::sleep(Duration::from_secs(arguments.settle)).await;
    let settled = format!("{} s", arguments.settle);
    weighed
        .looks
        .push(look(&settled, count, plane, root).await?);
    watcher.close()?;
    Ok(weighed)
}

/// One write.
#[derive(Clone, Copy, Debug)]
enum Change {
    Create(u64),
    Patch(u64),
    Delete(u64),
}

impl Loaded {
    fn resource(self) -> &'static str {
        match self {
            Self::ConfigMaps { .. } => "configmaps",
            Self::Deployments => "deployments",
        }
    }

    fn collection(self) -> String {
        match self {
            Self::ConfigMaps { .. } => format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
            Self::Deployments => format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
        }
    }

    fn request(self, lane: &Lane, change: Change) -> Result<(Ask, StatusCode)> {
        let collection = self.collection();
        let path = |name: u64| format!("{collection}/o-{name}");
        Ok(match change {
            Change::Create(name) => {
                let content = Content::Json(self.object(name));
                let request = lane.request(Method::POST, &collection, content)?;
                (request, StatusCode::CREATED)
            }
            Change::Patch(name) => {
                let patch = format!(r#"{{"metadata":{{"annotations":{{"turn":"{name}"}}}}}}"#);
                let content = Content::MergePatch(patch.into());
                let request = lane.request(Method::PATCH, &path(name), content)?;
                (request, StatusCode::OK)
            }
            Change::Delete(name) => {
                let request = lane.request(Method::DELETE, &path(name), Content::None)?;
                (request, StatusCode::OK)
            }
        })
    }

    /// Returns an object of which no large part is equal in another one: servers share such parts.
    fn object(self, name: u64) -> Bytes {
        match self {
            Self::ConfigMaps { bytes } => {
                let head = format!(
                    r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"o-{name}","labels":{{"app":"bench"}}}},"data":{{"text":""#
                );
                let noise = noise(name, bytes.saturating_sub(head.len() + 3));
                Bytes::from(format!(r#"{head}{noise}"}}}}"#))
            }
            Self::Deployments => Bytes::from(deployment(name).to_string()),
        }
    }
}

/// Returns a Deployment with the fields that one usually has.
fn deployment(name: u64) -> Value {
    let app = format!("o-{name}");
    let environment = (0..8).map(|at| {
        let value = noise(name * 8 + at, 24);
        json!({"name": format!("SETTING_{at}"), "value": value})
    });
    let environment: Vec<Value> = environment.collect();
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 10});
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": app, "labels": {"app": app, "team": "bench"}},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app, "team": "bench"}},
                "spec": {"serviceAccountName": "default", "containers": [{
                    "name": "main", "image": format!("registry.example.com/bench/{app}:v1"),
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "env": environment, "readinessProbe": probe("/ready"),
                    "livenessProbe": probe("/live"),
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"},
                        "limits": {"memory": "256Mi"}}}]}}}})
}

/// Returns letters and digits that repeat in no other object.
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        // A step of splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        text += &format!("{:016x}", mixed ^ (mixed >> 31));
    }
    text.truncate(length);
    text
}

/// Sends one write for each name, over many streams. The first refusal ends it.
async fn write_all(
    target: &Target,
    streams: u64,
    names: Range<u64>,
    loaded: Loaded,
    change: impl Fn(u64) -> Change + Copy + Send + 'static,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(names.start));
    let target = target.reconnected().await?;
    let mut open = JoinSet::new();
    for stream in 0..streams {
        let lane = Arc::clone(&target.lanes[stream as usize % target.lanes.len()]);
        let (next, end) = (Arc::clone(&next), names.end);
        open.spawn(async move {
            loop {
                let name = next.fetch_add(1, Ordering::Relaxed);
                if name >= end {
                    return Ok(());
                }
                let (request, expected) = loaded.request(&lane, change(name))?;
                let sent = lane.exchange(request, expected).await;
                sent.with_context(|| format!("{:?}", change(name)))?;
            }
        });
    }
    while let Some(joined) = open.join_next().await {
        let ended: Result<()> = joined?;
        ended?;
    }
    Ok(())
}

/// Returns the mean length of the objects as a GET returns them.
async fn own_bytes(plane: &Target, loaded: Loaded, count: u64) -> Result<f64> {
    // The server may have closed the connections that the load left idle.
    let plane = plane.reconnected().await?;
    let sampled = SAMPLED.min(count);
    let mut bytes = 0;
    for at in 0..sampled {
        let path = format!("{}/o-{}", loaded.collection(), at * count / sampled);
        let body = plane.lane().call(Method::GET, &path, Content::None).await?;
        bytes += body.len();
    }
    Ok(bytes as f64 / sampled.max(1) as f64)
}

async fn look(after: &str, objects: u64, plane: &Target, root: &Target) -> Result<Look> {
    tokio::time::sleep(REST).await;
    let (mut server_bytes, mut store_bytes) = (0, 0);
    for process in &plane.processes {
        let bytes = process.anonymous()?;
        match process.name == STORE {
            true => store_bytes += bytes,
            false => server_bytes += bytes,
        }
    }
    let root = root.reconnected().await?;
    let metrics = root.lane();
    let metrics = metrics.call(Method::GET, "/metrics", Content::None).await?;
    let metrics = String::from_utf8_lossy(&metrics);
    let value = |name: &str| {
        let start = format!("{name}{{share=\"logs\"}} ");
        let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&start));
        values.next().and_then(|value| value.trim().parse().ok())
    };
    Ok(Look {
        after: after.to_owned(),
        objects,
        server_bytes,
        store_bytes,
        log_bytes: value("polyplane_memory_used_bytes"),
        log_bytes_max: value("polyplane_memory_limit_bytes"),
    })
}

/// A watch whose events are read and dropped.
struct Watcher(JoinHandle<Result<()>>);

impl Watcher {
    /// Opens the watch on a connection of its own, and again whenever the server ends it.
    async fn open(target: &Target, loaded: Loaded) -> Result<Self> {
        let mut body = Self::watch(target.lane().endpoint(), loaded).await?;
        let endpoint = target.lane().endpoint().clone();
        Ok(Self(tokio::spawn(async move {
            loop {
                while let Some(Ok(_)) = body.1.frame().await {}
                // A server that ends it at once must not be asked without end.
                tokio::time::sleep(Duration::from_millis(100)).await;
                body = Self::watch(&endpoint, loaded).await?;
            }
        })))
    }

    async fn watch(endpoint: &Endpoint, loaded: Loaded) -> Result<(Lane, Incoming)> {
        let lane = Lane::open(endpoint).await?;
        let collection = loaded.collection();
        // A watch from the present on does not begin with all objects.
        let path = format!("{collection}?limit=1");
        let newest = lane.call(Method::GET, &path, Content::None).await?;
        let newest: Value = serde_json::from_slice(&newest)?;
        let newest = newest["metadata"]["resourceVersion"].as_str();
        let newest = newest.context("a list without a version")?;
        let path = format!("{collection}?watch=1&resourceVersion={newest}");
        let request = lane.request(Method::GET, &path, Content::None)?;
        let (status, body) = lane.start(request).await?;
        ensure!(status == StatusCode::OK, "the watch: {status}");
        Ok((lane, body))
    }

    /// Closes the watch. An error says that it had failed before: the plane may have slept then.
    fn close(self) -> Result<()> {
        ensure!(
            !self.0.is_finished(),
            "the watch failed before the last look"
        );
        self.0.abort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighed() -> Weighed {
        let look = |after: &str, objects, server_bytes, log_bytes| Look {
            after: after.to_owned(),
            objects,
            server_bytes,
            store_bytes: 0,
            log_bytes: Some(log_bytes),
            log_bytes_max: Some(5000),
        };
        Weighed {
            resource: "configmaps".to_owned(),
            own_bytes: 1000.0,
            looks: vec![
                look("start", 0, 50_000, 0),
                look("half of the load", 500, 800_000, 4000),
                look("load", 1000, 1_400_000, 4000),
            ],
        }
    }

    #[test]
    fn an_object_weighs_what_it_adds() {
        let lines = weighed().lines();
        assert_eq!(
            lines[0],
            "configmaps: 1000 bytes of its own, 200 above them for each of the second half of the load"
        );
        assert_eq!(
            lines[2],
            "configmaps, after load: 350 bytes above its own for each of 1000; history and frames 4000 bytes of at most 5000"
        );
        let rows = weighed().rows();
        assert_eq!(rows[2][5..], ["1000", "1350", "350"]);
        assert_eq!(rows[0].len(), rows[1].len());
    }

    #[test]
    fn a_history_beyond_its_share_is_an_error() {
        let mut weighed = weighed();
        assert!(weighed.check_history().is_ok());
        weighed.looks[1].log_bytes = Some(5001);
        let error = weighed.check_history().expect_err("too much");
        assert!(error.to_string().contains("half of the load"), "{error}");
    }

    #[test]
    fn objects_have_the_promised_size_and_nothing_in_common() {
        let maps = Loaded::ConfigMaps { bytes: 1024 };
        let (one, two) = (maps.object(1), maps.object(2));
        assert_eq!((one.len(), two.len()), (1024, 1024));
        let data = |object: &Bytes| {
            let value: Value = serde_json::from_slice(object).expect("JSON");
            value["data"]["text"].as_str().expect("text").to_owned()
        };
        assert_ne!(data(&one)[..100], data(&two)[..100]);
        let deployment = Loaded::Deployments.object(7);
        assert!((1000..3000).contains(&deployment.len()));
    }
}
