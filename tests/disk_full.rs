//! A small disk fills up under load and then gets space again.
//!
//! The test needs a file system of its own, so it mounts a tmpfs. If this user may not mount one,
//! it prints one line and passes; with `CI` set it fails instead.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use polyplane_tests::client::{Client, version};
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::create_plane;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DISK: &str = "size=40m";
const WRITERS: usize = 8;
/// Writes after which the disk must have become full.
const WRITES_MAX: usize = 4000;
/// The longest time until writes succeed again. The store checks for space once a second; the rest
/// is for a busy machine.
const RECOVERY: Duration = Duration::from_secs(30);

/// The seconds without a request after which a plane goes to sleep.
const SLEEP_AFTER: &str = "2";
/// How long the test makes no request, so that an unused plane would go to sleep: longer than
/// [`SLEEP_AFTER`] and the ten seconds between two checks for unused planes together.
const NOTHING_HAPPENS: Duration = Duration::from_secs(14);
/// The longest time without a write once there is space, because the store is checked once a
/// second.
const NO_WRITE: Duration = Duration::from_secs(3);

/// The free bytes with which a store that has its ballast is opened, and a little more: too few for
/// the first write of a start.
const OPENS: u64 = (5 << 20) + (12 << 10);
/// The longest time after which a start without room for its writes has ended. It gives the disk
/// five seconds; the rest is for a busy machine.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// A mounted tmpfs; unmounted when dropped.
struct Disk {
    path: PathBuf,
}

impl Disk {
    fn mount(path: &Path) -> Result<Self> {
        fs::create_dir(path)?;
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", DISK, "tmpfs"])
            .arg(path)
            .output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because the server may have died with the test and not have ended yet.
        drop(Command::new("umount").arg("-l").arg(&self.path).status());
    }
}

/// Fills the rest of the disk with a file.
fn take_the_rest(path: &Path) -> Result<()> {
    let mut file = fs::File::create(path)?;
    let error = loop {
        if let Err(error) = file.write_all(&[0x5a; 4096]) {
            break error;
        }
    };
    ensure!(error.kind() == std::io::ErrorKind::StorageFull, "{error}");
    Ok(())
}

fn config_map(name: &str) -> Value {
    // Text that does not compress, so that the disk fills.
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut text = String::with_capacity(32 << 10);
    while text.len() < 32 << 10 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{:016x}", state ^ (state >> 29)));
    }
    json!({"metadata": {"name": name}, "data": {"noise": text}})
}

/// Creates objects until one is refused; returns the acknowledged ones and the refusal.
async fn fill(
    client: Arc<Client>,
    writer: usize,
) -> Result<(BTreeMap<String, u64>, Option<Value>)> {
    let mut acknowledged = BTreeMap::new();
    for step in 0..WRITES_MAX / WRITERS {
        let name = format!("w{writer}-{step}");
        let reply = client.post(CONFIG_MAPS, &config_map(&name)).await?;
        if reply.status == 201 {
            acknowledged.insert(name, version(&reply.body));
            continue;
        }
        ensure!(
            reply.status == 507 || reply.status == 503 || reply.status == 500,
            "{} {}",
            reply.status,
            reply.body
        );
        ensure!(
            reply.body["kind"] == "Status" && reply.body["status"] == "Failure",
            "{}",
            reply.body
        );
        return Ok((acknowledged, Some(reply.body)));
    }
    Ok((acknowledged, None))
}

/// Checks that every acknowledged object is present with its version.
async fn holds(client: &Client, acknowledged: &BTreeMap<String, u64>) -> Result<()> {
    let list = client.get(CONFIG_MAPS).await?.expect(200)?;
    let mut there = BTreeMap::new();
    for item in list["items"].as_array().context("no items")? {
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        there.insert(name.to_owned(), version(item));
    }
    for (name, version) in acknowledged {
        ensure!(
            there.get(name) == Some(version),
            "{name} at {version}: there is {:?}",
            there.get(name)
        );
    }
    Ok(())
}

/// Returns what a plane tells its users about the store.
async fn store_status(client: &Client) -> Result<String> {
    let found = client.get("/api/v1/componentstatuses/etcd-0").await?;
    let found = found.expect(200)?;
    let status = found["conditions"][0]["status"].as_str();
    Ok(status.context("it has no condition")?.to_owned())
}

/// Returns what the metrics tell operators about the store.
async fn takes_writes(root: &Client) -> Result<bool> {
    let metrics = root.get("/metrics").await?.expect(200)?;
    let text = metrics.as_str().context("the metrics are no text")?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("polyplane_store_writable "));
    Ok(value.context("there is no such metric")? == "1")
}

/// Checks that a start has ended with one line that says that there is no space.
fn ended_for_space(output: &Output) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.trim_end().lines().last().unwrap_or_default();
    let is_clear = last.starts_with("error: ") && last.to_lowercase().contains("no space");
    ensure!(!output.status.success() && is_clear, "{text}");
    Ok(())
}

/// Mounts a small disk; returns `None` if this user may not mount one, which is an error in CI.
fn small_disk(folder: &Path) -> Result<Option<Disk>> {
    let error = match Disk::mount(&folder.join("disk")) {
        Ok(disk) => return Ok(Some(disk)),
        Err(error) => error,
    };
    let line = format!("disk_full: not tested, a tmpfs cannot be mounted (run as root): {error:#}");
    ensure!(std::env::var_os("CI").is_none(), "{line}");
    // Written directly, so that the test driver does not capture the line.
    writeln!(std::io::stderr(), "{line}")?;
    Ok(None)
}

/// Three writes are refused, no client writes again, and the plane has to go to sleep while the
/// disk is still full. Once there is space again, the plane reads, writes, sleeps, wakes and is
/// deleted as usual.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_left_alone_on_a_full_disk_is_there_when_it_has_room_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = small_disk(folder.path())? else {
        return Ok(());
    };
    let data = disk.path.join("data");
    let server = Up::start(&data, &["--sleep-after", SLEEP_AFTER]).await?;
    let endpoint = create_plane(&server.root()?, "a").await?;
    let client = Client::open(&endpoint).await?;
    let kept = client.post(CONFIG_MAPS, &config_map("kept")).await?;
    kept.expect(201)?;
    let rest = disk.path.join("rest");
    take_the_rest(&rest)?;
    let kept = format!("{CONFIG_MAPS}/kept");
    for step in 0..5 {
        // These add so little that they reach the store although it is nearly full.
        let label = json!({"metadata": {"labels": {"step": step.to_string()}}});
        let kind = "application/merge-patch+json";
        let refused = client.typed(Method::PATCH, &kept, kind, label.to_string());
        let refused = refused.await?;
        ensure!(
            refused.status.is_server_error(),
            "{} {}",
            refused.status,
            refused.body
        );
    }
    tokio::time::sleep(NOTHING_HAPPENS).await;
    client.get(&kept).await?.expect(200)?;
    fs::remove_file(&rest)?;
    tokio::time::sleep(NO_WRITE).await;
    client.get(&kept).await?.expect(200)?;
    let written = client.post(CONFIG_MAPS, &config_map("after")).await?;
    written.expect(201)?;
    tokio::time::sleep(NOTHING_HAPPENS).await;
    client.get(&kept).await?.expect(200)?;
    // Opened only now, because the server closes a connection that is unused for that long.
    let root = Client::open(&server.root()?).await?;
    let plane = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    let deleted = root.typed(Method::DELETE, plane, "application/json", String::new());
    ensure!(
        deleted.await?.status.is_success(),
        "the plane cannot be deleted"
    );
    let since = Instant::now();
    while root.get(plane).await?.status != 404 {
        ensure!(since.elapsed() < RECOVERY, "its deletion does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(!server.log()?.contains("panicked"));
    ensure!(server.stop().await?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_recovers_with_nothing_lost() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = small_disk(folder.path())? else {
        return Ok(());
    };
    let data = disk.path.join("data");
    let server = Up::start(&data, &[]).await?;
    let root = Client::open(&server.root()?).await?;
    let endpoint = create_plane(&server.root()?, "a").await?;
    let client = Arc::new(Client::open(&endpoint).await?);
    let mut watch = client
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"))
        .await?;
    let following = tokio::spawn(async move {
        loop {
            let (kind, object) = watch.change().await?;
            ensure!(kind != "ERROR", "the watch fails: {object}");
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if name.starts_with("after-") {
                return Ok(version(&object));
            }
        }
    });
    // A file that is removed later, as an operator would do to make space.
    let other = disk.path.join("other");
    fs::write(&other, vec![0x5a; 20 << 20])?;

    let mut filling = JoinSet::new();
    for writer in 0..WRITERS {
        filling.spawn(fill(Arc::clone(&client), writer));
    }
    let mut acknowledged = BTreeMap::new();
    let mut refusals = Vec::new();
    for filled in filling.join_all().await {
        let (more, refusal) = filled?;
        acknowledged.extend(more);
        refusals.extend(refusal);
    }
    ensure!(
        !refusals.is_empty(),
        "the disk did not fill with {} objects",
        acknowledged.len()
    );
    for refusal in &refusals {
        let message = refusal["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("space")
                || message.contains("full")
                || message.contains("bytes are free"),
            "not clear: {refusal}"
        );
    }
    // Deletions still work: writes that add data are refused before the disk is full.
    let (deleted, _) = acknowledged.pop_last().context("something was written")?;
    let deleted = client.delete(&format!("{CONFIG_MAPS}/{deleted}")).await?;
    deleted.expect(200)?;
    // Reads still work, of objects that exist and of others; watches stay open.
    holds(&client, &acknowledged).await?;
    let some = acknowledged
        .keys()
        .next()
        .context("something was written")?;
    client
        .get(&format!("{CONFIG_MAPS}/{some}"))
        .await?
        .expect(200)?;
    client
        .get(&format!("{CONFIG_MAPS}/nothing"))
        .await?
        .refuses(404, "not found")?;
    // Space that is too small for one batch may be enough for a smaller one, so fill the disk
    // completely: then the server must refuse.
    let rest = disk.path.join("rest");
    take_the_rest(&rest)?;
    let reply = client.post(CONFIG_MAPS, &config_map("no-room")).await?;
    ensure!(
        reply.status.is_server_error(),
        "{} {}",
        reply.status,
        reply.body
    );
    // It reads, and stays ready for that; what says that it takes no writes is the metric.
    let ready = root.get("/readyz?verbose").await?.expect(200)?;
    ensure!(ready.to_string().contains("[+]etcd ok"), "{ready}");
    // The refused write may not have reached the store, which then notices by itself, once a second.
    let since = Instant::now();
    while takes_writes(&root).await? {
        ensure!(since.elapsed() < RECOVERY, "it is full and does not say so");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ensure!(store_status(&client).await? == "False");
    ensure!(
        root.get("/livez").await?.status == 200,
        "a full disk is no reason to be restarted"
    );
    fs::remove_file(&rest)?;
    for method in [Method::PUT, Method::PATCH] {
        let body = json!({"metadata": {"name": some}, "data": {"noise": "x".repeat(64)}});
        let kind = if method == Method::PUT {
            "application/json"
        } else {
            "application/merge-patch+json"
        };
        let reply = client
            .typed(
                method.clone(),
                &format!("{CONFIG_MAPS}/{some}"),
                kind,
                body.to_string(),
            )
            .await?;
        ensure!(
            reply.status == 200 || reply.status.is_server_error(),
            "{method}: {} {}",
            reply.status,
            reply.body
        );
        if reply.status == 200 {
            acknowledged.insert(some.clone(), version(&reply.body));
            break;
        }
    }
    let acknowledged = acknowledged;
    // There is space again: writes succeed without further help.
    fs::remove_file(&other)?;
    let since = Instant::now();
    let mut tries = 0;
    let made = loop {
        let reply = client
            .post(CONFIG_MAPS, &config_map(&format!("after-{tries}")))
            .await?;
        if reply.status == 201 {
            break reply.body;
        }
        tries += 1;
        ensure!(
            since.elapsed() < RECOVERY,
            "still refused: {} {}",
            reply.status,
            reply.body
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    ensure!(
        acknowledged.values().all(|old| *old < version(&made)),
        "versions go on"
    );
    root.get("/readyz").await?.expect(200)?;
    ensure!(takes_writes(&root).await?);
    ensure!(store_status(&client).await? == "True");
    holds(&client, &acknowledged).await?;
    ensure!(
        following.await?? == version(&made),
        "the watch went through all of it"
    );
    // After a kill, on a disk that is full again, the server reports what to do instead of starting
    // partly. No object is lost.
    server.kill().await?;
    take_the_rest(&other)?;
    ended_for_space(&refused(&data, &[]).await?)?;
    fs::remove_file(&other)?;
    let server = Up::start(&data, &[]).await?;
    let client = Client::open(&server.plane("a")?).await?;
    holds(&client, &acknowledged).await?;
    server.kill().await?;
    let server = Up::start(&data, &[]).await?;
    let client = Client::open(&server.plane("a")?).await?;
    holds(&client, &acknowledged).await?;
    println!(
        "{} objects acknowledged, {} writers refused, {tries} tries until it recovered",
        acknowledged.len(),
        refusals.len()
    );
    ensure!(!server.log()?.contains("panicked"));
    ensure!(server.stop().await?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_room_for_its_first_write_ends_and_says_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = small_disk(folder.path())? else {
        return Ok(());
    };
    let data = disk.path.join("data");
    let server = Up::start(&data, &[]).await?;
    ensure!(server.stop().await?.success());
    let rest = disk.path.join("rest");
    take_the_rest(&rest)?;
    let taken = fs::metadata(&rest)?.len();
    let file = fs::OpenOptions::new().write(true).open(&rest)?;
    file.set_len(taken - OPENS)?;
    // An open file would keep its space when it is removed.
    drop(file);
    let since = Instant::now();
    ended_for_space(&refused(&data, &[]).await?)?;
    ensure!(since.elapsed() < GIVEN_UP, "{:?}", since.elapsed());
    fs::remove_file(&rest)?;
    let server = Up::start(&data, &[]).await?;
    ensure!(server.stop().await?.success());
    Ok(())
}
