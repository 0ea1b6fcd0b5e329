//! Repeated rolling updates under load: no client notices.
//!
//! `RING_SECONDS` sets the duration (600 for the judged run); `ring::judged` describes the other
//! settings. With an explicit duration, the test fails at the first request without an answer. The
//! short form has to pass on any busy machine and only prints such requests: the ring removes
//! replicas that get no CPU for longer than the TTL of member keys, and then some requests fail.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::ring::figures::Spread;
use polyplane_tests::ring::judged::{Demand, demanded, judge, loaded, number, wished};
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::time::{Instant, sleep};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_updates_fail_no_request_and_lose_no_event() -> Result<()> {
    let long = Duration::from_secs(number("RING_SECONDS", 8)?);
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let (began, mut rounds, mut ends) = (Instant::now(), 0, Vec::new());
    while rounds == 0 || began.elapsed() < long {
        let rolled = ring.controller.roll().await;
        ends.extend(rolled.with_context(|| ring.last_words())?);
        rounds += 1;
        sleep(Duration::from_millis(500)).await;
    }
    // Scale down to one and up again, as an autoscaler would.
    ring.controller.scale(1).await?;
    ring.controller.scale(wish.replicas).await?;
    let seconds = began.elapsed().as_secs();
    println!(
        "{rounds} rolling updates in {seconds} s; a pod's end: {}",
        Spread::of(ends)
    );
    judge(&ring, load, demanded(), &[], Vec::new()).await?;
    // A new replica is ready before it gets requests, and an old one has left before it ends, so no
    // replica should be removed by others.
    let removed = ring.said("removed from the ring")?;
    println!("removed from the ring by others: {removed}");
    let planned = demanded() == Demand::Honest || removed == 0;
    ensure!(planned, "{removed} replicas were taken for dead");
    Ok(())
}
