//! A right that was given or taken away is so at every replica, from the acknowledgement on: while
//! planes are handed over and replicas are killed, no answer rests on older roles.
//!
//! `RING_ROUNDS` sets how often a replica is killed, `RING_SEED` which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::dice::Dice;
use polyplane_tests::ring::everywhere::{Counts, Everywhere};
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Planes whose roles change at the same time.
const PLANES: usize = 4;
/// How long roles change around each kill.
const AROUND: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_older_than_the_last_acknowledged_change_of_a_role() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 2)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let admin = ring.controller.admin()?;
    let planes = make_planes(&admin, "p", PLANES).await?;
    let (counts, ended): (Arc<Counts>, Arc<AtomicBool>) = Default::default();
    let mut asking = JoinSet::new();
    for plane in Everywhere::of(&ring, &admin, planes, &counts) {
        let ended = Arc::clone(&ended);
        asking.spawn(async move { run(&plane, &ended).await });
    }
    let mut dice = Dice::new(number("RING_SEED", 1)?);
    for _ in 0..rounds {
        sleep(AROUND).await;
        let victim = dice.below(wish.replicas);
        ring.controller.kill(victim).await?;
        sleep(AROUND).await;
        ring.controller.restart(victim).await?;
    }
    sleep(AROUND).await;
    ended.store(true, Ordering::Relaxed);
    for asked in asking.join_all().await {
        asked.with_context(|| ring.last_words())?;
    }
    let [changes, answers, repeated] =
        [&counts.changes, &counts.answers, &counts.repeated].map(|one| one.load(Ordering::Relaxed));
    println!(
        "{rounds} kills, {changes} changes of roles, {answers} answers at all replicas, 0 stale; \
         {repeated} attempts were repeated"
    );
    ensure!(changes >= 20 * PLANES, "too few changes were acknowledged");
    ring.ensure_no_panic()
}

/// Gives and takes rights until the end; after each change asks every replica at once.
async fn run(plane: &Everywhere, ended: &AtomicBool) -> Result<()> {
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    let path = format!("{roles}/roles");
    plane.write(Method::POST, &path, &role).await?;
    let bindings = format!("{roles}/rolebindings");
    let jane = ("impersonate-user", "jane");
    let read = "/api/v1/namespaces/default/configmaps";
    let mut turns = 0..;
    while !ended.load(Ordering::Relaxed) {
        // A new name each time, so that a late attempt of an earlier turn cannot change this one.
        let name = format!("jane-{}", turns.next().unwrap_or(0));
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "User", "name": "jane"}]});
        plane.write(Method::POST, &bindings, &binding).await?;
        plane.expect(read, jane, 200, &[200, 403]).await?;
        let mine = format!("{bindings}/{name}");
        plane.write(Method::DELETE, &mine, &Value::Null).await?;
        plane.expect(read, jane, 403, &[200, 403]).await?;
    }
    Ok(())
}
