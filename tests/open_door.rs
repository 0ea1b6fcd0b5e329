//! Clients without a valid credential open six HTTP/2 connections, each with 2 000 POSTs whose
//! bodies never end: half of them without a credential and half with a wrong one. Each request is
//! refused at once, and clients with a credential are not affected: all their requests through the
//! same replica are answered, health checks succeed, memory stays limited.
//!
//! The test runs on one replica and on three; against the root plane, a plane with watches, a plane
//! that is being handed over, and planes of this replica and of others. `DOOR_ROUNDS` sets the
//! number of rounds (1 in CI).

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::{Method, Request, StatusCode};
use polyplane_tests::client::{Client, Events};
use polyplane_tests::connection::{Connection, connect};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane, delete_plane, polyplane};
use polyplane_tests::ring::judged::number;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use polyplane_tests::site::{move_to, owner};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Held by one siege at a time, because two would share the cores, and each is sized for all of them.
static ONE_SIEGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
const CONNECTIONS: usize = 6;
const STREAMS: usize = 2000;
/// Bytes that each request sends of its body.
const BODY_BYTES: usize = 128 * 1024;
/// The longest time that any step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that sieges may add to a replica's memory while all strangers are connected. Their bodies
/// together would be 1.5 GiB.
const MEMORY_BYTES_MAX: u64 = 150 << 20;
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";

/// The requests of one connection, with the streams that keep them open.
struct Strangers {
    requests: Vec<(ResponseFuture, SendStream<Bytes>)>,
    frames: JoinHandle<()>,
}

impl Strangers {
    /// Connects without a valid credential and begins as many requests as a connection may have.
    async fn come(door: &Endpoint, path: &str, token: Option<&str>) -> Result<Self> {
        let stream = connect(door, Caller::Anonymous, Protocol::Http2).await?;
        let (mut sender, frames) = h2::client::handshake(stream).await?;
        let frames = tokio::spawn(async move { drop(frames.await) });
        let uri = format!("https://{}:{}{path}", door.host, door.port);
        let mut requests = Vec::new();
        for _ in 0..STREAMS {
            // The server may close a connection that misbehaves; then no further request begins on
            // it.
            let Ok(ready) = sender.ready().await else {
                break;
            };
            sender = ready;
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(&uri)
                .header("content-type", "application/json");
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let Ok((answer, mut body)) = sender.send_request(request.body(())?, false) else {
                break;
            };
            // The server may have refused the request already.
            let _ = body.send_data(Bytes::from_static(&[b' '; BODY_BYTES]), false);
            requests.push((answer, body));
        }
        Ok(Self { requests, frames })
    }

    /// Cancels all requests, which ends the connection.
    async fn leave(self) -> Result<()> {
        drop(self.requests);
        let ended = timeout(PATIENCE, self.frames).await;
        Ok(ended.context("a connection does not end")??)
    }

    /// Returns how many requests were refused. The others must have lost their connection.
    async fn refused(&mut self) -> Result<usize> {
        let mut refused = 0;
        for (answer, _) in &mut self.requests {
            let answer = timeout(PATIENCE, answer).await;
            if let Ok(answer) = answer.context("a stranger waits")? {
                let status = answer.status();
                ensure!(status == StatusCode::UNAUTHORIZED, "a stranger: {status}");
                refused += 1;
            }
        }
        Ok(refused)
    }
}

/// Reads and writes one plane through the door until it is stopped.
struct Work {
    over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    task: JoinHandle<Result<Duration>>,
}

impl Work {
    async fn begin(plane: &Endpoint, name: &str) -> Result<Self> {
        let client = Client::open(plane).await?;
        let (over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (is_over, count, name) = (Arc::clone(&over), Arc::clone(&done), name.to_owned());
        let task = tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::SeqCst) {
                let began = Instant::now();
                let number = count.load(Ordering::SeqCst);
                let object = json!({"metadata": {"name": format!("{name}-{number}")}});
                let made = client.post(CONFIG_MAPS, &object).await?;
                ensure!(made.status == 201, "a proven write: {made:?}");
                let read = client
                    .get(&format!("{CONFIG_MAPS}/{name}-{number}"))
                    .await?;
                ensure!(read.status == 200, "a proven read: {read:?}");
                longest = longest.max(began.elapsed());
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(longest)
        });
        Ok(Self { over, done, task })
    }

    /// Waits until `more` further reads and writes have been answered.
    async fn goes_on(&self, more: usize) -> Result<()> {
        let until = self.done.load(Ordering::SeqCst) + more;
        let began = Instant::now();
        while self.done.load(Ordering::SeqCst) < until && !self.task.is_finished() {
            ensure!(
                began.elapsed() < PATIENCE,
                "proven requests are not answered"
            );
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn end(self) -> Result<(usize, Duration)> {
        self.over.store(true, Ordering::SeqCst);
        let longest = self.task.await??;
        Ok((self.done.load(Ordering::SeqCst), longest))
    }
}

/// Checks that a health check on a connection of its own is answered.
async fn probe(door: &Endpoint) -> Result<()> {
    let probed = async {
        let connection = Connection::open(door, Caller::Anonymous, Protocol::Http1).await?;
        let answer = connection
            .send(ask(Method::GET, "/readyz", &Value::Null))
            .await?;
        ensure!(answer.status == 200, "a health check: {}", answer.status);
        Ok(())
    };
    timeout(PATIENCE, probed)
        .await
        .context("no health check gets in")?
}

/// The place where strangers connect, and the clients that they must not disturb.
struct Siege<'a> {
    what: &'a str,
    door: &'a Endpoint,
    plane: &'a Endpoint,
    /// Returns how much more memory the replica uses than before all sieges.
    memory: &'a (dyn Fn() -> Result<u64> + Sync),
}

impl Siege<'_> {
    /// Waits until the refused requests have left the memory; the rest belongs to open connections.
    async fn settled(&self) -> Result<u64> {
        let began = Instant::now();
        loop {
            let memory = (self.memory)()?;
            if memory < MEMORY_BYTES_MAX {
                return Ok(memory);
            }
            let mib = memory >> 20;
            ensure!(began.elapsed() < PATIENCE, "{}: {mib} MiB more", self.what);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Connects the strangers, runs `meanwhile` while all of them are connected, and judges.
    async fn run(&self, meanwhile: impl Future<Output = Result<()>>) -> Result<()> {
        let what = self.what;
        let work = Work::begin(self.plane, "work").await?;
        work.goes_on(1).await?;
        let began = Instant::now();
        let path = format!("{}{CONFIG_MAPS}", self.plane.base_path);
        let mut coming = JoinSet::new();
        for number in 0..CONNECTIONS {
            let (door, path) = (self.door.clone(), path.clone());
            let token = (number % 2 == 0).then_some("nonsense");
            coming.spawn(async move { Strangers::come(&door, &path, token).await });
        }
        let mut strangers = Vec::new();
        while let Some(came) = coming.join_next().await {
            strangers.push(came??);
        }
        let came = began.elapsed();
        work.goes_on(3).await?;
        probe(self.door).await.context(what.to_owned())?;
        meanwhile.await.context(what.to_owned())?;
        work.goes_on(3).await?;
        let memory = self.settled().await?;
        let (done, longest) = work.end().await.context(what.to_owned())?;
        let mut refused = 0;
        for of_connection in &mut strangers {
            refused += of_connection.refused().await.context(what.to_owned())?;
        }
        for of_connection in strangers {
            of_connection.leave().await?;
        }
        println!(
            "{what}: {refused} strangers refused, who came in {came:?}; {done} proven writes and \
             reads meanwhile, the longest {longest:?}; {} MiB more memory",
            memory >> 20
        );
        ensure!(refused >= STREAMS, "{what}: only {refused} strangers came");
        Ok(())
    }
}

/// Checks that a watch continues while strangers are connected.
async fn tells_of(events: &mut Events, plane: &Endpoint, name: &str) -> Result<()> {
    let client = Client::open(plane).await?;
    let made = client
        .post(CONFIG_MAPS, &json!({"metadata": {"name": name}}))
        .await?;
    ensure!(made.status == 201, "{made:?}");
    loop {
        let event = events.next().await?.context("the watch ended")?;
        if event["object"]["metadata"]["name"] == name {
            return Ok(());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_cost_one_replica_nothing() -> Result<()> {
    let _only = ONE_SIEGE.lock().await;
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &["--store", "memory"]).await?;
    let root = server.root()?;
    let plane = create_plane(&root, "a").await?;
    let door = root.at_base_path("");
    let before = server.memory_bytes()?;
    let memory = || Ok(server.memory_bytes()?.saturating_sub(before));
    for round in 0..number("DOOR_ROUNDS", 1_usize)? {
        let siege = |what, plane| Siege {
            what,
            door: &door,
            plane,
            memory: &memory,
        };
        let judged = async {
            let nothing = async { Ok(()) };
            siege("one replica, the root plane", &root)
                .run(nothing)
                .await?;
            let watch = Client::open(&plane).await?;
            let mut events = watch.watch(&format!("{CONFIG_MAPS}?watch=1")).await?;
            let name = format!("told-{round}");
            let told = tells_of(&mut events, &plane, &name);
            siege("one replica, a plane with a watch", &plane)
                .run(told)
                .await?;
            clean(&[&root, &plane]).await
        };
        judged
            .await
            .with_context(|| server.log().unwrap_or_default())?;
    }
    tells_nothing(&door, &plane).await?;
    ensure!(!server.log()?.contains("panicked"), "{}", server.log()?);
    Ok(())
}

/// Checks that a stranger gets the same answer for a plane that exists, was deleted, or never
/// existed, by name or id.
async fn tells_nothing(door: &Endpoint, plane: &Endpoint) -> Result<()> {
    let root = Client::open(&door.at_base_path("")).await?;
    let object = root
        .get(&format!("{CONTROL_PLANES}/a"))
        .await?
        .expect(200)?;
    let id = object["status"]["id"].as_str().unwrap_or("a").to_owned();
    create_plane(door, "gone").await?;
    delete_plane(door, "gone").await?;
    let gone = format!("{CONTROL_PLANES}/gone");
    let began = Instant::now();
    while root.get(&gone).await?.status != 404 {
        ensure!(began.elapsed() < PATIENCE, "the plane is not deleted");
        sleep(Duration::from_millis(10)).await;
    }
    let names = [
        "a",
        "gone",
        "never",
        &format!("{id}/control-plane"),
        "%61",
        "root",
    ];
    for token in [None, Some("nonsense")] {
        let stranger = Connection::open(door, Caller::Anonymous, Protocol::Http2).await?;
        for name in names {
            for path in [CONFIG_MAPS, "/api", "/version", "/readyz", "/openapi/v3"] {
                if name == "root" && (path == "/version" || path == "/readyz") {
                    continue;
                }
                let mut asked = ask(
                    Method::GET,
                    &format!("/clusters/{name}{path}"),
                    &Value::Null,
                );
                let token = token.map(|token| format!("Bearer {token}"));
                asked
                    .headers
                    .extend(token.map(|token| ("authorization".to_owned(), token)));
                let answer = stranger.send(asked).await?;
                ensure!(answer.status == 401, "{name}{path}: {}", answer.status);
            }
        }
    }
    let known = Client::open(plane).await?;
    for path in ["/version", "/readyz", "/api", "/openapi/v3"] {
        let shown = known.get(path).await?;
        ensure!(shown.status == 200, "{path}: {shown:?}");
    }
    Ok(())
}

/// A process that starts with a low limit of open files raises it to the allowed maximum.
#[tokio::test]
async fn the_limit_of_open_files_is_raised() -> Result<()> {
    const FEW: u64 = 256;
    let folder = tempfile::tempdir()?;
    let mut command = tokio::process::Command::new("sh");
    command
        .args(["-c", &format!("ulimit -S -n {FEW} && exec \"$0\" \"$@\"")])
        .arg(polyplane()?)
        .args([
            "up",
            "--store",
            "memory",
            "--listen",
            "127.0.0.1:0",
            "--dir",
        ])
        .arg(folder.path().join("data"))
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    let output = child.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();
    let greeting = timeout(PATIENCE, lines.next_line()).await??;
    ensure!(greeting.is_some(), "it did not start");
    let pid = child.id().context("it has ended")?;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let line = line.context("no limit of open files")?;
    let values: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    ensure!(values[0] == values[1], "{line}");
    ensure!(
        values[0].parse::<u64>().is_ok_and(|files| files > FEW),
        "{line}"
    );
    Ok(())
}

/// Deletes the objects of a round, so that the next one finds none of them.
async fn clean(planes: &[&Endpoint]) -> Result<()> {
    for plane in planes {
        let removed = Client::open(plane).await?.delete(CONFIG_MAPS).await?;
        ensure!(removed.status == 200, "{removed:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_cost_three_replicas_nothing() -> Result<()> {
    let _only = ONE_SIEGE.lock().await;
    let Some(ring) = Ring::start(&Wish::default()).await? else {
        return Ok(());
    };
    let admin = ring.controller.admin()?;
    let root = Client::open(&at_address(
        &admin,
        ring.controller.replicas[0].pod.client(),
    ))
    .await?;
    let roots_owner = owner(&root, "root").await?;
    let replicas = &ring.controller.replicas;
    // The door is a replica that does not own the root plane.
    let mut others = replicas.iter();
    let at = others.find(|replica| replica.pod.name != roots_owner);
    let at = at.context("the root plane has one owner")?;
    let elsewhere: Vec<&str> = (replicas.iter())
        .map(|replica| replica.pod.name.as_str())
        .filter(|name| *name != at.pod.name)
        .collect();
    let door = at_address(&admin, at.pod.client());
    let own = create_plane(&door, "own").await?;
    let theirs = create_plane(&door, "theirs").await?;
    move_to(&root, "own", &at.pod.name).await?;
    move_to(&root, "theirs", elsewhere[0]).await?;
    let before = at.memory_bytes()?;
    let memory = || Ok(at.memory_bytes()?.saturating_sub(before));
    let siege = |what, plane| Siege {
        what,
        door: &door,
        plane,
        memory: &memory,
    };
    for round in 0..number("DOOR_ROUNDS", 1_usize)? {
        let judged = async {
            let nothing = || async { Ok(()) };
            siege("its own plane", &own).run(nothing()).await?;
            siege("the root plane", &door).run(nothing()).await?;
            let watch = Client::open(&theirs).await?;
            let mut events = watch.watch(&format!("{CONFIG_MAPS}?watch=1")).await?;
            let name = format!("told-{round}");
            let told = tells_of(&mut events, &theirs, &name);
            siege("another's plane with a watch", &theirs)
                .run(told)
                .await?;
            clean(&[&own, &door, &theirs]).await?;
            let moving = async {
                move_to(&root, "theirs", elsewhere[1]).await?;
                move_to(&root, "theirs", &at.pod.name).await?;
                move_to(&root, "theirs", elsewhere[0]).await
            };
            siege("a plane that is handed over", &theirs)
                .run(moving)
                .await?;
            let name = format!("told-again-{round}");
            tells_of(&mut events, &theirs, &name).await?;
            clean(&[&theirs]).await
        };
        judged.await.with_context(|| ring.last_words())?;
    }
    ring.ensure_no_panic()
}
