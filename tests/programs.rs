//! Finds and starts the programs that the tests use.
//!
//! This module owns child processes and their folders. A process is stopped when its value is
//! dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::connection::{Ask, Connection};
use crate::golden::folder;
use crate::kubeconfig::{Caller, Endpoint, Protocol};

/// The path of `ControlPlane` objects in the root plane.
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// The longest time until a server is ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A running server and its folder.
pub struct Server {
    child: Child,
    /// The folder with the server's state, removed with the server.
    folder: tempfile::TempDir,
    /// The kubeconfig of the root plane, or of the reference.
    pub kubeconfig: PathBuf,
}

impl Server {
    /// Starts `polyplane up` in a new folder and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the program does not exist or does not become ready.
    pub async fn start() -> Result<Self> {
        let program = polyplane()?;
        let folder = tempfile::tempdir()?;
        let log = std::fs::File::create(folder.path().join("up.log"))?;
        let child = Command::new(&program)
            .arg("up")
            .arg("--dir")
            .arg(folder.path())
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let kubeconfig = folder.path().join("kubeconfig");
        let mut server = Self {
            child,
            folder,
            kubeconfig,
        };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Starts the reference: etcd, kube-apiserver and the controllers that scenarios rely on.
    ///
    /// # Errors
    /// Returns an error if a program is missing or the reference does not become ready.
    pub async fn start_reference() -> Result<Self> {
        Self::start_reference_with(&[]).await
    }

    /// Starts the reference with further flags of its API server.
    ///
    /// # Errors
    /// See [`Self::start_reference`].
    pub async fn start_reference_flagged(flags: &[String]) -> Result<Self> {
        let mut all = vec!["--"];
        all.extend(flags.iter().map(String::as_str));
        Self::start_reference_with(&all).await
    }

    /// Starts the reference without controllers, which would write to objects beside a test.
    ///
    /// # Errors
    /// See [`Self::start_reference`].
    pub async fn start_reference_alone() -> Result<Self> {
        Self::start_reference_with(&["--no-controllers"]).await
    }

    /// Starts the reference with controllers that send requests as fast as they can. By default they
    /// send a few tens a second.
    ///
    /// # Errors
    /// See [`Self::start_reference`].
    pub async fn start_reference_unthrottled() -> Result<Self> {
        Self::start_reference_with(&["--unthrottled"]).await
    }

    async fn start_reference_with(flags: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut child = Command::new(self::folder().join("reference-up"))
            .arg("--dir")
            .arg(folder.path())
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start tests/reference-up")?;
        let output = child.stdout.take().context("the reference has no output")?;
        let line = BufReader::new(output).lines().next();
        let line = line.context("the reference did not start")??;
        let kubeconfig = line
            .trim()
            .strip_prefix("KUBECONFIG=")
            .context("no KUBECONFIG=")?;
        let kubeconfig = PathBuf::from(kubeconfig);
        let mut server = Self {
            child,
            folder,
            kubeconfig,
        };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Returns the folder with the server's state.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !ready(&self.kubeconfig).await {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}: {}", self.log());
            }
            if Instant::now() >= deadline {
                bail!("not ready in {} s: {}", START_LIMIT.as_secs(), self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("up.log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first, because only then does the reference end its own children. `kill` is a
        // program of every POSIX system; std has no safe call for signals.
        let pid = self.child.id().to_string();
        let asked = Command::new("kill").arg(&pid).status();
        let ended = asked.is_ok() && self.child.wait().is_ok();
        if !ended {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Returns the program under test: `POLYPLANE_BIN`, else the one that cargo built beside this
/// program.
///
/// # Errors
/// Returns an error that says how to build the program if it does not exist.
pub fn polyplane() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("POLYPLANE_BIN").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        bail!("POLYPLANE_BIN names {}, which is not there", path.display());
    }
    let own = std::env::current_exe()?;
    let folders = own.ancestors().skip(1).take(3);
    let profiles = folders.flat_map(|folder| {
        let target = folder.parent().map(|target| target.join("release"));
        [Some(folder.to_owned()), target].into_iter().flatten()
    });
    profiles
        .map(|folder| folder.join("polyplane"))
        .find(|path| path.is_file())
        .context("no polyplane program: build it with `cargo build -p polyplane`")
}

/// Returns the path of a program that exists already. Building it takes minutes.
///
/// # Errors
/// Returns an error if `tests/programs` cannot be run.
pub fn found(name: &str) -> Result<Option<String>> {
    let found = Command::new(folder().join("programs"))
        .args(["found", name])
        .output()?;
    let text = String::from_utf8(found.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.map(|path| path.trim().to_owned()))
}

/// Returns whether the reference is built already.
pub fn has_reference() -> bool {
    const NAME: &str = "kube-apiserver";
    let cache = match std::env::var_os("POLYPLANE_PROGRAMS") {
        Some(folder) => PathBuf::from(folder),
        None => folder().join("../target/programs"),
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([cache]);
    folders.any(|folder| folder.join(NAME).is_file())
}

/// Returns the program of a future release, which cargo builds as an example of this crate.
///
/// # Errors
/// Returns an error that says how to build the program if it does not exist.
pub fn next_release() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let mut folders = own.ancestors().skip(1).take(3);
    let found = folders.find_map(|folder| {
        let path = folder.join("examples/next_release");
        path.is_file().then_some(path)
    });
    found.context("no later release: build it with `cargo build -p polyplane-tests --examples`")
}

/// Returns the program of the tagged release, which `tests/tagged-binary` builds once from its
/// commit.
///
/// # Errors
/// Returns an error that says what to do if the commit is not in this clone or does not build.
pub fn tagged_release() -> Result<PathBuf> {
    let script = folder().join("tagged-binary");
    let output = Command::new(script)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .context("cannot run tests/tagged-binary")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

async fn ready(kubeconfig: &Path) -> bool {
    let Ok(endpoint) = Endpoint::from_kubeconfig(kubeconfig, None) else {
        return false;
    };
    let Ok(connection) = Connection::open(&endpoint, Caller::Admin, Protocol::Http2).await else {
        return false;
    };
    let ask = ask(Method::GET, "/readyz", &Value::Null);
    connection
        .send(ask)
        .await
        .is_ok_and(|answer| answer.status == 200)
}

/// Returns a request with a JSON body, or with none for null.
pub fn ask(method: Method, path: &str, body: &Value) -> Ask {
    let (headers, body) = match body {
        Value::Null => (Vec::new(), Bytes::new()),
        body => (
            vec![("content-type".to_owned(), "application/json".to_owned())],
            Bytes::from(body.to_string()),
        ),
    };
    Ask {
        method,
        path: path.to_owned(),
        headers,
        body,
    }
}

/// Creates a control plane, waits until it is Ready and returns its endpoint.
///
/// # Errors
/// Returns an error if the root plane refuses the plane, or the plane does not become Ready.
pub async fn create_plane(root: &Endpoint, name: &str) -> Result<Endpoint> {
    create_plane_of(root, name, &json!({})).await
}

/// Creates a plane where no controller changes what a test writes, as in a kube-apiserver without a
/// controller manager.
///
/// # Errors
/// Returns the errors of [`create_plane`].
pub async fn create_plane_without_controllers(root: &Endpoint, name: &str) -> Result<Endpoint> {
    let spec = json!({"controllers": ["-garbage-collector-controller"]});
    create_plane_of(root, name, &spec).await
}

/// Creates a plane with this `spec`, like [`create_plane`].
///
/// # Errors
/// Returns the errors of [`create_plane`].
pub async fn create_plane_of(root: &Endpoint, name: &str, spec: &Value) -> Result<Endpoint> {
    let connection = Connection::open(root, Caller::Admin, Protocol::Http2).await?;
    let body = json!({
        "apiVersion": "polyplane.dev/v1alpha1", "kind": "ControlPlane", "metadata": {"name": name},
        "spec": spec,
    });
    let made = connection
        .send(ask(Method::POST, CONTROL_PLANES, &body))
        .await?;
    if made.status != 201 {
        bail!("no plane {name}: {}", String::from_utf8_lossy(&made.body));
    }
    let path = format!("{CONTROL_PLANES}/{name}");
    let deadline = Instant::now() + START_LIMIT;
    let mut seen = made.body;
    while !is_ready(&seen) {
        if Instant::now() >= deadline {
            bail!(
                "the plane {name} is not Ready: {}",
                String::from_utf8_lossy(&seen)
            );
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        seen = connection
            .send(ask(Method::GET, &path, &Value::Null))
            .await?
            .body;
    }
    let base = root.base_path.trim_end_matches("/clusters/root").to_owned();
    Ok(root.at_base_path(&format!("{base}/clusters/{name}")))
}

/// Asks the root plane to delete a control plane.
///
/// # Errors
/// Returns an error if the root plane cannot be reached.
pub async fn delete_plane(root: &Endpoint, name: &str) -> Result<()> {
    let connection = Connection::open(root, Caller::Admin, Protocol::Http2).await?;
    let path = format!("{CONTROL_PLANES}/{name}");
    connection
        .send(ask(Method::DELETE, &path, &Value::Null))
        .await?;
    Ok(())
}

/// Deletes a plane and waits until its name is free again.
///
/// # Errors
/// Returns an error if no answer arrives, or the plane is not removed in time.
pub async fn remove_plane(root: &Endpoint, name: &str) -> Result<()> {
    delete_plane(root, name).await?;
    let connection = Connection::open(root, Caller::Admin, Protocol::Http2).await?;
    let path = format!("{CONTROL_PLANES}/{name}");
    let deadline = Instant::now() + START_LIMIT;
    loop {
        let seen = connection
            .send(ask(Method::GET, &path, &Value::Null))
            .await?;
        if seen.status == 404 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("the plane {name} is not removed");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until no plane but the root is awake. To locate a plane would count as a use of it, so this reads
/// the status of the ring.
///
/// # Errors
/// Returns an error if a plane is awake for longer than `patience`.
pub async fn until_asleep(root: &Client, patience: Duration) -> Result<()> {
    let began = Instant::now();
    loop {
        let ring = root.get("/polyplane/ring").await?.expect(200)?;
        let replicas = ring["replicas"].as_array();
        let replicas = replicas.context("the ring has replicas")?;
        let awake = replicas.iter().filter_map(|one| one["awake"].as_u64());
        if awake.sum::<u64>() <= 1 {
            return Ok(());
        }
        ensure!(began.elapsed() < patience, "planes do not sleep: {ring}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Returns whether a ControlPlane's JSON has the condition Ready with status True.
pub fn is_ready(control_plane: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(control_plane).unwrap_or_default();
    let conditions = value["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_is_ready_by_its_condition_alone() {
        let ready = br#"{"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#;
        let deleting = br#"{"status":{"conditions":[{"type":"Deleting","status":"True"}]}}"#;
        assert!(is_ready(ready));
        assert!(!is_ready(deleting) && !is_ready(b"") && !is_ready(b"{}"));
    }
}
