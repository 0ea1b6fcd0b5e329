//! Watches that a client opens through another replica than the owner of their plane, and does not read, while large
//! objects are written: the memory of both replicas stays within their budgets, watches of another plane that are
//! read lose no event, and afterwards a watch of the first plane works as before.

use std::time::Duration;

use anyhow::{Result, ensure};
use h2::client::ResponseFuture;
use http::{Method, Request, StatusCode};
use polyplane_tests::client::{Client, Events, version};
use polyplane_tests::connection::connect;
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::programs::create_plane;
use polyplane_tests::site::{Site, move_to};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONNECTIONS: usize = 5;
/// Watches of each connection.
const WATCHES: usize = 400;
/// Objects, each of [`OBJECT_BYTES`], that are written while the watches are open. Each watch would get all of them.
const OBJECTS: usize = 10;
const OBJECT_BYTES: usize = 900_000;
/// Bytes by which the process may grow: the budgets of both replicas, of which the objects, as the
/// owner keeps them, are a small part. Without a budget the windows of all watches would take 500 MiB.
const BUDGET: &str = "256Mi";
const GROWTH_BYTES_MAX: u64 = 256 << 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// The watches of a client that reads none of them.
struct Unread {
    answers: Vec<h2::RecvStream>,
    frames: JoinHandle<()>,
}

impl Unread {
    async fn open(plane: &Endpoint) -> Result<Self> {
        let stream = connect(plane, Caller::Admin, Protocol::Http2).await?;
        let (mut sender, frames) = h2::client::handshake(stream).await?;
        let frames = tokio::spawn(async move { drop(frames.await) });
        let (host, port, base) = (&plane.host, plane.port, &plane.base_path);
        let uri = format!("https://{host}:{port}{base}{CONFIG_MAPS}?watch=true");
        let mut begun = Vec::<ResponseFuture>::new();
        for _ in 0..WATCHES {
            sender = sender.ready().await?;
            let mut request = Request::builder().method(Method::GET).uri(&uri);
            if let Some(token) = &plane.token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            begun.push(sender.send_request(request.body(())?, true)?.0);
        }
        let mut answers = Vec::new();
        for answer in begun {
            let answer = timeout(PATIENCE, answer).await??;
            // A plane may have fewer watches than the client wants.
            if answer.status() == StatusCode::OK {
                answers.push(answer.into_body());
            }
        }
        Ok(Self { answers, frames })
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.frames.abort();
    }
}

/// Looks at the memory of the process until this is aborted, which returns the most that was seen.
fn most_memory(site: &Site) -> Result<(JoinHandle<()>, tokio::sync::watch::Receiver<u64>)> {
    let pid = site.server.pid()?;
    let (most, seen) = tokio::sync::watch::channel(polyplane_tests::process::memory_bytes(pid)?);
    let looks = tokio::spawn(async move {
        while let Ok(bytes) = polyplane_tests::process::memory_bytes(pid) {
            most.send_modify(|most| *most = bytes.max(*most));
            sleep(BETWEEN_LOOKS).await;
        }
    });
    Ok((looks, seen))
}

async fn write(plane: &Client, name: &str, bytes: usize) -> Result<u64> {
    let object = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(bytes)}});
    Ok(version(
        &plane.post(CONFIG_MAPS, &object).await?.expect(201)?,
    ))
}

/// Checks that the next event of a watch is about an object.
async fn sees(watch: &mut Events, name: &str) -> Result<()> {
    let (kind, object) = watch.change().await?;
    ensure!(
        kind == "ADDED" && object["metadata"]["name"] == name,
        "{kind} {object:.200}"
    );
    Ok(())
}

#[tokio::test]
async fn unread_watches_through_another_replica_stay_within_the_memory_budget() -> Result<()> {
    let budget = format!("--memory-budget={BUDGET}");
    let site = Site::start(&["--replicas=2", &budget]).await?;
    let mut planes = Vec::new();
    for name in ["greedy", "neighbour"] {
        let plane = create_plane(&site.root, name).await?;
        move_to(&Client::open(&site.root).await?, name, "polyplane-1").await?;
        Client::open(&plane)
            .await?
            .get(CONFIG_MAPS)
            .await?
            .expect(200)?;
        planes.push(plane);
    }
    let neighbour = Client::open(&planes[1]).await?;
    let mut watch = neighbour
        .watch(&format!("{CONFIG_MAPS}?watch=true"))
        .await?;
    let mut unread = Vec::new();
    for _ in 0..CONNECTIONS {
        unread.push(Unread::open(&planes[0]).await?);
    }
    let opened: usize = unread.iter().map(|of_one| of_one.answers.len()).sum();
    ensure!(opened >= 1000, "only {opened} watches were opened");

    let before = site.server.memory_bytes()?;
    let (looks, most) = most_memory(&site)?;
    let greedy = Client::open(&planes[0]).await?;
    // The first configuration map of each plane is the one that every namespace has.
    sees(&mut watch, "kube-root-ca.crt").await?;
    for number in 0..OBJECTS {
        write(&greedy, &format!("large-{number}"), OBJECT_BYTES).await?;
        write(&neighbour, &format!("small-{number}"), 100).await?;
        sees(&mut watch, &format!("small-{number}")).await?;
    }
    // Nothing happens for a while, then one more.
    sleep(Duration::from_secs(2)).await;
    let last = write(&greedy, "last", 100).await?;
    looks.abort();
    let grown = most.borrow().saturating_sub(before);
    println!(
        "{opened} unread watches of {OBJECTS} large objects: {} MiB more memory",
        grown >> 20
    );
    ensure!(
        grown <= GROWTH_BYTES_MAX,
        "the memory grew by {grown} bytes"
    );

    drop(unread);
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={last}");
    let mut resumed = greedy.watch(&path).await?;
    write(&greedy, "after", OBJECT_BYTES).await?;
    sees(&mut resumed, "after").await?;
    write(&neighbour, "after", 100).await?;
    sees(&mut watch, "after").await
}
