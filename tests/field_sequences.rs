//! Random sequences of applies, updates and patches by three managers, over all built-in kinds:
//! a plane answers as the reference does, managed fields included.
//!
//! `SEQUENCES` says how many (60), `SEQUENCES_SEED` the first one's seed (1), `SEQUENCES_KIND` the
//! only kind. `SEQUENCES_REFERENCE` and `SEQUENCES_SERVER` name kubeconfigs of servers that run
//! already. Without `SEQUENCES` the test does nothing if the reference is not built yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{Server, create_plane_without_controllers, has_reference};
use polyplane_tests::sequences::features::Tally;
use polyplane_tests::sequences::kinds::{self, Kind, LEFT_OUT};
use polyplane_tests::sequences::play::{ACCEPTED, Pair};
use polyplane_tests::sequences::reduce::reduce;
use polyplane_tests::sequences::sequence::Sequence;
use polyplane_tests::settings::number;
use tokio::sync::Mutex;

/// Sequences that are played side by side.
const AT_ONCE: u64 = 4;
/// Sequences from which each feature must be in [`SHARE`] of 100.
const COUNTED_FROM: u64 = 500;
/// The least number of 100 sequences that have each feature.
const SHARE: usize = 5;
/// Sequences that are made shorter and printed. One defect shows in many sequences.
const SHOWN: usize = 8;

/// What was found so far.
#[derive(Default)]
struct Found {
    tally: Tally,
    steps: usize,
    refused: usize,
    broken_off: usize,
    equal: u64,
    different: Vec<u64>,
}

/// Returns the servers and their endpoints; none for servers that run already.
async fn servers() -> Result<(Vec<Server>, Endpoint, Endpoint)> {
    let mut started = Vec::new();
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let reference = match of("SEQUENCES_REFERENCE") {
        Some(path) => Endpoint::from_kubeconfig(&path, None)?,
        None => {
            let server = Server::start_reference_alone().await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, None)?;
            started.push(server);
            endpoint
        }
    };
    let root = match of("SEQUENCES_SERVER") {
        Some(path) => Endpoint::from_kubeconfig(&path, Some("root"))?,
        None => {
            let server = Server::start().await?;
            let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, Some("root"))?;
            started.push(server);
            endpoint
        }
    };
    let name = format!("sequences-{}", std::process::id());
    let plane = create_plane_without_controllers(&root, &name).await?;
    Ok((started, reference, plane))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planes_answer_as_the_reference() -> Result<()> {
    let (count, first) = (number("SEQUENCES", 60)?, number("SEQUENCES_SEED", 1)?);
    let mut kinds = kinds::load()?;
    if let Ok(only) = std::env::var("SEQUENCES_KIND") {
        kinds.retain(|kind| kind.name == only);
        ensure!(!kinds.is_empty(), "no kind {only}");
    }
    for (kind, why) in LEFT_OUT {
        println!("left out: {kind}: {why}");
    }
    for (kind, place, why) in ACCEPTED {
        println!("accepted: {kind} {place}: {why}");
    }
    let must_run = std::env::var_os("SEQUENCES").is_some();
    if !must_run && !has_reference() {
        println!(
            "skipped: there is no kube-apiserver; SEQUENCES=60 builds it once, which needs Go"
        );
        return Ok(());
    }
    let (_servers, reference, plane) = servers().await?;
    let kinds = Arc::new(kinds);
    let found = Arc::new(Mutex::new(Found::default()));
    let next = Arc::new(AtomicU64::new(first));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..AT_ONCE {
        let pair = Pair::open(&reference, &plane, &format!("sequences-{worker}")).await?;
        let (kinds, found, next) = (Arc::clone(&kinds), Arc::clone(&found), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + count {
                    return anyhow::Ok(());
                }
                one(&pair, seed, &kinds, &found).await?;
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    report(&*found.lock().await, kinds.len(), first, count)
}

async fn one(pair: &Pair, seed: u64, kinds: &[Kind], found: &Mutex<Found>) -> Result<()> {
    let sequence = Sequence::of(seed, kinds);
    let played = pair.play(&sequence).await;
    let outcome = played.with_context(|| format!("seed {seed}, {}", sequence.kind))?;
    let shown = {
        let mut found = found.lock().await;
        found.tally.add(outcome.features);
        found.steps += outcome.sent;
        found.refused += outcome.refused;
        found.broken_off += usize::from(outcome.broken_off);
        match outcome.differences.is_empty() {
            true => {
                found.equal += 1;
                false
            }
            false => {
                found.different.push(seed);
                println!("seed {seed} differs: {}", sequence.kind);
                found.different.len() <= SHOWN
            }
        }
    };
    if shown {
        let (shorter, outcome) = reduce(pair, sequence, outcome).await?;
        let mut text = format!("# seed {seed}, {}, made shorter:\n", shorter.kind);
        for (at, step) in shorter.steps.iter().enumerate() {
            text.push_str(&format!("### step {at}\n{step}\n"));
        }
        for difference in &outcome.differences {
            text.push_str(&format!("{difference}\n"));
        }
        println!("{text}");
    }
    Ok(())
}

fn report(found: &Found, kinds: usize, first: u64, count: u64) -> Result<()> {
    println!(
        "sequences: {count} from seed {first} over {kinds} kinds, {} equal, {} different; {} steps, {} of them refused; {} ended by a panic of the reference",
        found.equal,
        found.different.len(),
        found.steps,
        found.refused,
        found.broken_off
    );
    println!("contain: {}", found.tally);
    ensure!(
        found.different.is_empty(),
        "different, by seed: {:?}",
        found.different
    );
    if count >= COUNTED_FROM {
        let rare = found.tally.rarer_than(SHARE);
        ensure!(
            rare.is_empty(),
            "in fewer than {SHARE} of 100 sequences: {rare:?}"
        );
    }
    Ok(())
}
