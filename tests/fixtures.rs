//! Makes the fixtures in `fixtures/` with the program under test (`POLYPLANE_BIN`, else the one
//! that cargo built): `cargo run -p polyplane-tests --bin fixtures -- FOLDER`. Without a folder
//! they replace those in the tree. The fixtures of a published release stay: a new release gets new
//! names.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use polyplane_tests::fixture::{Seen, fill, fixtures, pack};
use polyplane_tests::process::Up;
use polyplane_tests::programs::polyplane;
use polyplane_tests::ring::setup::{Ring, Wish};

#[tokio::main]
async fn main() -> ExitCode {
    let folder = std::env::args().nth(1).map_or_else(fixtures, PathBuf::from);
    let made = async {
        std::fs::create_dir_all(&folder)?;
        let said = Command::new(polyplane()?).arg("--version").output()?;
        let made_by = String::from_utf8(said.stdout)?.trim().to_owned();
        embedded(&folder, &made_by).await.context("embedded")?;
        etcd(&folder, &made_by).await.context("etcd")
    };
    match made.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the folder of `polyplane up`, as a clean stop leaves it.
async fn embedded(to: &Path, made_by: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(folder.path(), &[]).await?;
    let seen = fill(&server.root()?, made_by).await?;
    server.stop().await?;
    // Without the files that a process with another address makes again.
    pack(
        folder.path(),
        &to.join("embedded.tar.gz"),
        &["bin", "pid", "kubeconfig"],
    )?;
    note(&to.join("embedded.json"), &seen)
}

/// Makes a snapshot of etcd while three replicas hold their planes.
async fn etcd(to: &Path, made_by: &str) -> Result<()> {
    let ring = Ring::start(&Wish::default()).await?.context("no ring")?;
    let seen = fill(&ring.controller.admin()?, made_by).await;
    let seen = seen.with_context(|| ring.last_words())?;
    let folder = tempfile::tempdir()?;
    let snapshot = folder.path().join("etcd.snapshot");
    ring.cluster.snapshot(&snapshot).await?;
    pack(folder.path(), &to.join("etcd.tar.gz"), &[])?;
    note(&to.join("etcd.json"), &seen)
}

fn note(to: &Path, seen: &Seen) -> Result<()> {
    let mut text = serde_json::to_string_pretty(seen)?;
    text.push('\n');
    std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}
