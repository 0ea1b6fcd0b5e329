//! Measures whole planes: creation, and the memory of idle ones.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::programs::is_ready;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::proc::Process;
use crate::report::{Format, Latencies, show_number, show_quantiles};
use crate::target::Target;

/// The path of `ControlPlane` objects in the root plane.
pub const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// The longest time that any step may take before the run fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two checks of a server that starts; small against the milliseconds that are
/// measured.
const POLL: Duration = Duration::from_micros(200);

/// Creates planes one after the other and, between them, plain objects, and compares p99 with p99.
///
/// # Errors
/// Returns an error if the root plane refuses a request.
pub async fn create_plane(target: &Target, count: u64, format: Format) -> Result<()> {
    let lane = target.lane();
    let unique = std::process::id();
    let (mut planes, mut answers, mut objects) = (
        Latencies::default(),
        Latencies::default(),
        Latencies::default(),
    );
    for index in 0..count {
        let body = format!(r#"{{"metadata":{{"name":"bench-{unique}-{index}"}}}}"#);
        let start = Instant::now();
        let path = "/api/v1/namespaces/default/configmaps";
        lane.call(Method::POST, path, Content::Json(body.into()))
            .await?;
        objects.add(start.elapsed());
        let start = Instant::now();
        let name = format!("bench-{unique}-{index}");
        let seen = new_plane(lane, &name).await?;
        answers.add(start.elapsed());
        until_ready(lane, &name, seen, start).await?;
        planes.add(start.elapsed());
    }
    for index in 0..count {
        let path = format!("/api/v1/namespaces/default/configmaps/bench-{unique}-{index}");
        lane.call(Method::DELETE, &path, Content::None).await?;
        let path = format!("{CONTROL_PLANES}/bench-{unique}-{index}");
        lane.call(Method::DELETE, &path, Content::None).await?;
    }
    show_quantiles(format, "one durable create", &objects);
    show_quantiles(format, "create of a plane, answered", &answers);
    show_quantiles(format, "create of a plane, Ready", &planes);
    let ratio = planes.quantiles().p99 / objects.quantiles().p99;
    show_number(format, "plane Ready against one create, p99", "x", ratio);
    Ok(())
}

/// Creates a plane and waits until it is Ready; returns the object that says so.
///
/// # Errors
/// Returns an error if the root plane refuses the plane, or the plane does not become Ready.
pub async fn new_ready_plane(lane: &Lane, name: &str) -> Result<bytes::Bytes> {
    let start = Instant::now();
    let seen = new_plane(lane, name).await?;
    until_ready(lane, name, seen, start).await
}

/// Reads the plane again until `seen` shows it as Ready.
async fn until_ready(
    lane: &Lane,
    name: &str,
    mut seen: bytes::Bytes,
    start: Instant,
) -> Result<bytes::Bytes> {
    while !is_ready(&seen) {
        ensure!(
            start.elapsed() < LIMIT,
            "the plane {name} does not become Ready"
        );
        tokio::time::sleep(POLL).await;
        let path = format!("{CONTROL_PLANES}/{name}");
        seen = lane.call(Method::GET, &path, Content::None).await?;
    }
    Ok(seen)
}

async fn new_plane(lane: &Lane, name: &str) -> Result<bytes::Bytes> {
    let body = format!(
        r#"{{"apiVersion":"polyplane.dev/v1alpha1","kind":"ControlPlane","metadata":{{"name":"{name}"}}}}"#
    );
    lane.call(Method::POST, CONTROL_PLANES, Content::Json(body.into()))
        .await
}

/// Creates planes and prints how much memory each needs: never used, after one request, with one
/// watch.
///
/// # Errors
/// Returns an error if the process is unknown or the root plane refuses a request.
pub async fn idle_planes(
    target: &Target,
    planes: u64,
    watches: u64,
    settle: Duration,
    format: Format,
) -> Result<()> {
    ensure!(!target.processes.is_empty(), "no process id: give --pids");
    let lane = target.lane();
    let unique = std::process::id();
    let name = |index: u64| format!("idle-{unique}-{index}");
    let path = |index: u64| {
        let name = name(index);
        format!("/clusters/{name}/api/v1/namespaces/default/configmaps")
    };
    let resident = || -> Result<f64> {
        let each = target.processes.iter().map(Process::resident);
        Ok(each.sum::<Result<u64>>()? as f64)
    };
    let per_plane = |what: &str, before: f64, after: f64, count: u64| {
        show_number(
            format,
            what,
            "KiB",
            (after - before) / 1024.0 / count.max(1) as f64,
        );
    };
    let base = resident()?;
    for index in 0..planes {
        born(lane, &name(index)).await?;
    }
    tokio::time::sleep(settle).await;
    let asleep = resident()?;
    per_plane("resident per plane, never used", base, asleep, planes);
    let cpu = target.meter()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let spent = target.result("idle", &one_operation(), &cpu, &target.meter()?)?;
    let spent = spent.server_micros().unwrap_or_default() / 2.0;
    show_number(format, "CPU a second while all are idle", "µs", spent);
    for index in 0..planes {
        lane.call(Method::GET, &path(index), Content::None).await?;
    }
    let awake = resident()?;
    per_plane("resident per plane, just read", asleep, awake, planes);
    let mut open = Vec::new();
    for index in 0..watches.min(planes) {
        let lane = &target.lanes[index as usize % target.lanes.len()];
        let watch = format!("{}?watch=1", path(index));
        open.push(
            lane.start(lane.request(Method::GET, &watch, Content::None)?)
                .await?,
        );
    }
    if !open.is_empty() {
        per_plane(
            "resident more per plane with one watch",
            awake,
            resident()?,
            open.len() as u64,
        );
    }
    drop(open);
    tokio::time::sleep(settle).await;
    per_plane("resident per plane after idling", base, resident()?, planes);
    for index in 0..planes {
        let path = format!("{CONTROL_PLANES}/{}", name(index));
        lane.call(Method::DELETE, &path, Content::None).await?;
    }
    Ok(())
}

/// Creates a plane and checks that the answer already shows it as Ready.
async fn born(lane: &Lane, name: &str) -> Result<()> {
    let seen = new_plane(lane, name).await?;
    ensure!(is_ready(&seen), "the plane {name} was not born Ready");
    Ok(())
}

/// Returns one made-up operation. [`Target::result`] divides CPU time by the number of operations,
/// so with this one it returns the CPU time itself.
fn one_operation() -> crate::load::Outcome {
    let mut outcome = crate::load::Outcome::default();
    outcome.latencies.add(Duration::from_secs(1));
    outcome.wall = Duration::from_secs(1);
    outcome
}
