//! A right to use a plane that was taken away is gone at every replica, from the acknowledgement on:
//! revoked users, removed grants and keys replaced at once, while replicas are killed.
//!
//! `RING_ROUNDS` sets how often a replica is killed, `RING_SEED` which.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use polyplane_tests::dice::Dice;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::load::make_planes;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Planes whose users change at the same time.
const PLANES: usize = 4;
/// How long a request is repeated until it is answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts of a request.
const BETWEEN: Duration = Duration::from_millis(20);
/// How long users change around each kill.
const AROUND: Duration = Duration::from_secs(4);
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const MASTERS: &str = "system:masters";

/// The numbers of all planes together.
#[derive(Default)]
struct Counts {
    taken: AtomicUsize,
    answers: AtomicUsize,
    repeated: AtomicUsize,
}

/// One plane, the balancer, and every replica as the root's administrator sees it.
struct Asker {
    plane: String,
    balancer: Arc<Pool>,
    replicas: Vec<(Endpoint, Arc<Pool>)>,
    folder: PathBuf,
    counts: Arc<Counts>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_uses_a_right_after_its_end_was_acknowledged() -> Result<()> {
    let rounds: usize = number("RING_ROUNDS", 2)?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    ring.plugin(&polyplane()?, &["ring", "--raise-floor"])
        .await?;
    let admin = ring.controller.admin()?;
    let planes = make_planes(&admin, "p", PLANES).await?;
    let replicas = ring.controller.replicas.iter();
    let replicas: Vec<_> = replicas
        .map(|replica| {
            let endpoint = at_address(&admin, replica.pod.client());
            (endpoint.clone(), Pool::new(endpoint, 1))
        })
        .collect();
    let (counts, ended): (Arc<Counts>, Arc<AtomicBool>) = Default::default();
    let folder = tempfile::tempdir()?;
    let mut asking = JoinSet::new();
    for plane in planes {
        let asker = Asker {
            folder: folder.path().join(&plane),
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
    let [taken, answers, repeated] =
        [&counts.taken, &counts.answers, &counts.repeated].map(|one| one.load(Ordering::Relaxed));
    println!(
        "{rounds} kills, {taken} rights taken away, {answers} answers at all replicas, 0 stale; \
         {repeated} attempts were repeated"
    );
    ensure!(taken >= 3 * PLANES, "too few changes were acknowledged");
    ring.ensure_no_panic()
}

impl Asker {
    /// Gives and takes rights until the end; after each change asks every replica at once.
    async fn run(&self, ended: &AtomicBool) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let binding = json!({"metadata": {"name": "dev"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "dev"}]});
        let bindings = format!(
            "/clusters/{}/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            self.plane
        );
        self.answered(
            &self.balancer,
            Method::POST,
            &bindings,
            &binding,
            &[201, 409],
        )
        .await?;
        let masters: Vec<_> = self.replicas.iter().map(|(_, pool)| pool.clone()).collect();
        let grant = json!([{"group": MASTERS, "groups": [MASTERS]}]);
        let mut turn = 0_u32;
        while !ended.load(Ordering::Relaxed) {
            turn += 1;
            let jane = self.user(&format!("jane-{turn}")).await?;
            self.expect(&jane, 200).await?;
            let user = json!([{"user": format!("jane-{turn}")}]);
            self.take(json!({"revoked": user})).await?;
            self.expect(&jane, 401).await?;

            self.take(json!({"grants": []})).await?;
            self.expect(&masters, 401).await?;
            self.change(json!({"grants": grant})).await?;
            self.expect(&masters, 200).await?;

            let joe = self.user(&format!("joe-{turn}")).await?;
            self.expect(&joe, 200).await?;
            self.take(json!({"keyGeneration": turn, "keyOverlapSeconds": 0}))
                .await?;
            self.expect(&joe, 401).await?;
        }
        Ok(())
    }

    /// Takes a right away, and returns once that is acknowledged.
    async fn take(&self, access: Value) -> Result<()> {
        self.change(access).await?;
        self.counts.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn change(&self, access: Value) -> Result<()> {
        let path = format!("{CONTROL_PLANES}/{}", self.plane);
        let body = json!({"spec": {"access": access}});
        self.answered(&self.balancer, Method::PATCH, &path, &body, &[200])
            .await
            .map(drop)
    }

    /// Returns the connections of a new user of the plane to each replica.
    async fn user(&self, name: &str) -> Result<Vec<Arc<Pool>>> {
        let key = rcgen::KeyPair::generate()?;
        let wanted =
            json!({"spec": {"user": name, "groups": ["dev"], "publicKey": key.public_key_pem()}});
        let path = format!("{CONTROL_PLANES}/{}/credentials", self.plane);
        let (_, issued) = self
            .answered(&self.balancer, Method::POST, &path, &wanted, &[201])
            .await?;
        let issued: Value = serde_json::from_slice(&issued)?;
        let certificate = issued["status"]["certificate"].as_str().unwrap_or_default();
        let config = json!({
            "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": STANDARD.encode(certificate)}}],
            "users": [{"name": "x", "user": {"client-certificate-data": STANDARD.encode(certificate),
                "client-key-data": STANDARD.encode(key.serialize_pem())}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x"
        });
        let file = self.folder.join("kubeconfig");
        std::fs::write(&file, config.to_string())?;
        let user = Endpoint::from_kubeconfig(&file, None)?;
        let endpoints = self
            .replicas
            .iter()
            .map(|(replica, _)| replica.for_user(&user));
        Ok(endpoints.map(|endpoint| Pool::new(endpoint, 1)).collect())
    }

    /// Asks all replicas at once.
    async fn expect(&self, pools: &[Arc<Pool>], expected: u16) -> Result<()> {
        let path = format!(
            "/clusters/{}/api/v1/namespaces/default/configmaps",
            self.plane
        );
        let asked = pools.iter().map(|pool| async {
            let wanted = [200, 401, 403];
            let (status, _) = self
                .answered(pool, Method::GET, &path, &Value::Null, &wanted)
                .await?;
            ensure!(
                status == expected,
                "{}: {status} after {expected} was acknowledged",
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
        body: &Value,
        wanted: &[u16],
    ) -> Result<(u16, Bytes)> {
        let repeating = async {
            loop {
                let mut request = pool.request(method.clone(), path)?;
                let bytes = match body {
                    Value::Null => Bytes::new(),
                    body => {
                        let kind = match method {
                            Method::PATCH => "application/merge-patch+json",
                            _ => "application/json",
                        };
                        request = request.header("content-type", kind);
                        serde_json::to_vec(body)?.into()
                    }
                };
                if let Ok(answer) = pool.send(request.body(Full::new(bytes))?).await {
                    let status = answer.status().as_u16();
                    if let Ok(body) = answer.into_body().collect().await {
                        let body = body.to_bytes();
                        if wanted.contains(&status) {
                            return anyhow::Ok((status, body));
                        }
                        if !matches!(status, 408 | 429 | 500 | 502 | 503 | 504) {
                            bail!("{method} {path}: {status} {body:?}");
                        }
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
