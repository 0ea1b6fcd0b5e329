//! Measures the pause of a planned hand-off: one plane gets writes at a fixed rate and is moved
//! between two replicas by its placement, repeatedly.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::disk;
use crate::lane::{Content, Lane};
use crate::report::{Format, Latencies, show_number, show_quantiles};
use crate::ring::Ring;

const PLANE: &str = "bench-hand-off";
const CONFIG_MAPS: &str = "/clusters/bench-hand-off/api/v1/namespaces/default/configmaps";
/// Objects that are written in turn. With fewer, one write would wait for another write of its
/// object.
const OBJECTS: u64 = 64;
/// Writes that may be in flight at once. At the usual rate that covers a pause of more than a
/// second.
const OPEN_MAX: usize = 4096;
/// Time before the first move, whose latencies are the baseline.
const QUIET: Duration = Duration::from_secs(3);
/// Time from the end of a move to the request for the next one.
const BETWEEN: Duration = Duration::from_millis(300);
/// Time after a plane has moved in which the move may still delay writes.
const AFTER: Duration = Duration::from_millis(100);

/// One write: when it was due, and when it was acknowledged.
struct Write {
    due: Instant,
    acknowledged: Option<Instant>,
    error: Option<String>,
}

/// A move, from the changed placement to the moment when the other replica owns the plane.
struct Move {
    from: Instant,
    to: Instant,
}

/// Moves the plane `moves` times while it gets `rate` writes a second.
///
/// # Errors
/// Returns an error if the ring does not start or the plane does not move.
pub async fn hand_off(moves: u32, rate: f64, format: Format) -> Result<()> {
    let ring = Ring::start(2).await?;
    ring.plane_at(PLANE, 0).await?;
    let root = ring.lane(0, "").await?;
    for index in 0..OBJECTS {
        let body = format!(r#"{{"metadata":{{"name":"o-{index}"}}}}"#);
        root.call(Method::POST, CONFIG_MAPS, Content::Json(body.into()))
            .await?;
    }
    let synced = disk::sync_latency(ring.folder(), Duration::from_secs(1))?;
    show_quantiles(format, "raw write of 4 KiB and fdatasync", &synced);
    // The writer's connection stays at the first replica, which forwards the writes while the other
    // replica owns the plane.
    let lane = ring.lane(0, "").await?;
    let (stop, stopped) = mpsc::channel::<()>(1);
    let writer = tokio::spawn(write_on(lane, rate, stopped));
    let begin = Instant::now();
    tokio::time::sleep(QUIET).await;
    let quiet_to = Instant::now();
    let mut moved = Vec::new();
    for index in 0..moves {
        let to = usize::from(index % 2 == 0);
        let from = Instant::now();
        ring.want(&root, PLANE, to).await?;
        ring.arrived(&root, PLANE, to).await?;
        tokio::time::sleep(AFTER).await;
        moved.push(Move {
            from,
            to: Instant::now(),
        });
        tokio::time::sleep(BETWEEN).await;
    }
    drop(stop);
    let writes = writer.await.context("the writer's task")?;
    print(&writes, &moved, (begin, quiet_to), format);
    Ok(())
}

/// Writes on a schedule, whatever happened to earlier writes, until the sender of `stopped` is
/// dropped. Returns the writes.
async fn write_on(lane: Arc<Lane>, rate: f64, mut stopped: mpsc::Receiver<()>) -> Vec<Write> {
    let begin = Instant::now();
    let (mut open, mut writes) = (JoinSet::new(), Vec::new());
    for count in 0_u64.. {
        let due = begin + Duration::from_secs_f64(count as f64 / rate);
        tokio::select! {
            biased;
            // The end first, because writes after it are not measured.
            _ = stopped.recv() => break,
            () = tokio::time::sleep_until(due) => {}
        }
        while open.len() >= OPEN_MAX {
            writes.extend(open.join_next().await.and_then(Result::ok));
        }
        while let Some(done) = open.try_join_next() {
            writes.extend(done.ok());
        }
        let lane = Arc::clone(&lane);
        open.spawn(async move { write(&lane, count, due).await });
    }
    while let Some(done) = open.join_next().await {
        writes.extend(done.ok());
    }
    writes
}

async fn write(lane: &Lane, count: u64, due: Instant) -> Write {
    let path = format!("{CONFIG_MAPS}/o-{}", count % OBJECTS);
    let body = Bytes::from(format!(r#"{{"data":{{"count":"{count}"}}}}"#));
    let done = match lane.request(Method::PATCH, &path, Content::MergePatch(body)) {
        Ok(request) => lane.exchange(request, StatusCode::OK).await,
        Err(error) => Err(error),
    };
    Write {
        due,
        acknowledged: done.is_ok().then(Instant::now),
        error: done.err().map(|error| format!("{error:#}")),
    }
}

/// Prints the pauses. The pause of a move is the longest time without an acknowledgement around it,
/// minus one interval of the schedule, which lies between two acknowledgements anyway.
fn print(writes: &[Write], moved: &[Move], quiet: (Instant, Instant), format: Format) {
    let latency = |write: &Write| Some(write.acknowledged?.duration_since(write.due));
    let (mut ordinary, mut slowest, mut silence) = (
        Latencies::default(),
        Latencies::default(),
        Latencies::default(),
    );
    for write in writes {
        let is_quiet = write.due >= quiet.0 && write.due < quiet.1;
        if is_quiet && let Some(latency) = latency(write) {
            ordinary.add(latency);
        }
    }
    let mut acknowledged: Vec<Instant> = writes.iter().filter_map(|one| one.acknowledged).collect();
    acknowledged.sort_unstable();
    let (mut took, mut quiet_silence) = (Latencies::default(), Latencies::default());
    for pair in acknowledged.windows(2) {
        if pair[0] >= quiet.0 && pair[1] < quiet.1 {
            quiet_silence.add(pair[1].duration_since(pair[0]));
        }
    }
    for one in moved {
        let within = |moment: Instant| moment >= one.from && moment <= one.to;
        let around = writes.iter().filter(|write| within(write.due));
        slowest.add(around.filter_map(latency).max().unwrap_or_default());
        let gaps = acknowledged.windows(2).filter(|pair| within(pair[1]));
        let longest = gaps.map(|pair| pair[1].duration_since(pair[0])).max();
        silence.add(longest.unwrap_or_default());
        took.add(one.to.duration_since(one.from).saturating_sub(AFTER));
    }
    let failed: Vec<&String> = writes.iter().filter_map(|one| one.error.as_ref()).collect();
    show_quantiles(format, "a write while nothing moves", &ordinary);
    show_quantiles(
        format,
        "between two acknowledgements, nothing moves",
        &quiet_silence,
    );
    show_quantiles(format, "longest silence of each move", &silence);
    show_quantiles(format, "slowest write of each move", &slowest);
    show_quantiles(format, "from the wish to the arrival", &took);
    show_number(format, "writes", "", writes.len() as f64);
    show_number(format, "writes that failed", "", failed.len() as f64);
    if let (Some(first), Format::Text) = (failed.first(), format) {
        println!("  first failure: {first}");
    }
}
