//! A token of a service account ends with what it rests on: once the deletion of the account, pod or
//! Secret is acknowledged, every replica refuses the token, while planes are handed over and replicas
//! are killed.
//!
//! `RING_ROUNDS` sets how often a replica is killed, `RING_SEED` which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::dice::Dice;
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::everywhere::{Counts, Everywhere};
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Planes whose tokens begin and end at the same time.
const PLANES: usize = 4;
/// How long tokens begin and end around each kill.
const AROUND: Duration = Duration::from_secs(2);
const NAMESPACE: &str = "/api/v1/namespaces/default";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_replica_accepts_a_token_after_the_end_of_what_it_rests_on() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 2)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    ring.plugin(&polyplane()?, &["ring", "--raise-floor"])
        .await?;
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
        "{rounds} kills, {changes} beginnings and ends, {answers} answers at all replicas, 0 stale; \
         {repeated} attempts were repeated"
    );
    ensure!(changes >= 20 * PLANES, "too few changes were acknowledged");
    ring.ensure_no_panic()
}

/// Makes tokens and ends what they rest on; asks every replica at once before and after.
async fn run(plane: &Everywhere, ended: &AtomicBool) -> Result<()> {
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = json!({"metadata": {"name": "accounts-read"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "system:serviceaccounts"}]});
    plane.write(Method::POST, bindings, &binding).await?;
    let read = format!("{NAMESPACE}/configmaps");
    let mut turns = 0..;
    while !ended.load(Ordering::Relaxed) {
        // A new name each time, so that a late attempt of an earlier turn cannot change this one.
        let turn = turns.next().unwrap_or(0_u32);
        let name = format!("account-{turn}");
        let account = json!({"metadata": {"name": name}});
        let accounts = format!("{NAMESPACE}/serviceaccounts");
        plane.write(Method::POST, &accounts, &account).await?;
        let (reference, path, object) = match turn % 3 {
            0 => (Value::Null, accounts.clone(), Value::Null),
            1 => (
                json!({"apiVersion": "v1", "kind": "Secret", "name": name}),
                format!("{NAMESPACE}/secrets"),
                account.clone(),
            ),
            _ => (
                json!({"apiVersion": "v1", "kind": "Pod", "name": name}),
                format!("{NAMESPACE}/pods"),
                json!({"metadata": {"name": name}, "spec": {"serviceAccountName": name,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "c", "image": "i"}]}}),
            ),
        };
        if !object.is_null() {
            plane.write(Method::POST, &path, &object).await?;
        }
        let request = json!({"spec": {"boundObjectRef": reference}});
        let tokens = format!("{accounts}/{name}/token");
        let answer = plane.ask(&tokens, &request).await?;
        let token = answer["status"]["token"].as_str().context("no token")?;
        let bearer = format!("Bearer {token}");
        let header = ("authorization", bearer.as_str());
        plane.expect(&read, header, 200, &[200, 401]).await?;
        let end = format!("{path}/{name}");
        plane.write(Method::DELETE, &end, &Value::Null).await?;
        plane.expect(&read, header, 401, &[200, 401]).await?;
    }
    Ok(())
}
