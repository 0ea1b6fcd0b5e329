//! Backup and restore as README.md describes them: the folder of an embedded store copied by `cp`, and
//! a snapshot of etcd restored with later revisions. What was written after the backup is gone, and
//! everything else is there and goes on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, Reply, version};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// The planes of the backup.
const PLANES: [&str; 2] = ["one", "two"];
/// A plane that is created after the backup.
const LATER: &str = "later";
/// Changes of one object after the backup. With fewer, the versions that a server gives out at its next
/// start could reach the last of them.
const CHANGES: usize = 600;
/// The number of README.md by which the revisions of a restored etcd grow.
const BUMP: u64 = 1_000_000_000;
/// The longest time until replicas serve the planes of those that died with the former store.
const PATIENCE: Duration = Duration::from_secs(30);

/// What clients see of the planes of the backup.
struct Contents {
    /// The planes, and every config map with its version.
    objects: Vec<String>,
    /// The newest version of a list.
    newest: u64,
}

impl Contents {
    async fn of(root: &Endpoint) -> Result<Self> {
        let list = Client::open(root).await?.get(CONTROL_PLANES).await?;
        let list = list.expect(200)?;
        let planes = items(&list).iter().map(|item| {
            let metadata = &item["metadata"];
            let id = &item["status"]["id"];
            format!("{} {} {id}", metadata["name"], metadata["uid"])
        });
        let mut contents = Self {
            objects: planes.collect(),
            newest: 0,
        };
        for name in PLANES {
            let list = plane(root, name).await?.get(CONFIG_MAPS).await?;
            let list = list.expect(200)?;
            contents.newest = contents.newest.max(version(&list));
            let objects = items(&list).iter().map(Value::to_string);
            contents.objects.extend(objects);
        }
        Ok(contents)
    }

    /// Returns the contents once the planes are served.
    async fn soon(root: &Endpoint) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::of(root).await {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(Duration::from_millis(100)).await,
                Ok(contents) => return Ok(contents),
            }
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

async fn plane(root: &Endpoint, name: &str) -> Result<Client> {
    let base = root.base_path.trim_end_matches("/clusters/root");
    Client::open(&root.at_base_path(&format!("{base}/clusters/{name}"))).await
}

async fn create(plane: &Client, name: &str) -> Result<Value> {
    let object = json!({"metadata": {"name": name}, "data": {"k": "created"}});
    plane.post(CONFIG_MAPS, &object).await?.expect(201)
}

async fn patch(plane: &Client, name: &str, change: &Value) -> Result<Reply> {
    let path = format!("{CONFIG_MAPS}/{name}");
    let kind = "application/merge-patch+json";
    plane
        .typed(Method::PATCH, &path, kind, change.to_string())
        .await
}

/// Writes what the backup will have.
async fn fill(root: &Endpoint) -> Result<()> {
    for name in PLANES {
        create_plane(root, name).await?;
        let plane = plane(root, name).await?;
        create(&plane, "kept").await?;
        create(&plane, "deleted-later").await?;
    }
    Ok(())
}

/// Writes what the backup will not have: a plane, an object, a deletion, and changes of an object.
/// Returns the version of the last change.
async fn write_on(root: &Endpoint) -> Result<u64> {
    create_plane(root, LATER).await?;
    create(&plane(root, LATER).await?, "lost").await?;
    let one = plane(root, PLANES[0]).await?;
    create(&one, "lost").await?;
    let deleted = format!("{CONFIG_MAPS}/deleted-later");
    one.delete(&deleted).await?.expect(200)?;
    let mut newest = 0;
    for n in 0..CHANGES {
        let change = json!({"data": {"k": n.to_string()}});
        newest = version(&patch(&one, "kept", &change).await?.expect(200)?);
    }
    Ok(newest)
}

/// Checks that the planes are those of the backup, that nobody can use the version `lost` for a change,
/// and that what is written now has versions later than `above`.
async fn goes_on(root: &Endpoint, backup: &Contents, (lost, above): (u64, u64)) -> Result<()> {
    let path = format!("{CONTROL_PLANES}/{LATER}");
    let later = Client::open(root).await?.get(&path).await?;
    ensure!(later.status == 404, "{LATER}: {}", later.body);
    let later = plane(root, LATER).await?.get(CONFIG_MAPS).await?;
    ensure!(later.status == 404, "{LATER} is served: {}", later.body);
    let one = plane(root, PLANES[0]).await?;
    let stale = json!({"metadata": {"resourceVersion": lost.to_string()}, "data": {"k": "stale"}});
    let reply = patch(&one, "kept", &stale).await?;
    reply.refuses(409, "the object has been modified")?;
    for name in PLANES {
        let plane = plane(root, name).await?;
        let since = version(&plane.get(CONFIG_MAPS).await?.expect(200)?);
        ensure!(since >= backup.newest, "a list's version fell to {since}");
        let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=30&resourceVersion={since}");
        let mut watch = plane.watch(&path).await?;
        let change = json!({"data": {"k": "after the restore"}});
        let changed = patch(&plane, "kept", &change).await?.expect(200)?;
        let created = create(&plane, "after").await?;
        ensure!(
            above < version(&changed) && version(&changed) < version(&created),
            "not after {above}: {changed} {created}"
        );
        for (wanted, object) in [("MODIFIED", changed), ("ADDED", created)] {
            let (kind, seen) = watch.change().await?;
            let right = kind == wanted && version(&seen) == version(&object);
            ensure!(right, "{kind} {seen} instead of {wanted} {object}");
        }
    }
    Ok(())
}

/// Checks that a watch was answered by one error, of this code, and returns its message.
async fn ends_with_error(client: &Client, path: &str, code: u16) -> Result<String> {
    let events = client.watch(path).await?.until_end().await?;
    let is_error = |event: &Value| event["type"] == "ERROR" && event["object"]["code"] == code;
    let right = events.len() == 1 && events.iter().all(is_error);
    ensure!(right, "{path}: no {code}: {events:?}");
    Ok(events[0]["object"]["message"].to_string())
}

/// Copies a folder by the command of README.md.
async fn cp(from: &Path, to: &Path) -> Result<()> {
    let mut cp = Command::new("cp");
    let status = cp.arg("-a").args([from, to]).status().await?;
    ensure!(status.success(), "cp ended with {status}");
    Ok(())
}

async fn stop(server: Up) -> Result<()> {
    let status = server.stop().await?;
    ensure!(status.success(), "the server ended with {status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_of_a_stopped_server_is_copied_and_put_back() -> Result<()> {
    for engine in ["fjall", "sled"] {
        folder_is_put_back(engine).await.context(engine)?;
    }
    Ok(())
}

async fn folder_is_put_back(engine: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let (data, options) = (path("data"), ["--store", engine]);
    let server = Up::start(&data, &options).await?;
    let root = server.root()?;
    fill(&root).await?;
    let backup = Contents::of(&root).await?;
    stop(server).await?;
    cp(&data, &path("backup")).await?;

    let server = Up::start(&data, &options).await?;
    let lost = write_on(&server.root()?).await?;
    stop(server).await?;
    std::fs::rename(&data, path("lost"))?;
    cp(&path("backup"), &data).await?;

    let server = Up::start(&data, &options).await?;
    let root = server.root()?;
    let now = Contents::of(&root).await?;
    ensure!(
        now.objects == backup.objects,
        "was\n{:#?}\nis\n{:#?}",
        backup.objects,
        now.objects
    );
    // The versions of the lost time are given out again. Until then they are in the future.
    let one = plane(&root, PLANES[0]).await?;
    let watch = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=20&resourceVersion={lost}");
    ends_with_error(&one, &watch, 504).await?;
    let list = format!("{CONFIG_MAPS}?resourceVersion={lost}");
    let list = one.get(&list).await?;
    list.refuses(504, "Too large resource version")?;
    goes_on(&root, &backup, (lost, backup.newest)).await?;
    stop(server).await
}

/// Returns the root plane at one replica, past the balancer.
fn at_replica(ring: &Ring, place: usize) -> Result<Endpoint> {
    let client = ring.controller.replicas[place].pod.client();
    let replica = at_address(&ring.controller.admin()?, client);
    Ok(replica.at_base_path("/clusters/root"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_etcd_is_restored_with_later_revisions() -> Result<()> {
    let wish = Wish {
        replicas: 2,
        ..Wish::default()
    };
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let restored = snapshot_is_restored(&mut ring, wish.replicas).await;
    restored.with_context(|| ring.last_words())?;
    ring.ensure_no_panic()
}

async fn snapshot_is_restored(ring: &mut Ring, replicas: usize) -> Result<()> {
    let root = at_replica(ring, 0)?;
    fill(&root).await?;
    let backup = Contents::of(&root).await?;
    // The snapshot has the member keys and the fences of replicas that are gone when it is restored.
    let snapshot = ring.folder().join("planes.db");
    ring.cluster.snapshot(&snapshot).await?;

    let lost = write_on(&root).await?;
    let list = Client::open(&root).await?.get(CONTROL_PLANES).await?;
    let lost_in_root = version(&list.expect(200)?);
    for place in 0..replicas {
        ring.controller.kill(place).await?;
    }
    ring.cluster.restore_later(&snapshot, BUMP).await?;
    for place in 0..replicas {
        ring.controller.restart(place).await?;
    }

    for place in 0..replicas {
        let now = Contents::soon(&at_replica(ring, place)?).await?;
        ensure!(
            now.objects == backup.objects,
            "at replica {place}: was\n{:#?}\nis\n{:#?}",
            backup.objects,
            now.objects
        );
    }
    goes_on(&root, &backup, (lost, lost)).await?;
    let watch = format!("{CONTROL_PLANES}?watch=1&timeoutSeconds=5&resourceVersion={lost_in_root}");
    let of_root = ends_with_error(&Client::open(&root).await?, &watch, 410).await?;
    let watch = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=5&resourceVersion={lost}");
    let of_plane = ends_with_error(&plane(&root, PLANES[0]).await?, &watch, 410).await?;
    for why in [of_root, of_plane] {
        ensure!(why.contains("restored"), "nobody would think of it: {why}");
    }
    Ok(())
}
