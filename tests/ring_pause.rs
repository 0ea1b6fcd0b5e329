//! Replicas that hang or are cut off, and return: they write nothing and answer nothing stale. A
//! replica that only etcd cannot reach forwards requests to the new owners of its planes.
//!
//! `RING_ROUNDS` sets how often each of the three faults happens (34 for the judged run). The test
//! needs root, for the partitions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyplane_tests::history::{ObjectName, Outcome, Refusal, Verb};
use polyplane_tests::ring::client::PlaneClient;
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::figures::Spread;
use polyplane_tests::ring::judged::{Demand, Phase, judge, loaded, number, wished};
use polyplane_tests::ring::load::Load;
use polyplane_tests::ring::process::Told;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long a replica hangs or is cut off: longer than its member key lasts.
const AWAY: Duration = Duration::from_secs(5);
/// The name of the fault in which peers can still help.
const FROM_ETCD: &str = "cut from etcd";
/// How long a replica is cut off from etcd alone.
const AWAY_FROM_ETCD: Duration = Duration::from_secs(10);
/// Time from the cut to the first requests through the replica. By then it may not answer any more,
/// and does not know yet that others own its planes.
const SENT_AFTER: Duration = Duration::from_secs(1);
/// The latest time of their answers, counted from the cut. Others answer them while the replica is
/// still cut off.
const ANSWERED_AFTER: Duration = Duration::from_secs(7);

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
        for what in ["stopped", FROM_ETCD, "cut from its peers"] {
            sleep(Duration::from_secs(2)).await;
            let from = load.now();
            begin(&mut ring, victim, what)?;
            let away = if what == FROM_ETCD {
                AWAY_FROM_ETCD
            } else {
                AWAY
            };
            let through = through(&ring, &load, round, what)?;
            // Clients that are connected to the replica wait until it is back or knows the new
            // owners.
            let back = async {
                sleep(away).await;
                end(&mut ring, victim, what)
            };
            let (found, through, back) = tokio::join!(load.gaps(from), through, back);
            back?;
            through.with_context(|| ring.last_words())?;
            gaps.extend(found.with_context(|| ring.last_words())?);
            sleep(Duration::from_secs(1)).await;
            phases.push(Phase {
                name: format!("{} {what}", ring.controller.replicas[victim].pod.name),
                from,
                to: load.now(),
            });
        }
        // A replica that lost its member key may have ended itself; its container is started again.
        ring.controller.revive(victim).await?;
    }
    judge(&ring, load, Demand::Honest, &phases, gaps).await
}

/// Sends a read and a write of every plane to a replica that is cut off from etcd; its peers have
/// to answer. Does nothing in other phases.
fn through(
    ring: &Ring,
    load: &Load,
    round: usize,
    what: &str,
) -> Result<impl Future<Output = Result<()>> + use<>> {
    let cut = Instant::now();
    let victim = round % ring.controller.replicas.len();
    let at = ring.controller.replicas[victim].pod.client();
    let pool = Pool::new(at_address(&ring.controller.admin()?, at), 2);
    let planes = match what {
        FROM_ETCD => load.plane_names(),
        _ => Vec::new(),
    };
    Ok(async move {
        sleep(SENT_AFTER).await;
        let mut asking = JoinSet::new();
        for (plane, id) in planes.iter().zip(0..) {
            // These requests are not part of the run's history, because their objects are not the
            // run's.
            let client = PlaneClient::new(id, plane, Arc::clone(&pool), Arc::default());
            asking.spawn(async move {
                let object: ObjectName = Arc::from(format!("through-{}", round));
                let listed = client.list().await?;
                ensure!(listed.is_ok(), "a list through it: {listed:?}");
                let written = client.operate(&object, Verb::Delete { over: None }).await?;
                let told = matches!(written, Outcome::Refused(Refusal::NotFound));
                ensure!(told, "a delete of nothing through it: {written:?}");
                let created = client
                    .operate(&object, Verb::Create(client.value()))
                    .await?;
                let told = matches!(created, Outcome::Object { .. });
                ensure!(told, "a create through it: {created:?}");
                anyhow::Ok(cut.elapsed())
            });
        }
        let mut took = Vec::new();
        for answered in asking.join_all().await {
            took.push(answered?);
        }
        let latest = took.iter().max().copied().unwrap_or_default();
        if !took.is_empty() {
            println!(
                "through the cut replica, since the cut: {}",
                Spread::of(took)
            );
        }
        ensure!(latest < ANSWERED_AFTER, "answered after {latest:?} only");
        Ok(())
    })
}

fn begin(ring: &mut Ring, victim: usize, what: &str) -> Result<()> {
    let own = ring.controller.replicas[victim].pod.address;
    let network = ring.network.as_mut().context("no network")?;
    match what {
        "stopped" => ring.controller.tell(victim, Told::Stand),
        FROM_ETCD => {
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
