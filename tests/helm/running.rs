//! The rendered Deployment as it runs: processes with exactly its command, environment, probes and
//! hook behind one balancer, moved as the Deployment controller moves pods, under load.

use std::time::Duration;

use anyhow::{Context, Result};
use polyplane_tests::ring::judged::{Demand, judge};
use polyplane_tests::ring::load::{Load, Mix, make_planes};
use polyplane_tests::ring::setup::{Ring, ToldBy, Wish};

/// The short form of `ring_rolling` with `RING_CHART=1`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deployment_scales_and_is_updated_and_no_client_notices() -> Result<()> {
    let wish = Wish {
        replicas: 1,
        grace: Duration::from_secs(20),
        told_by: ToldBy::Chart,
        ..Wish::default()
    };
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let root = ring.controller.admin()?;
    let planes = make_planes(&root, "p", 6).await;
    let planes = planes.with_context(|| ring.last_words())?;
    let mix = Mix {
        per_second: 20.0,
        ..Mix::default()
    };
    let load = Load::start(&root, &planes, mix).await?;
    ring.controller.scale(2).await?;
    ring.controller.roll().await?;
    ring.controller.scale(1).await?;
    judge(&ring, load, Demand::Nothing, &[], Vec::new()).await
}
