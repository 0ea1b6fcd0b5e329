//! Rolling updates in a loop under load: nobody notices.
//!
//! `RING_SECONDS` says how long (600 for the judged run); see `ring::judged` for the other numbers.
//! A run of which the length is given fails at the first request that was not answered. The short
//! one, which has to hold on any busy machine, prints them: replicas that get no processor for
//! longer than a member lease are removed from the ring, and then requests fail in honesty.

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
    // Down to one and up again, as an autoscaler would.
    ring.controller.scale(1).await?;
    ring.controller.scale(wish.replicas).await?;
    let seconds = began.elapsed().as_secs();
    println!(
        "{rounds} rolling updates in {seconds} s; a pod's end: {}",
        Spread::of(ends)
    );
    judge(&ring, load, demanded(), &[], Vec::new()).await?;
    // Whoever comes is there when it is asked for something, and whoever goes has left before.
    let removed = ring.said("removed from the ring")?;
    println!("removed from the ring by others: {removed}");
    let planned = demanded() == Demand::Honest || removed == 0;
    ensure!(planned, "{removed} replicas were taken for dead");
    Ok(())
}
