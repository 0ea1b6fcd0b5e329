//! `spec.limits` of control planes: what a plane at a limit is refused, what it is not, and that its
//! neighbour notices nothing. Requests go to three replicas in turn, so that most are forwarded.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const MERGE: &str = "application/merge-patch+json";
/// Looks until something that needs no request of the test must have happened.
const LOOKS: usize = 1000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

struct Site {
    kubectl: Kubectl,
    root: Client,
    endpoint: Endpoint,
    _server: Up,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Up::start(&folder.path().join("data"), &["--replicas=3"]).await?;
        let bin = folder.path().join("data/bin");
        let endpoint = server.root()?;
        Ok(Self {
            kubectl: Kubectl::find(&server.kubeconfig, folder.path(), &bin)?,
            root: Client::open(&endpoint).await?,
            endpoint,
            _server: server,
            _folder: folder,
        })
    }

    async fn plane(&self, name: &str) -> Result<Client> {
        Client::open(&create_plane(&self.endpoint, name).await?).await
    }

    async fn limit(&self, plane: &str, limits: Value) -> Result<()> {
        let body = json!({"spec": {"limits": limits}}).to_string();
        let path = format!("{PLANES}/{plane}");
        let patched = self.root.typed(Method::PATCH, &path, MERGE, body).await?;
        patched.expect(200).map(drop)
    }

    /// Returns what `/polyplane/top` says of a plane.
    async fn usage(&self, plane: &str) -> Result<Value> {
        let report = self.root.get("/polyplane/top").await?.expect(200)?;
        let planes = report["planes"].as_array().context("no planes")?;
        let found = planes.iter().find(|usage| usage["name"] == plane);
        Ok(found.context("the plane is not in use")?.clone())
    }
}

fn map(name: &str, bytes: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": "v".repeat(bytes)}})
}

#[tokio::test]
async fn a_full_plane_takes_no_more_and_can_be_emptied() -> Result<()> {
    let site = Site::start().await?;
    let (full, neighbour) = (site.plane("full").await?, site.plane("neighbour").await?);
    full.get(MAPS).await?.expect(200)?;
    let own = site.usage("full").await?["objects"].as_u64();
    let limit = own.context("no objects")? + 4;
    site.limit("full", json!({"objects": limit})).await?;

    // Many writers at once never exceed the limit together.
    let creates = (0..24).map(|at| {
        let body = map(&format!("m{at}"), 10);
        let full = &full;
        async move { full.post(MAPS, &body).await }
    });
    let replies = futures_util::future::try_join_all(creates).await?;
    let created = replies.iter().filter(|reply| reply.status == 201).count();
    ensure!(created == 4, "{created} of 4 objects were created");
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.refuses(403, &format!("is at its limit of {limit} objects"))?;
    }
    ensure!(site.usage("full").await?["objects"] == limit);
    // A namespace brings two objects, so it needs room for three.
    full.post(NAMESPACES, &json!({"metadata": {"name": "n"}}))
        .await?
        .refuses(403, "this adds 3")?;
    let one = polyplane_tests::client::names(&full.get(MAPS).await?.expect(200)?);
    let mut own = one.into_iter().filter(|name| name.starts_with('m'));
    let one = own.next().context("no map")?;
    let path = format!("{MAPS}/{one}");

    // Changes pass, and so do deletions, also those that a finalizer delays.
    let finalizer = json!({"metadata": {"finalizers": ["example.com/wait"]}}).to_string();
    full.typed(Method::PATCH, &path, MERGE, finalizer)
        .await?
        .expect(200)?;
    let bytes = site.usage("full").await?["bytes"]
        .as_u64()
        .context("no bytes")?;
    site.limit("full", json!({"objects": null, "bytes": bytes}))
        .await?;
    full.delete(&path).await?.expect(200)?;
    let grown = json!({"metadata": {"annotations": {"a": "x".repeat(2000)}}}).to_string();
    full.typed(Method::PATCH, &path, MERGE, grown)
        .await?
        .refuses(403, &format!("is at its limit of {bytes} bytes"))?;
    let done = json!({"metadata": {"finalizers": null}}).to_string();
    full.typed(Method::PATCH, &path, MERGE, done)
        .await?
        .expect(200)?;
    full.get(&path).await?.refuses(404, "not found")?;
    full.post(MAPS, &map("again", 10)).await?.expect(201)?;
    full.post(MAPS, &map("large", 5000))
        .await?
        .refuses(403, "bytes")?;

    // A lowered limit takes nothing away, and the plane can be emptied.
    site.limit("full", json!({"objects": 0, "bytes": 0}))
        .await?;
    full.delete(MAPS).await?.expect(200)?;
    full.post(MAPS, &map("more", 1))
        .await?
        .refuses(403, "limit of 0 objects")?;
    neighbour
        .post(MAPS, &map("large", 5000))
        .await?
        .expect(201)?;
    site.limit("full", Value::Null).await?;
    full.post(MAPS, &map("more", 1)).await?.expect(201)?;
    Ok(())
}

#[tokio::test]
async fn rates_and_watches_are_limited_and_the_neighbour_is_not() -> Result<()> {
    const RATE: f64 = 5.0;
    let site = Site::start().await?;
    let (busy, neighbour) = (site.plane("busy").await?, site.plane("neighbour").await?);
    for plane in [&busy, &neighbour] {
        plane.get(MAPS).await?.expect(200)?;
    }
    site.kubectl
        .ok(&["plane", "limits", "busy", "--requests", "5"])?;
    let (mut passed, mut refused) = (0, 0);
    let began = Instant::now();
    while refused < 40 {
        let answer = busy.raw(ask(Method::GET, MAPS, &Value::Null)).await?;
        match answer.status.as_u16() {
            200 => passed += 1,
            429 => {
                refused += 1;
                let text = String::from_utf8_lossy(&answer.body);
                ensure!(text.contains("requestsPerSecond"), "{text}");
                let after = answer.headers.get("retry-after");
                ensure!(after.is_some_and(|after| after == "1"), "{after:?}");
            }
            status => anyhow::bail!("{status}"),
        }
        neighbour.get(MAPS).await?.expect(200)?;
    }
    let allowed = RATE * (began.elapsed().as_secs_f64() + 1.0) + 1.0;
    ensure!(
        f64::from(passed) <= allowed,
        "{passed} passed, {allowed} may"
    );
    ensure!(passed > 0, "nobody passed");
    let usage = site.usage("busy").await?;
    ensure!(usage["refused"].as_u64() > Some(0) && usage["cpuMillis"].is_u64());

    // Only writes are limited now.
    site.kubectl.ok(&[
        "plane",
        "limits",
        "busy",
        "--requests",
        "none",
        "--writes",
        "1",
    ])?;
    let mut limited = false;
    for at in 0..20 {
        busy.get(MAPS).await?.expect(200)?;
        let reply = busy.post(MAPS, &map(&format!("w{at}"), 1)).await?;
        if reply.status == 429 {
            reply.refuses(
                429,
                "changing requests a second (spec.limits.writesPerSecond)",
            )?;
            limited = true;
        }
    }
    ensure!(limited, "20 writes in a row passed");

    // A watch that ends makes room for another one.
    site.kubectl.ok(&[
        "plane",
        "limits",
        "busy",
        "--writes",
        "none",
        "--watches",
        "2",
    ])?;
    let path = format!("{MAPS}?watch=1");
    let (first, _second) = (busy.watch(&path).await?, busy.watch(&path).await?);
    busy.get(&path)
        .await?
        .refuses(429, "limit of 2 open watches")?;
    drop(first);
    for _ in 0..LOOKS {
        if busy.watch(&path).await.is_ok() {
            let shown = site.kubectl.ok(&["plane", "limits", "busy"])?;
            ensure!(shown.contains("watches:           2"), "{shown}");
            let top = site.kubectl.ok(&["plane", "top", "--over", "0s"])?;
            ensure!(top.contains("busy"), "{top}");
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    anyhow::bail!("a watch that ended still counts")
}

#[tokio::test]
async fn a_collection_is_deleted_at_the_rate_of_writes() -> Result<()> {
    const MAPS_MADE: usize = 20;
    let site = Site::start().await?;
    let plane = site.plane("busy").await?;
    for at in 0..MAPS_MADE {
        let made = plane.post(MAPS, &map(&format!("c{at}"), 1)).await?;
        made.expect(201)?;
    }
    site.limit("busy", json!({"writesPerSecond": 1})).await?;
    let mut looks = 0..LOOKS;
    while plane.post(MAPS, &map("limited", 1)).await?.status != 429 {
        ensure!(looks.next().is_some(), "the limit never counts");
    }
    let count = async || -> Result<usize> {
        let maps = plane.get(MAPS).await?.expect(200)?;
        Ok(maps["items"].as_array().map_or(0, Vec::len))
    };
    let before = count().await?;
    for _ in 0..LOOKS {
        let limited = plane.delete(MAPS).await?;
        limited.refuses(
            429,
            "changing requests a second (spec.limits.writesPerSecond)",
        )?;
        let left = count().await?;
        if left < before {
            // One for the request, and those for which there was time meanwhile.
            ensure!(before - left < MAPS_MADE / 2, "{left} of {before} are left");
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    anyhow::bail!("nothing is ever deleted")
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused() -> Result<()> {
    let site = Site::start().await?;
    site.plane("a").await?;
    for (limits, word) in [
        (
            json!({"requestsPerSecond": 0}),
            "spec.limits.requestsPerSecond",
        ),
        (
            json!({"writesPerSecond": -1}),
            "spec.limits.writesPerSecond",
        ),
        (json!({"bytes": i64::MAX}), "spec.limits.bytes"),
    ] {
        let body = json!({"spec": {"limits": limits}}).to_string();
        let path = format!("{PLANES}/a");
        let patched = site.root.typed(Method::PATCH, &path, MERGE, body).await?;
        patched.refuses(422, word)?;
    }
    let unlimited = site.root.get("/polyplane/top").await?.expect(200)?;
    ensure!(unlimited["planes"].is_array(), "{unlimited}");
    Ok(())
}
