//! The content of the stores in `fixtures/`, and how it is made and checked.
//!
//! A fixture is a store as a release left it, and a JSON file with what clients saw in it. Every
//! later release must open the store and show the same: objects byte for byte, versions, deletions,
//! watches that resume, and further writes. `fixtures/README.md` says how a fixture is made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{Client, version};
use crate::golden::folder;
use crate::kubeconfig::Endpoint;
use crate::programs::{ask, create_plane, delete_plane};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const CONTROL_PLANES: &str = "/apis/polyplane.dev/v1alpha1/controlplanes";
/// The planes of a fixture. Another one is deleted before the fixture is taken.
const PLANES: [&str; 3] = ["busy", "plain", "empty"];
const DELETED: &str = "gone";
/// Collections whose items are recorded: those of the layer, and those that were created.
const COLLECTIONS: [&str; 26] = [
    ROLES,
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    FLOWS,
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/statefulsets",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/ingresses",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/resourcequotas",
    "/api/v1/limitranges",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/api/v1/namespaces",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/services",
    "/api/v1/serviceaccounts",
    "/api/v1/persistentvolumes",
    "/apis/coordination.k8s.io/v1/leases",
];

/// What clients saw in a store when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The output of `--version` of the program that made it.
    pub made_by: String,
    /// The planes by name.
    pub planes: BTreeMap<String, PlaneSeen>,
    /// The names of deleted planes.
    pub gone: Vec<String>,
}

/// One plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneSeen {
    /// The plane's immutable id.
    pub id: String,
    /// The whole answer to a GET of each object, byte for byte.
    pub objects: BTreeMap<String, String>,
    /// The items of collections with their versions, by namespace and name.
    pub collections: BTreeMap<String, BTreeMap<String, String>>,
    /// The version of the last list. Nothing was written after it.
    pub version: u64,
    /// A version within the history of the config maps in `default`, if the plane has some.
    pub resume_from: Option<u64>,
    /// The events of a watch of these config maps from there on: type, name and version.
    pub events: Vec<(String, String, u64)>,
}

/// Returns the folder of the fixtures.
pub fn fixtures() -> PathBuf {
    folder().join("fixtures")
}

/// Fills a server with planes and returns what clients see in them.
///
/// # Errors
/// Returns an error if the server refuses a request.
pub async fn fill(root: &Endpoint, made_by: &str) -> Result<Seen> {
    for name in PLANES.into_iter().chain([DELETED]) {
        create_plane(root, name).await?;
    }
    let busy = Client::open(&plane(root, "busy")).await?;
    let resume_from = work(&busy).await?;
    let other = Client::open(&plane(root, "plain")).await?;
    create(&other, CONFIG_MAPS, &config_map("only", "one")).await?;
    let gone = Client::open(&plane(root, DELETED)).await?;
    create(&gone, CONFIG_MAPS, &config_map("lost", "with its plane")).await?;
    delete_plane(root, DELETED).await?;
    let admin = Client::open(root).await?;
    let path = format!("{CONTROL_PLANES}/{DELETED}");
    until(async || Ok(admin.get(&path).await?.status == 404)).await?;
    Ok(Seen {
        made_by: made_by.to_owned(),
        ..look_again(root, resume_from).await?
    })
}

/// Returns what clients see now in the planes of [`fill`], with a watch from this version.
///
/// # Errors
/// Returns an error if the server refuses a request.
pub async fn look_again(root: &Endpoint, resume_from: u64) -> Result<Seen> {
    let mut planes = BTreeMap::new();
    for name in PLANES {
        let resume_from = (name == "busy").then_some(resume_from);
        let seen = look(root, name, resume_from).await;
        planes.insert(name.to_owned(), seen.with_context(|| name.to_owned())?);
    }
    Ok(Seen {
        made_by: String::new(),
        planes,
        gone: vec![DELETED.to_owned()],
    })
}

/// Makes writes of every kind to one plane; returns a version in the middle of them.
async fn work(client: &Client) -> Result<u64> {
    let examples = folder().join("../examples/manifests");
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&examples)? {
        files.push(entry?.path());
    }
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        for document in text.split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document)?;
            create(client, &collection_of(&object)?, &object).await?;
        }
    }
    for object in cluster_objects() {
        create(client, &collection_of(&object)?, &object).await?;
    }
    // Values that are compressed, that need several records, and an empty one.
    let noise: String = (0_u32..12_000)
        .map(|at| char::from(b'!' + (at.wrapping_mul(2_654_435_761) >> 25) as u8 % 90))
        .collect();
    create(
        client,
        CONFIG_MAPS,
        &config_map("compresses", &"abc ".repeat(2_000)),
    )
    .await?;
    create(client, CONFIG_MAPS, &config_map("noise", &noise)).await?;
    create(client, CONFIG_MAPS, &json!({"metadata": {"name": "bare"}})).await?;
    let changed = create(client, CONFIG_MAPS, &config_map("changed", "one")).await?;
    let from = version(&changed);
    let at = |name: &str| format!("{CONFIG_MAPS}/{name}");
    for text in ["two", "three"] {
        let body = json!({"data": {"k": text}});
        patch(client, &at("changed"), &body).await?;
    }
    create(client, CONFIG_MAPS, &config_map("deleted", "soon")).await?;
    client.delete(&at("deleted")).await?.expect(200)?;
    // Deleted, but kept by its finalizer.
    let mut kept = config_map("kept", "by a finalizer");
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(client, CONFIG_MAPS, &kept).await?;
    client.delete(&at("kept")).await?.expect(200)?;
    // Objects of the layer that the user changed, deleted, and created again.
    let label = json!({"metadata": {"labels": {"mine": "1"}}});
    patch(client, &format!("{ROLES}/view"), &label).await?;
    client
        .delete(&format!("{FLOWS}/probes"))
        .await?
        .expect(200)?;
    Ok(from)
}

/// Returns objects of kinds that the examples do not have.
fn cluster_objects() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/data"}}}),
        json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "bytes", "namespace": "default"}, "data": {"k": "AP/+"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "leader", "namespace": "default"},
            "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z"}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "urgent"}, "value": 1000}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "fast"}, "provisioner": "example.com/fast"}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "reader"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
    ]
}

/// Returns what clients see in one plane now.
async fn look(root: &Endpoint, name: &str, resume_from: Option<u64>) -> Result<PlaneSeen> {
    let control_plane = Client::open(root).await?.get(&control_plane(name)).await?;
    let client = Client::open(&plane(root, name)).await?;
    settled(&client).await?;
    let mut seen = PlaneSeen {
        id: text_at(&control_plane.expect(200)?, "/status/id")?,
        objects: BTreeMap::new(),
        collections: BTreeMap::new(),
        version: 0,
        resume_from,
        events: Vec::new(),
    };
    for path in COLLECTIONS {
        let list = client.get(path).await?.expect(200)?;
        seen.version = seen.version.max(version(&list));
        seen.collections.insert(path.to_owned(), items(&list));
        for item in list["items"].as_array().into_iter().flatten() {
            // Objects of the layer are the same in all planes, so some of them, of one plane, are
            // enough.
            let own = !is_of_layer(item) && !is_of_server(item);
            let own = own || name == "empty" && path == FLOWS;
            if own {
                let path = object_path(path, item);
                let body = body_of(&client, &path).await?;
                seen.objects.insert(path, body);
            }
        }
    }
    if let Some(from) = resume_from {
        let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion={from}");
        let events = client.watch(&path).await?.until_end().await?;
        seen.events = events.iter().filter_map(event_of).collect();
        ensure!(seen.events.len() > 3, "a short history: {events:?}");
    }
    Ok(seen)
}

/// Waits until the controllers have finished their work in a new plane.
async fn settled(client: &Client) -> Result<()> {
    let mut last = String::new();
    let mut same = 0;
    until(async || {
        let mut now = String::new();
        for path in COLLECTIONS {
            now += &serde_json::to_string(&items(&client.get(path).await?.expect(200)?))?;
        }
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(same > 20)
    })
    .await
}

/// Checks that a server shows the recorded state, that watches resume, and that writes succeed.
///
/// # Errors
/// Returns an error that describes the first difference.
pub async fn check(root: &Endpoint, seen: &Seen) -> Result<()> {
    let admin = Client::open(root).await?;
    for name in &seen.gone {
        let reply = admin.get(&control_plane(name)).await?;
        ensure!(
            reply.status == 404,
            "{name} was deleted and is back: {}",
            reply.body
        );
        let reply = Client::open(&plane(root, name))
            .await?
            .get(CONFIG_MAPS)
            .await?;
        ensure!(
            reply.status == 404,
            "{name} is served again: {}",
            reply.body
        );
    }
    for (name, plane) in &seen.planes {
        let checked = check_plane(&admin, root, name, plane).await;
        checked.with_context(|| format!("plane {name}, made by {}", seen.made_by))?;
    }
    let path = create_plane(root, "later").await?;
    let later = Client::open(&path).await?;
    create(&later, CONFIG_MAPS, &config_map("new", "plane")).await?;
    Ok(())
}

/// Returns whether a path leads to objects whose status each owner of a plane writes: the usage of
/// quotas, and whether the levels of flow schemas exist.
pub fn has_own_status(path: &str) -> bool {
    path.contains("/resourcequotas") || path.contains("/flowschemas")
}

/// Returns an object without its status, and without what a write of that changes.
fn without_status(body: &str) -> Result<Value> {
    let mut object: Value = serde_json::from_str(body)?;
    object["status"] = Value::Null;
    for changing in ["resourceVersion", "managedFields"] {
        object["metadata"][changing] = Value::Null;
    }
    Ok(object)
}

async fn check_plane(admin: &Client, root: &Endpoint, name: &str, seen: &PlaneSeen) -> Result<()> {
    let control_plane = admin.get(&control_plane(name)).await?.expect(200)?;
    let id = text_at(&control_plane, "/status/id")?;
    ensure!(id == seen.id, "its id was {} and is {id}", seen.id);
    let client = Client::open(&plane(root, name)).await?;
    for (path, body) in &seen.objects {
        let now = body_of(&client, path).await?;
        let same = match has_own_status(path) {
            true => without_status(&now)? == without_status(body)?,
            false => now == *body,
        };
        ensure!(same, "{path} was\n{body}\nand is\n{now}");
    }
    for (path, before) in &seen.collections {
        let list = client.get(path).await?.expect(200)?;
        let now = items(&list);
        let differs = |key: &&String| match (before.get(*key), now.get(*key)) {
            (Some(_), Some(_)) if has_own_status(path) => false,
            (before, now) => before != now,
        };
        let differ: Vec<&String> = before.keys().chain(now.keys()).filter(differs).collect();
        ensure!(
            differ.is_empty(),
            "{path}: other versions or items: {differ:?}"
        );
        let at = version(&list);
        ensure!(
            at >= seen.version,
            "the list's version {at} fell below {}",
            seen.version
        );
    }
    if let Some(from) = seen.resume_from {
        resumes(&client, from, &seen.events).await?;
    }
    goes_on(&client, seen).await
}

/// Checks that a watch that resumes from an old version gets all later events, or an error that the
/// version is too old.
async fn resumes(client: &Client, from: u64, events: &[(String, String, u64)]) -> Result<()> {
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=2&resourceVersion={from}");
    let answer = client.raw(ask(Method::GET, &path, &Value::Null)).await?;
    let text = String::from_utf8(answer.body.to_vec())?;
    let told: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let expired = |value: &Value| value["code"] == 410;
    let too_old = answer.status == 410 || told.iter().any(|event| expired(&event["object"]));
    let told: Vec<_> = told.iter().filter_map(event_of).collect();
    println!(
        "a watch from {from}: {} of {} events{}",
        told.len(),
        events.len(),
        if too_old { ", too old" } else { "" }
    );
    if too_old {
        ensure!(told.is_empty(), "a part of the history, then 410: {told:?}");
        return Ok(());
    }
    ensure!(
        told == events,
        "a watch from {from} was told\n{told:?}\nnot\n{events:?}"
    );
    Ok(())
}

/// Checks that a watch from the last version gets the next writes, and nothing before them.
async fn goes_on(client: &Client, seen: &PlaneSeen) -> Result<()> {
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", seen.version);
    let mut watch = client.watch(&path).await?;
    let made = create(client, CONFIG_MAPS, &config_map("opened", "again")).await?;
    ensure!(version(&made) > seen.version, "versions go on");
    let path = format!("{CONFIG_MAPS}/opened");
    let changed = patch(client, &path, &json!({"data": {"k": "more"}})).await?;
    let deleted = client.delete(&path).await?;
    deleted.expect(200)?;
    for (kind, object) in [
        ("ADDED", Some(made)),
        ("MODIFIED", Some(changed)),
        ("DELETED", None),
    ] {
        let (told, seen) = watch.change().await?;
        let right = object.is_none_or(|object| version(&object) == version(&seen));
        ensure!(told == kind && right, "{kind} was told as {told} {seen}");
    }
    if seen.resume_from.is_some() {
        let kept = format!("{CONFIG_MAPS}/kept");
        patch(client, &kept, &json!({"metadata": {"finalizers": null}})).await?;
        until(async || Ok(client.get(&kept).await?.status == 404)).await?;
        patch(
            client,
            &format!("{CONFIG_MAPS}/noise"),
            &json!({"data": {"k": "short"}}),
        )
        .await?;
        client.delete(&format!("{ROLES}/view")).await?.expect(200)?;
    }
    Ok(())
}

/// Packs a folder as `tar`, compressed, without the files in `without`.
///
/// # Errors
/// Returns an error if tar fails.
pub fn pack(from: &Path, to: &Path, without: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args([
        "--gzip",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    for pattern in without {
        tar.arg(format!("--exclude={pattern}"));
    }
    run(tar.arg("-cf").arg(to).arg("-C").arg(from).arg("."))
}

/// Unpacks an archive of [`pack`].
///
/// # Errors
/// Returns an error if tar fails.
pub fn unpack(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("tar")
        .arg("--gzip")
        .arg("-xf")
        .arg(from)
        .arg("-C")
        .arg(to))
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Reads the recorded state of a fixture.
///
/// # Errors
/// Returns an error if there is no such fixture.
pub fn seen(name: &str) -> Result<Seen> {
    let path = fixtures().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| format!("no {}; see its README.md", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Repeats `asks` until it returns true, because a controller or a hand-off may need a moment.
async fn until(mut asks: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..600 {
        if asks().await? {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    bail!("it did not come to be within 30 s")
}

async fn create(client: &Client, path: &str, object: &Value) -> Result<Value> {
    let reply = client.post(path, object).await?;
    reply.expect(201).with_context(|| path.to_owned())
}

async fn patch(client: &Client, path: &str, body: &Value) -> Result<Value> {
    let kind = "application/merge-patch+json";
    let reply = client
        .typed(Method::PATCH, path, kind, body.to_string())
        .await?;
    reply.expect(200).with_context(|| path.to_owned())
}

async fn body_of(client: &Client, path: &str) -> Result<String> {
    let answer = client.raw(ask(Method::GET, path, &Value::Null)).await?;
    let body = String::from_utf8(answer.body.to_vec())?;
    ensure!(answer.status == 200, "{path}: {} {body}", answer.status);
    Ok(body)
}

fn config_map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"fixture": "yes"}}, "data": {"k": text}})
}

fn plane(root: &Endpoint, name: &str) -> Endpoint {
    let base = root.base_path.trim_end_matches("/clusters/root");
    root.at_base_path(&format!("{base}/clusters/{name}"))
}

fn control_plane(name: &str) -> String {
    format!("{CONTROL_PLANES}/{name}")
}

fn text_at(value: &Value, pointer: &str) -> Result<String> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    Ok(text
        .with_context(|| format!("no {pointer} in {value}"))?
        .to_owned())
}

/// Returns whether the item belongs to the bootstrap layer and nobody has changed it.
fn is_of_layer(item: &Value) -> bool {
    let metadata = &item["metadata"];
    let bootstrap = metadata["labels"]["kubernetes.io/bootstrapping"].is_string()
        || metadata["annotations"]["apf.kubernetes.io/autoupdate-spec"].is_string();
    bootstrap && metadata["labels"]["mine"].is_null()
}

/// Returns whether the item shows the server's own port and certificates, which differ in another
/// process.
fn is_of_server(item: &Value) -> bool {
    let names = [
        "extension-apiserver-authentication",
        "kube-root-ca.crt",
        "kubernetes",
    ];
    item["metadata"]["name"]
        .as_str()
        .is_some_and(|name| names.contains(&name))
}

fn items(list: &Value) -> BTreeMap<String, String> {
    let items = list["items"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    items
        .map(|item| {
            let metadata = &item["metadata"];
            let name = format!(
                "{}/{}",
                text(&metadata["namespace"]),
                text(&metadata["name"])
            );
            (name, text(&metadata["resourceVersion"]))
        })
        .collect()
}

fn event_of(event: &Value) -> Option<(String, String, u64)> {
    let kind = event["type"].as_str().filter(|kind| *kind != "BOOKMARK")?;
    let object = &event["object"];
    let name = object["metadata"]["name"].as_str()?;
    Some((kind.to_owned(), name.to_owned(), version(object)))
}

/// Returns the path of an item from a list over all namespaces.
fn object_path(collection: &str, item: &Value) -> String {
    let metadata = &item["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match (metadata["namespace"].as_str(), collection.rsplit_once('/')) {
        (Some(namespace), Some((version, resource))) => {
            format!("{version}/namespaces/{namespace}/{resource}/{name}")
        }
        _ => format!("{collection}/{name}"),
    }
}

/// Returns the path to which an object is posted.
fn collection_of(object: &Value) -> Result<String> {
    let (api, kind) = (text_at(object, "/apiVersion")?, text_at(object, "/kind")?);
    let root = if api.contains('/') { "apis" } else { "api" };
    let kind = kind.to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with("ss") => format!("{kind}es"),
        None if kind.ends_with('s') => kind.clone(),
        None => format!("{kind}s"),
    };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{api}/namespaces/{namespace}/{plural}"),
        None => format!("/{root}/{api}/{plural}"),
    })
}
