//! The real kube-controller-manager, kube-scheduler and kwok run workloads in three planes at once,
//! while the owners of the planes are killed in mid-rollout. In each plane the manager's loops are
//! divided otherwise between it and the plane's owner, and no loop is run by both.
//!
//! `RING_ROUNDS` sets how often the owner of each plane is killed in mid-rollout.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use polyplane_tests::programs::{create_plane_of, polyplane};
use polyplane_tests::recorded::skipped;
use polyplane_tests::ring::collection::{Collection, Told};
use polyplane_tests::ring::judged::{number, wished};
use polyplane_tests::ring::process::Process;
use polyplane_tests::ring::replica::REPLICA;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::json;
use tokio::time::{Instant, sleep};

#[path = "real_controllers/attribution.rs"]
mod attribution;
#[path = "real_controllers/plane.rs"]
mod plane;
#[path = "real_controllers/programs.rs"]
mod programs;
#[path = "real_controllers/workload.rs"]
mod workload;

use attribution::{Attribution, Request, Span};
use plane::Plane;
use programs::{Programs, Split};

const SPLITS: [(&str, Split); 3] = [
    ("theirs", Split::Theirs),
    ("ours", Split::Ours),
    ("shared", Split::Shared),
];
/// Loops whose work is among the changes of this scenario, by the accounts of the real manager's.
const SEEN_LOOPS: [&str; 4] = [
    "generic-garbage-collector",
    "namespace-controller",
    "resourcequota-controller",
    "service-account-controller",
];
/// Users whom every plane's changes must be by: controllers that only the real manager has, the
/// scheduler, and kwok.
const ALWAYS: [&str; 8] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "job-controller",
    "cronjob-controller",
    "endpointslice-controller",
    "system:kube-scheduler",
    "kwok",
];
/// What no program may say. A refused request that is repeated is not among it: kills and other
/// writers cause some.
const FAULTS: [&str; 9] = [
    "Unauthorized",
    "cannot get resource",
    "cannot list resource",
    "cannot watch resource",
    "cannot patch resource",
    "cannot update resource",
    "unable to decode",
    "no matches for kind",
    "panic",
];
/// Time between two looks at what changes fast.
const BETWEEN_LOOKS: Duration = Duration::from_millis(30);
/// Time until a fault must have been overcome.
const FAULT_LIMIT: Duration = Duration::from_secs(60);

/// One plane with everything that runs in it.
struct Run {
    plane: Plane,
    split: Split,
    programs: Vec<Process>,
    watches: Vec<(&'static str, Collection)>,
    /// Kills of the owner in mid-rollout.
    kills: usize,
    windows: Vec<Span>,
    /// The version with which the end of the namespace began.
    removed_at: u64,
}

/// What the store says of who may write to a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fence {
    holder: String,
    epoch: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_controllers_run_workloads_through_kills_and_share_no_loop() -> Result<()> {
    let Some(programs) = Programs::find()? else {
        let why = "`tests/programs workloads` builds kube-controller-manager, kube-scheduler and kwok in about fifteen minutes";
        return skipped("the real controllers with workloads", why);
    };
    let kills: usize = number("RING_ROUNDS", 2)?;
    let logs = tempfile::tempdir()?;
    let policy = logs.path().join("policy.yaml");
    std::fs::write(&policy, attribution::POLICY)?;
    let audit = logs.path().join("audit");
    std::fs::create_dir(&audit)?;
    let wish = wished(Wish {
        options: vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}/{REPLICA}.log", audit.display()),
            // A replica that is killed loses the events that wait for its log. Those of a change whose
            // answer somebody has are there in this mode.
            "--audit-log-mode=blocking".to_owned(),
            "--audit-log-maxsize=0".to_owned(),
        ],
        ..Wish::default()
    })?;
    let began = Instant::now();
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    // Before that a ring issues no credentials.
    ring.plugin(&polyplane()?, &["ring", "--raise-floor"])
        .await?;
    let mut runs = Vec::new();
    for (name, split) in SPLITS {
        runs.push(start(&ring, &programs, name, split).await?);
    }
    let planes: Vec<Plane> = runs.iter().map(|run| run.plane.clone()).collect();
    let ran = tokio::select! {
        ran = scenario(&mut ring, &mut runs, kills) => ran,
        failed = try_join_all(planes.iter().map(workload::wake_kwok)) => failed.map(drop),
    };
    let said = || programs::lines_with(&ring, &["err=", "\"ERROR\"", "panic"]).unwrap_or_default();
    ran.with_context(|| format!("{}\n{}", ring.last_words(), said().join("\n")))?;
    for run in &mut runs {
        for program in &mut run.programs {
            let ended = program.ended()?;
            ensure!(
                ended.is_none(),
                "a program ended: {ended:?}: {}",
                program.last_words()
            );
        }
    }
    judge(&ring, runs, &attribution::read(&audit)?).await?;
    println!(
        "three planes, {kills} kills of each owner in mid-rollout, in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    ring.ensure_no_panic()
}

async fn start(ring: &Ring, programs: &Programs, name: &str, split: Split) -> Result<Run> {
    let admin = ring.controller.admin()?;
    let spec = json!({"controllers": split.controllers()});
    create_plane_of(&admin, name, &spec).await?;
    let plane = Plane::new(name, &admin);
    workload::prepare(&plane).await?;
    let mut watches = vec![(
        "namespaces",
        Collection::start(&plane.pool, &plane.path("/api/v1/namespaces")).await?,
    )];
    for (resource, base) in workload::COLLECTIONS {
        let path = plane.path(&format!("{base}/{resource}"));
        watches.push((resource, Collection::start(&plane.pool, &path).await?));
    }
    Ok(Run {
        programs: programs.start(ring, &plane, split).await?,
        plane,
        split,
        watches,
        kills: 0,
        windows: Vec::new(),
        removed_at: 0,
    })
}

async fn scenario(ring: &mut Ring, runs: &mut [Run], kills: usize) -> Result<()> {
    let planes: Vec<Plane> = runs.iter().map(|run| run.plane.clone()).collect();
    try_join_all(planes.iter().map(workload::deploy)).await?;
    let ended = Arc::new(AtomicBool::new(false));
    let rolling = planes.iter().map(|plane| roll(plane, &ended));
    let killing = async {
        let killed = kill_owners(ring, runs, kills).await;
        ended.store(true, Ordering::Relaxed);
        killed
    };
    let (rolled, ()) = tokio::try_join!(try_join_all(rolling), killing)?;
    println!("rollouts: {rolled:?}");
    try_join_all(planes.iter().map(workload::scale)).await?;
    try_join_all(planes.iter().map(workload::ticked)).await?;
    try_join_all(planes.iter().map(workload::collect)).await?;
    for run in runs.iter_mut() {
        run.removed_at = run.plane.head().await?;
    }
    try_join_all(planes.iter().map(workload::remove)).await?;
    Ok(())
}

/// Rolls a plane's Deployment until the end; returns how often.
async fn roll(plane: &Plane, ended: &AtomicBool) -> Result<usize> {
    for number in 1.. {
        workload::roll(plane, number).await?;
        if ended.load(Ordering::Relaxed) {
            return Ok(number);
        }
    }
    Ok(0)
}

/// Kills the owner of each plane in mid-rollout this many times.
async fn kill_owners(ring: &mut Ring, runs: &mut [Run], kills: usize) -> Result<()> {
    let root = Plane::new("root", &ring.controller.admin()?);
    while let Some(next) = (0..runs.len())
        .filter(|at| runs[*at].kills < kills)
        .min_by_key(|at| runs[*at].kills)
    {
        let mut heads = Vec::new();
        for run in runs.iter() {
            heads.push(run.plane.head().await?);
        }
        in_mid_rollout(&runs[next].plane).await?;
        let before = fences(&root).await?;
        let of = |fences: &BTreeMap<String, Fence>, run: &Run| {
            let fence = fences.get(&run.plane.name).cloned();
            fence.with_context(|| format!("{} has no fence", run.plane.name))
        };
        let victim = of(&before, &runs[next])?.holder;
        let mut rolling = Vec::new();
        for run in runs.iter() {
            rolling.push(workload::in_rollout(&run.plane.get(workload::WEB).await?).is_some());
        }
        let place = ring
            .controller
            .replicas
            .iter()
            .position(|one| one.pod.name == victim);
        let place = place.context("the holder is one of the pods")?;
        ring.controller.kill(place).await?;
        for (at, run) in runs.iter_mut().enumerate() {
            let was = of(&before, run)?;
            if was.holder != victim {
                continue;
            }
            let (head, is) = taken_over(&root, &run.plane, &was).await?;
            run.windows.push((heads[at], head));
            let still = workload::in_rollout(&run.plane.get(workload::WEB).await?).is_some();
            let counts = rolling[at] && still;
            run.kills += usize::from(counts);
            println!(
                "{}: {} was killed, epoch {} to {}, in mid-rollout: {counts}",
                run.plane.name, was.holder, was.epoch, is.epoch
            );
        }
        ring.controller.restart(place).await?;
    }
    Ok(())
}

/// Waits until a rollout has begun to replace pods, and has replaced one more.
async fn in_mid_rollout(plane: &Plane) -> Result<()> {
    let deadline = Instant::now() + FAULT_LIMIT;
    let mut first = None;
    loop {
        let updated = workload::in_rollout(&plane.get(workload::WEB).await?);
        match (first, updated) {
            (Some(first), Some(now)) if now > first => return Ok(()),
            (Some(first), Some(now)) if now == first => {}
            _ => first = updated,
        }
        ensure!(
            Instant::now() < deadline,
            "{}: no rollout goes on",
            plane.name
        );
        sleep(BETWEEN_LOOKS).await;
    }
}

/// Waits until another replica holds a plane with a higher epoch; returns the plane's head and fence.
async fn taken_over(root: &Plane, plane: &Plane, was: &Fence) -> Result<(u64, Fence)> {
    let deadline = Instant::now() + FAULT_LIMIT;
    loop {
        // A request, because a plane that sleeps has no owner.
        let head = plane.head().await?;
        let fence = fences(root).await?.remove(&plane.name).context("a fence")?;
        if fence.holder != was.holder {
            ensure!(
                fence.epoch > was.epoch,
                "{}: {fence:?} after {was:?}",
                plane.name
            );
            return Ok((head, fence));
        }
        ensure!(
            Instant::now() < deadline,
            "{}: nobody takes over: {fence:?}",
            plane.name
        );
        sleep(BETWEEN_LOOKS).await;
    }
}

async fn fences(root: &Plane) -> Result<BTreeMap<String, Fence>> {
    let list = root.get("/apis/polyplane.dev/v1alpha1/fences").await?;
    let fences = list["items"].as_array().into_iter().flatten().map(|fence| {
        let status = &fence["status"];
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        let fence = Fence {
            holder: text("holder"),
            epoch: status["epoch"].as_u64().unwrap_or(0),
        };
        (text("controlPlane"), fence)
    });
    Ok(fences.collect())
}

/// Checks that every change was made by whom it should have been made by, and what the programs said.
async fn judge(ring: &Ring, runs: Vec<Run>, requests: &[Request]) -> Result<()> {
    let (mut users, mut owners, mut unknown) = (0, 0, 0);
    for run in runs {
        let name = run.plane.name.as_str();
        let mut told: Vec<(&str, Told)> = Vec::new();
        for (resource, watch) in run.watches {
            let finished = watch
                .finish()
                .await
                .with_context(|| format!("{name}: {resource}"))?;
            ensure!(
                finished.errors.is_empty(),
                "{name}: {resource}: {:?}",
                finished.errors
            );
            told.push((resource, finished));
        }
        let resumed: usize = told.iter().map(|(_, told)| told.resumed).sum();
        let of = |span: Span, with_collections| {
            attribution::attribute(
                name,
                requests,
                &told,
                &run.windows,
                (span, with_collections),
            )
        };
        let before = of((0, run.removed_at), false);
        let after = of((run.removed_at, u64::MAX), true);
        println!(
            "{name}: watches were resumed {resumed} times; before the end of the namespace {before:?}; then {after:?}"
        );
        for part in [&before, &after] {
            users += part.totals().0;
            owners += part.totals().1;
            unknown += part.around_kills;
        }
        check_changes(run.split, &before, &after).with_context(|| name.to_owned())?;
        let writers = attribution::writers(name, requests);
        for account in run.split.accounts_here() {
            ensure!(
                !writers.contains(account),
                "{name}: {account} wrote, and the owner runs its loop"
            );
        }
        for user in ALWAYS {
            ensure!(
                before.users.contains_key(user),
                "{name}: {user} changed nothing"
            );
        }
        attribution::in_order(
            name,
            requests,
            workload::NAMESPACE,
            &["db-0", "db-1", "db-2"],
        )?;
    }
    let faults = programs::lines_with(ring, &FAULTS)?;
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    println!(
        "{users} changes by the real programs and their users, {owners} by owners, {unknown} around kills, 0 loops run by both"
    );
    Ok(())
}

/// Checks that the owner changed what its loops change, and nothing else.
fn check_changes(split: Split, before: &Attribution, after: &Attribution) -> Result<()> {
    let here: Vec<&str> = split.accounts_here().collect();
    for account in SEEN_LOOPS.iter().filter(|account| !here.contains(account)) {
        let there = before.users.contains_key(*account) || after.users.contains_key(*account);
        ensure!(there, "the real manager's {account} changed nothing");
    }
    // The server raises usage of quotas beside the controller, as upstream's API server does.
    let raises = ("resourcequotas", "MODIFIED");
    let own = |found: &Attribution| -> Vec<(String, String)> {
        let is_own = |(resource, kind): &(String, String)| {
            split == Split::Ours || (resource.as_str(), kind.as_str()) != raises
        };
        found
            .server
            .keys()
            .filter(|change| is_own(change))
            .cloned()
            .collect()
    };
    let (before, after) = (own(before), own(after));
    match split {
        Split::Theirs => {
            ensure!(
                before.is_empty() && after.is_empty(),
                "the owner changed {before:?}, then {after:?}"
            );
        }
        Split::Shared => {
            ensure!(before.is_empty(), "the owner changed {before:?}");
            ensure!(!after.is_empty(), "the owner did not empty the namespace");
        }
        Split::Ours => {
            for (resource, kind) in [("replicasets", "DELETED"), raises] {
                let change = (resource.to_owned(), kind.to_owned());
                ensure!(
                    before.contains(&change),
                    "the owner's loops changed no {resource}: {before:?}"
                );
            }
            ensure!(!after.is_empty(), "the owner did not empty the namespace");
        }
    }
    Ok(())
}
