//! A rolling upgrade to a release with another layer, back before the floor rises, and up again,
//! under load. Then the floor rises, planes step to the new layer, and the old release cannot join
//! any more.
//!
//! The new release is `next_release.rs`. Another test alternates this release with the one named in
//! `fixtures/tagged-release` (see `tagged-binary`). `RING_SECONDS` sets how long each release is
//! under load (2 by default); if it is set, one request without an answer fails the run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_batteries::bootstrap::LEVEL;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::programs::{create_plane, next_release, polyplane, tagged_release};
use polyplane_tests::ring::client::pool::Pool;
use polyplane_tests::ring::collection::{Collection, Told, ask};
use polyplane_tests::ring::figures::Spread;
use polyplane_tests::ring::judged::{Demand, demanded, judge, loaded, number, wished};
use polyplane_tests::ring::process::Launch;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
/// The number of roles that only the new release has: `next:reader` and the numbered ones.
const NEW_ROLES: usize = 301;
/// Planes with watches, beside those of the load.
const WATCHED: usize = 3;
/// How long planes may take to step to a layer.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Held by one test at a time, because pods have the same addresses in every ring.
static ONE_RING: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_goes_forth_and_back_and_forth_and_then_stays() -> Result<()> {
    let _only = ONE_RING.lock().await;
    let kept = Duration::from_secs(number("RING_SECONDS", 2)?);
    let (old, new) = (polyplane()?, next_release()?);
    let mut ring = Ring::start(&wished(Wish::default())?)
        .await?
        .context("no ring")?;
    let load = loaded(&ring).await?;
    let scene = Scene::set(&ring.controller.admin()?).await?;

    roll(&mut ring, &new, "up").await?;
    create_plane(&scene.root, "between").await?;
    sleep(kept).await;
    scene.nothing_has_changed().await?;
    let mut large = vec![Large::create(&scene.root, "between").await?];
    roll(&mut ring, &old, "back").await?;
    large[0].is_served(&scene.root).await?;
    sleep(kept).await;
    scene.nothing_has_changed().await?;
    roll(&mut ring, &new, "up again").await?;
    sleep(kept).await;
    scene.nothing_has_changed().await?;

    let began = Instant::now();
    let raised = ring.plugin(&new, &["ring", "--raise-floor"]).await?;
    println!("{raised}");
    let took = scene.until_stepped(&load.plane_names(), began).await?;
    println!(
        "from the command to the new layer, awake planes: {}",
        Spread::of(took)
    );
    let woken = ["asleep", "between", "root"].map(str::to_owned);
    let took = scene.until_stepped(&woken, Instant::now()).await?;
    println!(
        "from the first request, of planes that slept: {}",
        Spread::of(took)
    );
    // The store's level has risen, so this one is packed. Its plane then goes from owner to owner.
    create_plane(&scene.root, "after").await?;
    large.push(Large::create(&scene.root, "after").await?);
    roll(&mut ring, &new, "once more").await?;
    for large in &large {
        large.is_served(&scene.root).await?;
    }
    scene.judge().await?;
    stays_out(&ring, &old).await?;
    judge(&ring, load, demanded(), &[], Vec::new()).await
}

/// A ring of the tagged release is updated to this one, back, and to this one again. In between,
/// this release must not write or send anything that the tagged release cannot read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tagged_release_and_this_one_follow_each_other() -> Result<()> {
    let _only = ONE_RING.lock().await;
    let kept = Duration::from_secs(number("RING_SECONDS", 2)?);
    let (old, new) = (tagged_release()?, polyplane()?);
    let wish = Wish {
        program: Some(old.clone()),
        ..Wish::default()
    };
    let mut ring = Ring::start(&wished(wish)?).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let root = ring.controller.admin()?;
    let mut large = Vec::new();
    for (program, what) in [
        (&new, "to this release"),
        (&old, "back to the tagged one"),
        (&new, "to this release again"),
    ] {
        roll(&mut ring, program, what).await?;
        // The other release must serve planes that this one creates.
        let plane = format!("made-{}", what.replace(' ', "-"));
        create_plane(&root, &plane).await?;
        large.push(Large::create(&root, &plane).await?);
        for large in &large {
            large.is_served(&root).await.context(what)?;
        }
        sleep(kept).await;
    }
    judge(&ring, load, demanded(), &[], Vec::new()).await
}

/// If an owner dies in the middle of a step, the plane's next owner finishes the step, and the
/// plane's watches resume where they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planes_come_to_the_layer_although_their_owners_die() -> Result<()> {
    let _only = ONE_RING.lock().await;
    let new = next_release()?;
    let wish = wished(Wish::default())?;
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let load = loaded(&ring).await?;
    let scene = Scene::set(&ring.controller.admin()?).await?;
    roll(&mut ring, &new, "up").await?;
    ring.plugin(&new, &["ring", "--raise-floor"]).await?;
    let began = Instant::now();
    let mut gaps = Vec::new();
    for victim in 0..wish.replicas {
        // Steps begin one second after the floor has risen or a plane has woken.
        sleep(Duration::from_millis(1050)).await;
        let fault = load.now();
        ring.controller.kill(victim).await?;
        let found = load.gaps(fault).await;
        gaps.extend(found.with_context(|| ring.last_words())?);
        let restarted = ring.controller.restart(victim).await;
        restarted.with_context(|| ring.last_words())?;
    }
    let took = scene.until_stepped(&load.plane_names(), began).await?;
    println!(
        "{} kills; from the command to the new layer: {}",
        wish.replicas,
        Spread::of(took)
    );
    scene.judge().await?;
    judge(&ring, load, Demand::Honest, &[], gaps).await
}

/// A ConfigMap so large that releases which can do so pack it in the store.
struct Large {
    path: String,
    made: Json,
}

impl Large {
    async fn create(root: &Endpoint, plane: &str) -> Result<Self> {
        let pool = Pool::new(root.clone(), 1);
        let maps = of(plane, "/api/v1/namespaces/default/configmaps");
        let data = json!({"text": "a line that is there often\n".repeat(2000)});
        let body = json!({"metadata": {"name": "large"}, "data": data});
        let (status, made) = ask(&pool, Method::POST, &maps, &body).await?;
        ensure!(status == 201, "{maps}: {status} {made}");
        let path = format!("{maps}/large");
        Ok(Self { path, made })
    }

    /// Checks that it is served as it was made.
    async fn is_served(&self, root: &Endpoint) -> Result<()> {
        let pool = Pool::new(root.clone(), 1);
        let (status, read) = ask(&pool, Method::GET, &self.path, &Json::Null).await?;
        ensure!(
            status == 200 && read == self.made,
            "{}: {status}",
            self.path
        );
        Ok(())
    }
}

/// Does a rolling update to a program.
async fn roll(ring: &mut Ring, program: &Path, what: &str) -> Result<()> {
    ring.program.becomes(program.to_owned());
    let rolled = ring.controller.roll().await;
    let ends = rolled.with_context(|| ring.last_words())?;
    println!("{what}: a pod's end: {}", Spread::of(ends));
    Ok(())
}

/// Checks that the old release refuses to start and gives the reason.
async fn stays_out(ring: &Ring, old: &Path) -> Result<()> {
    let certs = ring.folder().join("certs");
    let launch = Launch::of(old)
        .with(["serve", "--store", &ring.cluster.url()])
        .with(["--certs", &certs.to_string_lossy()])
        .with(["--replica-id", "late", "--advertise", "127.78.0.1:7443"])
        .with([
            "--listen",
            "127.78.0.1:6443",
            "--peer-listen",
            "127.78.0.1:7443",
        ]);
    let ended = tokio::time::timeout(Duration::from_secs(20), launch.command(None).output());
    let output = ended.await.context("the old release runs on")??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("the old release: {}", said.trim());
    let (next, own) = (LEVEL + 1, LEVEL);
    let reason = format!("the store is at level {next}, but this program knows level {own} only");
    ensure!(
        !output.status.success() && said.contains(&reason),
        "it says {said:?}"
    );
    Ok(())
}

/// Planes with watches, and with objects of their own in place of a layer's.
struct Scene {
    root: Endpoint,
    pool: Arc<Pool>,
    watches: Vec<(String, [Collection; 3])>,
    deleted: Json,
}

impl Scene {
    async fn set(root: &Endpoint) -> Result<Self> {
        let pool = Pool::new(root.clone(), 4);
        let mut watches = Vec::new();
        for at in 0..WATCHED {
            let name = format!("watched-{at}");
            create_plane(root, &name).await?;
            let collections = [ROLES, BINDINGS, FLOWS];
            let mut started = Vec::new();
            for path in collections {
                started.push(Collection::start(&pool, &of(&name, path)).await?);
            }
            let started = <[Collection; 3]>::try_from(started).ok().context("three")?;
            watches.push((name, started));
        }
        create_plane(root, "asleep").await?;
        let mut scene = Self {
            root: root.clone(),
            pool,
            watches,
            deleted: Json::Null,
        };
        scene.own_objects().await?;
        Ok(scene)
    }

    /// Makes objects in the first plane that the user has changed, deleted, or created before the
    /// layer does.
    async fn own_objects(&mut self) -> Result<()> {
        let role = |name: &str| of("watched-0", &format!("{ROLES}/{name}"));
        let label = json!({"metadata": {"labels": {"mine": "1"}}});
        self.done(Method::PATCH, &role("system:kube-aggregator"), &label)
            .await?;
        let opt_out = json!({"metadata": {"annotations": {
            "rbac.authorization.kubernetes.io/autoupdate": "false",
        }}});
        self.done(
            Method::PATCH,
            &role("system:node-problem-detector"),
            &opt_out,
        )
        .await?;
        self.deleted = self
            .done(Method::GET, &role("system:discovery"), &Json::Null)
            .await?;
        self.done(Method::DELETE, &role("system:discovery"), &Json::Null)
            .await?;
        let own = json!({"metadata": {"name": "next:reader"}, "rules": [
            {"verbs": ["list"], "apiGroups": ["mine"], "resources": ["things"]},
        ]});
        self.done(Method::POST, &of("watched-0", ROLES), &own)
            .await?;
        let own_flow = json!({"metadata": {"annotations": {
            "apf.kubernetes.io/autoupdate-spec": "false",
        }}});
        let flow = of("watched-0", &format!("{FLOWS}/probes"));
        self.done(Method::PATCH, &flow, &own_flow).await?;
        Ok(())
    }

    async fn done(&self, method: Method, path: &str, body: &Json) -> Result<Json> {
        let (status, answer) = ask(&self.pool, method.clone(), path, body).await?;
        ensure!(status < 300, "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    async fn get(&self, plane: &str, path: &str) -> Result<Json> {
        self.done(Method::GET, &of(plane, path), &Json::Null).await
    }

    /// Checks that no plane shows anything of the new layer, not even one created by the new
    /// release.
    async fn nothing_has_changed(&self) -> Result<()> {
        let names = self.watches.iter().map(|(name, _)| name.as_str());
        for plane in names.skip(1).chain(["between"]) {
            let list = self.get(plane, ROLES).await?;
            ensure!(new_roles(&list) == 0, "{plane} has roles of the new layer");
            let probes = self.get(plane, &format!("{FLOWS}/probes")).await?;
            ensure!(
                probes["spec"]["matchingPrecedence"] == 2,
                "{plane}: {probes}"
            );
        }
        let births = "/apis/polyplane.dev/v1alpha1/controlplanes";
        let born = |name: &str| format!("{births}/{name}");
        let between = self.get("root", &born("between")).await?;
        let asleep = self.get("root", &born("asleep")).await?;
        let (a, b) = (&between["status"]["birth"], &asleep["status"]["birth"]);
        ensure!(
            a["layer"] == b["layer"],
            "born with the new layer: {a}, {b}"
        );
        Ok(())
    }

    /// Waits until planes show the whole new layer; returns how long after `began` each did.
    async fn until_stepped(&self, extra: &[String], began: Instant) -> Result<Vec<Duration>> {
        let watched = self.watches.iter().map(|(name, _)| name);
        let names: Vec<&String> = match extra.iter().any(|name| name == "asleep") {
            true => extra.iter().collect(),
            false => watched.chain(extra).collect(),
        };
        let mut took = Vec::new();
        for plane in names {
            loop {
                let list = self.get(plane, ROLES).await?;
                if new_roles(&list) >= NEW_ROLES {
                    took.push(began.elapsed());
                    break;
                }
                let many = new_roles(&list);
                ensure!(
                    began.elapsed() < STEP_LIMIT,
                    "{plane} has {many} new roles only"
                );
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(took)
    }

    /// Checks that each watch got each change once, and that the user's own objects followed their
    /// rules.
    async fn judge(mut self) -> Result<()> {
        let watches = std::mem::take(&mut self.watches);
        let (mut events, mut resumed) = (0, 0);
        for (at, (plane, collections)) in watches.into_iter().enumerate() {
            let mut told = Vec::new();
            for collection in collections {
                told.push(collection.finish().await.with_context(|| plane.clone())?);
            }
            for one in &told {
                ensure!(one.errors.is_empty(), "{plane}: {:?}", one.errors);
            }
            events += told.iter().map(|told| told.events.len()).sum::<usize>();
            resumed += told.iter().map(|told| told.resumed).sum::<usize>();
            match at {
                0 => own_changes(&told)?,
                _ => plain_changes(&plane, &told)?,
            }
        }
        println!(
            "watches: {events} events, each once and in order; taken up again {resumed} times"
        );
        self.own_objects_followed().await
    }

    async fn own_objects_followed(&self) -> Result<()> {
        let role = async |name: &str| self.get("watched-0", &format!("{ROLES}/{name}")).await;
        let has = |role: &Json, group: &str| {
            let mut rules = role["rules"].as_array().into_iter().flatten();
            rules.any(|rule| rule["apiGroups"][0] == group)
        };
        let labelled = role("system:kube-aggregator").await?;
        ensure!(
            labelled["metadata"]["labels"]["mine"] == "1" && has(&labelled, "next.example"),
            "{labelled}"
        );
        // What a newer layer merges belongs to the creator of the layer's object.
        let owners = |role: &Json| -> Vec<String> {
            let entries = role["metadata"]["managedFields"].as_array();
            let entries = entries.into_iter().flatten();
            let owns_rules = entries.filter(|entry| !entry["fieldsV1"]["f:rules"].is_null());
            owns_rules
                .map(|entry| entry["manager"].to_string())
                .collect()
        };
        ensure!(
            owners(&labelled) == ["\"kube-apiserver\""],
            "{:?}: {labelled}",
            owners(&labelled)
        );
        let opted_out = role("system:node-problem-detector").await?;
        ensure!(
            !has(&opted_out, "next.example"),
            "who opted out gained a rule"
        );
        let back = role("system:discovery").await?;
        ensure!(back["rules"] == self.deleted["rules"], "{back}");
        ensure!(
            back["metadata"]["uid"] != self.deleted["metadata"]["uid"],
            "the same uid again"
        );
        let own = role("next:reader").await?;
        ensure!(has(&own, "mine") && has(&own, "next.example"), "{own}");
        let probes = self.get("watched-0", &format!("{FLOWS}/probes")).await?;
        ensure!(
            probes["spec"]["matchingPrecedence"] == 2,
            "who opted out was changed"
        );
        Ok(())
    }
}

/// Checks that a watch got exactly these events of an object.
fn only(plane: &str, told: &Told, name: &str, wanted: &[&str]) -> Result<()> {
    let events = told.of(name);
    ensure!(events == wanted, "{plane}: {name} was {events:?}");
    Ok(())
}

/// Checks the events of a plane without objects of its own.
fn plain_changes(plane: &str, told: &[Told]) -> Result<()> {
    let [roles, bindings, flows] = told else {
        anyhow::bail!("three collections");
    };
    let gone = "system:kube-dns";
    only(plane, roles, "system:kube-aggregator", &["MODIFIED"])?;
    only(plane, roles, "system:node-problem-detector", &["MODIFIED"])?;
    only(plane, roles, gone, &["DELETED"])?;
    let added = roles.events.iter().filter(|event| event.kind == "ADDED");
    let (added, all) = (added.count(), roles.events.len());
    ensure!(
        added == NEW_ROLES && all == added + 3,
        "{plane}: {added} of {all} events"
    );
    only(
        plane,
        bindings,
        "system:public-info-viewer",
        &["DELETED", "ADDED"],
    )?;
    let both = bindings.events.iter();
    let both = both.filter(|event| event.name == "system:public-info-viewer");
    let uids: Vec<&str> = both.map(|event| event.uid.as_str()).collect();
    ensure!(
        uids[0] != uids[1],
        "{plane}: another binding with the same uid"
    );
    only(plane, bindings, gone, &["DELETED"])?;
    ensure!(bindings.events.len() == 3, "{plane}: {:?}", bindings.events);
    only(plane, flows, "probes", &["MODIFIED"])?;
    ensure!(flows.events.len() == 1, "{plane}: {:?}", flows.events);
    Ok(())
}

/// Checks the events of the plane whose user has changed objects before.
fn own_changes(told: &[Told]) -> Result<()> {
    let [roles, _, flows] = told else {
        anyhow::bail!("three collections");
    };
    let plane = "watched-0";
    only(
        plane,
        roles,
        "system:kube-aggregator",
        &["MODIFIED", "MODIFIED"],
    )?;
    only(plane, roles, "system:node-problem-detector", &["MODIFIED"])?;
    only(plane, roles, "system:discovery", &["DELETED", "ADDED"])?;
    only(plane, roles, "next:reader", &["ADDED", "MODIFIED"])?;
    only(plane, flows, "probes", &["MODIFIED"])
}

fn of(plane: &str, path: &str) -> String {
    format!("/clusters/{plane}{path}")
}

fn new_roles(list: &Json) -> usize {
    let items = list["items"].as_array().into_iter().flatten();
    let names = items.filter_map(|item| item["metadata"]["name"].as_str());
    names.filter(|name| name.starts_with("next:")).count()
}
