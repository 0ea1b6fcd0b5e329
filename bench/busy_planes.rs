//! Very many planes that are busy at once, some of them greedier than the others: what each gets of one
//! server.
//!
//! All planes send the same requests in closed loops, so the fair share of each is the same number of
//! them, however many streams it has. A server that answers in the order of arrival gives a greedy plane
//! as many times more as it has streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Method, StatusCode};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::create_plane;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::objects::{Objects, digits, now_nanos, stamp};
use crate::report::{Format, Latencies, Quantiles};
use crate::servers::{Build, Plane, Server};

/// Requests under way while the planes are prepared.
const PREPARED_AT_ONCE: usize = 16;
const NAMESPACE: &str = "default";

/// What each stream sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    /// One ConfigMap of 1.2 KB
    Get,
    /// A merge patch of one field of it, durable; planes that wait for the disk share the transactions
    Patch,
    /// A dry run of a merge patch of a Deployment of 1.3 KB, which takes CPU and nothing else
    DryRun,
    /// A list of the roles with a label that none has: a read that takes more CPU than its client
    List,
}

impl Request {
    /// Returns the kind of the objects of the streams.
    fn objects(self) -> Objects {
        match self {
            Self::Get | Self::Patch | Self::List => Objects::ConfigMaps,
            Self::DryRun => Objects::Deployments,
        }
    }

    /// Returns the path and query of a stream's requests, in its plane.
    fn path(self, stream: u64) -> String {
        let collection = self.objects().collection(NAMESPACE);
        let name = name(stream);
        match self {
            Self::Get | Self::Patch => format!("{collection}/{name}"),
            Self::DryRun => format!("{collection}/{name}?dryRun=All"),
            Self::List => {
                let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
                format!("{roles}?labelSelector=busy")
            }
        }
    }

    /// Returns the next request's method and body.
    fn next(self) -> (Method, Content) {
        match self {
            Self::Get | Self::List => (Method::GET, Content::None),
            Self::Patch => (Method::PATCH, Content::MergePatch(stamp())),
            Self::DryRun => (Method::PATCH, Content::MergePatch(annotation())),
        }
    }
}

/// Returns a patch of one annotation.
fn annotation() -> Bytes {
    let mark = digits(now_nanos());
    Bytes::from(format!(
        r#"{{"metadata":{{"annotations":{{"mark":"{mark}"}}}}}}"#
    ))
}

/// The planes and their load.
#[derive(Args)]
pub struct BusyArguments {
    /// Planes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..))]
    planes: u64,
    /// One of so many planes is greedy; 0 for none
    #[arg(long, default_value_t = 10)]
    greedy_every: u64,
    /// Streams of a greedy plane: by default ten times those of the others
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    greedy_streams: u64,
    /// Streams of every other plane: enough that one of its requests always waits
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    streams: u64,
    /// What they send
    #[arg(long, value_enum, default_value_t = Request::DryRun)]
    request: Request,
    /// Connections, each of which carries requests of several planes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Seconds before anything is counted
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Seconds that are counted
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
}

impl BusyArguments {
    fn is_greedy(&self, number: u64) -> bool {
        self.greedy_every > 0 && number.is_multiple_of(self.greedy_every)
    }

    fn streams_of(&self, number: u64) -> u64 {
        match self.is_greedy(number) {
            true => self.greedy_streams,
            false => self.streams,
        }
    }

    /// Returns options with which the server lets all streams in: what is measured is their turns. The limits
    /// are above the streams, because a plane may not take all of the last places.
    fn server_options(&self) -> Vec<String> {
        let streams: u64 = (0..self.planes).map(|number| self.streams_of(number)).sum();
        ["reads", "writes"]
            .map(|kind| format!("--{kind}-in-flight-max={}", 2 * streams + 4000))
            .into()
    }
}

/// One plane under load.
struct Busy {
    base_path: String,
    streams: u64,
    is_greedy: bool,
    answered: AtomicU64,
}

/// What the planes got, as parts of the fair share.
#[derive(Debug, PartialEq, Serialize)]
struct Shares {
    least: f64,
    most: f64,
    /// The mean of the greedy planes.
    greedy: Option<f64>,
    /// The planes whose share is more than a tenth from the fair one.
    beyond_a_tenth: usize,
    /// Jain's index: 1 if all are equal, 1/n if one gets everything.
    jain: f64,
}

/// Prints what each plane gets.
///
/// # Errors
/// Returns an error if the server does not start, or a request fails.
pub async fn busy_planes(arguments: &BusyArguments, format: Format) -> Result<()> {
    let mut build = Build::current(None)?;
    build.options = arguments.server_options();
    let server = Server::start("server", &build, Plane::Root).await?;
    let root = server.root.lane().endpoint().clone();
    let planes = prepare(&root, arguments).await?;
    let endpoint = root.at_base_path("");
    let mut lanes = Vec::new();
    for _ in 0..arguments.connections {
        lanes.push(Arc::new(Lane::open(&endpoint).await?));
    }
    let before = server.root.processes[0].cpu()?;
    let began = Instant::now();
    let latencies = load(&planes, &lanes, arguments).await?;
    let cpu = server.root.processes[0].cpu()?.since(&before);
    let cores = cpu.as_secs_f64() / began.elapsed().as_secs_f64();
    server.stop().await?;
    let counts: Vec<u64> = planes
        .iter()
        .map(|one| one.answered.load(Ordering::Relaxed))
        .collect();
    let greedy: Vec<bool> = planes.iter().map(|one| one.is_greedy).collect();
    let shares = shares(&counts, &greedy).context("no plane had an answer")?;
    let all: u64 = counts.iter().sum();
    let per_second = all as f64 / arguments.seconds;
    print(
        &shares,
        &counts,
        per_second,
        cores,
        latencies.quantiles(),
        format,
    );
    Ok(())
}

/// Creates the planes and the objects of their streams.
async fn prepare(root: &Endpoint, arguments: &BusyArguments) -> Result<Vec<Arc<Busy>>> {
    stream::iter(0..arguments.planes)
        .map(|number| prepare_one(root, number, arguments))
        .buffered(PREPARED_AT_ONCE)
        .try_collect()
        .await
}

async fn prepare_one(root: &Endpoint, number: u64, arguments: &BusyArguments) -> Result<Arc<Busy>> {
    let endpoint = create_plane(root, &format!("busy-{number}")).await?;
    let streams = arguments.streams_of(number);
    let lane = Lane::open(&endpoint).await?;
    for stream in 0..streams {
        let objects = arguments.request.objects();
        let body = objects.body(&name(stream));
        lane.create(&objects.collection(NAMESPACE), body).await?;
    }
    Ok(Arc::new(Busy {
        base_path: endpoint.base_path,
        streams,
        is_greedy: arguments.is_greedy(number),
        answered: AtomicU64::new(0),
    }))
}

fn name(stream: u64) -> String {
    format!("busy-{stream}")
}

/// Runs all streams. Returns the latencies of the planes that are not greedy.
async fn load(
    planes: &[Arc<Busy>],
    lanes: &[Arc<Lane>],
    arguments: &BusyArguments,
) -> Result<Latencies> {
    let begin = Instant::now() + Duration::from_secs_f64(arguments.warm_up);
    let counted = (begin, begin + Duration::from_secs_f64(arguments.seconds));
    let mut streams = JoinSet::new();
    let mut lanes = lanes.iter().cycle();
    for plane in planes {
        for stream in 0..plane.streams {
            let lane = Arc::clone(lanes.next().context("there is a connection")?);
            let (plane, request) = (Arc::clone(plane), arguments.request);
            streams.spawn(async move { run(&plane, &lane, stream, request, counted).await });
        }
    }
    let mut all = Latencies::default();
    while let Some(ended) = streams.join_next().await {
        all.append(ended??);
    }
    Ok(all)
}

async fn run(
    plane: &Busy,
    lane: &Lane,
    stream: u64,
    request: Request,
    (begin, end): (Instant, Instant),
) -> Result<Latencies> {
    let path = format!("{}{}", plane.base_path, request.path(stream));
    let mut latencies = Latencies::default();
    loop {
        let (method, content) = request.next();
        let sent = Instant::now();
        if sent >= end {
            return Ok(latencies);
        }
        lane.exchange(lane.request(method, &path, content)?, StatusCode::OK)
            .await?;
        let answered = Instant::now();
        if answered >= begin && answered < end {
            plane.answered.fetch_add(1, Ordering::Relaxed);
            if !plane.is_greedy {
                latencies.add(answered - sent);
            }
        }
    }
}

/// Returns what the planes got; `None` if they got nothing.
fn shares(counts: &[u64], greedy: &[bool]) -> Option<Shares> {
    let fair = mean(counts.iter().copied())?;
    if fair == 0.0 {
        return None;
    }
    let parts: Vec<f64> = counts.iter().map(|count| *count as f64 / fair).collect();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    let of_greedy = counts
        .iter()
        .zip(greedy)
        .filter(|(_, is_greedy)| **is_greedy);
    Some(Shares {
        least: parts.iter().copied().fold(f64::INFINITY, f64::min),
        most: parts.iter().copied().fold(0.0, f64::max),
        greedy: mean(of_greedy.map(|(count, _)| *count)).map(|mean| mean / fair),
        beyond_a_tenth: parts
            .iter()
            .filter(|part| (**part - 1.0).abs() > 0.1)
            .count(),
        jain: parts.len() as f64 / squares,
    })
}

fn mean(counts: impl Iterator<Item = u64>) -> Option<f64> {
    let (sum, count) = counts.fold((0, 0_u32), |(sum, count), one| (sum + one, count + 1));
    (count > 0).then(|| sum as f64 / f64::from(count))
}

fn print(
    shares: &Shares,
    counts: &[u64],
    per_second: f64,
    cores: f64,
    latency: Quantiles,
    format: Format,
) {
    if format == Format::Json {
        let all = json!({"shares": shares, "answered": counts, "per second": per_second,
            "cores": cores, "latency": latency});
        println!("{all}");
        return;
    }
    let fewest = counts.iter().min().copied().unwrap_or_default();
    println!(
        "{} busy planes: {per_second:.0} requests a second, the server used {cores:.2} cores, at \
         least {fewest} requests of each",
        counts.len()
    );
    println!(
        "share of a plane: least {:.3}, most {:.3} of the fair one, {} beyond a tenth, Jain's index {:.4}",
        shares.least, shares.most, shares.beyond_a_tenth, shares.jain
    );
    if let Some(greedy) = shares.greedy {
        println!("share of a greedy plane: {greedy:.3} of the fair one");
    }
    println!(
        "latency of the others: p50 {:.1} ms, p99 {:.1} ms",
        latency.p50 / 1e3,
        latency.p99 / 1e3
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_busy_planes_are_parts_of_the_mean() {
        let shares = shares(&[300, 100, 100, 100], &[true, false, false, false]).expect("some");
        assert!((shares.least - 2.0 / 3.0).abs() < 1e-9 && (shares.most - 2.0).abs() < 1e-9);
        assert_eq!(shares.greedy, Some(2.0));
        assert_eq!(shares.beyond_a_tenth, 4);
        assert!((shares.jain - 0.75).abs() < 1e-9);
    }

    #[test]
    fn busy_planes_with_equal_counts_are_fair() {
        let fair = shares(&[7; 5], &[false; 5]).expect("some");
        assert_eq!((fair.beyond_a_tenth, fair.greedy), (0, None));
        assert!((fair.jain - 1.0).abs() < 1e-9);
        assert_eq!(shares(&[0, 0], &[false; 2]), None);
    }
}
