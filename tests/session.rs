//! The beginning of a user's session with kubectl: a server, a plane, two kubeconfigs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::kubectl::Kubectl;
use crate::process::Up;

/// A server with the plane `team-a`, and kubectl for the root and for that plane.
pub struct Session {
    /// The running server.
    pub server: Up,
    /// The folder of the session.
    pub folder: tempfile::TempDir,
    /// kubectl with the root's kubeconfig.
    pub root: Kubectl,
    /// kubectl with the kubeconfig of `team-a`.
    pub team: Kubectl,
}

/// Returns the folder of the example manifests.
///
/// # Panics
/// Never, because the tests are a folder of the tree.
pub fn manifests() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests are a folder of the tree")
        .join("examples/manifests")
}

/// Begins a session: starts the server, creates the plane and writes its kubeconfig.
///
/// # Errors
/// Returns an error if a step of it fails.
pub async fn begin() -> Result<Session> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let root = Kubectl::find(&server.kubeconfig, folder.path(), &data.join("bin"))?;
    let plane = r#"{"apiVersion":"polyplane.dev/v1alpha1","kind":"ControlPlane","metadata":{"name":"team-a"}}"#;
    let said = root.ok_with(&["apply", "-f", "-"], plane)?;
    ensure!(
        said == "controlplane.polyplane.dev/team-a created\n",
        "{said}"
    );
    root.ok(&[
        "wait",
        "controlplane/team-a",
        "--for=condition=Ready",
        "--timeout=20s",
    ])?;
    let config = root.ok(&["plane", "kubeconfig", "team-a", "--with-my-credentials"])?;
    let path = folder.path().join("team-a.kubeconfig");
    fs::write(&path, config)?;
    let team = root.with_kubeconfig(&path);
    Ok(Session {
        server,
        folder,
        root,
        team,
    })
}

/// Begins a session like [`begin`], and applies the example manifests.
///
/// # Errors
/// Returns an error if a step of it fails.
pub async fn with_manifests() -> Result<Session> {
    let session = begin().await?;
    session
        .team
        .ok(&["apply", "-f", &manifests().to_string_lossy()])?;
    Ok(session)
}

/// Checks that a text contains all the words.
///
/// # Errors
/// Returns an error if one is missing.
pub fn contains(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
    Ok(())
}

/// Parses JSON.
///
/// # Errors
/// Returns an error if the text is not JSON.
pub fn json_of(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))
}

/// kubectl in the background, whose lines are read as they arrive.
pub struct Following {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Following {
    /// Starts kubectl.
    ///
    /// # Errors
    /// Returns an error if kubectl cannot be started.
    pub fn start(kubectl: &Kubectl, arguments: &[&str]) -> Result<Self> {
        let mut child = kubectl.command(arguments).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self {
            child,
            lines: BufReader::new(output).lines(),
        })
    }

    /// Returns the next line of output.
    ///
    /// # Errors
    /// Returns an error if kubectl has ended. kubectl's own time-out ends a wait for nothing.
    pub fn line(&mut self) -> Result<String> {
        Ok(self.lines.next().context("kubectl ended")??)
    }

    /// Returns the rest of the output, and whether kubectl succeeded.
    ///
    /// # Errors
    /// Returns an error if the output cannot be read.
    pub fn finish(&mut self) -> Result<(String, bool)> {
        let rest: std::io::Result<Vec<String>> = self.lines.by_ref().collect();
        let success = self.child.wait()?.success();
        Ok((rest?.join("\n"), success))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
