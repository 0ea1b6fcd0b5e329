//! The memory budget of a real server: all shares that clients can fill are kept nearly full, and
//! the process must stay within its budget plus the memory that it had before. The test runs once
//! with a budget and once with half of it.
//!
//! `POLYPLANE_SOAK_SECONDS` sets the duration (15 by default), `POLYPLANE_SOAK_MIB` the larger
//! budget (64). The shares for states that move between replicas are full only while planes move; a
//! single replica does not use them, and the limit does not count them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Ask, Connection, connect};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use polyplane_tests::settings::number;
use serde_json::{Map, Value, json};
use tokio::task::{JoinHandle, JoinSet};

const MIB: u64 = 1 << 20;
/// The shares that clients can fill.
const SHARES: [&str; 5] = ["logs", "rendered", "interner", "answers", "bodies"];
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// Number and bytes of the objects in the list that nobody reads. Together they are larger than all
/// windows.
const LISTED: usize = 40;
const OBJECT_BYTES: usize = 100_000;
/// Planes that get writes. Their logs of 4 MiB each would together be many times the share of logs.
const CHURNED: usize = 40;
/// Number and bytes of the annotations of one object. The table of shared parts stores each value.
const PARTS: usize = 200;
const PART_BYTES: usize = 1100;
/// Bytes that the table of shared parts uses for the place of one part.
const PLACE_BYTES: u64 = 128;
/// Bytes that are sent of a body that does not end.
const BODY_BYTES: usize = 128 * 1024;
/// The part of their share that bodies use, in percent. The rest is for writes.
const BODIES_PERCENT: u64 = 94;
/// Time after which an unfinished request is cancelled and begun again, before the server ends it.
const RENEW: Duration = Duration::from_secs(45);
/// The part of a share that must be in use at each check, in percent. More than 100 is possible for
/// a moment, because some memory is counted only after its use.
const PERCENT: std::ops::RangeInclusive<u64> = 90..=105;
/// Bytes of the embedded store's cache, which fills while there are writes.
const STORE_CACHE: u64 = 128 * MIB;
/// Bytes that the process may use beside its budget, the store's cache and the memory that it had
/// before: buffers of connections, and memory that the allocator has not returned.
const REST: u64 = 32 * MIB;

/// Returns text that neither compresses nor repeats.
fn noise(seed: usize, len: usize) -> String {
    let mut state = seed as u64 + 1;
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        text.push_str(&format!("{:016x}", state ^ (state >> 29)));
    }
    text
}

fn config_map(name: &str, seed: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"noise": noise(seed, OBJECT_BYTES)}})
}

fn get(path: &str) -> Ask {
    ask(Method::GET, path, &Value::Null)
}

/// The metrics of the server's memory.
struct Figures(String);

impl Figures {
    async fn read(root: &Client) -> Result<Self> {
        let answer = root.raw(get("/metrics")).await?;
        Ok(Self(String::from_utf8(answer.body.to_vec())?))
    }

    fn value(&self, name: &str, share: &str) -> Result<u64> {
        let start = format!("{name}{{share=\"{share}\"}} ");
        let value = self.0.lines().find_map(|line| line.strip_prefix(&start));
        let value = value.with_context(|| format!("no {start}"))?;
        Ok(value.trim().parse::<f64>()? as u64)
    }

    fn limit(&self, share: &str) -> Result<u64> {
        self.value("polyplane_memory_limit_bytes", share)
    }

    /// Returns the percentage of the share that is in use.
    fn percent(&self, share: &str) -> Result<u64> {
        let used = self.value("polyplane_memory_used_bytes", share)?;
        Ok(used * 100 / self.limit(share)?)
    }
}

/// Refusals in a row after which no more lists are begun. One refusal is not enough, because
/// another answer may have used the room only for a moment. With half the budget, one list uses a
/// tenth of the share.
const REFUSALS: usize = 3;
const BETWEEN_REFUSALS: Duration = Duration::from_millis(20);

/// As many lists as the server accepts, begun and not read. One plane leaves a ninth of the share to others.
struct Unread {
    planes: [Endpoint; 2],
    open: VecDeque<(Instant, Connection, Response<Incoming>)>,
}

impl Unread {
    async fn fill(&mut self) -> Result<()> {
        while (self.open.front()).is_some_and(|(began, ..)| began.elapsed() > RENEW) {
            self.open.pop_front();
        }
        for plane in &self.planes {
            let mut refusals = 0;
            while refusals < REFUSALS {
                let connection = Connection::open(plane, Caller::Admin, Protocol::Http2).await?;
                let answer = connection.start(get(CONFIG_MAPS)).await?;
                if answer.status() == 429 {
                    refusals += 1;
                    tokio::time::sleep(BETWEEN_REFUSALS).await;
                    continue;
                }
                refusals = 0;
                ensure!(answer.status() == 200, "a list: {}", answer.status());
                self.open.push_back((Instant::now(), connection, answer));
                ensure!(self.open.len() < 1000, "no list is ever refused");
            }
        }
        Ok(())
    }
}

/// Requests whose bodies do not end.
struct Unfinished {
    plane: Endpoint,
    open: VecDeque<(Instant, ResponseFuture, SendStream<Bytes>, JoinHandle<()>)>,
}

impl Unfinished {
    async fn fill(&mut self, bodies: usize) -> Result<()> {
        while (self.open.front()).is_some_and(|(began, ..)| began.elapsed() > RENEW) {
            self.open.pop_front();
        }
        while self.open.len() < bodies {
            let stream = connect(&self.plane, Caller::Admin, Protocol::Http2).await?;
            let (sender, frames) = h2::client::handshake(stream).await?;
            let frames = tokio::spawn(async move { drop(frames.await) });
            let mut sender = sender.ready().await?;
            let Endpoint {
                host,
                port,
                base_path,
                token,
                ..
            } = &self.plane;
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(format!("https://{host}:{port}{base_path}{CONFIG_MAPS}"))
                .header("content-type", "application/json");
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let (answer, mut body) = sender.send_request(request.body(())?, false)?;
            body.send_data(Bytes::from_static(&[b' '; BODY_BYTES]), false)?;
            self.open.push_back((Instant::now(), answer, body, frames));
        }
        Ok(())
    }
}

/// Replaces one large object of each plane in turn until it is stopped.
async fn churn(
    planes: Vec<Endpoint>,
    seeds: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
) -> Result<usize> {
    let mut clients = Vec::new();
    for plane in &planes {
        clients.push(Client::open(plane).await?);
    }
    let path = format!("{CONFIG_MAPS}/churned");
    let mut writes = 0;
    for client in clients.iter().cycle() {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let put = config_map("churned", seeds.fetch_add(1, Ordering::SeqCst));
        let reply = client.send(Method::PUT, &path, &put).await?;
        // Bodies that do not end leave little room, which another writer may be using.
        ensure!([200, 429].contains(&reply.status.as_u16()), "{reply:?}");
        writes += usize::from(reply.status == 200);
    }
    Ok(writes)
}

/// Fills the table of shared parts: each value occurs twice.
async fn share_parts(plane: &Client, parts: usize) -> Result<()> {
    for object in 0..parts.div_ceil(PARTS) {
        let annotations: Map<String, Value> = (0..PARTS)
            .map(|at| {
                let seed = (object * PARTS + at) << 20;
                (format!("part-{at}"), noise(seed, PART_BYTES).into())
            })
            .collect();
        for copy in 0..2 {
            let name = format!("parts-{object}-{copy}");
            let one = json!({"metadata": {"name": name, "annotations": annotations}});
            plane.post(CONFIG_MAPS, &one).await?.expect(201)?;
        }
    }
    Ok(())
}

async fn soak(mib: u64, time: Duration) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let budget = format!("{mib}Mi");
    let flags = [
        "--memory-budget",
        &budget,
        "--answer-stall-max",
        "60",
        "--sleep-after",
        "86400",
    ];
    let server = Up::start(folder.path(), &flags).await?;
    let root = server.root()?;
    let metrics = Client::open(&root).await?;
    let listed = create_plane(&root, "listed").await?;
    let listed_too = create_plane(&root, "listed-too").await?;
    for plane in [&listed, &listed_too] {
        let writer = Client::open(plane).await?;
        for at in 0..LISTED {
            let one = config_map(&format!("m{at:04}"), at);
            writer.post(CONFIG_MAPS, &one).await?.expect(201)?;
        }
    }
    let mut planes = Vec::new();
    for at in 0..CHURNED {
        let plane = create_plane(&root, &format!("churned-{at}")).await?;
        let one = config_map("churned", LISTED + at);
        Client::open(&plane)
            .await?
            .post(CONFIG_MAPS, &one)
            .await?
            .expect(201)?;
        planes.push(plane);
    }
    let limits = Figures::read(&metrics).await?;
    let parts = usize::try_from(limits.limit("interner")? / PLACE_BYTES)?;
    let held = create_plane(&root, "parts").await?;
    share_parts(&Client::open(&held).await?, parts + PARTS).await?;
    let bodies = limits.limit("bodies")? * BODIES_PERCENT / 100;
    let bodies = usize::try_from(bodies)?.div_ceil(BODY_BYTES);
    let mut driven = 0;
    for share in SHARES {
        driven += limits.limit(share)?;
    }
    let before = server.memory_bytes()?;
    let bound = before + driven + STORE_CACHE + REST;

    let (over, seeds) = (
        Arc::<AtomicBool>::default(),
        Arc::new(AtomicUsize::new(1000)),
    );
    let mut churns = JoinSet::new();
    for half in planes.chunks(CHURNED / 2) {
        churns.spawn(churn(half.to_vec(), Arc::clone(&seeds), Arc::clone(&over)));
    }
    let mut unread = Unread {
        planes: [listed.clone(), listed_too],
        open: VecDeque::new(),
    };
    let mut unfinished = Unfinished {
        plane: listed,
        open: VecDeque::new(),
    };
    let mut least = [u64::MAX; SHARES.len()];
    let (mut most, mut looks, mut full_since) = (0, 0, None);
    let patience = Instant::now() + Duration::from_secs(120);
    for plane in planes.iter().cycle() {
        unread.fill().await?;
        unfinished.fill(bodies).await?;
        let roles = Client::open(plane).await?.get(CLUSTER_ROLES).await?;
        ensure!([200, 429].contains(&roles.status.as_u16()), "{roles:?}");
        let figures = Figures::read(&metrics).await?;
        let resident = server.memory_bytes()?;
        most = most.max(resident);
        let mut percents = [0; SHARES.len()];
        for (percent, share) in percents.iter_mut().zip(SHARES) {
            *percent = figures.percent(share)?;
        }
        let line = format!(
            "{budget}: {} MiB resident of {}; in % of shares {SHARES:?}: {percents:?}",
            resident / MIB,
            bound / MIB
        );
        ensure!(
            percents.iter().all(|percent| percent <= PERCENT.end()),
            "{line}"
        );
        ensure!(resident <= bound, "{line}");
        if percents.iter().all(|percent| percent >= PERCENT.start()) && full_since.is_none() {
            println!("full {line}");
            full_since = Some(Instant::now());
        }
        match full_since {
            None => ensure!(Instant::now() < patience, "the shares do not fill: {line}"),
            Some(_) => {
                looks += 1;
                for (least, percent) in least.iter_mut().zip(percents) {
                    *least = (*least).min(percent);
                }
                ensure!(least.iter().all(|least| least >= PERCENT.start()), "{line}");
            }
        }
        if full_since.is_some_and(|since| since.elapsed() >= time) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    over.store(true, Ordering::SeqCst);
    let mut writes = 0;
    while let Some(done) = churns.join_next().await {
        writes += done??;
    }
    let figures = Figures::read(&metrics).await?;
    ensure!(
        figures.value("polyplane_memory_full_total", "logs")? > 0,
        "nothing was shed"
    );
    println!(
        "budget {budget}: {looks} looks in {} s, {writes} writes of {} KB, {} unread lists, {} unfinished bodies; least % of shares {SHARES:?}: {least:?}; at most {} MiB resident, {} before, bound {}",
        time.as_secs(),
        OBJECT_BYTES / 1000,
        unread.open.len(),
        unfinished.open.len(),
        most / MIB,
        before / MIB,
        bound / MIB,
    );
    // Clients that disconnect release their memory.
    drop((unread, unfinished));
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let figures = Figures::read(&metrics).await?;
        let (answers, bodies) = (figures.percent("answers")?, figures.percent("bodies")?);
        if (answers, bodies) == (0, 0) {
            return Ok(());
        }
        ensure!(
            Instant::now() < patience,
            "{answers} % and {bodies} % are held"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resident_memory_keeps_to_the_budget_with_every_share_full() -> Result<()> {
    let time = Duration::from_secs(number("POLYPLANE_SOAK_SECONDS", 15)?);
    let mib = number("POLYPLANE_SOAK_MIB", 64)?;
    soak(mib, time).await?;
    soak(mib / 2, time).await
}

/// Clients that begin to read a document of megabytes and stop.
const STOPPED: usize = 60;
/// Bytes of the process that one of them may take, its connection included.
const STOPPED_BYTES: u64 = MIB / 2;

/// Whoever may read anything of a plane may read its OpenAPI document. It was unpacked whole for each, and
/// a plane's user held two gigabytes with a thousand streams that read nothing.
#[tokio::test]
async fn documents_that_nobody_reads_are_not_held_unpacked() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(folder.path(), &[]).await?;
    let plane = create_plane(&server.root()?, "a").await?;
    let document = get("/openapi/v2");
    let first = Connection::open(&plane, Caller::Admin, Protocol::Http2).await?;
    let length = first
        .start(document.clone())
        .await?
        .body()
        .size_hint()
        .exact();
    let length = length.context("its length is not told")?;
    ensure!(length > 2 * STOPPED_BYTES, "{length} bytes are too few");
    let before = server.memory_bytes()?;
    let mut open = Vec::new();
    for _ in 0..STOPPED {
        let connection = Connection::open(&plane, Caller::Admin, Protocol::Http2).await?;
        let answer = connection.start(document.clone()).await?;
        ensure!(answer.status() == 200, "{}", answer.status());
        open.push((connection, answer));
    }
    let resident = server.memory_bytes()?;
    let each = resident.saturating_sub(before) / u64::try_from(STOPPED)?;
    println!("{STOPPED} readers of {length} bytes that stopped: {each} bytes each");
    ensure!(each < STOPPED_BYTES, "{each} bytes each");
    Ok(())
}
