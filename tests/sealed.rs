//! Encryption at rest: what is in the store's files, who can read it, and what becomes of it when keys
//! change, are missing, or are behind a key management service that is down.

#[path = "sealed/kms.rs"]
mod kms;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use kms::FakeKms;
use polyplane_tests::client::Client;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{create_plane, polyplane, remove_plane, until_asleep};
use polyplane_tests::site::move_to;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const FLAG: &str = "--encryption-provider-config";
/// The longest time until planes are as they should be, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a store and a file of keys.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
        })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Writes a configuration and returns the flag that names it.
    fn config(&self, resources: &str, providers: &[&str]) -> Result<String> {
        let path = self.folder.path().join("encryption.yaml");
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n\
             resources:\n- resources: [{resources}]\n  providers: [{}]\n",
            providers.join(", ")
        );
        std::fs::write(&path, text)?;
        Ok(format!("{FLAG}={}", path.display()))
    }

    async fn up(&self, options: &[&str]) -> Result<Up> {
        Up::start(&self.data(), options).await
    }
}

/// Returns a provider with a key of 32 equal bytes, whose text is in no other file. The provider is one of
/// those whose keys stand in the file: they differ in nothing but their names.
fn key(name: &str, byte: u8) -> String {
    use base64::Engine as _;
    let secret = base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    let kinds = ["aesgcm", "aescbc", "secretbox"];
    let kind = kinds[usize::from(byte) % kinds.len()];
    format!("{{{kind}: {{keys: [{{name: {name}, secret: {secret}}}]}}}}")
}

/// Words that no other object has. Base64 of a Secret is another text, so `stringData` is not used.
fn canary(plane: &str, kind: &str) -> String {
    format!("canary-{kind}-of-{plane}-{kind}")
}

async fn write(plane: &Endpoint, name: &str, of: &str) -> Result<()> {
    let client = Client::open(plane).await?;
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    let secret = engine.encode(canary(of, "secret"));
    let secret = json!({"metadata": {"name": name, "labels": {"l": canary(of, "label")}},
        "data": {"k": secret}});
    client.post(SECRETS, &secret).await?.expect(201)?;
    let small = json!({"metadata": {"name": name}, "data": {"k": canary(of, "map")}});
    client.post(CONFIG_MAPS, &small).await?.expect(201)?;
    // Long enough to be packed: of repeated words hardly anything is left.
    let large = canary(of, "large").repeat(400);
    let large = json!({"metadata": {"name": format!("{name}-large")}, "data": {"k": large}});
    client.post(CONFIG_MAPS, &large).await?.expect(201)?;
    Ok(())
}

async fn read(plane: &Endpoint, name: &str, of: &str) -> Result<()> {
    use base64::Engine as _;
    let client = Client::open(plane).await?;
    let secret = client
        .get(&format!("{SECRETS}/{name}"))
        .await?
        .expect(200)?;
    let engine = base64::engine::general_purpose::STANDARD;
    ensure!(
        secret["data"]["k"] == engine.encode(canary(of, "secret")),
        "{secret}"
    );
    ensure!(
        secret["metadata"]["labels"]["l"] == canary(of, "label"),
        "{secret}"
    );
    let small = client
        .get(&format!("{CONFIG_MAPS}/{name}"))
        .await?
        .expect(200)?;
    ensure!(small["data"]["k"] == canary(of, "map"), "{small}");
    let large = client
        .get(&format!("{CONFIG_MAPS}/{name}-large"))
        .await?
        .expect(200)?;
    ensure!(
        large["data"]["k"] == canary(of, "large").repeat(400),
        "the large one differs"
    );
    Ok(())
}

/// Returns the canaries of planes that are in the store's files, and the number of bytes searched.
fn found(data: &Path, planes: &[&str]) -> Result<(Vec<String>, usize)> {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    let mut wanted = Vec::new();
    for plane in planes {
        for kind in ["secret", "label", "map", "large"] {
            wanted.push(canary(plane, kind));
        }
        // Without its end, which depends on what follows.
        let text = engine.encode(canary(plane, "secret"));
        wanted.push(text[..text.len() - 4].to_owned());
    }
    let (mut seen, mut bytes) = (Vec::new(), 0);
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_symlink() || path.ends_with("pki") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read(&path)?;
            bytes += text.len();
            let has = |word: &&String| {
                let word = word.as_bytes();
                text.windows(word.len()).any(|window| window == word)
            };
            seen.extend(wanted.iter().filter(has).cloned());
        }
    }
    Ok((seen, bytes))
}

async fn report(root: &Endpoint, plane: &str) -> Result<Value> {
    let client = Client::open(root).await?;
    let path = format!("/polyplane/encryption/{plane}");
    client.get(&path).await?.expect(200)
}

/// Waits until the report of a plane is as wanted. Each look also wakes the plane.
async fn until(root: &Endpoint, plane: &str, what: impl Fn(&Value) -> bool) -> Result<Value> {
    let began = Instant::now();
    let client = Client::open(root).await?;
    loop {
        client
            .get(&format!("/clusters/{plane}{CONFIG_MAPS}"))
            .await?
            .expect(200)?;
        let seen = report(root, plane).await?;
        if what(&seen) {
            return Ok(seen);
        }
        ensure!(began.elapsed() < PATIENCE, "{plane} stays {seen}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn is_settled(report: &Value) -> bool {
    report["settled"] == true && report["dataKey"].is_u64()
}

/// Two planes and the root: no word of them is in the files of the store, and all of them are served, after
/// a move, after sleep, after a restart, from a copy of store and keys; in a store in clear the same search
/// finds every word. Other keys and no keys are refused with what is missing.
#[tokio::test]
async fn what_is_stored_is_read_by_those_with_the_key_alone() -> Result<()> {
    let clear = Place::new()?;
    let server = clear.up(&[]).await?;
    write(&create_plane(&server.root()?, "a").await?, "x", "a").await?;
    ensure!(server.stop().await?.success(), "it does not stop well");
    let (seen, _) = found(&clear.data(), &["a"])?;
    // Not the large one, which is packed, nor the Secret's own word, which is stored in base64.
    ensure!(
        seen.len() >= 3,
        "the search finds too little in clear: {seen:?}"
    );

    let place = Place::new()?;
    let (one, two) = (key("one", 1), key("two", 2));
    let flag = place.config("'*.*'", &[&one, "{identity: {}}"])?;
    let options = [flag.as_str(), "--replicas=2", "--sleep-after=1"];
    let server = place.up(&options).await?;
    let root = server.root()?;
    for name in ["a", "b"] {
        write(&create_plane(&root, name).await?, "x", name).await?;
    }
    write(&root, "x", "root").await?;
    let client = Client::open(&root).await?;
    for replica in ["polyplane-1", "polyplane-0"] {
        move_to(&client, "a", replica).await?;
        read(&server.plane("a")?, "x", "a").await?;
    }
    until_asleep(&Client::open(&root).await?, PATIENCE).await?;
    read(&server.plane("b")?, "x", "b").await?;
    for name in ["a", "b"] {
        let seen = until(&root, name, is_settled).await?;
        ensure!(seen["dataKey"] == 1, "{seen}");
        ensure!(
            seen["wrappedBy"]
                .as_str()
                .is_some_and(|by| by.contains("one")),
            "{seen}"
        );
    }
    remove_plane(&root, "b").await?;
    let log = server.log()?;
    ensure!(
        !log.contains("canary-") && !log.contains("AQEBAQEB"),
        "{log}"
    );
    ensure!(server.stop().await?.success(), "it does not stop well");
    let (seen, bytes) = found(&place.data(), &["a", "b", "root"])?;
    ensure!(seen.is_empty(), "{bytes} bytes have {seen:?}");
    println!("{bytes} bytes of the store have no word of three planes");

    let output = refused(&place.data(), &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        said.contains("encrypted by the key \"one\"") && said.contains(FLAG),
        "{said}"
    );
    let other = place.config("'*.*'", &[&two])?;
    let output = refused(&place.data(), &[&other]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        said.contains("the key \"one\"") && said.contains("does not have"),
        "{said}"
    );
    ensure!(!said.contains("AgIC") && !said.contains("AQEB"), "{said}");

    // The drill: store and keys are copied, and served elsewhere.
    let copy = Place::new()?;
    copy_folder(&place.data(), &copy.data())?;
    // `polyplane store copy` copies what is sealed as it is, and needs no key.
    let moved = Place::new()?;
    let spelled = |engine: &str, place: &Place| format!("{engine}:{}", place.data().display());
    let mut command = Command::new(polyplane()?);
    command.args([
        "store",
        "copy",
        &spelled("fjall", &place),
        &spelled("sled", &moved),
    ]);
    let output = command.output().await?;
    ensure!(output.status.success(), "{output:?}");
    let (seen, _) = found(&moved.data(), &["a", "b", "root"])?;
    ensure!(seen.is_empty(), "the copy has {seen:?}");
    copy_folder(&place.data().join("pki"), &moved.data().join("pki"))?;

    let flag = copy.config("'*.*'", &[&one])?;
    for place in [&place, &copy, &moved] {
        let server = place.up(&[&flag]).await?;
        read(&server.plane("a")?, "x", "a").await?;
        read(&server.root()?, "x", "root").await?;
        ensure!(server.stop().await?.success(), "it does not stop well");
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_symlink() {
            continue;
        }
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &target)?,
            false => drop(std::fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

/// A store in clear is sealed when it is switched on, one resource or all; a plane gets another data key
/// until no record is under the older one; and another key-encryption key, also while it sleeps, until the
/// older one can be taken out of the file.
#[tokio::test]
async fn keys_change_until_nothing_needs_the_older_ones() -> Result<()> {
    let place = Place::new()?;
    let server = place.up(&[]).await?;
    for name in ["a", "b"] {
        write(&create_plane(&server.root()?, name).await?, "x", name).await?;
    }
    ensure!(server.stop().await?.success(), "it does not stop well");

    let (one, two) = (key("one", 1), key("two", 2));
    let flag = place.config("secrets", &[&one])?;
    let server = place.up(&[&flag]).await?;
    until(&server.root()?, "a", is_settled).await?;
    read(&server.plane("a")?, "x", "a").await?;
    ensure!(server.stop().await?.success(), "it does not stop well");

    let flag = place.config("'*.*'", &[&one])?;
    let server = place.up(&[&flag, "--sleep-after=2"]).await?;
    let root = server.root()?;
    for name in ["a", "b"] {
        until(&root, name, is_settled).await?;
    }
    let bin = place.data().join("bin");
    let kubectl = Kubectl::find(&server.kubeconfig, place.folder.path(), &bin)?;
    let said = kubectl.ok(&["plane", "rotate", "a", "--data-key"])?;
    ensure!(said.contains("data key 2"), "{said}");
    let said = kubectl.ok(&["plane", "get", "a"])?;
    ensure!(
        said.contains("data key 2, wrapped by the key \"one\""),
        "{said}"
    );
    ensure!(said.contains("no object is stored otherwise"), "{said}");
    read(&server.plane("a")?, "x", "a").await?;
    ensure!(
        report(&root, "b").await?["dataKey"] == 1,
        "b has another key"
    );
    ensure!(server.stop().await?.success(), "it does not stop well");

    // The older key reads, and both planes sleep.
    let flag = place.config("'*.*'", &[&two, &one])?;
    let server = place.up(&[&flag, "--sleep-after=1"]).await?;
    let root = server.root()?;
    let began = Instant::now();
    loop {
        let seen = report(&root, "a").await?;
        let keys = seen["keys"].as_array().context("the report has the keys")?;
        if !keys.iter().any(|key| key.to_string().contains("one")) {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "the older key stays: {seen}");
        sleep(Duration::from_millis(200)).await;
    }
    ensure!(server.stop().await?.success(), "it does not stop well");
    let flag = place.config("'*.*'", &[&two])?;
    let server = place.up(&[&flag]).await?;
    for name in ["a", "b"] {
        read(&server.plane(name)?, "x", name).await?;
    }
    ensure!(server.stop().await?.success(), "it does not stop well");
    Ok(())
}

/// With `identity` first nothing new is encrypted, so there is no key to wrap a new data key.
#[tokio::test]
async fn a_data_key_is_not_requested_where_no_key_would_wrap_it() -> Result<()> {
    let place = Place::new()?;
    let one = key("one", 1);
    let flag = place.config("'*.*'", &[&one])?;
    let server = place.up(&[&flag]).await?;
    write(&create_plane(&server.root()?, "a").await?, "x", "a").await?;
    until(&server.root()?, "a", is_settled).await?;
    ensure!(server.stop().await?.success(), "it does not stop well");

    let flag = place.config("'*.*'", &["{identity: {}}", &one])?;
    let server = place.up(&[&flag]).await?;
    let bin = place.data().join("bin");
    let kubectl = Kubectl::find(&server.kubeconfig, place.folder.path(), &bin)?;
    let said = kubectl.fails(&["plane", "rotate", "a", "--data-key"])?;
    ensure!(said.contains("`identity`") && said.contains(FLAG), "{said}");
    let seen = report(&server.root()?, "a").await?;
    ensure!(seen["requestedGeneration"] == 0, "{seen}");
    read(&server.plane("a")?, "x", "a").await?;
    ensure!(server.stop().await?.success(), "it does not stop well");
    Ok(())
}

/// A plane that was woken once for its new data key, and that nobody uses, does not sleep before the last of
/// its records is under that key. Then it sleeps.
#[tokio::test]
async fn a_plane_does_not_sleep_before_all_its_records_are_under_the_new_key() -> Result<()> {
    let place = Place::new()?;
    let flag = place.config("'*.*'", &[&key("one", 1)])?;
    let server = place.up(&[&flag, "--sleep-after=1"]).await?;
    let root = server.root()?;
    let client = Client::open(&create_plane(&root, "a").await?).await?;
    // More than five sweeps write again.
    for number in 0..350 {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        client.post(CONFIG_MAPS, &map).await?.expect(201)?;
    }
    until(&root, "a", is_settled).await?;
    let root_client = Client::open(&root).await?;
    until_asleep(&root_client, PATIENCE).await?;

    let generation =
        json!({"metadata": {"annotations": {"polyplane.dev/data-key-generation": "1"}}});
    let path = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    let kind = "application/merge-patch+json";
    root_client
        .typed(Method::PATCH, path, kind, generation.to_string())
        .await?
        .expect(200)?;
    let one = format!("/clusters/a{CONFIG_MAPS}/m0");
    root_client.get(&one).await?.expect(200)?;
    // A report does not wake the plane.
    let began = Instant::now();
    loop {
        let seen = report(&root, "a").await?;
        if seen["generation"] == 1 && is_settled(&seen) {
            break;
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "records stay as they were: {seen}"
        );
        sleep(Duration::from_millis(200)).await;
    }
    until_asleep(&root_client, PATIENCE).await?;
    ensure!(server.stop().await?.success(), "it does not stop well");
    Ok(())
}

/// A key management service wraps the key-encryption key: while it is down planes go on, asleep ones wake, new
/// ones are made, and a new process says what it waits for. It never gets a data key or an object.
#[tokio::test]
async fn a_key_management_service_is_needed_at_the_start_alone() -> Result<()> {
    let place = Place::new()?;
    let socket = place.folder.path().join("kms.sock");
    let kms = FakeKms::start(&socket, "remote-1")?;
    let provider = format!(
        "{{kms: {{apiVersion: v2, name: vault, endpoint: 'unix://{}', timeout: 2s}}}}",
        socket.display()
    );
    let flag = place.config("'*.*'", &[&provider])?;
    let server = place.up(&[&flag, "--sleep-after=1"]).await?;
    let root = server.root()?;
    write(&create_plane(&root, "a").await?, "x", "a").await?;
    let calls = kms.stop();
    println!("{calls} calls of the service at the start");
    until_asleep(&Client::open(&root).await?, PATIENCE).await?;
    read(&server.plane("a")?, "x", "a").await?;
    write(&create_plane(&root, "b").await?, "x", "b").await?;
    let seen = until(&root, "b", is_settled).await?;
    ensure!(
        seen["wrappedBy"]
            .as_str()
            .is_some_and(|by| by.contains("vault")),
        "{seen}"
    );
    ensure!(server.stop().await?.success(), "it does not stop well");

    let output = refused(&place.data(), &[&flag]).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        said.contains("the key management service \"vault\" does not answer"),
        "{said}"
    );
    // It has another key of its own by now, and still unwraps.
    let kms = FakeKms::start(&socket, "remote-2")?;
    let server = place.up(&[&flag]).await?;
    for name in ["a", "b"] {
        read(&server.plane(name)?, "x", name).await?;
    }
    ensure!(server.stop().await?.success(), "it does not stop well");
    ensure!(kms.stop() <= 4, "more calls than a start needs");
    Ok(())
}
