//! The loads: on one plane, or on the root plane that makes planes.
//!
//! Each scenario prepares a namespace of its own and deletes it afterwards; `create-plane` deletes
//! the planes that it made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::ValueEnum;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::custom;
use crate::lane::{Content, Lane};
use crate::load::{Load, Maker, Outcome, Pace, Turn};
use crate::objects::{Objects, changed_config_map, now_nanos, stamp};
use crate::owned;
use crate::planes;
use crate::report::{Block, Latencies};
use crate::target::Target;

/// Objects from which a GET chooses.
const GET_OBJECTS: u64 = 1000;
/// Objects in the answer of a LIST.
const LIST_OBJECTS: u64 = 100;
/// How long events may arrive after the last patch was acknowledged. Events that are missing then
/// count as lost.
const STRAGGLERS: Duration = Duration::from_secs(20);
/// How long a run waits for a deleted namespace to disappear.
const EMPTYING: Duration = Duration::from_secs(30);
/// Changes a second in `watch-single`: few enough that each event finds its watchers asleep.
const SINGLE_PER_SECOND: f64 = 100.0;
/// A load on one plane, or on the root plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// One object of 1.2 KB out of a thousand
    Get,
    /// A hundred objects, 120 KB
    List,
    /// A new object of 1.2 KB, durable
    Create,
    /// A merge patch of one field, durable
    Patch,
    /// A whole object in place of the one that is there, durable
    Put,
    /// One change seen by many watchers; an operation is one delivered event
    WatchFanout,
    /// The same at a hundred changes a second, whatever --rate and --streams say
    WatchSingle,
    /// A new object, with one request at a time
    CreateAlone,
    /// A merge patch, with one request at a time
    PatchAlone,
    /// A server-side apply that changes one field of an object with three managers, durable
    Apply,
    /// The same of a Deployment
    ApplyDeployment,
    /// A new Deployment of 1.3 KB, durable
    CreateDeployment,
    /// A merge patch of one field of a Deployment with three managers, durable
    PatchDeployment,
    /// A whole Deployment in place of the one that is there, which has three managers, durable
    PutDeployment,
    /// A merge patch of forty fields of such a Deployment's status, durable
    PatchStatus,
    /// One object of 1.1 KB of a custom kind with twenty rules, out of a thousand
    GetCustom,
    /// A new object of that kind, durable
    CreateCustom,
    /// A merge patch of one field of an object of that kind, durable
    PatchCustom,
    /// A server-side apply that changes one field of an object of that kind, durable
    ApplyCustom,
    /// A new plane until it is Ready, one at a time; on the root plane only
    CreatePlane,
}

/// The effort of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of streams over all connections.
    pub streams: u64,
    /// The rule by which streams send their next requests.
    pub pace: Pace,
    /// The time of one block.
    pub time: Duration,
    /// The number of watchers of a fan-out.
    pub watchers: u64,
}

/// A scenario whose objects have been created.
pub struct Prepared {
    scenario: Scenario,
    collection: String,
    namespace: String,
    /// The number of planes made so far, which are called after the namespace that there is not.
    planes: AtomicU64,
}

impl Scenario {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Put => "put",
            Self::WatchFanout => "watch-fanout",
            Self::WatchSingle => "watch-single",
            Self::CreateAlone => "create-alone",
            Self::PatchAlone => "patch-alone",
            Self::Apply => "apply",
            Self::ApplyDeployment => "apply-deployment",
            Self::CreateDeployment => "create-deployment",
            Self::PatchDeployment => "patch-deployment",
            Self::PutDeployment => "put-deployment",
            Self::PatchStatus => "patch-status",
            Self::GetCustom => "get-custom",
            Self::CreateCustom => "create-custom",
            Self::PatchCustom => "patch-custom",
            Self::ApplyCustom => "apply-custom",
            Self::CreatePlane => "create-plane",
        }
    }

    /// Returns the scenarios that any API server can run, in the order of the enum.
    pub fn of_one_plane() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|scenario| *scenario != Self::CreatePlane)
            .collect()
    }

    /// Returns true if the scenario applies server-side.
    fn applies(self) -> bool {
        matches!(
            self,
            Self::Apply | Self::ApplyDeployment | Self::ApplyCustom
        )
    }

    /// Returns true if releases before server-side apply and custom kinds refuse the scenario.
    pub fn is_recent(self) -> bool {
        self.applies() || self.objects() == Objects::Widgets
    }

    fn objects(self) -> Objects {
        match self {
            Self::ApplyDeployment
            | Self::CreateDeployment
            | Self::PatchDeployment
            | Self::PutDeployment
            | Self::PatchStatus => Objects::Deployments,
            Self::GetCustom | Self::CreateCustom | Self::PatchCustom | Self::ApplyCustom => {
                Objects::Widgets
            }
            Self::Get
            | Self::List
            | Self::Create
            | Self::Patch
            | Self::Put
            | Self::WatchFanout
            | Self::WatchSingle
            | Self::CreateAlone
            | Self::PatchAlone
            | Self::Apply
            | Self::CreatePlane => Objects::ConfigMaps,
        }
    }

    /// Returns the effort with what the scenario fixes: the streams of a lone client, the rate of
    /// single events.
    pub fn effort(self, effort: &Effort) -> Effort {
        match self {
            Self::CreateAlone | Self::PatchAlone | Self::CreatePlane => Effort {
                streams: 1,
                pace: Pace::Closed,
                ..*effort
            },
            Self::WatchSingle => Effort {
                streams: 1,
                pace: Pace::Open {
                    per_second: SINGLE_PER_SECOND,
                },
                ..*effort
            },
            Self::Get
            | Self::List
            | Self::Create
            | Self::Patch
            | Self::Put
            | Self::WatchFanout
            | Self::Apply
            | Self::ApplyDeployment
            | Self::CreateDeployment
            | Self::PatchDeployment
            | Self::PutDeployment
            | Self::PatchStatus
            | Self::GetCustom
            | Self::CreateCustom
            | Self::PatchCustom
            | Self::ApplyCustom => *effort,
        }
    }

    /// Creates the objects of the scenario.
    ///
    /// # Errors
    /// Returns an error if the server refuses one.
    pub async fn prepare(self, target: &Target, effort: &Effort) -> Result<Prepared> {
        let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() % 1_000_000_000_000;
        let namespace = format!("bench-{}-{unique}", self.name());
        let collection = self.objects().collection(&namespace);
        let prepared = Prepared {
            scenario: self,
            collection,
            namespace,
            planes: AtomicU64::new(0),
        };
        if self != Self::CreatePlane {
            prepared.fill(target, effort).await?;
        }
        Ok(prepared)
    }
}

impl Prepared {
    async fn fill(&self, target: &Target, effort: &Effort) -> Result<()> {
        let namespace = &self.namespace;
        let body = format!(r#"{{"metadata":{{"name":"{namespace}"}}}}"#);
        let lane = target.lane();
        lane.call(
            Method::POST,
            "/api/v1/namespaces",
            Content::Json(body.into()),
        )
        .await?;
        if self.scenario.objects() == Objects::Widgets {
            custom::define(lane).await?;
        }
        let objects = match self.scenario {
            Scenario::Get | Scenario::GetCustom => GET_OBJECTS,
            Scenario::List => LIST_OBJECTS,
            Scenario::Create
            | Scenario::CreateAlone
            | Scenario::CreatePlane
            | Scenario::CreateDeployment
            | Scenario::CreateCustom => 0,
            Scenario::Apply
            | Scenario::ApplyDeployment
            | Scenario::PatchDeployment
            | Scenario::PutDeployment
            | Scenario::PatchStatus => {
                let streams = self.scenario.effort(effort).streams;
                return self.fill_owned(lane, streams).await;
            }
            Scenario::Patch
            | Scenario::Put
            | Scenario::WatchFanout
            | Scenario::WatchSingle
            | Scenario::PatchAlone
            | Scenario::PatchCustom
            | Scenario::ApplyCustom => self.scenario.effort(effort).streams,
        };
        for index in 0..objects {
            let object = self.scenario.objects().body(&format!("o-{index}"));
            lane.call(Method::POST, &self.collection, Content::Json(object))
                .await?;
        }
        Ok(())
    }

    /// Creates objects with as many managers as leave three of them once the load writes.
    async fn fill_owned(&self, lane: &Lane, streams: u64) -> Result<()> {
        for index in 0..streams {
            let name = format!("o-{index}");
            match self.scenario.objects() {
                Objects::Deployments => {
                    let scaled = !self.scenario.applies();
                    owned::create_deployment(lane, &self.collection, &name, scaled).await?;
                }
                objects => {
                    let object = objects.body(&name);
                    owned::create_config_map(lane, &self.collection, &name, object).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs one block of load.
    ///
    /// # Errors
    /// Returns an error if no request was answered.
    pub async fn block(&self, target: &Target, effort: &Effort) -> Result<Block> {
        let effort = &self.scenario.effort(effort);
        let name = self.scenario.name();
        match self.scenario {
            Scenario::WatchFanout | Scenario::WatchSingle => self.fan_out(target, effort).await,
            Scenario::CreatePlane => self.create_planes(target, effort).await,
            _ => target.block(name, &self.load(effort)).await,
        }
    }

    /// Creates planes, one after the other, for the time of a block.
    async fn create_planes(&self, target: &Target, effort: &Effort) -> Result<Block> {
        let before = target.meter()?;
        let begin = Instant::now();
        let mut total = Outcome::default();
        while begin.elapsed() < effort.time {
            let index = self.planes.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            let name = format!("{}-{index}", self.namespace);
            let bytes = planes::new_ready_plane(target.lane(), &name).await?;
            total.latencies.add(start.elapsed());
            total.bytes += bytes.len() as u64;
        }
        total.wall = begin.elapsed();
        target.result(self.scenario.name(), &total, &before, &target.meter()?)
    }

    /// Deletes the namespace and waits until it is gone, so that the server is not still busy with
    /// it when the next load runs. Without a namespace controller that never happens.
    ///
    /// # Errors
    /// Returns an error if the server refuses the deletion.
    pub async fn finish(self, target: &Target) -> Result<()> {
        let lane = target.lane();
        for index in 0..self.planes.load(Ordering::Relaxed) {
            let path = format!("{}/{}-{index}", planes::CONTROL_PLANES, self.namespace);
            lane.call(Method::DELETE, &path, Content::None).await?;
        }
        if self.scenario == Scenario::CreatePlane {
            return Ok(());
        }
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        lane.call(Method::DELETE, &path, Content::None).await?;
        let begin = Instant::now();
        while begin.elapsed() < EMPTYING {
            let request = lane.request(Method::GET, &path, Content::None)?;
            let (status, _) = lane.start(request).await?;
            if status == StatusCode::NOT_FOUND {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn load(&self, effort: &Effort) -> Load {
        let collection = self.collection.clone();
        let expected = match self.scenario {
            Scenario::Create
            | Scenario::CreateAlone
            | Scenario::CreateDeployment
            | Scenario::CreateCustom => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        let maker: Maker = match self.scenario {
            Scenario::Get | Scenario::GetCustom => Arc::new(move |lane: &Lane, turn: Turn| {
                let index = scattered(turn) % GET_OBJECTS;
                lane.request(
                    Method::GET,
                    &format!("{collection}/o-{index}"),
                    Content::None,
                )
            }),
            // Other objects of the namespace, such as kube-root-ca.crt, do not have this label.
            Scenario::List => Arc::new(move |lane: &Lane, _| {
                let path = format!("{collection}?labelSelector=bench");
                lane.request(Method::GET, &path, Content::None)
            }),
            Scenario::Create
            | Scenario::CreateAlone
            | Scenario::CreatePlane
            | Scenario::CreateDeployment
            | Scenario::CreateCustom => creates(collection, self.scenario.objects()),
            Scenario::Apply
            | Scenario::ApplyDeployment
            | Scenario::PatchDeployment
            | Scenario::PutDeployment
            | Scenario::PatchStatus
            | Scenario::PatchCustom
            | Scenario::ApplyCustom => self.owned_writes(),
            Scenario::Put => Arc::new(move |lane: &Lane, turn: Turn| {
                let name = format!("o-{}", turn.stream);
                let content = Content::Json(changed_config_map(&name, turn.count));
                lane.request(Method::PUT, &format!("{collection}/{name}"), content)
            }),
            Scenario::Patch
            | Scenario::PatchAlone
            | Scenario::WatchFanout
            | Scenario::WatchSingle => Arc::new(move |lane: &Lane, turn: Turn| {
                let path = format!("{collection}/o-{}", turn.stream);
                lane.request(Method::PATCH, &path, Content::MergePatch(stamp()))
            }),
        };
        Load {
            maker,
            expected,
            streams: effort.streams,
            pace: effort.pace,
            time: effort.time,
        }
    }

    /// Returns the writes to objects whose managers have names.
    fn owned_writes(&self) -> Maker {
        let (scenario, collection) = (self.scenario, self.collection.clone());
        Arc::new(move |lane: &Lane, turn: Turn| {
            let name = format!("o-{}", turn.stream);
            let mark = now_nanos();
            let (method, manager, content) = match scenario {
                Scenario::ApplyDeployment => {
                    let content = Content::Apply(owned::applied_deployment(&name, mark));
                    (Method::PATCH, owned::APPLIER, content)
                }
                Scenario::PutDeployment => {
                    let content = Content::Json(owned::deployment(&name, mark));
                    (Method::PUT, owned::SCALER, content)
                }
                Scenario::PatchDeployment => {
                    let content = Content::MergePatch(owned::patch(mark));
                    (Method::PATCH, owned::SCALER, content)
                }
                Scenario::PatchStatus => {
                    let content = Content::MergePatch(owned::status(mark));
                    (Method::PATCH, owned::REPORTER, content)
                }
                Scenario::PatchCustom => {
                    let content = Content::MergePatch(custom::patch(mark));
                    (Method::PATCH, owned::SCALER, content)
                }
                Scenario::ApplyCustom => {
                    let content = Content::Apply(custom::applied(&name, mark));
                    (Method::PATCH, owned::APPLIER, content)
                }
                _ => {
                    let content = Content::Apply(owned::applied_config_map(&name, mark));
                    (Method::PATCH, owned::APPLIER, content)
                }
            };
            let part = match scenario {
                Scenario::PatchStatus => "/status",
                _ => "",
            };
            let path = format!("{collection}/{name}{part}?fieldManager={manager}");
            lane.request(method, &path, content)
        })
    }

    /// Opens the watches, sends patches for the time of a block, and counts the events that the
    /// watchers got.
    async fn fan_out(&self, target: &Target, effort: &Effort) -> Result<Block> {
        let path = format!("{}?labelSelector=bench&limit=1", self.collection);
        let list = target
            .lane()
            .call(Method::GET, &path, Content::None)
            .await?;
        let list: Value = serde_json::from_slice(&list)?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .context("a list's version")?;
        let path = format!(
            "{}?watch=1&labelSelector=bench&resourceVersion={version}",
            self.collection
        );
        // Watchers learn the number of changes when the last patch is acknowledged.
        let (changes, wanted) = watch::channel(u64::MAX);
        let mut watchers = JoinSet::new();
        for index in 0..effort.watchers {
            let lane = Arc::clone(&target.lanes[index as usize % target.lanes.len()]);
            let request = lane.request(Method::GET, &path, Content::None)?;
            let (status, body) = lane.start(request).await?;
            anyhow::ensure!(
                status == StatusCode::OK,
                "a watch was answered with {status}"
            );
            watchers.spawn(follow(body, wanted.clone()));
        }
        let load = self.load(effort);
        let before = target.meter()?;
        let begin = Instant::now();
        let patches = crate::load::run(&target.lanes, &load).await;
        changes.send_replace(patches.latencies.len());
        let mut total = Outcome {
            first_error: patches.first_error,
            ..Outcome::default()
        };
        total.errors = patches.errors;
        while let Some(seen) = watchers.join_next().await {
            let (latencies, bytes) = seen.context("a watcher's task")?;
            if latencies.len() < patches.latencies.len() {
                total.errors += patches.latencies.len() - latencies.len();
                total
                    .first_error
                    .get_or_insert_with(|| "a watch ended early".to_owned());
            }
            total.latencies.append(latencies);
            total.bytes += bytes;
        }
        total.wall = begin.elapsed();
        target.result(self.scenario.name(), &total, &before, &target.meter()?)
    }
}

/// Returns creations of objects that have names of their own.
fn creates(collection: String, objects: Objects) -> Maker {
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let run = run.as_nanos() % 1_000_000_000_000;
    Arc::new(move |lane: &Lane, turn: Turn| {
        let name = format!("c-{run}-{}-{}", turn.stream, turn.count);
        lane.request(
            Method::POST,
            &collection,
            Content::Json(objects.body(&name)),
        )
    })
}

/// Reads events until their number is that of the acknowledged patches. An event's latency counts
/// from the moment at which its patch was made, which the object contains.
async fn follow(mut body: Incoming, mut wanted: watch::Receiver<u64>) -> (Latencies, u64) {
    const MARK: &[u8] = b"\"stamp\":\"";
    let (mut latencies, mut bytes) = (Latencies::default(), 0_u64);
    let mut rest: Vec<u8> = Vec::new();
    let mut settled = false;
    let mut deadline = Instant::now();
    while latencies.len() < *wanted.borrow() {
        let frame = tokio::select! {
            biased;
            // Events first, because they are measured. The number of changes is set only once.
            frame = body.frame() => frame,
            changed = wanted.changed(), if !settled => {
                settled = changed.is_ok();
                deadline = Instant::now() + STRAGGLERS;
                continue;
            }
            () = tokio::time::sleep_until(deadline), if settled => break,
        };
        let Some(Ok(frame)) = frame else { break };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        bytes += data.len() as u64;
        rest.extend_from_slice(data);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
            continue;
        };
        let now = now_nanos();
        for line in rest[..end].split(|byte| *byte == b'\n') {
            let at = line.windows(MARK.len()).rposition(|window| window == MARK);
            let digits = at.and_then(|at| line.get(at + MARK.len()..at + MARK.len() + 20));
            let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            if let Some(sent) = text.and_then(|text| text.parse::<u64>().ok()) {
                latencies.add(Duration::from_nanos(now.saturating_sub(sent)));
            }
        }
        rest.drain(..=end);
    }
    (latencies, bytes)
}

/// Spreads turns evenly over objects without a random generator (a step of splitmix64).
fn scattered(turn: Turn) -> u64 {
    let mixed = (turn.stream << 32 | turn.count).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_client_is_alone_whatever_was_asked_for() {
        let effort = Effort {
            streams: 64,
            pace: Pace::Open { per_second: 5.0 },
            time: Duration::from_secs(1),
            watchers: 7,
        };
        let alone = Scenario::CreateAlone.effort(&effort);
        assert_eq!((alone.streams, alone.watchers), (1, 7));
        assert!(matches!(alone.pace, Pace::Closed));
        assert_eq!(Scenario::Create.effort(&effort).streams, 64);
    }

    #[test]
    fn turns_are_spread_over_all_objects() {
        let mut seen = vec![0; 10];
        for stream in 0..10 {
            for count in 0..1000 {
                seen[(scattered(Turn { stream, count }) % 10) as usize] += 1;
            }
        }
        assert!(
            seen.iter().all(|hits| (800..1200).contains(hits)),
            "{seen:?}"
        );
    }
}
