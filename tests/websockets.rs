//! Watches over a WebSocket with the client of another project, at the owner of a plane and through
//! hops, while the plane changes owners.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::golden::folder;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::python::python;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

const REPLICAS: u16 = 3;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PLANE: &str = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// The longest time that a test waits for something that must happen.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the first of `count` free ports in a row. The range is one from which the system does
/// not assign ports by itself.
fn ports_in_a_row(count: u16) -> Result<u16> {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut bases = (20_000_u16..30_000).step_by(16);
    let offset = (std::process::id() % 500) as usize;
    let found = bases
        .by_ref()
        .skip(offset)
        .find(|base| (*base..base + count).all(is_free));
    found.context("no free ports in a row")
}

/// The client, as a process.
struct Watcher {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watcher {
    fn start(python: &Path, server: &Up, port: u16, [way, form]: [&str; 2]) -> Result<Self> {
        let data = server.kubeconfig.parent().context("a folder")?;
        let token = std::fs::read_to_string(data.join("pki/admin.token"))?;
        let query = "watch=1&labelSelector=websocket&allowWatchBookmarks=false";
        let url = format!("wss://127.0.0.1:{port}/clusters/a{MAPS}?{query}");
        let mut process = Command::new(python)
            .arg(folder().join("websocket_client.py"))
            .arg(url)
            .arg(data.join("pki/ca.crt"))
            .args([token.trim(), way, form])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().context("no output")?;
        let lines = BufReader::new(output).lines();
        Ok(Self {
            _process: process,
            lines,
        })
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(LIMIT, self.lines.next_line()).await;
        line.context("nothing came")??.context("the client ended")
    }

    /// Returns the next event: its type, and the value in the object.
    async fn event(&mut self) -> Result<(String, String)> {
        let line = self.line().await?;
        let event: Value =
            serde_json::from_str(&line).with_context(|| format!("no event: {line}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok((text(&event["type"]), text(&event["object"]["data"]["v"])))
    }
}

/// Makes a replica take the plane and waits until it has.
async fn move_to(root: &Client, replica: &str) -> Result<()> {
    let pin = json!({"spec": {"placement": {"replica": replica}}}).to_string();
    let pinned = root.typed(Method::PATCH, PLANE, MERGE_PATCH, pin).await?;
    ensure!(pinned.status == 200, "{pinned:?}");
    let began = Instant::now();
    loop {
        let seen = root.get("/polyplane/locate/a").await?.body;
        if seen["owner"] == replica {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            bail!("{replica} does not get the plane: {seen}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_websocket_tells_every_change_once_through_hops_and_hand_offs() -> Result<()> {
    let Some(python) = python()? else {
        return Ok(());
    };
    let data = tempfile::tempdir()?;
    let port = ports_in_a_row(REPLICAS)?;
    let listen = format!("127.0.0.1:{port}");
    let options = ["--listen", &listen, "--replicas", &REPLICAS.to_string()];
    let server = Up::start(data.path(), &options).await?;
    let plane = Client::open(&create_plane(&server.root()?, "a").await?).await?;
    let root = Client::open(&server.root()?).await?;
    // The request wakes the plane, which then has an owner.
    ensure!(plane.get(MAPS).await?.status == 200);
    move_to(&root, "polyplane-0").await?;

    let mut watchers = Vec::new();
    for replica in 0..REPLICAS {
        for way in [
            ["header", "json"],
            ["protocol", "json"],
            ["header", "protobuf"],
        ] {
            let mut watcher = Watcher::start(&python, &server, port + replica, way)?;
            ensure!(watcher.line().await? == "[base64.binary.k8s.io]");
            watchers.push(watcher);
        }
    }
    let map = json!({"metadata": {"name": "m", "labels": {"websocket": "1"}}, "data": {"v": "0"}});
    ensure!(plane.post(MAPS, &map).await?.status == 201);
    let mut expected = vec![("ADDED", "0".to_owned())];
    for change in 1..=9_u16 {
        let replica = format!("polyplane-{}", change % REPLICAS);
        let path = format!("{MAPS}/m");
        let value = json!({"data": {"v": change.to_string()}}).to_string();
        // Some changes happen while the plane moves.
        let (changed, moved) = tokio::join!(
            plane.typed(Method::PATCH, &path, MERGE_PATCH, value),
            move_to(&root, &replica)
        );
        moved?;
        ensure!(changed?.status == 200);
        expected.push(("MODIFIED", change.to_string()));
    }
    ensure!(plane.delete(&format!("{MAPS}/m")).await?.status == 200);
    expected.push(("DELETED", "9".to_owned()));
    for watcher in &mut watchers {
        for (kind, value) in &expected {
            let event = watcher.event().await?;
            ensure!((event.0.as_str(), &event.1) == (*kind, value), "{event:?}");
        }
    }
    // The server stops, and closes the WebSockets in good order.
    server.terminate()?;
    for watcher in &mut watchers {
        ensure!(watcher.line().await? == "closed 1000");
    }
    ensure!(server.ended().await?.success());
    Ok(())
}
