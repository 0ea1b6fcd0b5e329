//! Measures a drain of one replica of three in a ring with very many planes, few of them awake.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lane::{Content, Lane};
use crate::planes::CONTROL_PLANES;
use crate::report::{Format, Latencies, show_number, show_quantiles};
use crate::ring::Ring;

const REPLICAS: usize = 3;
/// Creates in flight at once.
const CREATES: u64 = 32;
const CONFIG_MAPS: &str = "api/v1/namespaces/default/configmaps";

/// The numbers of planes and drains of a run.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The number of planes.
    pub planes: u64,
    /// The number of planes that get a watch and a write before each drain.
    pub awake: u64,
    /// The number of drains, of one replica after the other.
    pub drains: usize,
}

fn name(index: u64) -> String {
    format!("crowd-{index}")
}

/// Creates the planes, keeps some awake, and drains replicas.
///
/// # Errors
/// Returns an error if the ring does not start or a request is refused.
pub async fn planes(crowd: &Crowd, format: Format) -> Result<()> {
    let mut ring = Ring::start(REPLICAS).await?;
    let begin = Instant::now();
    create(&ring, crowd.planes).await?;
    let created = begin.elapsed().as_secs_f64();
    show_number(
        format,
        "planes created",
        "/s",
        crowd.planes as f64 / created,
    );
    let (mut drains, mut complete) = (Latencies::default(), Latencies::default());
    let mut after = Latencies::default();
    for round in 0..crowd.drains {
        let leaving = round % REPLICAS;
        let staying = (round + 1) % REPLICAS;
        let client = ring.lane(staying, "").await?;
        let mut watches = wake(&client, crowd.awake).await?;
        let begin = Instant::now();
        ring.drain(leaving).await?;
        drains.add(begin.elapsed());
        // From now on, every request finds its plane awake at another replica.
        for index in 0..crowd.awake {
            let begin = Instant::now();
            write(&client, index).await?;
            after.add(begin.elapsed());
        }
        complete.add(begin.elapsed());
        ensure!(watches.0.try_join_next().is_none(), "a watch ended");
        drop(watches);
        ring.restart(leaving).await?;
    }
    let what = format!(
        "drain of one of {REPLICAS} replicas, {} planes, {} awake",
        crowd.planes, crowd.awake
    );
    show_quantiles(format, &what, &drains);
    show_quantiles(
        format,
        "  and a write to each plane that was awake",
        &complete,
    );
    show_quantiles(format, "  each of these writes", &after);
    Ok(())
}

async fn create(ring: &Ring, planes: u64) -> Result<()> {
    let mut streams = JoinSet::new();
    for stream in 0..CREATES {
        let lane = ring.lane(stream as usize % REPLICAS, "").await?;
        streams.spawn(async move {
            for index in (stream..planes).step_by(CREATES as usize) {
                let body = format!(
                    r#"{{"apiVersion":"polyplane.dev/v1alpha1","kind":"ControlPlane","metadata":{{"name":"{}"}}}}"#,
                    name(index)
                );
                let content = Content::Json(body.into());
                lane.call(Method::POST, CONTROL_PLANES, content).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = streams.join_next().await {
        done.context("a stream's task")??;
    }
    Ok(())
}

/// The watches being read; each task ends with its watch.
struct Watches(JoinSet<()>);

/// Writes to each plane and opens a watch on it.
async fn wake(client: &Arc<Lane>, awake: u64) -> Result<Watches> {
    let mut watches = JoinSet::new();
    for index in 0..awake {
        write(client, index).await?;
        let path = format!("/clusters/{}/{CONFIG_MAPS}?watch=1", name(index));
        let request = client.request(Method::GET, &path, Content::None)?;
        let (status, mut body) = client.start(request).await?;
        ensure!(status == StatusCode::OK, "a watch got {status}");
        watches.spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
    }
    Ok(Watches(watches))
}

async fn write(client: &Lane, index: u64) -> Result<()> {
    let path = format!("/clusters/{}/{CONFIG_MAPS}", name(index));
    let body = Bytes::from_static(br#"{"metadata":{"generateName":"mark-"}}"#);
    client
        .call(Method::POST, &path, Content::Json(body))
        .await?;
    Ok(())
}
