//! A right that was given or taken away is so at every replica, from the acknowledgement on: while
//! planes are handed over and replicas are killed, no answer rests on older roles.
//!
//! `RING_ROUNDS` sets how often a replica is killed, `RING_SEED` which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use polyplane_tests::dice::Dice;
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Planes whose roles change at the same time.
const PLANES: usize = 4;
/// How long a request is repeated until it is answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts of a request.
const BETWEEN: Duration = Duration::from_millis(20);
/// How long roles change around each kill.
const AROUND: Duration = Duration::from_secs(2);

/// The numbers of all planes together.
#[derive(Default)]
struct Counts {
    changes: AtomicUsize,
    answers: AtomicUsize,
    repeated: AtomicUsize,
}

/// One plane, the balancer, and every replica.
struct Asker {
    plane: String,
    balancer: Arc<Pool>,
    replicas: Vec<Arc<Pool>>,
    counts: Arc<Counts>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_older_than_the_last_acknowledged_change_of_a_role() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 2)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let admin = ring.controller.admin()?;
    let planes = make_planes(&admin, "p", PLANES).await?;
    let replicas = ring.controller.replicas.iter();
    let replicas: Vec<_> = replicas
        .map(|replica| Pool::new(at_address(&admin, replica.pod.client()), 1))
        .collect();
    let (counts, ended): (Arc<Counts>, Arc<AtomicBool>) = Default::default();
    let mut asking = JoinSet::new();
    for plane in planes {
        let asker = Asker {
            plane,
            balancer: Pool::new(admin.clone(), 1),
            replicas: replicas.clone(),
            counts: Arc::clone(&counts),
        };
        let ended = Arc::clone(&ended);
        asking.spawn(async move { asker.run(&ended).await });
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

impl Asker {
    /// Gives and takes rights until the end; after each change asks every replica at once.
    async fn run(&self, ended: &AtomicBool) -> Result<()> {
        let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let role = json!({"metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
        self.write(Method::POST, &format!("{roles}/roles"), &role)
            .await?;
        let bindings = format!("{roles}/rolebindings");
        let mut turns = 0..;
        while !ended.load(Ordering::Relaxed) {
            // A new name each time, so that a late attempt of an earlier turn cannot change this one.
            let name = format!("jane-{}", turns.next().unwrap_or(0));
            let binding = json!({"metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                "subjects": [{"kind": "User", "name": "jane"}]});
            self.write(Method::POST, &bindings, &binding).await?;
            self.expect_everywhere(200).await?;
            let mine = format!("{bindings}/{name}");
            self.write(Method::DELETE, &mine, &Value::Null).await?;
            self.expect_everywhere(403).await?;
        }
        Ok(())
    }

    /// Sends a change until it is acknowledged. An attempt whose answer was lost may have been
    /// carried out, so a conflict on a repeated attempt acknowledges it.
    async fn write(&self, method: Method, path: &str, body: &Value) -> Result<()> {
        let done = match method {
            Method::POST => [200, 201, 409],
            _ => [200, 202, 404],
        };
        self.answered(&self.balancer, method, path, (body, None), &done)
            .await?;
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn expect_everywhere(&self, expected: u16) -> Result<()> {
        let path = "/api/v1/namespaces/default/configmaps";
        let asked = self.replicas.iter().map(|replica| async move {
            let ask = (&Value::Null, Some("jane"));
            let status = self
                .answered(replica, Method::GET, path, ask, &[200, 403])
                .await?;
            ensure!(
                status == expected,
                "{}: jane got {status} after {expected} was acknowledged",
                self.plane
            );
            self.counts.answers.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok(())
        });
        try_join_all(asked).await.map(drop)
    }

    /// Repeats a request until it gets one of these statuses.
    async fn answered(
        &self,
        pool: &Pool,
        method: Method,
        path: &str,
        (body, user): (&Value, Option<&str>),
        wanted: &[u16],
    ) -> Result<u16> {
        let path = format!("/clusters/{}{path}", self.plane);
        let repeating = async {
            loop {
                let mut request = pool.request(method.clone(), &path)?;
                if let Some(user) = user {
                    request = request.header("impersonate-user", user);
                }
                let bytes = match body {
                    Value::Null => Bytes::new(),
                    body => {
                        request = request.header("content-type", "application/json");
                        serde_json::to_vec(body)?.into()
                    }
                };
                let sent = pool.send(request.body(Full::new(bytes))?).await;
                if let Ok(answer) = sent {
                    let status = answer.status().as_u16();
                    let whole = answer.into_body().collect().await.is_ok();
                    if whole && wanted.contains(&status) {
                        return anyhow::Ok(status);
                    }
                    if whole && !matches!(status, 408 | 429 | 500 | 502 | 503 | 504) {
                        bail!("{method} {path}: {status}");
                    }
                }
                self.counts.repeated.fetch_add(1, Ordering::Relaxed);
                sleep(BETWEEN).await;
            }
        };
        let answered = timeout(PATIENCE, repeating).await;
        answered.with_context(|| format!("{path} is not answered"))?
    }
}
