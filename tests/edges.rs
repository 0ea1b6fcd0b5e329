//! Edge cases of `polyplane up`: folders, ports, flags, stores and signals.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::{Caller, Protocol};
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{create_plane, delete_plane, polyplane, until_asleep};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The longest time until a changed file of the certificate folder is read again, on a busy machine.
const REREAD_LIMIT: Duration = Duration::from_secs(60);

/// Checks that a refusal is one line on standard error that contains all the words, that standard
/// output is empty, and that the exit code reports a failure.
fn one_line(output: &Output, words: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "it says: {text}");
    ensure!(
        output.stdout.is_empty(),
        "on standard output: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    ensure!(
        text.trim_end().lines().count() == 1,
        "more than one line: {text}"
    );
    for word in words {
        ensure!(text.contains(word), "{word:?} is missing: {text}");
    }
    ensure!(!text.contains("panicked"), "{text}");
    Ok(())
}

/// Prepares a server's folder that has been used: a plane `a` with an object, closed cleanly.
async fn used(data: &Path) -> Result<()> {
    used_with(data, &[]).await
}

async fn used_with(data: &Path, options: &[&str]) -> Result<()> {
    let server = Up::start(data, options).await?;
    let plane = Client::open(&create_plane(&server.root()?, "a").await?).await?;
    plane
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "kept"}}))
        .await?
        .expect(201)?;
    ensure!(server.stop().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_second_server_in_the_same_folder_is_refused_and_the_first_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let first = Up::start(&data, &[]).await?;
    let pid = first.pid()?.to_string();
    let kubeconfig = fs::read_to_string(&first.kubeconfig)?;
    one_line(&refused(&data, &[]).await?, &["error: ", &pid, "in use"])?;
    ensure!(
        fs::read_to_string(&first.kubeconfig)? == kubeconfig,
        "the first one's kubeconfig is untouched"
    );
    ensure!(
        fs::read_to_string(data.join("pid"))?.trim() == pid,
        "and its pid"
    );
    Client::open(&first.root()?)
        .await?
        .get("/readyz")
        .await?
        .expect(200)?;
    ensure!(first.stop().await?.success());
    // The server recognizes a folder in use even through a link.
    let first = Up::start(&data, &[]).await?;
    let link = folder.path().join("link");
    symlink(&data, &link)?;
    one_line(&refused(&link, &[]).await?, &["in use"])?;
    first.kill().await?;
    // A server that was killed leaves nothing that stops the next start.
    let again = Up::start(&data, &[]).await?;
    ensure!(again.stop().await?.success());
    ensure!(!data.join("pid").exists(), "a stopped server leaves no pid");
    Ok(())
}

#[tokio::test]
async fn a_second_server_on_the_same_port_is_told_who_has_its_folder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let first = Up::start(&data, &[]).await?;
    let address = format!("127.0.0.1:{}", first.root()?.port);
    let (pid, listen) = (first.pid()?.to_string(), ["--listen", &address]);
    one_line(
        &refused(&data, &listen).await?,
        &["error: ", &pid, "in use by process"],
    )?;
    // In another folder it is the port that is taken.
    let other = folder.path().join("other");
    one_line(&refused(&other, &listen).await?, &[&address, "--listen"])?;
    ensure!(!other.exists(), "it made a folder");
    ensure!(first.stop().await?.success());
    Ok(())
}

#[tokio::test]
async fn a_busy_port_is_named_with_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = taken.local_addr()?.to_string();
    let data = folder.path().join("data");
    one_line(
        &refused(&data, &["--listen", &address]).await?,
        &[&address, "in use", "--listen"],
    )?;
    ensure!(!data.exists(), "it made a folder");
    drop(taken);
    let server = Up::start(&data, &["--listen", &address]).await?;
    ensure!(server.greeting.contains(&address), "{}", server.greeting);
    ensure!(server.root()?.port.to_string() == address.rsplit_once(':').context("a port")?.1);
    Ok(())
}

/// As somebody does it who restores a backup and forgets to end the server first.
#[tokio::test]
async fn a_server_whose_folder_was_replaced_leaves_the_new_one_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let old = Up::start(&data, &[]).await?;
    let object = |name: &str| json!({"metadata": {"name": name}});
    let plane = Client::open(&create_plane(&old.root()?, "a").await?).await?;
    let before = plane.post(CONFIG_MAPS, &object("before")).await?;
    before.expect(201)?;
    fs::rename(&data, folder.path().join("lost"))?;
    let new = Up::start(&data, &[]).await?;
    let pid = new.pid()?.to_string();
    let other = Client::open(&create_plane(&new.root()?, "b").await?).await?;
    let kept = other.post(CONFIG_MAPS, &object("kept")).await?;
    kept.expect(201)?;
    for name in ["late", "later"] {
        let refused = plane.post(CONFIG_MAPS, &object(name)).await?;
        let text = refused.body.to_string();
        ensure!(refused.status.as_u16() == 503, "{text}");
        ensure!(text.contains("removed or replaced"), "{text}");
    }
    let log = old.log()?;
    ensure!(log.contains("removed or replaced"), "{log}");
    old.stop().await?;
    ensure!(fs::read_to_string(data.join("pid"))?.trim() == pid);
    ensure!(new.stop().await?.success());
    let again = Up::start(&data, &[]).await?;
    let other = Client::open(&again.plane("b")?).await?;
    let kept = other.get(&format!("{CONFIG_MAPS}/kept")).await?;
    kept.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn wrong_flags_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--listen", "localhost"], &["localhost", "127.0.0.1:6443"]),
        (&["--listen", "127.0.0.1:99999"], &["127.0.0.1:99999"]),
        (
            &["--advertise", "nowhere"],
            &["advertise", "nowhere", "port"],
        ),
        (&["--host-name", "not a name"], &["not a name"]),
        (
            &["--store", "floppy"],
            &["floppy", "fjall", "sled", "memory"],
        ),
        (&["--sleep-after", "soon"], &["soon", "--sleep-after"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
    ];
    for (options, words) in cases {
        let output = refused(&data, options).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && output.stdout.is_empty(),
            "{options:?}: {text}"
        );
        for word in words {
            ensure!(
                text.contains(word),
                "{options:?}: {word:?} is missing: {text}"
            );
        }
        ensure!(text.starts_with("error: "), "{options:?}: {text}");
    }
    ensure!(
        !data.exists(),
        "nothing was made for a command line that is wrong"
    );
    for arguments in [
        &[][..],
        &["upp"],
        &["plane", "delete"],
        &["plane", "create"],
    ] {
        let output = std::process::Command::new(polyplane()?)
            .args(arguments)
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && text.contains("Usage: "),
            "{arguments:?}: {text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "not a folder")?;
    one_line(&refused(&file, &[]).await?, &["file", "--dir"])?;
    one_line(
        &refused(&file.join("below"), &[]).await?,
        &["below", "--dir"],
    )?;
    ensure!(fs::read_to_string(&file)? == "not a folder");
    // A system folder in which nobody can create anything, not even root.
    one_line(
        &refused(Path::new("/proc/polyplane"), &[]).await?,
        &["/proc/polyplane", "--dir"],
    )?;
    // A folder in place of a file.
    let data = folder.path().join("data");
    used(&data).await?;
    fs::remove_file(data.join("pki/ca.key"))?;
    fs::create_dir(data.join("pki/ca.key"))?;
    one_line(&refused(&data, &[]).await?, &["ca.key"])?;
    Ok(())
}

#[tokio::test]
async fn keys_and_kubeconfigs_are_private_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    create_plane(&server.root()?, "a").await?;
    let mode =
        |path: &Path| fs::metadata(path).map(|metadata| metadata.permissions().mode() & 0o777);
    for name in ["", "pki", "store"] {
        ensure!(
            mode(&data.join(name))? == 0o700,
            "the folder {name:?}: {:o}",
            mode(&data.join(name))?
        );
    }
    for name in ["kubeconfig", "pki/ca.key", "pki/admin.token"] {
        ensure!(
            mode(&data.join(name))? == 0o600,
            "{name}: {:o}",
            mode(&data.join(name))?
        );
    }
    ensure!(server.stop().await?.success());
    // Make key files readable for others: the server makes them private again, or refuses to start.
    fs::set_permissions(data.join("pki/ca.key"), fs::Permissions::from_mode(0o644))?;
    fs::set_permissions(data.join("kubeconfig"), fs::Permissions::from_mode(0o644))?;
    match Up::start(&data, &[]).await {
        Ok(server) => {
            ensure!(
                mode(&data.join("pki/ca.key"))? == 0o600,
                "the key is private again"
            );
            ensure!(
                mode(&server.kubeconfig)? == 0o600,
                "the kubeconfig is private again"
            );
        }
        Err(error) => ensure!(error.to_string().contains("ca.key"), "{error:#}"),
    }
    Ok(())
}

#[tokio::test]
async fn a_damaged_store_is_refused_and_left_as_it_is() -> Result<()> {
    for engine in ["fjall", "sled"] {
        damaged_store_is_refused(engine).await.context(engine)?;
    }
    Ok(())
}

/// Returns the file in which an engine keeps the newest writes.
fn newest_file(data: &Path, engine: &str) -> Result<PathBuf> {
    let store = data.join("store");
    if engine == "sled" {
        return Ok(store.join("db"));
    }
    let journals = fs::read_dir(store.join("fjall"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    journals.max().context("no journal")
}

async fn damaged_store_is_refused(engine: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    used_with(&data, &["--store", engine]).await?;
    let db = newest_file(&data, engine)?;
    let good = fs::read(&db)?;
    // Behind its contents a file may have space that was taken in advance.
    let used = good.iter().rposition(|byte| *byte != 0).context("empty")?;
    let half = used / 2;
    let zeroed: Vec<u8> = good[..half]
        .iter()
        .copied()
        .chain(std::iter::repeat_n(0, good.len() - half))
        .collect();
    let mut flipped = good.clone();
    for at in (half..used).step_by(97) {
        flipped[at] ^= 0x5a;
    }
    for (what, bytes) in [
        ("cut", good[..half].to_vec()),
        ("zeroed", zeroed),
        ("flipped", flipped),
    ] {
        fs::write(&db, &bytes)?;
        let output = refused(&data, &[]).await?;
        one_line(&output, &["damaged", "backup"]).with_context(|| what.to_owned())?;
        ensure!(fs::read(&db)? == bytes, "{what}: the file was changed");
    }
    fs::write(&db, &good)?;
    let format = fs::read_to_string(data.join("store/format"))?;
    let newer = format!("polyplane-store {engine} 99\n");
    fs::write(data.join("store/format"), newer)?;
    one_line(&refused(&data, &[]).await?, &["format 99", "newer"])?;
    fs::write(data.join("store/format"), "something else")?;
    one_line(&refused(&data, &[]).await?, &["damaged", "format"])?;
    fs::write(data.join("store/format"), format)?;
    // With its file restored, the server has all objects again.
    let server = Up::start(&data, &[]).await?;
    let plane = Client::open(&server.plane("a")?).await?;
    plane
        .get(&format!("{CONFIG_MAPS}/kept"))
        .await?
        .expect(200)?;
    Ok(())
}

#[tokio::test]
async fn a_store_is_opened_by_the_engine_that_created_it() -> Result<()> {
    for (created, other) in [("fjall", "sled"), ("sled", "fjall")] {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        used_with(&data, &["--store", created]).await?;
        for options in [&[][..], &["--store", other]] {
            let server = Up::start(&data, options).await?;
            let plane = Client::open(&server.plane("a")?).await?;
            plane
                .get(&format!("{CONFIG_MAPS}/kept"))
                .await?
                .expect(200)?;
            ensure!(server.stop().await?.success());
        }
        let format = fs::read_to_string(data.join("store/format"))?;
        ensure!(
            format == format!("polyplane-store {created} 1\n"),
            "{format}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn damaged_keys_are_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    used(&data).await?;
    for name in ["ca.crt", "ca.key", "admin.token"] {
        let path = data.join("pki").join(name);
        let good = fs::read(&path)?;
        fs::write(&path, "")?;
        one_line(&refused(&data, &[]).await?, &[name])?;
        fs::write(&path, &good)?;
    }
    let server = Up::start(&data, &[]).await?;
    ensure!(server.stop().await?.success());
    Ok(())
}

/// The file of the administrator's token is read again: the server takes the new token, and the earlier one
/// no more.
#[tokio::test]
async fn a_replaced_token_of_the_administrator_is_taken_without_a_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let root = server.root()?;
    let path = data.join("pki/admin.token");
    let (earlier, new) = (fs::read_to_string(&path)?, "0123456789abcdef-replaced");
    let before = Client::open(&root.with_token(Some(earlier.trim()))).await?;
    let after = Client::open(&root.with_token(Some(new))).await?;
    before.get(CONFIG_MAPS).await?.expect(200)?;
    after.get(CONFIG_MAPS).await?.refuses(401, "Unauthorized")?;
    fs::write(&path, new)?;
    let deadline = Instant::now() + REREAD_LIMIT;
    while after.get(CONFIG_MAPS).await?.status != 200 {
        ensure!(Instant::now() < deadline, "{}", server.log()?);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    before
        .get(CONFIG_MAPS)
        .await?
        .refuses(401, "Unauthorized")?;
    Ok(())
}

#[tokio::test]
async fn sigterm_finishes_what_is_under_way_and_ends_watches() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let endpoint = create_plane(&server.root()?, "a").await?;
    let watcher = Client::open(&endpoint).await?;
    let mut watch = watcher
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"))
        .await?;
    watch.expect().await?;
    // The body of this request is half sent when the signal arrives.
    let mut slow =
        polyplane_tests::connection::connect(&endpoint, Caller::Admin, Protocol::Http1).await?;
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}).to_string();
    let (first, second) = body.split_at(body.len() / 2);
    let head = format!(
        "POST /clusters/a{CONFIG_MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).await?;
    // The server requests the body once it has accepted the request.
    let mut asked = [0; 25];
    tokio::io::AsyncReadExt::read_exact(&mut slow, &mut asked).await?;
    ensure!(
        asked.starts_with(b"HTTP/1.1 100 Continue"),
        "{}",
        String::from_utf8_lossy(&asked)
    );
    slow.write_all(first.as_bytes()).await?;
    server.terminate()?;
    // From now on the server accepts no new connection.
    while Client::open(&endpoint).await.is_ok() {
        tokio::task::yield_now().await;
    }
    slow.write_all(second.as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut slow, &mut answer)
        .await
        .or_else(|error| {
            // A peer that closes without the closing alert of TLS has still answered.
            (error.kind() == std::io::ErrorKind::UnexpectedEof)
                .then_some(0)
                .ok_or(error)
        })?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    ensure!(answer.starts_with("HTTP/1.1 201 Created"), "{answer}");
    let told = watch.until_end().await?;
    ensure!(
        told.iter().all(|event| event["type"] != "ERROR"),
        "the watch ends without an error: {told:?}"
    );
    ensure!(server.ended().await?.success(), "it ends with 0");
    let server = Up::start(&data, &[]).await?;
    let plane = Client::open(&server.plane("a")?).await?;
    plane
        .get(&format!("{CONFIG_MAPS}/late"))
        .await?
        .expect(200)?;
    Ok(())
}

#[tokio::test]
async fn the_current_context_survives_planes_and_restarts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let root = server.root()?;
    create_plane(&root, "a").await?;
    let plugin = |arguments: &[&str]| -> Result<Output> {
        let mut command = std::process::Command::new(polyplane()?);
        command
            .arg("plane")
            .args(arguments)
            .env("KUBECONFIG", data.join("kubeconfig"));
        Ok(command.output()?)
    };
    let used = plugin(&["use", "a"])?;
    ensure!(
        used.status.success(),
        "{}",
        String::from_utf8_lossy(&used.stderr)
    );
    let current = || -> Result<String> {
        let config: Value = serde_saphyr::from_str(&fs::read_to_string(data.join("kubeconfig"))?)?;
        Ok(config["current-context"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    ensure!(current()? == "a");
    // The server adds another plane to the file; the current context stays.
    create_plane(&root, "b").await?;
    let has_context = |name: &str| server.kubeconfig.exists() && context_of(&data, name);
    while !has_context("b") {
        tokio::task::yield_now().await;
    }
    ensure!(current()? == "a");
    server.kill().await?;
    let server = Up::start(&data, &[]).await?;
    ensure!(current()? == "a" && context_of(&data, "b"));
    // A deleted plane cannot stay the current context, and what was meant for it must not be done in the root.
    delete_plane(&server.root()?, "a").await?;
    while context_of(&data, "a") {
        tokio::task::yield_now().await;
    }
    ensure!(current()?.is_empty(), "no context: {}", current()?);
    ensure!(server.stop().await?.success());
    let _server = Up::start(&data, &[]).await?;
    ensure!(current()? == "root", "back to the root: {}", current()?);
    Ok(())
}

fn context_of(data: &Path, name: &str) -> bool {
    polyplane_tests::kubeconfig::Endpoint::from_kubeconfig(&data.join("kubeconfig"), Some(name))
        .is_ok()
}

#[tokio::test]
async fn what_is_in_memory_is_said_to_be_and_leaves_no_store() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &["--store", "memory"]).await?;
    let plane = Client::open(&create_plane(&server.root()?, "a").await?).await?;
    let put = plane
        .send(
            Method::POST,
            CONFIG_MAPS,
            &json!({"metadata": {"name": "m"}}),
        )
        .await?;
    put.expect(201)?;
    ensure!(!data.join("store").exists(), "nothing on disk");
    server.stop().await?;
    let server = Up::start(&data, &["--store", "memory"]).await?;
    ensure!(
        Client::open(&server.plane("a")?)
            .await?
            .get(CONFIG_MAPS)
            .await?
            .status
            == 404
    );
    Ok(())
}

/// The pause between two sweeps adds no more to a plane's idle time than that time itself.
#[tokio::test]
async fn a_plane_that_nobody_uses_sleeps_soon_after_its_idle_time() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &["--sleep-after=1"]).await?;
    let root = server.root()?;
    create_plane(&root, "a").await?;
    let admin = Client::open(&root).await?;
    // The idle time, the pause between two sweeps, and four seconds more for a busy machine.
    let soon = Duration::from_secs(6);
    for _ in 0..3 {
        until_asleep(&admin, soon).await?;
        let path = format!("/clusters/a{CONFIG_MAPS}");
        admin.get(&path).await?.expect(200)?;
    }
    until_asleep(&admin, soon).await?;
    ensure!(server.stop().await?.success());
    Ok(())
}
