//! Repeated kill −9 under 64 writers, with watchers beside them.
//!
//! Writers record which writes were acknowledged. After each restart every acknowledged write must
//! be present with its version; only the one request that each writer had in flight may have
//! happened or not. Watchers continue from their last version. At the end their events, over all
//! lives of the server, must be every write exactly once, in order.
//!
//! `POLYPLANE_CRASH_ROUNDS` sets the number of rounds, `POLYPLANE_CRASH_SEED` the moments of the
//! kills.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::client::{Client, version};
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::settings::number;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PLANES: usize = 4;
const WRITERS: usize = 64;
/// Objects of one writer.
const KEYS: u64 = 4;
/// The smallest and the largest number of acknowledged writes of a round.
const ACKS: std::ops::Range<u64> = 100..700;

/// The writer's knowledge of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Absent,
    Present { version: u64, value: String },
}

/// The name and content of a request without an answer; `None` for a deletion.
type Pending = (String, Option<String>);

/// One client that writes its own objects.
struct Writer {
    plane: usize,
    id: usize,
    step: u64,
    objects: BTreeMap<String, Known>,
    pending: Option<Pending>,
    /// Versions and names of all acknowledged creates and updates.
    acked: Vec<(u64, String)>,
    acked_deletes: u64,
}

/// The events that one watcher has seen through all lives of the server.
#[derive(Default)]
struct Watched {
    last: u64,
    events: Vec<Seen>,
}

struct Seen {
    version: u64,
    kind: String,
    name: String,
    value: String,
}

/// Counts the acknowledged writes of a round and reports when they are enough.
struct Round {
    acks: AtomicU64,
    enough: u64,
    reached: Notify,
}

impl Round {
    fn new(enough: u64) -> Arc<Self> {
        Arc::new(Self {
            acks: AtomicU64::new(0),
            enough,
            reached: Notify::new(),
        })
    }

    fn count(&self) {
        if self.acks.fetch_add(1, Ordering::Relaxed) + 1 == self.enough {
            self.reached.notify_one();
        }
    }
}

impl Writer {
    fn new(id: usize) -> Self {
        Self {
            plane: id % PLANES,
            id,
            step: 0,
            objects: BTreeMap::new(),
            pending: None,
            acked: Vec::new(),
            acked_deletes: 0,
        }
    }

    /// Writes until the server is gone. Every version must exceed `floor`, the newest version that
    /// a client knew of this plane before the server started.
    async fn work(&mut self, client: &Client, floor: u64, round: &Round) -> Result<()> {
        loop {
            let name = format!("w{}-{}", self.id, self.step % KEYS);
            let value = format!("{}-{}", self.id, self.step);
            let before = self.objects.get(&name).cloned().unwrap_or(Known::Absent);
            let path = format!("{CONFIG_MAPS}/{name}");
            let mut body = json!({"metadata": {"name": name}, "data": {"v": value}});
            let (method, path, body, wanted) = match &before {
                Known::Absent => (Method::POST, CONFIG_MAPS, body, Some(value)),
                Known::Present { .. } if self.step % 11 < 3 => {
                    (Method::DELETE, path.as_str(), Value::Null, None)
                }
                Known::Present { version, .. } => {
                    body["metadata"]["resourceVersion"] = json!(version.to_string());
                    (Method::PUT, path.as_str(), body, Some(value))
                }
            };
            self.pending = Some((name.clone(), wanted.clone()));
            let Ok(reply) = client.send(method.clone(), path, &body).await else {
                return Ok(());
            };
            let answer = reply.expect(if method == Method::POST { 201 } else { 200 });
            let answer = answer.with_context(|| format!("{method} {path} over {before:?}"))?;
            self.pending = None;
            self.step += 1;
            match wanted {
                Some(value) => {
                    let version = version(&answer);
                    ensure!(
                        version > floor,
                        "{name}: version {version} is not above {floor}"
                    );
                    if let Known::Present { version: old, .. } = before {
                        ensure!(version > old, "{name}: version {version} follows {old}");
                    }
                    self.acked.push((version, name.clone()));
                    self.objects.insert(name, Known::Present { version, value });
                }
                None => {
                    self.acked_deletes += 1;
                    self.objects.insert(name, Known::Absent);
                }
            }
            round.count();
        }
    }

    /// Compares the plane's objects with the acknowledged writes, and finds out whether the request
    /// in flight has happened.
    fn check(&mut self, there: &BTreeMap<String, (u64, String)>) -> Result<()> {
        let pending = self.pending.take();
        if let Some((name, _)) = &pending {
            // The step makes each write different, because an update that changes nothing gets no
            // version.
            self.step += 1;
            self.objects.entry(name.clone()).or_insert(Known::Absent);
        }
        for (name, known) in &mut self.objects {
            let found = match there.get(name) {
                Some((version, value)) => Known::Present {
                    version: *version,
                    value: value.clone(),
                },
                None => Known::Absent,
            };
            if found == *known {
                continue;
            }
            let under_way = pending
                .as_ref()
                .filter(|(of, _)| of == name)
                .map(|(_, wanted)| wanted);
            let happened = match (under_way, &found) {
                (Some(None), Known::Absent) => true,
                (Some(Some(wanted)), Known::Present { value, version }) => {
                    let newer =
                        !matches!(known, Known::Present { version: old, .. } if *version <= *old);
                    wanted == value && newer
                }
                _ => false,
            };
            ensure!(
                happened,
                "{name}: acknowledged was {known:?}, under way {under_way:?}, there is {found:?}"
            );
            *known = found;
        }
        Ok(())
    }
}

impl Watched {
    /// Follows the plane's changes until the server is gone, or until an object called `last_name`
    /// is deleted.
    async fn follow(&mut self, client: &Client, last_name: Option<&str>) -> Result<()> {
        let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", self.last);
        let mut events = match client.watch(&path).await {
            Ok(events) => events,
            Err(error) if error.to_string().contains("is refused") => return Err(error),
            Err(_) => return Ok(()),
        };
        while let Ok(Some(event)) = events.next().await {
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            let object = &event["object"];
            ensure!(
                kind != "ERROR",
                "the watch from {} fails: {event}",
                self.last
            );
            let version = version(object);
            ensure!(
                version > self.last,
                "{kind} {version} comes after {}",
                self.last
            );
            self.last = version;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = text(&object["metadata"]["name"]);
            let is_last = kind == "DELETED" && last_name == Some(name.as_str());
            self.events.push(Seen {
                version,
                kind,
                name,
                value: text(&object["data"]["v"]),
            });
            if is_last {
                return Ok(());
            }
        }
        ensure!(last_name.is_none(), "the watch ended before the last event");
        Ok(())
    }

    /// Applies the events and returns the objects that must exist after them.
    fn play(&self) -> Result<BTreeMap<String, (u64, String)>> {
        let mut objects: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for Seen {
            version,
            kind,
            name,
            value,
        } in &self.events
        {
            let before = match kind.as_str() {
                "DELETED" => objects.remove(name),
                _ => objects.insert(name.clone(), (*version, value.clone())),
            };
            let fits = match kind.as_str() {
                "ADDED" => before.is_none(),
                "MODIFIED" => before.is_some(),
                "DELETED" => before.is_some_and(|(_, old)| old == *value),
                _ => false,
            };
            ensure!(
                fits,
                "{kind} of {name} at {version} does not follow from the events before it"
            );
        }
        Ok(objects)
    }
}

/// Returns the writers' objects of a plane by name, and the list's version.
async fn contents(client: &Client) -> Result<(BTreeMap<String, (u64, String)>, u64)> {
    let list = client.get(CONFIG_MAPS).await?.expect(200)?;
    let mut objects = BTreeMap::new();
    for item in list["items"].as_array().context("no items")? {
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        let value = item["data"]["v"].as_str().unwrap_or_default();
        if name.starts_with('w') {
            objects.insert(name.to_owned(), (version(item), value.to_owned()));
        }
    }
    Ok((objects, version(&list)))
}

/// The state that outlives the server.
struct Run {
    writers: Vec<Writer>,
    watched: Vec<Watched>,
    /// For each plane, the newest version that any client knows.
    told: Vec<u64>,
}

impl Run {
    /// Runs one life of the server: check, write, kill.
    async fn round(&mut self, server: Up, enough: u64) -> Result<()> {
        let clients = self.check(&server).await?;
        let round = Round::new(enough);
        let mut working = JoinSet::new();
        for mut writer in self.writers.drain(..) {
            let (round, client) = (Arc::clone(&round), Arc::clone(&clients[writer.plane]));
            let floor = self.told[writer.plane];
            working.spawn(async move {
                let done = writer.work(&client, floor, &round).await;
                // A writer that found a fault must end the round, or the others would wait.
                if done.is_err() {
                    round.reached.notify_one();
                }
                (writer, done)
            });
        }
        let mut watching = JoinSet::new();
        for (plane, mut watched) in self.watched.drain(..).enumerate() {
            let client = Client::open(&server.plane(&format!("p{plane}"))?).await?;
            watching.spawn(async move { (plane, watched.follow(&client, None).await, watched) });
        }
        round.reached.notified().await;
        server.kill().await?;
        for (writer, done) in working.join_all().await {
            done?;
            self.writers.push(writer);
        }
        let mut watched = watching.join_all().await;
        watched.sort_by_key(|(plane, ..)| *plane);
        for (plane, done, watched) in watched {
            done?;
            self.told[plane] = self.told[plane].max(watched.last);
            self.watched.push(watched);
        }
        for writer in &self.writers {
            let newest = writer.acked.last().map_or(0, |(version, _)| *version);
            self.told[writer.plane] = self.told[writer.plane].max(newest);
        }
        Ok(())
    }

    /// Checks that every acknowledged write is present.
    async fn check(&mut self, server: &Up) -> Result<Vec<Arc<Client>>> {
        let mut clients = Vec::new();
        for plane in 0..PLANES {
            let client = Client::open(&server.plane(&format!("p{plane}"))?).await?;
            let (objects, version) = contents(&client).await?;
            ensure!(
                version >= self.told[plane],
                "p{plane} fell from {} to {version}",
                self.told[plane]
            );
            self.told[plane] = version;
            for writer in self
                .writers
                .iter_mut()
                .filter(|writer| writer.plane == plane)
            {
                writer.check(&objects)?;
            }
            let known: usize = self.of(plane).map(Writer::present).sum();
            ensure!(
                objects.len() == known,
                "p{plane} holds {} objects, {known} are known",
                objects.len()
            );
            clients.push(Arc::new(client));
        }
        Ok(clients)
    }

    fn of(&self, plane: usize) -> impl Iterator<Item = &Writer> {
        self.writers
            .iter()
            .filter(move |writer| writer.plane == plane)
    }

    /// Lets the watchers catch up, and compares their events with all acknowledged writes.
    async fn finish(&mut self, server: &Up) -> Result<()> {
        let clients = self.check(server).await?;
        for (plane, client) in clients.iter().enumerate() {
            client
                .post(CONFIG_MAPS, &json!({"metadata": {"name": "last"}}))
                .await?
                .expect(201)?;
            client
                .delete(&format!("{CONFIG_MAPS}/last"))
                .await?
                .expect(200)?;
            self.watched[plane].follow(client, Some("last")).await?;
            let (objects, _) = contents(client).await?;
            ensure!(
                self.watched[plane].play()? == objects,
                "p{plane}: events and state differ"
            );
            let mut told: BTreeMap<u64, &str> = BTreeMap::new();
            for seen in &self.watched[plane].events {
                ensure!(
                    told.insert(seen.version, &seen.name).is_none(),
                    "version {} repeats",
                    seen.version
                );
            }
            let mut acked = 0;
            for (version, name) in self.of(plane).flat_map(|writer| &writer.acked) {
                ensure!(
                    told.get(version) == Some(&name.as_str()),
                    "no event for {name} at {version}"
                );
                acked += 1;
            }
            let deletes: u64 = self.of(plane).map(|writer| writer.acked_deletes).sum();
            let all = self.watched[plane].events.len() as u64 - 2;
            let unanswered = all
                .checked_sub(acked + deletes)
                .context("fewer events than writes")?;
            println!(
                "p{plane}: {acked} puts and {deletes} deletes acknowledged, {unanswered} more happened"
            );
        }
        Ok(())
    }
}

impl Writer {
    fn present(&self) -> usize {
        self.objects
            .values()
            .filter(|known| **known != Known::Absent)
            .count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_kill_9() -> Result<()> {
    let rounds = number("POLYPLANE_CRASH_ROUNDS", 20)?;
    let mut seed = number("POLYPLANE_CRASH_SEED", 0x9e37_79b9_7f4a_7c15)?;
    if rounds == 0 || seed == 0 {
        bail!("rounds and seed must not be zero");
    }
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let mut run = Run {
        writers: (0..WRITERS).map(Writer::new).collect(),
        watched: Vec::new(),
        told: vec![0; PLANES],
    };
    for plane in 0..PLANES {
        let client =
            Client::open(&create_plane(&server.root()?, &format!("p{plane}")).await?).await?;
        let (_, last) = contents(&client).await?;
        run.watched.push(Watched {
            last,
            events: Vec::new(),
        });
    }
    server.kill().await?;
    let began = Instant::now();
    for round in 0..rounds {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let enough = ACKS.start + seed % (ACKS.end - ACKS.start);
        let server = Up::start(&data, &[]).await?;
        run.round(server, enough)
            .await
            .with_context(|| format!("round {round}, killed after {enough} writes"))?;
    }
    let server = Up::start(&data, &[]).await?;
    run.finish(&server).await?;
    println!("{rounds} rounds in {} s", began.elapsed().as_secs());
    ensure!(
        server.stop().await?.success(),
        "the last server ends cleanly"
    );
    Ok(())
}
