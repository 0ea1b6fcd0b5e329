//! Replicas that stand still or are cut off, and come back: they write nothing and answer nothing
//! stale.
//!
//! `RING_ROUNDS` says how often each of the three happens (34 for the judged run). Needs root, for
//! the partitions.

use std::time::Duration;

use anyhow::{Context, Result};
use polyplane_tests::ring::judged::{Demand, Phase, judge, loaded, number, wished};
use polyplane_tests::ring::process::Told;
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::time::sleep;

/// How long a replica stands still or is cut off: longer than its member lease lives.
const AWAY: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_comes_back_writes_nothing_and_answers_nothing_stale() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 1)?;
    let wish = wished(Wish {
        parted: true,
        ..Wish::default()
    })?;
    let Some(mut ring) = Ring::start(&wish).await? else {
        return Ok(());
    };
    let load = loaded(&ring).await?;
    let (mut phases, mut gaps) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let victim = round % wish.replicas;
        for what in ["stopped", "cut from etcd", "cut from its peers"] {
            sleep(Duration::from_secs(2)).await;
            let from = load.now();
            begin(&mut ring, victim, what)?;
            // Clients whose connection leads to it wait until it is back.
            let back = async {
                sleep(AWAY).await;
                end(&mut ring, victim, what)
            };
            let (found, back) = tokio::join!(load.gaps(from), back);
            back?;
            gaps.extend(found.with_context(|| ring.last_words())?);
            sleep(Duration::from_secs(1)).await;
            phases.push(Phase {
                name: format!("{} {what}", ring.controller.replicas[victim].pod.name),
                from,
                to: load.now(),
            });
        }
        // Who lost its member key may have ended itself: its container is started again.
        ring.controller.revive(victim).await?;
    }
    judge(&ring, load, Demand::Honest, &phases, gaps).await
}

fn begin(ring: &mut Ring, victim: usize, what: &str) -> Result<()> {
    let own = ring.controller.replicas[victim].pod.address;
    let network = ring.network.as_mut().context("no network")?;
    match what {
        "stopped" => ring.controller.tell(victim, Told::Stand),
        "cut from etcd" => {
            let members = 0..ring.cluster.size();
            members
                .map(|member| ring.cluster.address(member))
                .try_for_each(|member| network.cut(own, member))
        }
        _ => {
            let peers = ring.controller.replicas.iter().map(|one| one.pod.address);
            let mut peers = peers.filter(|peer| *peer != own);
            peers.try_for_each(|peer| network.cut(own, peer))
        }
    }
}

fn end(ring: &mut Ring, victim: usize, what: &str) -> Result<()> {
    match what {
        "stopped" => ring.controller.tell(victim, Told::GoOn),
        _ => ring.network.as_mut().context("no network")?.heal(),
    }
}
