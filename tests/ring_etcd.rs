//! Three members of etcd fail in every possible way, under load: no acknowledged write is lost, and
//! the ring recovers without a restart.
//!
//! The test prints the failures that clients saw in each part. `ring::judged` describes the
//! settings.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::ring::judged::{Demand, Phase, judge, loaded, wished};
use polyplane_tests::ring::load::Load;
use polyplane_tests::ring::process::Told;
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::time::sleep;

/// One kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    LeaderKilled,
    FollowerKilled,
    MemberPaused,
    AllDown,
    NoSpace,
}

const ALL: [Failing; 5] = [
    Failing::LeaderKilled,
    Failing::FollowerKilled,
    Failing::MemberPaused,
    Failing::AllDown,
    Failing::NoSpace,
];
/// How long all members are down.
const DOWN: Duration = Duration::from_secs(10);
/// How long a single failure lasts.
const AWAY: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_members_of_etcd_lose_nothing() -> Result<()> {
    let wish = wished(Wish {
        members: 3,
        ..Wish::default()
    })?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let (mut phases, mut gaps) = (Vec::new(), Vec::new());
    for failing in ALL {
        sleep(Duration::from_secs(2)).await;
        let from = load.now();
        fail(&mut ring, failing).await?;
        ring.cluster.wait_ready().await?;
        let healed = load.now();
        let found = load.gaps(healed).await;
        gaps.extend(found.with_context(|| format!("{failing:?}\n{}", ring.last_words()))?);
        phases.push(phase(&load, failing, from));
        all_run(&mut ring)?;
    }
    judge(&ring, load, Demand::Honest, &phases, gaps).await
}

fn phase(load: &Load, failing: Failing, from: polyplane_tests::history::Moment) -> Phase {
    Phase {
        name: format!("{failing:?}"),
        from,
        to: load.now(),
    }
}

/// Checks that no replica has ended: recovery needs no restart.
fn all_run(ring: &mut Ring) -> Result<()> {
    for replica in &mut ring.controller.replicas {
        let runs = replica.runs()?;
        ensure!(runs, "{} ended: {}", replica.pod.name, replica.last_words());
    }
    Ok(())
}

async fn fail(ring: &mut Ring, failing: Failing) -> Result<()> {
    let cluster = &mut ring.cluster;
    let leader = cluster.leader().await?;
    let follower = (leader + 1) % cluster.size();
    match failing {
        Failing::LeaderKilled | Failing::FollowerKilled => {
            let victim = if failing == Failing::LeaderKilled {
                leader
            } else {
                follower
            };
            cluster.kill_member(victim).await?;
            sleep(AWAY).await;
            cluster.start_member(victim)
        }
        Failing::MemberPaused => {
            cluster.tell_member(leader, Told::Stand)?;
            sleep(AWAY).await;
            cluster.tell_member(leader, Told::GoOn)
        }
        Failing::AllDown => {
            for member in 0..cluster.size() {
                cluster.kill_member(member).await?;
            }
            sleep(DOWN).await;
            for member in 0..cluster.size() {
                cluster.start_member(member)?;
            }
            Ok(())
        }
        Failing::NoSpace => {
            cluster.alarm_no_space(true).await?;
            sleep(AWAY).await;
            cluster.alarm_no_space(false).await
        }
    }
}
