//! This release opens the stores that earlier releases left, and shows the same content.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyplane_tests::client::Client;
use polyplane_tests::fixture::{check, fixtures, seen, unpack};
use polyplane_tests::process::Up;
use polyplane_tests::ring::setup::{Ring, Wish};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// How long a plane may take to step to a layer.
const STEP_LIMIT: Duration = Duration::from_secs(30);

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

/// The objects of a former layer have no owners of their fields. A plane that is used gets them once
/// the floor has risen, with the times of its birth; what the plane has changed stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planes_of_an_earlier_release_get_owners_once_the_floor_has_risen() -> Result<()> {
    let seen = seen("embedded")?;
    let folder = tempfile::tempdir()?;
    unpack(&fixtures().join("embedded.tar.gz"), folder.path())?;
    let server = Up::start(folder.path(), &[]).await?;
    let busy = Client::open(&server.plane("busy")?).await?;
    let old = layer_objects(&busy).await?;
    let owned = old.iter().filter(|(_, object)| !owners(object).is_empty());
    let owned: Vec<_> = owned.map(|(name, _)| name).collect();
    ensure!(owned.is_empty(), "owners before the step: {owned:?}");
    let root = Client::open(&server.root()?).await?;
    let raise = "/polyplane/ring/raise-floor";
    root.post(raise, &Value::Null).await?.expect(200)?;
    let new = until_owned(&busy).await?;
    ensure!(old.keys().eq(new.keys()), "a step between equal names");
    for (path, old) in &old {
        let new = &new[path];
        let of = |object: &Value, field: &str| object["metadata"][field].clone();
        for field in ["uid", "creationTimestamp", "labels", "annotations"] {
            ensure!(of(old, field) == of(new, field), "{field} of {path}");
        }
        // The user has labelled the role, and the old release has brought the flow schema back.
        let is_own = path.ends_with("clusterroles/view") || path.ends_with("flowschemas/probes");
        let stays = is_own || path.contains("/serviceaccounts/");
        ensure!(stays == (old == new), "{path} was\n{old}\nand is\n{new}");
        let times = owners(new).iter().map(|entry| &entry["time"]);
        let born = &new["metadata"]["creationTimestamp"];
        ensure!(stays || !owners(new).is_empty() && times.clone().all(|time| time == born));
    }
    let roles = format!("{RBAC}/clusterroles");
    let admin = &new[&format!("{roles}/admin")];
    ensure!(manager(admin, "Update") == "kube-apiserver", "{admin}");
    ensure!(manager(admin, "Apply") == "clusterrole-aggregation-controller");

    // A flow schema that comes back has the owner of the layer's.
    let path = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/service-accounts";
    busy.delete(path).await?.expect(200)?;
    let restored = until(async || Ok(busy.get(path).await?.expect(200).ok())).await?;
    let producer = "api-priority-and-fairness-config-producer-v1";
    ensure!(manager(&restored, "Update") == producer, "{restored}");

    // A plane that nobody has used since is as it was, and takes the step behind its first answer.
    let empty = Client::open(&server.plane("empty")?).await?;
    let list = empty.get(&roles).await?.expect(200)?;
    let before = &seen.planes["empty"].collections[&roles];
    for role in items(&list) {
        let name = role["metadata"]["name"].as_str().context("a name")?;
        let version = role["metadata"]["resourceVersion"].as_str();
        let before = before.get(&format!("/{name}")).map(String::as_str);
        ensure!(
            before == version,
            "{name} was at {before:?} and is at {version:?}"
        );
    }
    until_owned(&empty).await?;
    let stepped = layer_objects(&empty).await?;
    server.stop().await?;
    let server = Up::start(folder.path(), &[]).await?;
    let empty = Client::open(&server.plane("empty")?).await?;
    ensure!(layer_objects(&empty).await? == stepped, "after a start");
    server.stop().await?;
    Ok(())
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Selects the roles and bindings of the layer.
const BORN: &str = "labelSelector=kubernetes.io/bootstrapping";

/// The flow schema that a user has made, whose status the server writes.
const OWN_SCHEMA: &str = "probes";

/// Returns objects of the layer by their paths.
async fn layer_objects(client: &Client) -> Result<BTreeMap<String, Value>> {
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let networking = "/apis/networking.k8s.io/v1";
    let mut objects = BTreeMap::new();
    for collection in [
        format!("{RBAC}/clusterroles?{BORN}"),
        format!("{RBAC}/clusterrolebindings?{BORN}"),
        format!("{RBAC}/roles?{BORN}"),
        format!("{RBAC}/rolebindings?{BORN}"),
        format!("{flow}/flowschemas"),
        format!("{flow}/prioritylevelconfigurations"),
        format!("{networking}/servicecidrs"),
        "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
        "/api/v1/namespaces/kube-system/serviceaccounts".to_owned(),
        "/api/v1/namespaces/kube-system/configmaps".to_owned(),
    ] {
        let list = client.get(&collection).await?.expect(200)?;
        let collection = collection.split('?').next().unwrap_or_default();
        for object in items(&list) {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            if name == OWN_SCHEMA {
                continue;
            }
            objects.insert(format!("{collection}/{name}"), object.clone());
        }
    }
    Ok(objects)
}

/// Returns the objects of the layer once the last one of the step has owners.
async fn until_owned(client: &Client) -> Result<BTreeMap<String, Value>> {
    let last = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    until(async || {
        let object = client.get(last).await?.expect(200)?;
        Ok((!owners(&object).is_empty()).then_some(()))
    })
    .await?;
    layer_objects(client).await
}

/// Repeats a question until it has an answer.
async fn until<T>(mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + STEP_LIMIT;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        ensure!(Instant::now() < deadline, "nothing in {STEP_LIMIT:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

fn owners(object: &Value) -> &[Value] {
    let list = object["metadata"]["managedFields"].as_array();
    list.map_or(&[], Vec::as_slice)
}

/// Returns the first manager of an operation.
fn manager<'o>(object: &'o Value, operation: &str) -> &'o str {
    let mut entries = owners(object).iter();
    let entry = entries.find(|entry| entry["operation"] == operation);
    entry
        .and_then(|entry| entry["manager"].as_str())
        .unwrap_or_default()
}

async fn get(root: &polyplane_tests::kubeconfig::Endpoint, path: &str) -> Result<Value> {
    let client = Client::open(&root.at_base_path("")).await?;
    client.get(path).await?.expect(200)
}
