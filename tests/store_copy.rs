//! `polyplane store copy` between all kinds of stores: what clients see of the copy is what they saw of
//! the source, watches resume in it, whatever kills the copy; and wrong uses end with one line.
//!
//! `POLYPLANE_COPY_PLANES=100000` makes the run that measures time a long one.

#[path = "store_copy/places.rs"]
mod places;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use places::{PATIENCE, Place, Run, copied, copy, copy_command, copy_folder, copy_refused};
use polyplane_tests::client::{Client, version};
use polyplane_tests::dice::Dice;
use polyplane_tests::fixture::{Seen, fill, look_again};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{create_plane, delete_plane};
use polyplane_tests::ring::addresses::Block;
use polyplane_tests::ring::etcd::Cluster;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// Names of planes that nobody uses.
const UNUSED: usize = 40;
/// Copies one after the other. Each uses one of the unused planes.
const STOPS: usize = 3;
/// Changes of one object. Each is a transaction of the copy, so that there is time to kill it.
const CHANGES: usize = 600;
/// Runs that are asked to stop, until one is stopped before it is done.
const INTERRUPTS: usize = 10;
/// Runs of one copy that are killed. More would not find more, but take longer.
const KILLS: usize = 6;
/// Runs that are killed before or soon after they say that they copy, each a little later than the one before.
const EARLY_KILLS: u32 = 200;
/// By how much later. A longer time would miss moments between the first file and the copy's record.
const EARLY_STEP: Duration = Duration::from_millis(15);

/// Copies, with kill -9 at random moments after a run says that it copies, until the copy is complete.
/// Returns how many of the runs went on with what another one had left.
async fn copied_with_kills(from: &str, to: &str, dice: &mut Dice) -> Result<usize> {
    let mut resumed = 0;
    for kill in 0..KILLS {
        let mut run = Run::begin(from, to).await?;
        resumed += usize::from(run.goes_on());
        // The first one is killed at once: no copy is that fast.
        let delay = Duration::from_millis((kill * dice.below(300)) as u64);
        if timeout(delay, run.child.wait()).await.is_err() {
            run.child.start_kill()?;
        }
        let (status, said) = run.ended().await?;
        // A run that was killed may have been done already, and not have said it.
        if said.ends_with("may be served\n") || said.contains("holds a complete copy") {
            return Ok(resumed);
        }
        ensure!(status.code().is_none(), "{from} to {to}: {said}");
    }
    let output = copy(from, to).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() || said.contains("holds a complete copy"),
        "{from} to {to}: {said}"
    );
    Ok(resumed + usize::from(said.contains("going on with the copy")))
}

/// What clients see of a store.
struct Sight {
    seen: Seen,
    /// The planes as the root plane has them: unused ones byte for byte. Of the others the status changes
    /// while they are in use.
    control_planes: Vec<String>,
    /// The plane with one object that changed many times: the object, and a watch of its changes.
    changing: (String, Vec<u64>),
}

async fn sight(root: &Endpoint, since: u64, changes_since: u64) -> Result<Sight> {
    let list = Client::open(root).await?.get(CONTROL_PLANES).await?;
    let list = list.expect(200)?;
    let items = list["items"].as_array().context("a list")?.iter();
    let items = items.map(|item| {
        let metadata = &item["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        match name.strip_prefix("unused-").map(str::parse::<usize>) {
            Some(Ok(number)) if number > STOPS => item.to_string(),
            _ => format!("{name} {} {}", metadata["uid"], item["status"]["id"]),
        }
    });
    let changing = Client::open(&at(root, "changing")).await?;
    let object = changing.get(&format!("{CONFIG_MAPS}/changing")).await?;
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=2&resourceVersion={changes_since}");
    let events = changing.watch(&path).await?.until_end().await?;
    let versions = events.iter().map(|event| {
        ensure!(event["type"] != "ERROR", "a watch does not resume: {event}");
        Ok(version(&event["object"]))
    });
    Ok(Sight {
        seen: look_again(root, since).await?,
        control_planes: items.collect(),
        changing: (
            object.expect(200)?.to_string(),
            versions.collect::<Result<_>>()?,
        ),
    })
}

fn at(root: &Endpoint, plane: &str) -> Endpoint {
    let base = root.base_path.trim_end_matches("/clusters/root");
    root.at_base_path(&format!("{base}/clusters/{plane}"))
}

/// Checks that two sights are the same. Versions of lists are compared by their order only: idle planes
/// name newer ones.
fn same(before: &Sight, now: &Sight) -> Result<()> {
    ensure!(
        before.control_planes == now.control_planes,
        "the planes were\n{:?}\nand are\n{:?}",
        before.control_planes,
        now.control_planes
    );
    ensure!(before.changing == now.changing, "the changes differ");
    for (name, was) in &before.seen.planes {
        let is = now.seen.planes.get(name).context("a plane is gone")?;
        for (path, body) in &was.objects {
            let now = is.objects.get(path);
            ensure!(
                now == Some(body),
                "{name}: {path} was\n{body}\nand is\n{now:?}"
            );
        }
        ensure!(
            was.objects.len() == is.objects.len(),
            "{name} has more objects"
        );
        ensure!(was.collections == is.collections, "{name}: other versions");
        ensure!(
            was.events == is.events,
            "{name}: a watch got\n{:?}\nand gets\n{:?}",
            was.events,
            is.events
        );
        ensure!(was.version <= is.version, "{name}: a list's version fell");
        ensure!(was.id == is.id, "{name}: another id");
    }
    Ok(())
}

/// Uses planes that nobody has used: changes the row of one, writes to it, and deletes another one.
async fn use_others(root: &Endpoint, hop: usize) -> Result<()> {
    let admin = Client::open(root).await?;
    let path = format!("{CONTROL_PLANES}/unused-{hop}");
    let label = json!({"metadata": {"labels": {"hop": hop.to_string()}}});
    patch(&admin, &path, &label).await?;
    let plane = Client::open(&at(root, &format!("unused-{hop}"))).await?;
    let object = json!({"metadata": {"name": "used"}});
    plane.post(CONFIG_MAPS, &object).await?.expect(201)?;
    let deleted = format!("unused-{}", UNUSED - 1 - hop);
    delete_plane(root, &deleted).await?;
    let deadline = Instant::now() + PATIENCE;
    while admin
        .get(&format!("{CONTROL_PLANES}/{deleted}"))
        .await?
        .status
        != 404
    {
        ensure!(Instant::now() < deadline, "{deleted} is not deleted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Writes to the busy plane as clients do; every version must be newer than all that were seen.
async fn write_on(root: &Endpoint, hop: usize, seen: &Seen) -> Result<()> {
    let before = seen.planes.get("busy").context("it was seen")?.version;
    let client = Client::open(&at(root, "busy")).await?;
    let path = format!("{CONFIG_MAPS}/hop-{hop}");
    let made =
        json!({"metadata": {"name": format!("hop-{hop}")}, "data": {"k": "a ".repeat(9000)}});
    let mut last = before;
    let mut grows = |object: &Value| {
        ensure!(version(object) > last, "{} after {last}", version(object));
        last = version(object);
        Ok(())
    };
    grows(&client.post(CONFIG_MAPS, &made).await?.expect(201)?)?;
    let changed = format!("{CONFIG_MAPS}/changed");
    for text in ["a", "b"] {
        let body = json!({"data": {"k": format!("{hop}-{text}")}});
        grows(&patch(&client, &changed, &body).await?)?;
    }
    client.delete(&path).await?.expect(200)?;
    let again = json!({"metadata": {"name": format!("kept-{hop}")}});
    grows(&client.post(CONFIG_MAPS, &again).await?.expect(201)?)
}

async fn patch(client: &Client, path: &str, body: &Value) -> Result<Value> {
    let kind = "application/merge-patch+json";
    let reply = client.typed(Method::PATCH, path, kind, body.to_string());
    reply.await?.expect(200)
}

/// Fills a server: planes of many kinds of objects, unused ones, and one with a long history.
/// Returns the version from which the history of changes begins.
async fn fill_all(root: &Endpoint) -> Result<(Seen, u64)> {
    let seen = fill(root, "this release").await?;
    for n in 0..UNUSED {
        create_plane(root, &format!("unused-{n}")).await?;
    }
    let changing = Client::open(&create_plane(root, "changing").await?).await?;
    let object = json!({"metadata": {"name": "changing"}, "data": {"k": "0"}});
    let made = changing.post(CONFIG_MAPS, &object).await?.expect(201)?;
    change(root, CHANGES).await?;
    Ok((seen, version(&made)))
}

/// Changes the one object of a plane this many times. Returns its version then.
async fn change(root: &Endpoint, times: usize) -> Result<u64> {
    let client = Client::open(&at(root, "changing")).await?;
    let path = format!("{CONFIG_MAPS}/changing");
    let mut last = 0;
    for n in 1..=times {
        let body = json!({"data": {"k": format!("{times}-{n}")}});
        last = version(&patch(&client, &path, &body).await?);
    }
    Ok(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_moves_from_fjall_over_etcd_and_sled_back_to_fjall() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let block = Block::take()?;
    let cluster = Cluster::start(1, &[], &[]).await?;
    let place = |name: &str, engine| Place::Folder {
        data: folder.path().join(name),
        engine,
    };
    let seed = 20_261;
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let stops: [Place; STOPS] = [
        Place::Etcd(&cluster),
        place("sled", "sled"),
        place("last", "fjall"),
    ];
    let mut from = place("first", "fjall");
    let first = Up::start(&folder.path().join("first"), &["--sleep-after", "2"]).await?;
    let (seen, mut changes_since) = fill_all(&first.root()?).await?;
    let mut since = seen.planes["busy"].resume_from.context("it has one")?;
    let mut before = sight(&first.root()?, since, changes_since).await?;
    ensure!(before.changing.1.len() == CHANGES, "all changes are seen");
    let pki = folder.path().join("pki");
    copy_folder(&folder.path().join("first/pki"), &pki)?;
    first.stop().await?;
    let mut resumed = 0;
    for (hop, to) in stops.into_iter().enumerate() {
        let went_on = copied_with_kills(&from.text(), &to.text(), &mut dice).await?;
        ensure!(went_on > 0, "hop {hop}: no kill hit a copy under way");
        resumed += went_on;
        let server = to.serve(&pki, &block).await?;
        let root = server.root()?;
        let now = sight(&root, since, changes_since).await;
        let now = now.with_context(|| format!("hop {hop}, {}", to.text()))?;
        same(&before, &now).with_context(|| format!("hop {hop}, {}", to.text()))?;
        if let Place::Etcd(cluster) = &to {
            // From here on the store has a state that its history does not begin with. A version from
            // before the compaction would expire when its plane goes to sleep.
            cluster.compact().await?;
            let busy = Client::open(&at(&root, "busy")).await?;
            // The history begins after the first revision that follows the compaction.
            for text in ["after the compaction", "in the history"] {
                let body = json!({"data": {"k": text}});
                since = version(&patch(&busy, &format!("{CONFIG_MAPS}/changed"), &body).await?);
            }
            changes_since = change(&root, 1).await?;
        }
        write_on(&root, hop, &now.seen).await?;
        change(&root, 1 + hop).await?;
        use_others(&root, hop).await?;
        before = sight(&root, since, changes_since)
            .await
            .with_context(|| format!("after hop {hop}"))?;
        server.stop().await?;
        from = to;
    }
    println!("{resumed} runs went on with a copy that was killed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_use_ends_with_one_line_and_harms_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    let server = Up::start(&path("a"), &[]).await?;
    let plane = Client::open(&create_plane(&server.root()?, "p").await?).await?;
    let object = json!({"metadata": {"name": "x"}});
    plane.post(CONFIG_MAPS, &object).await?.expect(201)?;
    for n in 0..CHANGES {
        let body = json!({"data": {"k": n.to_string()}});
        patch(&plane, &format!("{CONFIG_MAPS}/x"), &body).await?;
    }
    copy_refused(&text("a"), &text("b"), "in use by process").await?;
    ensure!(!path("b").exists(), "nothing was created");
    server.stop().await?;
    Up::start(&path("used"), &[]).await?.stop().await?;
    copy_refused(&text("a"), &text("used"), "the target is not empty").await?;
    copy_refused(&text("used"), &text("used"), "the same store").await?;
    copy_refused(&text("none"), &text("b"), "there is no store in").await?;
    copy_refused(&text("a"), "etcd://nobody", "is not HOST:PORT").await?;
    let unfinished = interrupted(&text("a"), &path("b")).await?;
    let output = refused(&path("b"), &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.contains("is not complete; run `polyplane store copy` again"),
        "{said}"
    );
    copy_refused(&text("used"), &text("b"), "another store").await?;
    println!("{unfinished}");
    // The source is served and written before the copy goes on.
    let server = Up::start(&path("a"), &[]).await?;
    create_plane(&server.root()?, "more").await?;
    server.stop().await?;
    copy_refused(&text("a"), &text("b"), "the source was written since").await?;
    std::fs::remove_dir_all(path("b"))?;
    let said = copied(&text("a"), &text("b")).await?;
    ensure!(said.contains("planes with"), "{said}");
    copy_refused(&text("a"), &text("b"), "holds a complete copy").await?;
    // Keys are files, and the copy has those of the source's planes only with them.
    refused(&path("b"), &[]).await.and_then(|output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(said.contains("root.secret is missing"), "{said}");
        Ok(())
    })?;
    ensure!(!path("b").join("pki/root.secret").exists(), "none was made");
    std::fs::create_dir_all(path("b").join("pki"))?;
    for file in std::fs::read_dir(path("a").join("pki"))? {
        let file = file?;
        std::fs::copy(file.path(), path("b").join("pki").join(file.file_name()))?;
    }
    Up::start(&path("b"), &[]).await?.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_killed_while_it_creates_its_target_leaves_no_store_to_a_server()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let text = |name: &str| folder.path().join(name).display().to_string();
    Up::start(&folder.path().join("a"), &[])
        .await?
        .stop()
        .await?;
    let mut refusals = 0;
    for kill in 0..EARLY_KILLS {
        let name = format!("b{kill}");
        let mut child = copy_command(&text("a"), &text(&name))?.spawn()?;
        if timeout(EARLY_STEP * kill, child.wait()).await.is_ok() {
            break;
        }
        child.kill().await?;
        let target = folder.path().join(&name);
        if !target.join("store/format").exists() {
            continue;
        }
        let output = refused(&target, &[]).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("root.secret is missing") {
            // The copy is complete, and was killed when it had nothing left to do.
            break;
        }
        let words = "is not complete; run `polyplane store copy` again";
        ensure!(said.contains(words), "killed at step {kill}: {said}");
        copied(&text("a"), &text(&name)).await?;
        refusals += 1;
    }
    ensure!(refusals > 0, "no kill hit a copy that creates its target");
    Ok(())
}

/// Ends a copy into a new folder by SIGTERM before it is complete. Returns what it says.
async fn interrupted(from: &str, to: &Path) -> Result<String> {
    let name = to.display().to_string();
    for _ in 0..INTERRUPTS {
        let run = Run::begin(from, &name).await?;
        let id = run.child.id().context("it runs")?;
        // It fails if the copy has ended already.
        Command::new("kill").arg(id.to_string()).status().await?;
        let (_, said) = timeout(PATIENCE, run.ended()).await??;
        let begun = to.join("store/format").exists();
        if said.contains("run the same command again") && begun {
            return Ok(said);
        }
        if begun {
            std::fs::remove_dir_all(to)?;
        }
    }
    anyhow::bail!("SIGTERM never hit a copy under way")
}

/// Creates planes from several connections at once.
async fn create_many(root: &Endpoint, count: usize) -> Result<()> {
    const WRITERS: usize = 16;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let client = Arc::new(Client::open(root).await?);
        let mine = (writer..count).step_by(WRITERS);
        let root = root.clone();
        writers.spawn(async move {
            for n in mine {
                let body = json!({"apiVersion": "polyplane.dev/v1alpha1", "kind": "ControlPlane",
                    "metadata": {"name": format!("plane-{n}")}});
                client.post(CONTROL_PLANES, &body).await?.expect(201)?;
                // Every hundredth plane has an object of its own.
                if n % 100 == 0 {
                    let plane = Client::open(&at(&root, &format!("plane-{n}"))).await?;
                    let object = json!({"metadata": {"name": "own"}, "data": {"k": "v"}});
                    plane.post(CONFIG_MAPS, &object).await?.expect(201)?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    Ok(())
}

/// Returns name, uid and version of each plane, and the objects of some.
async fn census(root: &Endpoint, count: usize) -> Result<Vec<String>> {
    let client = Client::open(root).await?;
    let mut rows = Vec::new();
    let mut token = String::new();
    loop {
        let path = format!("{CONTROL_PLANES}?limit=1000&continue={token}");
        let page = client.get(&path).await?.expect(200)?;
        for item in page["items"].as_array().into_iter().flatten() {
            rows.push(item.to_string());
        }
        token = match page["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => token.to_owned(),
            _ => break,
        };
    }
    for n in (0..count).step_by(100).take(20) {
        let plane = Client::open(&at(root, &format!("plane-{n}"))).await?;
        let own = plane
            .get(&format!("{CONFIG_MAPS}/own"))
            .await?
            .expect(200)?;
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit";
        let role = plane.get(roles).await?.expect(200)?;
        rows.push(format!("{own}{role}"));
    }
    Ok(rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_planes_are_copied_both_ways() -> Result<()> {
    let count = std::env::var("POLYPLANE_COPY_PLANES");
    let count: usize = count.map_or(Ok(1000), |count| count.parse())?;
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start(1, &[], &["--quota-backend-bytes", "8589934592"]).await?;
    let (first, last) = (folder.path().join("first"), folder.path().join("last"));
    let server = Up::start(&first, &[]).await?;
    let root = server.root()?;
    let admin = Client::open(&root).await?;
    let since = version(&admin.get(CONTROL_PLANES).await?.expect(200)?);
    create_many(&root, count).await?;
    // The tail of the history, from which a watch resumes in the copy.
    let tail = version(
        &admin
            .get(&format!("{CONTROL_PLANES}?limit=1"))
            .await?
            .expect(200)?,
    );
    create_plane(&root, "tail").await?;
    let before = census(&root, count).await?;
    server.stop().await?;
    let etcd = Place::Etcd(&cluster).text();
    let name = |path: &Path| path.display().to_string();
    for (from, to, words) in [
        (name(&first), etcd.clone(), "fjall to etcd"),
        (etcd, name(&last), "etcd to fjall"),
    ] {
        let began = Instant::now();
        let said = copied(&from, &to).await?;
        let seconds = began.elapsed().as_secs_f64();
        println!("{words}: {count} planes in {seconds:.1} s: {}", said.trim());
    }
    copy_folder(&first.join("pki"), &last.join("pki"))?;
    let server = Up::start(&last, &[]).await?;
    let root = server.root()?;
    let after = census(&root, count).await?;
    let differ = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    println!(
        "{} planes and objects compared, {differ} differ",
        after.len()
    );
    ensure!(
        before.len() == after.len() && differ == 0,
        "the copy differs"
    );
    let path = format!("{CONTROL_PLANES}?watch=1&timeoutSeconds=2&resourceVersion={tail}");
    let admin = Client::open(&root).await?;
    let events = admin.watch(&path).await?.until_end().await?;
    let told = events
        .iter()
        .filter(|event| event["type"] == "ADDED")
        .count();
    println!("a watch from {tail} (the store began at {since}) resumes with {told} new plane");
    ensure!(told == 1, "{events:?}");
    let later = create_plane(&root, "later").await?;
    let later = Client::open(&later).await?;
    later.get(CONFIG_MAPS).await?.expect(200)?;
    server.stop().await?;
    Ok(())
}
