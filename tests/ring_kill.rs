//! Repeated kill -9 of a replica under load: no acknowledged write is lost.
//!
//! `RING_ROUNDS` sets the number of rounds (100 for the judged run); `ring::judged` describes the
//! other settings.

use std::time::Duration;

use anyhow::{Context, Result};
use polyplane_tests::dice::Dice;
use polyplane_tests::ring::judged::{Demand, judge, loaded, number, wished};
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::time::sleep;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replicas_lose_nothing_and_answer_nothing_stale() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 3)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let mut gaps = Vec::new();
    let mut dice = Dice::new(number("RING_SEED", 1)?);
    for round in 0..rounds {
        sleep(Duration::from_secs(2)).await;
        let victim = dice.below(wish.replicas);
        let fault = load.now();
        ring.controller.kill(victim).await?;
        let found = load.gaps(fault).await;
        gaps.extend(found.with_context(|| ring.last_words())?);
        let restarted = ring.controller.restart(victim).await;
        restarted.with_context(|| format!("round {round}"))?;
    }
    sleep(Duration::from_secs(2)).await;
    println!("{rounds} kills");
    judge(&ring, load, Demand::Honest, &[], gaps).await
}
