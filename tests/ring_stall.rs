//! Writes through living replicas while the owner of their plane hangs, and while its machine has
//! vanished: none waits longer than a member's TTL and half a second, none is repeated, and no
//! acknowledged one is lost.
//!
//! `RING_ROUNDS` sets how often each of the two faults happens. The test needs root, for the
//! machine that vanishes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::connection::Connection;
use polyplane_tests::history::{ObjectName, Outcome, PlaneName, Verb};
use polyplane_tests::kubeconfig::{Caller, Protocol};
use polyplane_tests::programs::ask;
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::client::{PREFIX, PlaneClient};
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::process::Told;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use polyplane_tests::ring::stalls::Stalls;
use serde_json::Value as Json;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, sleep_until, timeout};

/// The default TTL of member keys.
const MEMBER_TTL: Duration = Duration::from_secs(3);
/// The longest wait of a write, not counting time in which this machine ran no process.
const LONGEST: Duration = MEMBER_TTL.saturating_add(Duration::from_millis(500));
/// How long the owner is away: longer than any write may wait for another owner.
const AWAY: Duration = Duration::from_secs(6);
/// How long writes continue before and after the fault.
const AROUND: Duration = Duration::from_secs(1);
/// Interval of writes to a plane through one replica, whether answered or not.
const EVERY: Duration = Duration::from_millis(50);
/// Planes of the owner that get writes.
const PLANES: usize = 2;
/// How long a plane may take to move to the owner that the test chose.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// The fault of the owner.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The owner's process gets SIGSTOP: the system still accepts packets.
    Stopped,
    /// Every packet from and to its machine is dropped.
    Vanished,
}

/// A write and its outcome.
struct Write {
    plane: PlaneName,
    object: ObjectName,
    sent: Instant,
    took: Duration,
    outcome: Outcome,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_through_a_living_replica_waits_no_longer_than_the_ttl_and_half_a_second()
-> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 1)?;
    let wish = wished(Wish {
        parted: true,
        ..Wish::default()
    })?;
    let Some(mut ring) = Ring::start(&wish).await? else {
        return Ok(());
    };
    let mut names = make_planes(&ring.controller.admin()?, "p", 4 * wish.replicas).await?;
    let (stalls, mut wrong) = (Stalls::default(), Vec::new());
    for round in 0..rounds {
        for fault in [Fault::Stopped, Fault::Vanished] {
            let victim = round % wish.replicas;
            let planes = owned(&ring, victim, &mut names)
                .await
                .with_context(|| ring.last_words())?;
            let run = run(&mut ring, victim, &planes, fault, round).await;
            let (began, writes) = run.with_context(|| ring.last_words())?;
            ring.controller.revive(victim).await?;
            if let Err(error) = judge(&ring, fault, began, &writes, &stalls).await {
                wrong.push(format!("{fault:?}, round {round}: {error:#}"));
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "{}\n{}",
        wrong.join("\n"),
        ring.last_words()
    );
    Ok(())
}

/// Waits until a replica owns enough awake planes, and returns them. Hashing a plane's random id
/// decides where it belongs, so planes are made until enough belong to the replica.
async fn owned(ring: &Ring, victim: usize, names: &mut Vec<String>) -> Result<Vec<String>> {
    let pod = &ring.controller.replicas[victim].pod;
    let admin = ring.controller.admin()?;
    let at = at_address(&admin, pod.client());
    let connection = Connection::open(&at, Caller::Admin, Protocol::Http2).await?;
    let get = async |path: String| connection.send(ask(Method::GET, &path, &Json::Null)).await;
    let last = Cell::new((0, 0));
    let search = async {
        loop {
            let (mut designated, mut owned) = (0, Vec::new());
            for name in names.iter() {
                get(format!(
                    "/clusters/{name}/api/v1/namespaces/default/configmaps"
                ))
                .await?;
                let found = get(format!("/polyplane/locate/{name}")).await?;
                let found: Json = serde_json::from_slice(&found.body)?;
                if found["designated"] == *pod.name {
                    designated += 1;
                    owned.extend((found["owner"] == *pod.name).then(|| name.clone()));
                }
            }
            last.set((designated, owned.len()));
            if owned.len() >= PLANES {
                owned.truncate(PLANES);
                return anyhow::Ok(owned);
            }
            if designated < PLANES {
                let prefix = format!("after-{}-", names.len());
                names.extend(make_planes(&admin, &prefix, PLANES).await?);
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let found = timeout(SETTLE_LIMIT, search).await;
    found.with_context(|| {
        let (designated, owned) = last.get();
        format!(
            "of {} planes {designated} belong to {} and {owned} are there, not {PLANES}",
            names.len(),
            pod.name
        )
    })?
}

/// Writes to planes through every replica but their owner, which is away for a while. Returns the
/// moment at which it went away, and all writes.
async fn run(
    ring: &mut Ring,
    victim: usize,
    planes: &[String],
    fault: Fault,
    round: usize,
) -> Result<(Instant, Vec<Write>)> {
    let admin = ring.controller.admin()?;
    let until = Instant::now() + AROUND + AWAY + AROUND;
    let mut writing = JoinSet::new();
    for (place, replica) in ring.controller.replicas.iter().enumerate() {
        if place == victim {
            continue;
        }
        let pool = Pool::new(at_address(&admin, replica.pod.client()), 2);
        for (plane, id) in planes.iter().zip(0..) {
            let client = PlaneClient::new(id, plane, Arc::clone(&pool), Arc::default());
            let prefix = format!("{PREFIX}{fault:?}-{round}-{place}").to_lowercase();
            writing.spawn(write(client, prefix, until));
        }
    }
    sleep(AROUND).await;
    let began = Instant::now();
    let before = Said::of(ring)?;
    begin(ring, victim, fault)?;
    before.told(ring, began).await?;
    sleep_until((began + AWAY).into()).await;
    match fault {
        Fault::Stopped => ring.controller.tell(victim, Told::GoOn)?,
        Fault::Vanished => ring.network.as_mut().context("no network")?.heal()?,
    }
    let mut writes = Vec::new();
    for written in writing.join_all().await {
        writes.extend(written?);
    }
    Ok((began, writes))
}

/// The numbers of log lines about the faults so far.
struct Said([usize; 2]);

impl Said {
    const WORDS: [&str; 2] = ["was removed from the ring", "took a control plane"];

    fn of(ring: &Ring) -> Result<Self> {
        let mut said = Self([0; 2]);
        for (count, words) in said.0.iter_mut().zip(Self::WORDS) {
            *count = ring.said(words)?;
        }
        Ok(said)
    }

    /// Prints when each of the lines appears again, which shows the reader how the time is spent.
    async fn told(&self, ring: &Ring, began: Instant) -> Result<()> {
        for (count, words) in self.0.iter().zip(Self::WORDS) {
            while ring.said(words)? == *count && began.elapsed() < AWAY {
                sleep(Duration::from_millis(10)).await;
            }
            println!("after {} ms: {words}", began.elapsed().as_millis());
        }
        Ok(())
    }
}

fn begin(ring: &mut Ring, victim: usize, fault: Fault) -> Result<()> {
    let own = ring.controller.replicas[victim].pod.address;
    let network = ring.network.as_mut().context("no network")?;
    match fault {
        Fault::Stopped => ring.controller.tell(victim, Told::Stand),
        Fault::Vanished => {
            let replicas = ring.controller.replicas.iter().map(|one| one.pod.address);
            let members = (0..ring.cluster.size()).map(|member| ring.cluster.address(member));
            let mut others: Vec<_> = replicas.chain(members).filter(|one| *one != own).collect();
            others.push(network.own());
            others.into_iter().try_for_each(|one| network.cut(own, one))
        }
    }
}

/// Creates one object after another, each at its time, and waits for all answers.
async fn write(client: PlaneClient, prefix: String, until: Instant) -> Result<Vec<Write>> {
    let mut turns = interval(EVERY);
    let mut under_way = JoinSet::new();
    for count in 0.. {
        turns.tick().await;
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        let object: ObjectName = Arc::from(format!("{prefix}-{count}"));
        let client = client.clone();
        under_way.spawn(async move {
            let verb = Verb::Create(client.value());
            let outcome = client.operate(&object, verb).await?;
            anyhow::Ok(Write {
                plane: client.plane.clone(),
                object,
                sent,
                took: sent.elapsed(),
                outcome,
            })
        });
    }
    under_way.join_all().await.into_iter().collect()
}

/// Prints how long writes took, and compares them with the limit and with the objects in their
/// planes.
async fn judge(
    ring: &Ring,
    fault: Fault,
    began: Instant,
    writes: &[Write],
    stalls: &Stalls,
) -> Result<()> {
    let answered = |write: &&Write| matches!(write.outcome, Outcome::Object { .. });
    let mut others = BTreeMap::<String, usize>::new();
    for write in writes.iter().filter(|write| !answered(write)) {
        *others.entry(format!("{:?}", write.outcome)).or_default() += 1;
    }
    let since = |at: Instant| at.saturating_duration_since(began).as_millis();
    let longest = writes.iter().max_by_key(|write| write.took);
    let longest = longest.context("nothing was written")?;
    let ends = writes
        .iter()
        .filter(answered)
        .map(|one| one.sent + one.took);
    let mut ends: Vec<Instant> = ends.collect();
    ends.sort();
    let gaps = ends.windows(2).map(|pair| (pair[1] - pair[0], pair[1]));
    let (gap, back) = gaps.max().context("nothing was answered")?;
    println!(
        "{fault:?}: {} writes, {} answered, others {others:?}; longest wait {} ms, sent after {} ms; \
         nothing answered for {} ms, until {} ms; the machine stood for {} ms",
        writes.len(),
        ends.len(),
        longest.took.as_millis(),
        since(longest.sent),
        gap.as_millis(),
        since(back),
        stalls.within(began, began + AWAY).as_millis(),
    );
    // A create of a new name is refused only if it was carried out twice.
    let refused = |write: &&Write| matches!(write.outcome, Outcome::Refused(_) | Outcome::Deleted);
    let repeated = writes.iter().filter(refused).count();
    ensure!(repeated == 0, "{repeated} writes were repeated: {others:?}");
    let mut planes = BTreeMap::<PlaneName, BTreeSet<ObjectName>>::new();
    for write in writes.iter().filter(answered) {
        let acknowledged = planes.entry(write.plane.clone()).or_default();
        acknowledged.insert(write.object.clone());
    }
    let pool = Pool::new(ring.controller.admin()?, 1);
    for (plane, acknowledged) in &planes {
        let client = PlaneClient::new(0, plane, Arc::clone(&pool), Arc::default());
        let listed = client.list().await?;
        let listed = listed.map_err(|failure| anyhow::anyhow!("no list of {plane}: {failure}"))?;
        let there: BTreeSet<ObjectName> = listed.items.into_keys().collect();
        let lost: Vec<_> = acknowledged.difference(&there).collect();
        ensure!(lost.is_empty(), "{plane} lost {lost:?}");
    }
    for write in writes {
        let stood = stalls.within(write.sent, write.sent + write.took);
        ensure!(
            write.took <= LONGEST + stood,
            "{} in {} was sent after {} ms and took {:?}, {stood:?} of it without a machine: {:?}",
            write.object,
            write.plane,
            since(write.sent),
            write.took,
            write.outcome,
        );
    }
    Ok(())
}
