//! Fences as objects of the root plane: who may write to each plane, according to the store.

use anyhow::{Context, Result, ensure};
use http::Method;
use polyplane_tests::client::{Client, names};
use polyplane_tests::kubectl::Kubectl;
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::ring::replica::at_address;
use polyplane_tests::ring::setup::{Ring, Wish};
use polyplane_tests::session::{Session, begin, contains, json_of};
use serde_json::{Value, json};

const FENCES: &str = "/apis/polyplane.dev/v1alpha1/fences";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns the id of a plane.
fn id(root: &Kubectl, plane: &str) -> Result<String> {
    root.ok(&["get", "controlplane", plane, "-o", "jsonpath={.status.id}"])
}

fn status(root: &Kubectl, fence: &str) -> Result<Value> {
    let fence = json_of(&root.ok(&["get", "fences.polyplane.dev", fence, "-o", "json"])?)?;
    Ok(fence["status"].clone())
}

#[tokio::test]
async fn kubectl_shows_who_may_write_to_a_plane() -> Result<()> {
    let Session {
        server,
        folder,
        root,
        team,
    } = begin().await?;
    let plane = id(&root, "team-a")?;
    // A plane that has never been used has no fence.
    let said = root.fails(&["get", "fence", &plane])?;
    contains(&said, &["fences.polyplane.dev", &plane, "not found"])?;
    let unused = root.ok(&["get", "fences"])?;
    ensure!(unused.lines().count() == 2, "only the root's: {unused}");
    team.ok(&["create", "configmap", "x"])?;
    let table = root.ok(&["get", "fences.polyplane.dev"])?;
    let line = |id: &str| table.lines().find(|line| line.starts_with(id));
    contains(
        &table,
        &["NAME", "PLANE", "HOLDER", "EPOCH", "STATE", "AGE"],
    )?;
    contains(line(&plane).context("a row")?, &["team-a", " 1 ", "Held"])?;
    contains(line("root").context("a row")?, &["root", "Held"])?;
    ensure!(!table.contains("INCARNATION"), "only in wide output");
    let wide = root.ok(&["get", "fence", &plane, "-o", "wide"])?;
    contains(&wide, &["INCARNATION", "HEAD", "SUCCESSOR"])?;
    let yaml = root.ok(&["get", "fence", &plane, "-o", "yaml"])?;
    let wanted = [
        "apiVersion: polyplane.dev/v1alpha1",
        "kind: Fence",
        &format!("  name: {plane}"),
        "  controlPlane: team-a",
        "  epoch: 1",
        "  state: Held",
    ];
    contains(&yaml, &wanted)?;
    contains(
        &root.ok(&["explain", "fences.status"])?,
        &["FenceStatus", "holder", "epoch"],
    )?;
    selectors(&root, &plane)?;
    refusals(&root, &team)?;

    // After a kill the next use takes the plane with a new fence.
    server.kill().await?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let (held, rose) = (status(&root, &plane)?, 2);
    ensure!(held["epoch"] == 1, "asleep, so nobody took it yet: {held}");
    // The server now has another port, so kubectl needs another kubeconfig.
    let config = root.ok(&["plane", "kubeconfig", "team-a", "--with-my-credentials"])?;
    let path = folder.path().join("again.kubeconfig");
    std::fs::write(&path, config)?;
    let team = root.with_kubeconfig(&path);
    team.ok(&["get", "configmap", "x"])?;
    let taken = status(&root, &plane)?;
    ensure!(taken["epoch"] == rose, "{taken}");
    ensure!(
        taken["incarnation"].as_u64() > held["incarnation"].as_u64(),
        "another life holds it"
    );
    // A clean stop releases the fence and records the plane's last version in it.
    ensure!(server.stop().await?.success());
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let released = status(&root, &plane)?;
    ensure!(released["state"] == "Released", "{released}");
    ensure!(released["head"].as_u64() > Some(0), "{released}");
    // The fence disappears with its plane, because the id is never used again.
    root.ok(&["plane", "delete", "team-a", "--yes"])?;
    contains(&root.fails(&["get", "fence", &plane])?, &["not found"])?;
    ensure!(server.stop().await?.success());
    Ok(())
}

fn selectors(root: &Kubectl, plane: &str) -> Result<()> {
    let names = |more: &[&str]| root.ok(&[&["get", "fences", "-o", "name"], more].concat());
    let only = format!("fence.polyplane.dev/{plane}\n");
    let by = |field: &str| format!("--field-selector={field}");
    ensure!(names(&[&by(&format!("metadata.name={plane}"))])? == only);
    ensure!(names(&[&by("status.controlPlane=team-a,status.state=Held")])? == only);
    ensure!(names(&[&by("status.state=Deleted")])?.is_empty());
    ensure!(names(&["-l", &format!("kubernetes.io/metadata.name={plane}")])? == only);
    let both = names(&["--field-selector=status.state=Held"])?;
    ensure!(both.lines().count() == 2, "{both}");
    let failed = root.fails(&["get", "fences", "--field-selector=status.epoch=1"])?;
    contains(&failed, &["field label not supported: status.epoch"])
}

fn refusals(root: &Kubectl, team: &Kubectl) -> Result<()> {
    let method = "the server does not allow this method on the requested resource";
    for verb in [
        &["delete", "fence", "root"][..],
        &["label", "fence", "root", "a=b"],
    ] {
        contains(&root.fails(verb)?, &["MethodNotAllowed", method])?;
    }
    // Other planes do not have the kind, and reading it needs a right.
    let said = team.fails(&["get", "fences"])?;
    contains(&said, &["doesn't have a resource type \"fences\""])?;
    let path = format!("/clusters/team-a{FENCES}");
    let said = team.fails(&["get", "--raw", &path])?;
    contains(&said, &["the server could not find the requested resource"])?;
    let said = root.fails(&["get", "fences", "--as=jane"])?;
    contains(
        &said,
        &["Forbidden", "\"jane\" cannot list resource \"fences\""],
    )
}

#[tokio::test]
async fn pages_of_fences_show_one_moment() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Up::start(&data, &[]).await?;
    let endpoint = server.root()?;
    let root = Client::open(&endpoint).await?;
    let mut ids = vec!["root".to_owned()];
    for n in 0..6 {
        let plane = create_plane(&endpoint, &format!("p-{n}")).await?;
        let plane = Client::open(&plane).await?;
        plane.get(CONFIG_MAPS).await?.expect(200)?;
        let object = format!("/apis/polyplane.dev/v1alpha1/controlplanes/p-{n}");
        let object = root.get(&object).await?.expect(200)?;
        ids.push(object["status"]["id"].as_str().context("an id")?.to_owned());
    }
    ids.sort();
    let whole = root.get(FENCES).await?.expect(200)?;
    ensure!(names(&whole) == ids, "{whole}");
    ensure!(whole["kind"] == "FenceList" && whole["items"][0]["kind"] == "Fence");
    let first = root.get(&format!("{FENCES}?limit=3")).await?.expect(200)?;
    let version = &first["metadata"]["resourceVersion"];
    // A change between two pages is in neither of them.
    let other = create_plane(&endpoint, "later").await?;
    Client::open(&other)
        .await?
        .get(CONFIG_MAPS)
        .await?
        .expect(200)?;
    let (mut seen, mut page) = (names(&first), first.clone());
    while let Some(token) = page["metadata"]["continue"].as_str() {
        let path = format!("{FENCES}?limit=3&continue={token}");
        page = root.get(&path).await?.expect(200)?;
        ensure!(page["metadata"]["resourceVersion"] == *version, "{page}");
        seen.extend(names(&page));
    }
    ensure!(seen == ids, "{seen:?}");
    let now = root.get(FENCES).await?.expect(200)?;
    ensure!(names(&now).len() == ids.len() + 1);
    // The same version once more, and one that no store has reached.
    let version = version.as_str().context("a version")?;
    let exact = format!("{FENCES}?resourceVersion={version}&resourceVersionMatch=Exact");
    ensure!(names(&root.get(&exact).await?.expect(200)?) == ids);
    let future = format!("{FENCES}?resourceVersion={}", u64::MAX >> 1);
    root.get(&future)
        .await?
        .refuses(504, "Too large resource version")?;
    let watch = root.get(&format!("{FENCES}?watch=true")).await?;
    watch.refuses(
        405,
        "watch is not supported on resources of kind \"fences.polyplane.dev\"",
    )?;
    let object = json!({"metadata": {"name": "mine"}});
    for (method, path) in [
        (Method::POST, FENCES.to_owned()),
        (Method::PUT, format!("{FENCES}/root")),
        (Method::DELETE, FENCES.to_owned()),
    ] {
        let refused = root.send(method, &path, &object).await?;
        refused.refuses(405, "the server does not allow this method")?;
    }
    ensure!(server.stop().await?.success());
    let kubectl_server = Up::start(&data, &[]).await?;
    let kubectl = Kubectl::find(&kubectl_server.kubeconfig, folder.path(), &data.join("bin"))?;
    let chunked = kubectl.ok(&["get", "fences", "--chunk-size=2", "-o", "name"])?;
    ensure!(chunked.lines().count() == ids.len() + 1, "{chunked}");
    ensure!(kubectl_server.stop().await?.success());
    Ok(())
}

/// Any replica lists the fences from the store, and a killed holder's planes get a higher epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_of_a_ring_shows_the_same_fences() -> Result<()> {
    let wish = Wish {
        replicas: 2,
        ..Wish::default()
    };
    let mut ring = Ring::start(&wish).await?.context("no ring")?;
    let admin = ring.controller.admin()?;
    let plane = create_plane(&admin, "a").await?;
    let user = Client::open(&plane).await?;
    user.get(CONFIG_MAPS).await?.expect(200)?;
    let mut told = Vec::new();
    for replica in &ring.controller.replicas {
        let root = Client::open(&at_address(&admin, replica.pod.client())).await?;
        let list = root.get(FENCES).await?.expect(200)?;
        told.push(list["items"].clone());
    }
    ensure!(told[0] == told[1], "{told:?}");
    let of_plane = |list: &Value| {
        let mut items = list.as_array().into_iter().flatten();
        let found = items.find(|fence| fence["status"]["controlPlane"] == "a");
        found
            .map(|fence| fence["status"].clone())
            .context("a fence")
    };
    let before = of_plane(&told[0])?;
    let holder = before["holder"].as_str().context("a holder")?;
    let replicas = ring.controller.replicas.iter();
    let place = replicas
        .map(|one| one.pod.name.as_str())
        .position(|name| name == holder);
    ring.controller
        .kill(place.context("one of the pods")?)
        .await?;
    let after = loop {
        // The connection may lead to the killed replica, so failed requests are repeated.
        let root = Client::open(&admin).await;
        let asked = match (&root, Client::open(&plane).await) {
            (Ok(root), Ok(user)) => match user.get(CONFIG_MAPS).await {
                Ok(_) => root.get(FENCES).await,
                Err(error) => Err(error),
            },
            _ => continue,
        };
        let Ok(list) = asked.and_then(|reply| reply.expect(200)) else {
            continue;
        };
        let after = of_plane(&list["items"])?;
        if after["holder"] != before["holder"] {
            break after;
        }
    };
    ensure!(
        after["epoch"].as_u64() > before["epoch"].as_u64(),
        "{after}"
    );
    ensure!(after["state"] == "Held", "{after}");
    Ok(())
}
