//! Custom kinds in very many planes and very many of them in one plane: what planes with the same
//! definitions share, and what a plane costs that has them.
//!
//! `CUSTOM_PLANES` says how many planes (60), `CUSTOM_DEFINITIONS` how many definitions the one plane has
//! (200), `CUSTOM_SETTLE_SECONDS` how long memory settles before it is read (0; history is old after 300).
//! Without `CUSTOM_PLANES` the first test does nothing, because published definitions are fetched.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{Method, StatusCode};
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane_without_controllers;
use polyplane_tests::published::definitions::{self, Definition};
use polyplane_tests::settings::number;
use serde_json::{Value, json};
use tokio::time::Instant;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const MERGE: &str = "application/merge-patch+json";
/// Different sets of definitions.
const SETS: usize = 30;
/// Definitions of other projects that a set has besides those of cert-manager.
const OTHERS: [usize; 3] = [0, 7, 19];
/// The kind that is written to and changed in one plane.
const CHANGED: &str = "issuers.cert-manager.io";
const ISSUERS: &str = "/apis/cert-manager.io/v1/namespaces/default/issuers";
/// Documents that every plane is asked for.
const DOCUMENTS: [&str; 3] = ["/apis", "/apis/cert-manager.io/v1", "/openapi/v3"];
/// Planes that are made or asked at the same time.
const AT_ONCE: usize = 4;

/// What the process has made so far, for all planes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    compiled: u64,
    documents: u64,
}

impl std::ops::Sub for Made {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            compiled: self.compiled - earlier.compiled,
            documents: self.documents - earlier.documents,
        }
    }
}

const NOTHING: Made = Made {
    compiled: 0,
    documents: 0,
};

/// Returns the sum of all series of a metric.
async fn metric(root: &Endpoint, name: &str) -> Result<u64> {
    let text = Client::open(root)
        .await?
        .get("/metrics")
        .await?
        .expect(200)?;
    let text = text.as_str().context("metrics are text")?;
    let series = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
    });
    let values: Vec<u64> = series
        .map(|line| Ok(line.rsplit(' ').next().unwrap_or("").parse()?))
        .collect::<Result<_>>()?;
    ensure!(!values.is_empty(), "no metric {name}");
    Ok(values.iter().sum())
}

async fn made(root: &Endpoint) -> Result<Made> {
    Ok(Made {
        compiled: metric(root, "polyplane_compiled_schemas_total").await?,
        documents: metric(root, "polyplane_documents_made_total").await?,
    })
}

/// Returns the definitions of a set: those of cert-manager, and some of other projects. Some that are to
/// be converted by a webhook are published without its address, and those of some groups need an approval.
fn set(all: &[Definition], number: usize) -> Vec<&Definition> {
    let is_whole = |definition: &&Definition| {
        let webhook = definition.object["spec"]["conversion"]["strategy"] == "Webhook";
        !webhook && !definition.is_protected()
    };
    let (own, others): (Vec<_>, Vec<_>) = all
        .iter()
        .filter(is_whole)
        .partition(|definition| definition.name().ends_with("cert-manager.io"));
    let chosen = OTHERS.map(|step| others[(number + step) % others.len()]);
    own.into_iter().chain(chosen).collect()
}

/// Uses a plane: writes an object of a custom kind without storing it, and reads the documents. Returns
/// the documents.
async fn used(plane: &Client) -> Result<Vec<Value>> {
    let issuer = json!({"apiVersion": "cert-manager.io/v1", "kind": "Issuer",
        "metadata": {"name": "a"}, "spec": {"selfSigned": {}}});
    let path = format!("{ISSUERS}?dryRun=All");
    plane.post(&path, &issuer).await?.expect(201)?;
    let mut documents = Vec::new();
    for path in DOCUMENTS {
        documents.push(plane.get(path).await?.expect(200)?);
    }
    Ok(documents)
}

struct Site {
    server: Up,
    root: Endpoint,
    endpoints: Vec<Endpoint>,
}

impl Site {
    /// Starts a server with planes that have been used.
    async fn start(folder: &Path, planes: usize) -> Result<Self> {
        let server = Up::start(folder, &[]).await?;
        let root = server.root()?;
        let create = |number: usize| {
            let root = &root;
            async move {
                let name = format!("plane-{number}");
                let plane = create_plane_without_controllers(root, &name).await?;
                let client = Client::open(&plane).await?;
                client.get(DEFINITIONS).await?.expect(200)?;
                anyhow::Ok(plane)
            }
        };
        let made = stream::iter(0..planes).map(create).buffered(AT_ONCE);
        Ok(Self {
            endpoints: made.try_collect().await?,
            root,
            server,
        })
    }

    /// Defines the kinds of their sets in some planes, and uses them. Returns the mean time until a
    /// plane had its kinds.
    async fn define(&self, all: &[Definition], planes: std::ops::Range<usize>) -> Result<Duration> {
        let count = u32::try_from(planes.len())?;
        let define = |number: usize| async move {
            let plane = Client::open(&self.endpoints[number]).await?;
            let began = Instant::now();
            for definition in set(all, number % SETS) {
                let made = plane.post(DEFINITIONS, &definition.object).await?;
                made.expect(201)
                    .with_context(|| definition.name().to_owned())?;
            }
            let took = began.elapsed();
            used(&plane).await?;
            anyhow::Ok(took)
        };
        let took = stream::iter(planes).map(define).buffered(1);
        let took: Vec<Duration> = took.try_collect().await?;
        Ok(took.iter().sum::<Duration>() / count.max(1))
    }

    /// Ends the server and starts another one, in which all planes are asleep.
    async fn restart(self, folder: &Path) -> Result<Self> {
        let planes = self.endpoints.len();
        self.server.stop().await?;
        let server = Up::start(folder, &[]).await?;
        let endpoints = (0..planes).map(|number| server.plane(&format!("plane-{number}")));
        Ok(Self {
            endpoints: endpoints.collect::<Result<_>>()?,
            root: server.root()?,
            server,
        })
    }

    /// Uses planes, so that they wake.
    async fn wake(&self, planes: std::ops::Range<usize>) -> Result<()> {
        for number in planes {
            used(&Client::open(&self.endpoints[number]).await?).await?;
        }
        Ok(())
    }

    /// Returns the bytes of memory and of the store, once memory has settled.
    async fn figures(&self) -> Result<(u64, u64)> {
        let settle = number("CUSTOM_SETTLE_SECONDS", 0)?;
        tokio::time::sleep(Duration::from_secs(settle)).await;
        let stored = metric(&self.root, "polyplane_store_used_bytes").await?;
        Ok((self.server.memory_bytes()?, stored))
    }

    /// Uses all planes but one. Returns what was made for them, and their documents.
    async fn others(&self, but: usize) -> Result<(Made, Vec<Vec<Value>>)> {
        let before = made(&self.root).await?;
        let others = (0..self.endpoints.len()).filter(|number| *number != but);
        let use_one = |number: usize| async move {
            let plane = Client::open(&self.endpoints[number]).await?;
            used(&plane).await
        };
        let documents = stream::iter(others).map(use_one).buffered(AT_ONCE);
        let documents = documents.try_collect().await?;
        Ok((made(&self.root).await? - before, documents))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planes_with_the_same_definitions_share_what_is_made_of_them() -> Result<()> {
    if std::env::var_os("CUSTOM_PLANES").is_none() {
        println!("skipped: CUSTOM_PLANES=60 fetches the published definitions");
        return Ok(());
    }
    let planes = number("CUSTOM_PLANES", 2 * SETS)?.max(2 * SETS);
    let all = definitions::load()?;
    let folder = tempfile::tempdir()?;
    let site = Site::start(folder.path(), planes).await?;
    site.define(&all, 0..SETS).await?;
    let (memory_before, stored_before) = site.figures().await?;
    // While memory settled they may have fallen asleep, and what only sleeping planes need is not kept.
    site.wake(0..SETS).await?;
    let first = made(&site.root).await?;
    let took = site.define(&all, SETS..planes).await?;
    let second = made(&site.root).await?;
    let (memory, stored) = site.figures().await?;
    let further = u64::try_from(planes - SETS)?;
    let each = |now: u64, before: u64| now.saturating_sub(before) / further;
    println!(
        "{planes} planes with {} definitions of {SETS} sets: the first {SETS} made {first:?}, the others {:?}",
        set(&all, 0).len(),
        second - first
    );
    println!(
        "a further plane: {} B of memory, {} B of the store, {} ms to define its kinds",
        each(memory, memory_before),
        each(stored, stored_before),
        took.as_millis()
    );
    ensure!(second == first, "planes with known kinds made something");
    one_definition_changes(&site).await?;
    let site = site.restart(folder.path()).await?;
    site.wake(0..SETS).await?;
    let before = site.server.memory_bytes()?;
    site.wake(SETS..planes).await?;
    println!(
        "a further plane that was woken: {} B of memory",
        each(site.server.memory_bytes()?, before)
    );
    Ok(())
}

/// Changes a definition in one plane: only what that plane needs is made anew, and the others show what
/// they showed.
async fn one_definition_changes(site: &Site) -> Result<()> {
    let changed = SETS / 2;
    let (_, before) = site.others(changed).await?;
    let plane = Client::open(&site.endpoints[changed]).await?;
    let witness = Client::open(&site.endpoints[changed + SETS]).await?;
    let list = witness.get(DEFINITIONS).await?.expect(200)?;
    let at = list["metadata"]["resourceVersion"]
        .as_str()
        .context("no version")?;
    let path = format!("{DEFINITIONS}?watch=1&resourceVersion={at}");
    let mut events = witness.watch(&path).await?;
    let path = format!("{DEFINITIONS}/{CHANGED}");
    let mut definition = plane.get(&path).await?.expect(200)?;
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["extra"] =
        json!({"type": "string"});
    plane
        .send(Method::PUT, &path, &definition)
        .await?
        .expect(200)?;
    let (for_others, after) = site.others(changed).await?;
    let begun = made(&site.root).await?;
    used(&plane).await?;
    let for_itself = made(&site.root).await? - begun;
    println!(
        "a definition changed in one plane: {for_itself:?} for itself, {for_others:?} for the others"
    );
    ensure!(before == after, "the documents of other planes changed");
    ensure!(
        for_others == NOTHING,
        "something was made for other planes: {for_others:?}"
    );
    ensure!(for_itself.compiled == 1 && for_itself.documents > 0);
    // The first event of the other plane is of its own change.
    let body = json!({"metadata": {"labels": {"own": "yes"}}}).to_string();
    let own = witness.typed(Method::PATCH, &path, MERGE, body).await?;
    own.expect(200)?;
    let (_, object) = events.change().await?;
    ensure!(object["metadata"]["labels"]["own"] == "yes", "{object}");
    Ok(())
}

/// Returns a definition with a schema of its own.
fn definition(number: usize) -> Value {
    let field = json!({"type": "string", "maxLength": 100 + number});
    let spec = json!({"type": "object", "properties": {"name": field},
        "x-kubernetes-validations": [{"rule": "self.name != 'x'"}]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("kind{number}s.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": format!("kind{number}s"), "kind": format!("Kind{number}")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_with_very_many_definitions_wakes_without_compiling_them() -> Result<()> {
    let count = number("CUSTOM_DEFINITIONS", 200)?;
    let folder = tempfile::tempdir()?;
    let site = Site::start(folder.path(), 1).await?;
    let plane = Client::open(&site.endpoints[0]).await?;
    let memory = site.server.memory_bytes()?;
    for number in 0..count {
        let made = plane.post(DEFINITIONS, &definition(number)).await?;
        made.expect(201)?;
    }
    let more = site.server.memory_bytes()?.saturating_sub(memory);
    site.server.stop().await?;

    let server = Up::start(folder.path(), &[]).await?;
    let root = server.root()?;
    let before = made(&root).await?;
    let plane = Client::open(&server.plane("plane-0")?).await?;
    let began = Instant::now();
    plane.get("/api/v1/namespaces/default").await?.expect(200)?;
    let woke = began.elapsed();
    let began = Instant::now();
    let listed = plane.get("/apis/example.com/v1").await?.expect(200)?;
    let discovered = began.elapsed();
    let kinds = listed["resources"].as_array().map_or(0, Vec::len);
    let awake = made(&root).await? - before;
    println!(
        "{count} definitions: {} KiB of memory each once written; woken in {} ms, discovery in {} ms, {} schemas compiled",
        more / 1024 / u64::try_from(count)?,
        woke.as_millis(),
        discovered.as_millis(),
        awake.compiled
    );
    ensure!(kinds == count, "{kinds} kinds of {count}");
    ensure!(awake.compiled == 0, "{awake:?}");
    let path = "/apis/example.com/v1/namespaces/default/kind7s";
    let object = json!({"apiVersion": "example.com/v1", "kind": "Kind7",
        "metadata": {"name": "a"}, "spec": {"name": "x"}});
    let refused = plane.post(path, &object).await?;
    ensure!(refused.status == StatusCode::UNPROCESSABLE_ENTITY);
    let asked = made(&root).await? - before;
    ensure!(asked.compiled == 1, "{asked:?}");
    Ok(())
}

/// Users of planes name their kinds, so there may be any number of names, which are none of the operator's business.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_a_replica_do_not_name_the_kinds_of_planes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let site = Site::start(folder.path(), 1).await?;
    let plane = Client::open(&site.endpoints[0]).await?;
    plane.post(DEFINITIONS, &definition(0)).await?.expect(201)?;
    let path = "/apis/example.com/v1/namespaces/default/kind0s";
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Kind0", "metadata": {"name": "a"}});
    plane.post(path, &object).await?.expect(201)?;
    let watch = format!("{path}?watch=1&timeoutSeconds=1");
    plane.watch(&watch).await?.until_end().await?;
    let metrics = Client::open(&site.root).await?.get("/metrics").await?;
    let metrics = metrics.expect(200)?;
    let text = metrics.as_str().context("metrics are text")?;
    let of_requests = r#"group="other",resource="other""#;
    for (family, other) in [
        ("apiserver_request_total{", of_requests),
        ("apiserver_longrunning_requests{", of_requests),
        ("apiserver_watch_events_total{", of_requests),
        ("apiserver_resource_objects{", r#"resource="other""#),
    ] {
        let series: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(family))
            .collect();
        ensure!(
            series.iter().any(|line| line.contains(other)),
            "{series:#?}"
        );
        let own = series.iter().find(|line| line.contains("example.com"));
        ensure!(own.is_none(), "{own:?}");
    }
    let built_in =
        r#"resource="customresourcedefinitions",scope="resource",subresource="",verb="POST""#;
    ensure!(text.contains(built_in), "{built_in}: {text}");
    Ok(())
}
