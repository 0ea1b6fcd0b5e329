//! This release opens the stores that earlier releases left, and shows the same content.

use anyhow::{Context, Result};
use polyplane_tests::fixture::{check, fixtures, seen, unpack};
use polyplane_tests::process::Up;
use polyplane_tests::ring::setup::{Ring, Wish};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_of_an_earlier_release_opens_with_everything_in_it() -> Result<()> {
    let seen = seen("embedded")?;
    let folder = tempfile::tempdir()?;
    unpack(&fixtures().join("embedded.tar.gz"), folder.path())?;
    let server = Up::start(folder.path(), &[]).await?;
    let checked = check(&server.root()?, &seen).await;
    checked.with_context(|| server.log().unwrap_or_default())?;
    // Objects written now are present after the next start too.
    let root = server.root()?;
    let path = "/clusters/later/api/v1/namespaces/default/configmaps/new";
    let made = get(&root, path).await?;
    server.stop().await?;
    let server = Up::start(folder.path(), &[]).await?;
    anyhow::ensure!(get(&server.root()?, path).await? == made);
    server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_etcd_of_an_earlier_release_is_restored_and_served() -> Result<()> {
    let seen = seen("etcd")?;
    let folder = tempfile::tempdir()?;
    unpack(&fixtures().join("etcd.tar.gz"), folder.path())?;
    let wish = Wish {
        snapshot: Some(folder.path().join("etcd.snapshot")),
        ..Wish::default()
    };
    let ring = Ring::start(&wish).await?.context("no ring")?;
    let checked = check(&ring.controller.admin()?, &seen).await;
    checked.with_context(|| ring.last_words())
}

async fn get(
    root: &polyplane_tests::kubeconfig::Endpoint,
    path: &str,
) -> Result<serde_json::Value> {
    let client = polyplane_tests::client::Client::open(&root.at_base_path("")).await?;
    client.get(path).await?.expect(200)
}
