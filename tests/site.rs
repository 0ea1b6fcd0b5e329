//! A server with its administrator's kubectl: gives control planes users, takes their rights away, and
//! moves planes between replicas.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::{Client, Reply};
use crate::kubeconfig::Endpoint;
use crate::kubectl::Kubectl;
use crate::process::Up;

const PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
const NAMESPACES: &str = "/api/v1/namespaces";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// The longest time until a plane has moved.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, its administrator's kubectl, and a folder for kubeconfigs.
pub struct Site {
    /// The server.
    pub server: Up,
    /// The root plane.
    pub root: Endpoint,
    /// The administrator's kubectl.
    pub kubectl: Kubectl,
    /// The folder.
    pub folder: tempfile::TempDir,
}

impl Site {
    /// Starts a server.
    ///
    /// # Errors
    /// Returns an error if it does not start, or there is no kubectl.
    pub async fn start(options: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Up::start(&folder.path().join("data"), options).await?;
        let bin = folder.path().join("data/bin");
        let kubectl = Kubectl::find(&server.kubeconfig, folder.path(), &bin)?;
        Ok(Self {
            root: server.root()?,
            server,
            kubectl,
            folder,
        })
    }

    /// Runs `kubectl plane kubeconfig` and keeps what it prints.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn kubeconfig(&self, file: &str, arguments: &[&str]) -> Result<PathBuf> {
        let text = self
            .kubectl
            .ok(&[&["plane", "kubeconfig"], arguments].concat())?;
        let path = self.folder.path().join(file);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Returns the kubeconfig of a plane's own administrator.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn admin_of(&self, plane: &str) -> Result<PathBuf> {
        self.kubeconfig(&format!("{plane}.admin"), &[plane, "--admin"])
    }

    /// Returns a user of a plane's own, who is in the group `dev`.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn user_of(&self, plane: &str, name: &str) -> Result<Endpoint> {
        let arguments = [plane, &format!("--user={name}"), "--group=dev"];
        endpoint(&self.kubeconfig(&format!("{name}.{plane}"), &arguments)?)
    }

    /// Changes `spec.access` of a plane.
    ///
    /// # Errors
    /// Returns an error if no answer arrives.
    pub async fn change_access(&self, plane: &str, access: Value) -> Result<Reply> {
        let root = Client::open(&self.root).await?;
        let body = json!({"spec": {"access": access}}).to_string();
        let path = format!("{PLANES}/{plane}");
        root.typed(Method::PATCH, &path, MERGE_PATCH, body).await
    }
}

/// Sends a GET over a connection of its own.
///
/// # Errors
/// Returns an error if no answer arrives.
pub async fn get(endpoint: &Endpoint, path: &str) -> Result<Reply> {
    Client::open(endpoint).await?.get(path).await
}

/// Checks that a caller may list namespaces.
///
/// # Errors
/// Returns an error with any other answer.
pub async fn admitted(endpoint: &Endpoint) -> Result<()> {
    get(endpoint, NAMESPACES).await?.expect(200).map(drop)
}

/// Checks that a caller is nobody.
///
/// # Errors
/// Returns an error with any other answer.
pub async fn refused(endpoint: &Endpoint) -> Result<()> {
    get(endpoint, NAMESPACES)
        .await?
        .refuses(401, "Unauthorized")
}

/// Returns the server and user of a kubeconfig.
///
/// # Errors
/// Returns an error if a client cannot use it.
pub fn endpoint(path: &Path) -> Result<Endpoint> {
    Endpoint::from_kubeconfig(path, None)
}

/// Makes a replica take a plane, and waits until it has. `root` is a master of the root.
///
/// # Errors
/// Returns an error if the plane does not get there.
pub async fn move_to(root: &Client, plane: &str, replica: &str) -> Result<()> {
    let pin = json!({"spec": {"placement": {"replica": replica}}}).to_string();
    let path = format!("{PLANES}/{plane}");
    let pinned = root.typed(Method::PATCH, &path, MERGE_PATCH, pin).await?;
    ensure!(pinned.status == 200, "{pinned:?}");
    let inside = format!("/clusters/{plane}{NAMESPACES}");
    let began = Instant::now();
    loop {
        // A request, because a plane that sleeps has no owner.
        let woken = root.get(&inside).await?;
        ensure!([200, 401].contains(&woken.status.as_u16()), "{woken:?}");
        if owner(root, plane).await? == replica {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("{replica} does not get {plane}");
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the replica that owns a plane.
///
/// # Errors
/// Returns an error if the server does not say.
pub async fn owner(root: &Client, plane: &str) -> Result<String> {
    let seen = root.get(&format!("/polyplane/locate/{plane}")).await?;
    ensure!(seen.status == 200, "{seen:?}");
    Ok(seen.body["owner"].as_str().unwrap_or_default().to_owned())
}
