//! A kind is served from the moment that anybody sees its definition established: watchers at every
//! replica create an object as soon as the event arrives, while planes are handed over and replicas
//! are killed.
//!
//! `RING_ROUNDS` sets how often a replica is killed, `RING_SEED` which, `RING_CREATES` how many
//! creates there must be.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::dice::Dice;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::ring::everywhere::{Counts, Everywhere};
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Planes whose kinds come and go at the same time.
const PLANES: usize = 4;
/// How long kinds come and go around each kill.
const AROUND: Duration = Duration::from_secs(2);
/// Time between two attempts to watch.
const BETWEEN: Duration = Duration::from_millis(20);
/// Time within which all watchers see a definition; a kill is within it.
const SEEN_BY_ALL: Duration = Duration::from_secs(30);
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NAMESPACE: &str = "/apis/example.com/v1/namespaces/default";

/// What the watchers of all planes have done.
#[derive(Default)]
struct Watched {
    creates: AtomicUsize,
    refused: AtomicUsize,
    repeated: AtomicUsize,
    ended: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sees_a_kind_established_creates_at_once() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 2)?;
    let wanted: usize = number("RING_CREATES", 200)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let admin = ring.controller.admin()?;
    let planes = make_planes(&admin, "p", PLANES).await?;
    let (counts, watched): (Arc<Counts>, Arc<Watched>) = Default::default();
    let mut running = JoinSet::new();
    let replicas: Vec<Endpoint> = ring
        .controller
        .replicas
        .iter()
        .map(|replica| at_address(&admin, replica.pod.client()))
        .collect();
    for plane in Everywhere::of(&ring, &admin, planes, &counts) {
        let own: Arc<Vec<AtomicUsize>> =
            Arc::new(replicas.iter().map(|_| AtomicUsize::new(0)).collect());
        for (at, replica) in replicas.iter().enumerate() {
            let endpoint = replica.at_base_path(&format!("/clusters/{}", plane.plane));
            let (watched, own) = (Arc::clone(&watched), Arc::clone(&own));
            running.spawn(async move { watch(&endpoint, at, &own[at], &watched).await });
        }
        let watched = Arc::clone(&watched);
        running.spawn(async move { define(&plane, &own, &watched).await });
    }
    let mut dice = Dice::new(number("RING_SEED", 1)?);
    let mut kills = 0;
    while kills < rounds || watched.creates.load(Ordering::Relaxed) < wanted {
        sleep(AROUND).await;
        ensure_running(&mut running, &ring)?;
        if kills < rounds {
            let victim = dice.below(wish.replicas);
            ring.controller.kill(victim).await?;
            sleep(AROUND).await;
            ring.controller.restart(victim).await?;
            kills += 1;
        }
    }
    watched.ended.store(true, Ordering::Relaxed);
    while let Some(done) = running.join_next().await {
        done?.with_context(|| ring.last_words())?;
    }
    let [creates, refused, repeated] = [&watched.creates, &watched.refused, &watched.repeated]
        .map(|one| one.load(Ordering::Relaxed));
    println!(
        "{kills} kills, {creates} creates by watchers, {refused} refused; {repeated} attempts were repeated"
    );
    ensure!(refused == 0, "kinds that were seen are not served");
    ring.ensure_no_panic()
}

/// Returns the error of a task that has ended before its time.
fn ensure_running(running: &mut JoinSet<Result<()>>, ring: &Ring) -> Result<()> {
    match running.try_join_next() {
        None => Ok(()),
        Some(done) => {
            done?.with_context(|| ring.last_words())?;
            anyhow::bail!("a task has ended")
        }
    }
}

/// Defines kinds one after the other, and deletes each once the watchers of all replicas have
/// created an object of it.
async fn define(plane: &Everywhere, seen: &[AtomicUsize], watched: &Watched) -> Result<()> {
    let mut turn: usize = 0;
    while !watched.ended.load(Ordering::Relaxed) {
        turn += 1;
        let plural = format!("kinds{turn:06}");
        let definition = json!({"metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": plural, "kind": format!("Kind{turn}")},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        plane.write(Method::POST, DEFINITIONS, &definition).await?;
        let deadline = Instant::now() + SEEN_BY_ALL;
        while seen.iter().any(|seen| seen.load(Ordering::Relaxed) < turn) {
            ensure!(Instant::now() < deadline, "a watcher does not see {plural}");
            sleep(BETWEEN).await;
        }
        let path = format!("{DEFINITIONS}/{plural}.example.com");
        plane.write(Method::DELETE, &path, &Value::Null).await?;
    }
    Ok(())
}

/// Returns the number of a definition that is established and stays.
fn established(event: &Value) -> Option<usize> {
    let object = &event["object"];
    let conditions = object["status"]["conditions"].as_array()?;
    let mut conditions = conditions.iter();
    let is_so = conditions
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let stays = object["metadata"]["deletionTimestamp"].is_null();
    let plural = object["spec"]["names"]["plural"].as_str()?;
    let number = plural.strip_prefix("kinds")?.parse().ok()?;
    (is_so && stays).then_some(number)
}

/// Watches the definitions at one replica, and creates an object of each new kind at once, by the
/// connection of the watch. The watch begins anew at its last version when it ends.
async fn watch(
    endpoint: &Endpoint,
    at: usize,
    seen: &AtomicUsize,
    watched: &Watched,
) -> Result<()> {
    let mut from = 0;
    let mut done = BTreeSet::new();
    while !watched.ended.load(Ordering::Relaxed) {
        let client = Client::open(endpoint).await;
        let path = format!("{DEFINITIONS}?watch=1&timeoutSeconds=2&resourceVersion={from}");
        let Ok(client) = client else {
            sleep(BETWEEN).await;
            continue;
        };
        let Ok(mut events) = client.watch(&path).await else {
            sleep(BETWEEN).await;
            continue;
        };
        while let Ok(Some(event)) = events.next().await {
            if event["type"] == "ERROR" {
                from = 0;
                break;
            }
            let version = event["object"]["metadata"]["resourceVersion"].as_str();
            from = version.and_then(|text| text.parse().ok()).unwrap_or(from);
            let Some(number) = established(&event).filter(|_| event["type"] != "DELETED") else {
                continue;
            };
            if done.insert(number) {
                create(endpoint, &client, (number, at), watched).await?;
                seen.store(number, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Creates an object. What is not answered is sent again; 404 is the refusal that must not be.
async fn create(
    endpoint: &Endpoint,
    client: &Client,
    (number, at): (usize, usize),
    watched: &Watched,
) -> Result<()> {
    let path = format!("{NAMESPACE}/kinds{number:06}");
    let object = json!({"apiVersion": "example.com/v1", "kind": format!("Kind{number}"),
        "metadata": {"name": format!("by-{at}")}});
    let deadline = Instant::now() + SEEN_BY_ALL;
    let mut reply = client.post(&path, &object).await;
    loop {
        match reply.map(|reply| reply.status.as_u16()) {
            // A repeated attempt finds what the first one created.
            Ok(201 | 409) => {
                watched.creates.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Ok(408 | 429 | 500 | 502 | 503 | 504) | Err(_) => {}
            Ok(status) => {
                watched.refused.fetch_add(1, Ordering::Relaxed);
                anyhow::bail!(
                    "kind {number} was seen established at replica {at} and is refused: {status}"
                );
            }
        }
        ensure!(
            Instant::now() < deadline,
            "kind {number} is not created at replica {at}"
        );
        watched.repeated.fetch_add(1, Ordering::Relaxed);
        sleep(BETWEEN).await;
        reply = match Client::open(endpoint).await {
            Ok(client) => client.post(&path, &object).await,
            Err(error) => Err(error),
        };
    }
}
