//! An open-loop mix of requests and long watches over many planes, all of them recorded.
//!
//! This module owns the rate, which does not depend on the server's speed: each request begins at
//! its time, even if earlier ones are not answered. No request is sent twice. The module does not
//! judge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::history::{History, Moment, ObjectName, Outcome, Refusal, Verb, Version};
use crate::kubeconfig::Endpoint;
use crate::programs::create_plane;

use super::client::pool::Pool;
use super::client::{PREFIX, PlaneClient, Recorder};

/// Requests in flight at one time. Further ones are not sent but counted.
const UNDER_WAY_MAX: usize = 4000;
/// The time that requests and watches have to finish after the load has stopped.
const FINISH_LIMIT: Duration = Duration::from_secs(60);
/// Planes that are created at one time.
const MADE_AT_ONCE: usize = 8;
/// Pause between two attempts of the first write after a fault.
const RETRY: Duration = Duration::from_millis(5);

/// The amount of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// The number of requests a second, of all planes together.
    pub per_second: f64,
    /// The number of objects of one plane.
    pub objects: u8,
    /// The number of connections for requests.
    pub connections: usize,
    /// The number of watches of one plane.
    pub watches: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            per_second: 200.0,
            objects: 6,
            connections: 16,
            watches: 1,
            seed: 1,
        }
    }
}

/// One plane of the load: its clients, and the state of the objects as far as they know it.
struct Plane {
    client: PlaneClient,
    objects: Vec<(ObjectName, Mutex<Option<Version>>)>,
}

/// A running watch: the channel that sets its goal, and its task.
type Watcher = (watch::Sender<Option<Version>>, JoinHandle<Result<()>>);

/// A running load.
pub struct Load {
    recorder: Arc<Recorder>,
    planes: Vec<Arc<Plane>>,
    left_out: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    asking: JoinHandle<()>,
    watching: Vec<Watcher>,
}

/// Creates planes `<prefix>0`, `<prefix>1` and so on, and returns their names.
///
/// # Errors
/// Returns an error if one does not become Ready.
pub async fn make_planes(root: &Endpoint, prefix: &str, count: usize) -> Result<Vec<String>> {
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}{at}")).collect();
    for part in names.chunks(MADE_AT_ONCE) {
        let mut making = JoinSet::new();
        for name in part {
            let (root, name) = (root.clone(), name.clone());
            making.spawn(async move { create_plane(&root, &name).await.map(drop) });
        }
        for made in making.join_all().await {
            made?;
        }
    }
    Ok(names)
}

impl Load {
    /// Begins the watches, waits until all have begun, then begins the requests. The planes must
    /// not have objects of a run yet.
    ///
    /// # Errors
    /// Returns an error if a watch cannot begin.
    pub async fn start(root: &Endpoint, planes: &[String], mix: Mix) -> Result<Self> {
        let recorder = Arc::new(Recorder::default());
        let asking_pool = Pool::new(root.clone(), mix.connections);
        let watching_pool = Pool::new(root.clone(), planes.len().div_ceil(20));
        let mut watching = Vec::new();
        let (count, mut standing) = watch::channel(0_usize);
        let count = Arc::new(count);
        for (at, name) in planes.iter().enumerate() {
            for which in 0..mix.watches {
                let id = u32::try_from(1_000_000 + at * mix.watches + which)?;
                let (pool, recorder) = (Arc::clone(&watching_pool), Arc::clone(&recorder));
                let client = PlaneClient::new(id, name, pool, recorder);
                let (goal, reached) = watch::channel(None);
                let count = Arc::clone(&count);
                let follow = async move {
                    let ready = move || count.send_modify(|count| *count += 1);
                    client.follow(reached, ready).await
                };
                watching.push((goal, tokio::spawn(follow)));
            }
        }
        let all = planes.len() * mix.watches;
        timeout(FINISH_LIMIT, standing.wait_for(|count| *count == all))
            .await
            .context("not all watches began")??;
        let planes: Vec<Arc<Plane>> = planes
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let (pool, recorder) = (Arc::clone(&asking_pool), Arc::clone(&recorder));
                let objects = (0..mix.objects).map(|object| {
                    let name: ObjectName = Arc::from(format!("{PREFIX}{object}"));
                    (name, Mutex::new(None))
                });
                Arc::new(Plane {
                    client: PlaneClient::new(at as u32, name, pool, recorder),
                    objects: objects.collect(),
                })
            })
            .collect();
        let left_out = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = watch::channel(false);
        let asking = ask(planes.clone(), mix, Arc::clone(&left_out), stopped);
        Ok(Self {
            recorder,
            planes,
            left_out,
            stop,
            asking: tokio::spawn(asking),
            watching,
        })
    }

    /// Returns the names of the planes, in the order given.
    pub fn plane_names(&self) -> Vec<String> {
        let planes = self.planes.iter();
        planes.map(|plane| plane.client.plane.to_string()).collect()
    }

    /// Returns the present moment on the run's clock.
    pub fn now(&self) -> Moment {
        self.recorder.now()
    }

    /// Writes to every plane until each has acknowledged one write; returns how long after `fault`
    /// each did.
    ///
    /// # Errors
    /// Returns an error if a plane acknowledges no write within a minute.
    pub async fn gaps(&self, fault: Moment) -> Result<Vec<Duration>> {
        let mut trying = JoinSet::new();
        for plane in &self.planes {
            let (plane, recorder) = (Arc::clone(plane), Arc::clone(&self.recorder));
            let first = async move {
                let client = &plane.client;
                let object: ObjectName = Arc::from(format!("{PREFIX}gap"));
                let mut there = true;
                loop {
                    let value = recorder.value();
                    let verb = if there {
                        Verb::Patch(value)
                    } else {
                        Verb::Create(value)
                    };
                    match client.operate(&object, verb).await? {
                        Outcome::Object { .. } => break,
                        Outcome::Refused(Refusal::NotFound) => there = false,
                        Outcome::Refused(_) => there = true,
                        Outcome::Deleted | Outcome::Failed(_) | Outcome::Unknown(_) => {
                            sleep(RETRY).await;
                        }
                    }
                }
                anyhow::Ok(Duration::from_nanos(recorder.now().0 - fault.0))
            };
            trying.spawn(timeout(FINISH_LIMIT, first));
        }
        let mut gaps = Vec::new();
        for tried in trying.join_all().await {
            gaps.push(tried.context("a plane takes no write after a fault")??);
        }
        Ok(gaps)
    }

    /// Ends the requests, waits until the watches have a last write of each plane, and returns the
    /// record and the number of requests that were not sent.
    ///
    /// # Errors
    /// Returns an error if a plane acknowledges no last write.
    pub async fn finish(self) -> Result<(History, u64)> {
        self.stop.send_replace(true);
        self.asking.await?;
        let mut writing = JoinSet::new();
        for (at, plane) in self.planes.iter().enumerate() {
            let (plane, recorder) = (Arc::clone(plane), Arc::clone(&self.recorder));
            writing.spawn(async move {
                let last = last_write(&plane.client, &recorder);
                let name = &plane.client.plane;
                let version = timeout(FINISH_LIMIT, last).await;
                let version = version.with_context(|| format!("{name}: no last write"))??;
                anyhow::Ok((at, version))
            });
        }
        let mut last = vec![Version(0); self.planes.len()];
        for written in writing.join_all().await {
            let (at, version) = written?;
            last[at] = version;
        }
        let watches = self.watching.len() / self.planes.len().max(1);
        let deadline = Instant::now() + FINISH_LIMIT;
        let mut following = Vec::new();
        for (at, (goal, follow)) in self.watching.into_iter().enumerate() {
            goal.send_replace(Some(last[at / watches]));
            following.push((goal, follow));
        }
        for (goal, mut follow) in following {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = match timeout(left, &mut follow).await {
                Ok(ended) => ended,
                Err(_) => {
                    // The watch ends where it is, and the checker reports what it lacks.
                    drop(goal);
                    let ended = timeout(FINISH_LIMIT, follow).await;
                    ended.context("a watcher that does not end")?
                }
            };
            ended??;
        }
        let left_out = self.left_out.load(Ordering::Relaxed);
        Ok((self.recorder.take().await, left_out))
    }
}

/// Writes until a write is acknowledged, then lists everything; returns the version of the write.
async fn last_write(client: &PlaneClient, recorder: &Recorder) -> Result<Version> {
    for attempt in 0.. {
        let object: ObjectName = Arc::from(format!("{PREFIX}last-{attempt}"));
        let verb = Verb::Create(recorder.value());
        if let Outcome::Object { version, .. } = client.operate(&object, verb).await? {
            client.list().await?.ok();
            return Ok(version);
        }
        sleep(RETRY).await;
    }
    unreachable!("the loop has no end of its own")
}

/// A random generator of small numbers, deterministic for a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }
}

/// Begins requests at their times until it is stopped; returns when all have ended.
async fn ask(
    planes: Vec<Arc<Plane>>,
    mix: Mix,
    left_out: Arc<AtomicU64>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut dice = Dice(mix.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let period = Duration::from_secs_f64(1.0 / mix.per_second.max(0.1));
    let room = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let mut under_way = JoinSet::new();
    let mut due = Instant::now();
    loop {
        due += period;
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            () = sleep_until(due) => {}
        }
        while under_way.try_join_next().is_some() {}
        let plane = Arc::clone(&planes[dice.below(planes.len())]);
        let (object, choice) = (dice.below(plane.objects.len()), dice.below(100));
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            left_out.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        under_way.spawn(async move {
            plane.ask(object, choice).await;
            drop(permit);
        });
    }
    under_way.join_all().await;
}

impl Plane {
    /// Sends one request, chosen by the known state of the object. A request that HTTP cannot
    /// express is a bug in this file and would end the task without the checker's notice, hence
    /// `expect`.
    async fn ask(&self, object: usize, choice: usize) {
        let (name, belief) = &self.objects[object];
        let believed = *belief.lock().expect("nobody panics with it");
        let value = || self.client.value();
        let verb = match (believed, choice) {
            (_, 0..=9) => {
                let listed = self.client.list().await;
                drop(listed.expect("a list can be expressed"));
                return;
            }
            (None, 10..=69) => Verb::Create(value()),
            (None, 70..=79) => Verb::Delete { over: None },
            (Some(_), 10..=14) => Verb::Create(value()),
            (over @ Some(_), 15..=39) => Verb::Update {
                value: value(),
                over,
            },
            (Some(_), 40..=49) => Verb::Update {
                value: value(),
                over: None,
            },
            (Some(_), 50..=69) => Verb::Patch(value()),
            (Some(_), 70..=74) => Verb::Delete { over: None },
            (over @ Some(_), 75..=79) => Verb::Delete { over },
            _ => Verb::Get,
        };
        let outcome = self.client.operate(name, verb).await;
        let outcome = outcome.expect("a request can be expressed");
        let mut belief = belief.lock().expect("nobody panics with it");
        match outcome {
            Outcome::Object { version, .. } => *belief = (*belief).max(Some(version)),
            Outcome::Deleted | Outcome::Refused(Refusal::NotFound) => *belief = None,
            Outcome::Refused(_) | Outcome::Failed(_) | Outcome::Unknown(_) => {}
        }
    }
}
