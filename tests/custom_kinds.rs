//! Kinds that clients define, through their life: definitions that change, race, go and come again
//! while lists, watches and other features of a plane use their objects. Requests go to three
//! replicas in turn, so that most are forwarded.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use http::Method;
use polyplane_tests::client::{Client, names, version};
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{create_plane, until_asleep};
use serde_json::{Value, json};
use tokio::time::sleep;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "example.com";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const ALL_WIDGETS: &str = "/apis/example.com/v1/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// Looks until something that needs no request of the test must have happened.
const LOOKS: usize = 1000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

struct Site {
    root: Endpoint,
    admin: Client,
    _server: Up,
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start(options: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Up::start(&folder.path().join("data"), options).await?;
        let root = server.root()?;
        Ok(Self {
            admin: Client::open(&root).await?,
            root,
            _server: server,
            _folder: folder,
        })
    }

    async fn plane(&self, name: &str) -> Result<(Endpoint, Client)> {
        let endpoint = create_plane(&self.root, name).await?;
        let client = Client::open(&endpoint).await?;
        Ok((endpoint, client))
    }
}

/// Returns a definition whose objects have a spec with the given properties.
fn definition(plural: &str, kind: &str, properties: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}}}]}})
}

fn widgets() -> Value {
    definition("widgets", "Widget", &json!({"size": {"type": "integer"}}))
}

fn widget(name: &str, metadata: &Value) -> Value {
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": name}, "spec": {}});
    for (key, value) in metadata.as_object().into_iter().flatten() {
        object["metadata"][key] = value.clone();
    }
    object
}

async fn patch(client: &Client, path: &str, body: Value) -> Result<Value> {
    let sent = client.typed(Method::PATCH, path, MERGE, body.to_string());
    sent.await?.expect(200)
}

/// Reads until a path answers with a status.
async fn until(client: &Client, path: &str, status: u16) -> Result<Value> {
    let mut last = Value::Null;
    for _ in 0..LOOKS {
        let reply = client.get(path).await?;
        if reply.status == status {
            return Ok(reply.body);
        }
        last = reply.body;
        sleep(BETWEEN_LOOKS).await;
    }
    bail!("{path} does not become {status}: {last}")
}

/// Reads until an object is being deleted.
async fn is_deleted(client: &Client, path: &str) -> Result<()> {
    let mut last = Value::Null;
    for _ in 0..LOOKS {
        last = client.get(path).await?.expect(200)?;
        if last["metadata"]["deletionTimestamp"].is_string() {
            return Ok(());
        }
        sleep(BETWEEN_LOOKS).await;
    }
    bail!("{path} is not deleted: {last}")
}

fn condition<'v>(definition: &'v Value, kind: &str) -> &'v str {
    let conditions = definition["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == kind);
    found
        .and_then(|found| found["status"].as_str())
        .unwrap_or("")
}

/// Watches end with the view, and pages go on with the schema of now, until the definition is
/// another one.
#[tokio::test]
async fn a_kind_that_is_defined_again_has_no_past() -> Result<()> {
    let site = Site::start(&["--replicas=3"]).await?;
    let (_, plane) = site.plane("again").await?;
    let own = format!("{DEFINITIONS}/widgets.{GROUP}");
    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    for name in ["a", "b", "c"] {
        plane
            .post(WIDGETS, &widget(name, &json!({})))
            .await?
            .expect(201)?;
    }
    let first = plane
        .get(&format!("{WIDGETS}?limit=1"))
        .await?
        .expect(200)?;
    let token = first["metadata"]["continue"].as_str().context("no token")?;
    let old = version(&first);
    let watched = |from: u64| format!("{WIDGETS}?watch=1&resourceVersion={from}");
    let mut open = plane.watch(&watched(old)).await?;

    // A label of the definition ends nothing. Another schema ends the watch, and what is below it.
    patch(&plane, &own, json!({"metadata": {"labels": {"a": "b"}}})).await?;
    plane
        .post(WIDGETS, &widget("d", &json!({})))
        .await?
        .expect(201)?;
    let (kind, seen) = open.change().await?;
    ensure!(
        kind == "ADDED" && seen["metadata"]["name"] == "d",
        "{kind} {seen}"
    );
    let mut changed = widgets();
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["color"] = json!({"type": "string", "default": "red"});
    let changed = patch(&plane, &own, json!({"spec": changed["spec"]})).await?;
    let left = open.until_end().await?;
    ensure!(
        left.iter().all(|event| event["type"] == "BOOKMARK"),
        "{left:?}"
    );
    let mut below = plane.watch(&watched(version(&seen))).await?;
    let error = below.expect().await?;
    ensure!(error["object"]["code"] == 410, "{error}");
    let mut above = plane.watch(&watched(version(&changed))).await?;
    plane
        .post(WIDGETS, &widget("e", &json!({})))
        .await?
        .expect(201)?;
    ensure!(above.change().await?.1["metadata"]["name"] == "e");

    // Pages and exact lists show the old objects with the new defaults.
    let next = format!("{WIDGETS}?limit=9&continue={token}");
    let exact = format!("{WIDGETS}?resourceVersion={old}&resourceVersionMatch=Exact");
    let page = plane.get(&next).await?.expect(200)?;
    ensure!(names(&page) == ["b", "c"], "{page}");
    ensure!(page["items"][0]["spec"]["color"] == "red", "{page}");
    let list = plane.get(&exact).await?.expect(200)?;
    ensure!(names(&list) == ["a", "b", "c"], "{list}");

    is_another(&plane, (&next, &exact), version(&list)).await
}

/// Defines the kind again, and checks that nothing of the old one is shown: neither to pages and
/// exact lists nor to a watch from a version of its time.
async fn is_another(plane: &Client, (next, exact): (&str, &str), old: u64) -> Result<()> {
    let own = format!("{DEFINITIONS}/widgets.{GROUP}");
    plane.delete(&own).await?.expect(200)?;
    until(plane, &own, 404).await?;
    plane.get(next).await?.expect(404)?;
    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    let again = plane.get(next).await?;
    again.refuses(410, "The provided continue parameter is too old")?;
    ensure!(
        again.body["metadata"]["continue"].is_string(),
        "{}",
        again.body
    );
    plane.get(exact).await?.refuses(410, "too old")?;
    let path = format!("{WIDGETS}?watch=1&resourceVersion={old}");
    let mut gone = plane.watch(&path).await?;
    let error = gone.expect().await?;
    ensure!(error["object"]["code"] == 410, "{error}");
    plane
        .post(WIDGETS, &widget("z", &json!({})))
        .await?
        .expect(201)?;
    let now = plane.get(WIDGETS).await?.expect(200)?;
    ensure!(names(&now) == ["z"], "{now}");
    Ok(())
}

/// Definitions that want one name at once: one has it, and the other when it becomes free.
#[tokio::test]
async fn of_racing_definitions_one_has_the_name() -> Result<()> {
    let site = Site::start(&["--replicas=3"]).await?;
    let (endpoint, plane) = site.plane("racing").await?;
    let other = Client::open(&endpoint).await?;
    let pairs: usize = 50;
    for at in 0..pairs {
        let wanting = |side: &str| {
            let (plural, kind) = (
                format!("{side}s{at}"),
                format!("{}{at}", side.to_uppercase()),
            );
            let mut wanting = definition(&plural, &kind, &json!({}));
            wanting["spec"]["names"]["shortNames"] = json!([format!("both{at}")]);
            wanting
        };
        let (a, b) = (wanting("a"), wanting("b"));
        let same = definition(&format!("same{at}"), &format!("Same{at}"), &json!({}));
        let (a, b, one, two) = tokio::try_join!(
            plane.post(DEFINITIONS, &a),
            other.post(DEFINITIONS, &b),
            plane.post(DEFINITIONS, &same),
            other.post(DEFINITIONS, &same),
        )?;
        let mut created = [one.status.as_u16(), two.status.as_u16()];
        created.sort_unstable();
        ensure!(created == [201, 409], "one name: {created:?}");
        let both = [a.expect(201)?, b.expect(201)?];
        let accepted: Vec<&str> = both
            .iter()
            .map(|one| condition(one, "NamesAccepted"))
            .collect();
        ensure!(
            accepted.iter().filter(|status| **status == "True").count() == 1
                && accepted.contains(&"False"),
            "pair {at}: {both:?}"
        );
        let (holder, waiting) = match accepted[0] {
            "True" => (&both[0], &both[1]),
            _ => (&both[1], &both[0]),
        };
        ensure!(condition(waiting, "Established") == "False", "{waiting}");
        let path = |definition: &Value| {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            format!("{DEFINITIONS}/{name}")
        };
        plane.delete(&path(holder)).await?.expect(200)?;
        let mut follows = Value::Null;
        for _ in 0..LOOKS {
            follows = other.get(&path(waiting)).await?.expect(200)?;
            if condition(&follows, "Established") == "True" {
                break;
            }
            sleep(BETWEEN_LOOKS).await;
        }
        ensure!(condition(&follows, "NamesAccepted") == "True", "{follows}");
        ensure!(condition(&follows, "Established") == "True", "{follows}");
    }
    println!("{pairs} racing pairs, each name has one holder, and the other follows");
    Ok(())
}

/// Whoever takes the finalizer from a deleted definition leaves objects without a kind. They hold
/// up nothing, and are there again with the kind.
#[tokio::test]
async fn objects_without_a_kind_hold_up_nothing_and_come_back_with_it() -> Result<()> {
    let site = Site::start(&["--replicas=3"]).await?;
    let (_, plane) = site.plane("orphans").await?;
    let own = format!("{DEFINITIONS}/widgets.{GROUP}");
    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    let namespace = "/api/v1/namespaces/left";
    let namespaces = "/api/v1/namespaces";
    plane
        .post(namespaces, &json!({"metadata": {"name": "left"}}))
        .await?
        .expect(201)?;
    let quota = json!({"metadata": {"name": "q"},
        "spec": {"hard": {"count/widgets.example.com": "2"}}});
    let quotas = format!("{namespace}/resourcequotas");
    plane.post(&quotas, &quota).await?.expect(201)?;
    let there = "/apis/example.com/v1/namespaces/left/widgets";
    let kept = widget("kept", &json!({"finalizers": ["example.com/wait"]}));
    plane.post(there, &kept).await?.expect(201)?;
    plane.delete(&own).await?.expect(200)?;
    plane
        .post(there, &widget("new", &json!({})))
        .await?
        .refuses(403, "terminating")?;
    // Who takes the definition's finalizer out before that leaves its objects as they are.
    is_deleted(&plane, &format!("{there}/kept")).await?;
    patch(&plane, &own, json!({"metadata": {"finalizers": null}})).await?;
    until(&plane, &own, 404).await?;
    plane.get(there).await?.expect(404)?;
    plane.delete(namespace).await?.expect(200)?;
    until(&plane, namespace, 404).await?;

    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    let all = plane.get(ALL_WIDGETS).await?.expect(200)?;
    ensure!(names(&all) == ["kept"], "{all}");
    let path = format!("{there}/kept");
    patch(&plane, &path, json!({"metadata": {"finalizers": null}})).await?;
    until(&plane, &path, 404).await?;
    Ok(())
}

/// Returns a client with the token of a new account that may read widgets.
async fn reader(endpoint: &Endpoint, plane: &Client) -> Result<Client> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let named = json!({"metadata": {"name": "reader"}});
    plane.post(accounts, &named).await?.expect(201)?;
    let role = json!({"metadata": {"name": "reader"}, "rules": [
        {"apiGroups": [GROUP], "resources": ["widgets"], "verbs": ["get", "list"]}]});
    plane
        .post(&format!("{rbac}/roles"), &role)
        .await?
        .expect(201)?;
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]});
    plane
        .post(&format!("{rbac}/rolebindings"), &binding)
        .await?
        .expect(201)?;
    let tokens = format!("{accounts}/reader/token");
    let answer = plane
        .post(&tokens, &json!({"spec": {}}))
        .await?
        .expect(201)?;
    let token = answer["status"]["token"].as_str().context("no token")?;
    Client::open(&endpoint.with_token(Some(token))).await
}

/// Garbage collection, quota, roles, events and the deletion of namespaces treat custom
/// kinds like any other.
#[tokio::test]
async fn custom_kinds_are_collected_counted_and_guarded() -> Result<()> {
    let site = Site::start(&["--replicas=3"]).await?;
    let (endpoint, plane) = site.plane("whole").await?;
    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    go_with_owners(&plane).await?;
    let counted = are_counted(&plane).await?;
    are_guarded_and_shown((&endpoint, &plane), &counted).await?;
    go_with_namespaces(&plane).await
}

/// Dependents of both kinds go with their owners.
async fn go_with_owners(plane: &Client) -> Result<()> {
    let map = json!({"metadata": {"name": "owner"}});
    let map = plane.post(MAPS, &map).await?.expect(201)?;
    let owned = |kind: &str, api: &str, owner: &Value| {
        json!({"ownerReferences": [{"apiVersion": api, "kind": kind,
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]})
    };
    let middle = widget("middle", &owned("ConfigMap", "v1", &map));
    let middle = plane.post(WIDGETS, &middle).await?.expect(201)?;
    let mut leaf = json!({"metadata": owned("Widget", "example.com/v1", &middle)});
    leaf["metadata"]["name"] = json!("leaf");
    plane.post(MAPS, &leaf).await?.expect(201)?;
    plane.delete(&format!("{MAPS}/owner")).await?.expect(200)?;
    until(plane, &format!("{WIDGETS}/middle"), 404).await?;
    until(plane, &format!("{MAPS}/leaf"), 404).await?;
    Ok(())
}

/// A quota counts them, also against writers at once. Returns the names of those that it lets pass.
async fn are_counted(plane: &Client) -> Result<Vec<String>> {
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"},
        "spec": {"hard": {"count/widgets.example.com": "3"}}});
    plane.post(quotas, &quota).await?.expect(201)?;
    let creates = (0..12).map(|at| {
        let body = widget(&format!("w{at}"), &json!({}));
        async move { plane.post(WIDGETS, &body).await }
    });
    let replies = try_join_all(creates).await?;
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.refuses(403, "exceeded quota: q")?;
    }
    let there = names(&plane.get(WIDGETS).await?.expect(200)?);
    ensure!(there.len() == 3, "the quota lets {there:?} pass");
    let mut used = Value::Null;
    for _ in 0..LOOKS {
        let shown = plane.get(&format!("{quotas}/q")).await?.expect(200)?;
        used = shown["status"]["used"]["count/widgets.example.com"].clone();
        if used == "3" {
            break;
        }
        sleep(BETWEEN_LOOKS).await;
    }
    ensure!(used == "3", "the quota shows {used}");
    Ok(there)
}

/// Roles name them, and events refer to them.
async fn are_guarded_and_shown(
    (endpoint, plane): (&Endpoint, &Client),
    there: &[String],
) -> Result<()> {
    let reader = reader(endpoint, plane).await?;
    reader.get(WIDGETS).await?.expect(200)?;
    let last = there.last().context("no widget")?;
    let path = format!("{WIDGETS}/{last}");
    let forbidden = "cannot delete resource \"widgets\" in API group \"example.com\"";
    reader.delete(&path).await?.refuses(403, forbidden)?;
    let object = plane.get(&path).await?.expect(200)?;
    let event = json!({"metadata": {"name": "e"}, "reason": "Made", "type": "Normal",
        "involvedObject": {"apiVersion": "example.com/v1", "kind": "Widget", "namespace": "default",
            "name": last, "uid": object["metadata"]["uid"]}});
    let events = "/api/v1/namespaces/default/events";
    plane.post(events, &event).await?.expect(201)?;
    let about =
        format!("{events}?fieldSelector=involvedObject.kind=Widget,involvedObject.name={last}");
    ensure!(names(&plane.get(&about).await?.expect(200)?) == ["e"]);
    Ok(())
}

/// A namespace takes them with it; one with a finalizer holds it up.
async fn go_with_namespaces(plane: &Client) -> Result<()> {
    let namespace = "/api/v1/namespaces/n";
    let inside = "/apis/example.com/v1/namespaces/n/widgets";
    plane
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
        .await?
        .expect(201)?;
    for at in 0..20 {
        let finalizers = match at {
            7 => json!({"finalizers": ["example.com/wait"]}),
            _ => json!({}),
        };
        plane
            .post(inside, &widget(&format!("w{at}"), &finalizers))
            .await?
            .expect(201)?;
    }
    plane.delete(namespace).await?.expect(200)?;
    let mut waits = Value::Null;
    for _ in 0..LOOKS {
        waits = plane.get(namespace).await?.expect(200)?;
        let text = waits["status"]["conditions"].to_string();
        if text.contains("widgets.example.com has 1 resource instances") {
            break;
        }
        sleep(BETWEEN_LOOKS).await;
    }
    ensure!(
        names(&plane.get(inside).await?.expect(200)?) == ["w7"],
        "{waits}"
    );
    let path = format!("{inside}/w7");
    patch(plane, &path, json!({"metadata": {"finalizers": null}})).await?;
    until(plane, namespace, 404).await?;
    Ok(())
}

/// Makes a definition with objects, one that has a short name, and one that waits for that name.
async fn in_every_state(plane: &Client) -> Result<()> {
    plane.post(DEFINITIONS, &widgets()).await?.expect(201)?;
    let mut gadgets = definition("gadgets", "Gadget", &json!({}));
    gadgets["spec"]["names"]["shortNames"] = json!(["g"]);
    plane.post(DEFINITIONS, &gadgets).await?.expect(201)?;
    let mut waiting = definition("gears", "Gear", &json!({}));
    waiting["spec"]["names"]["shortNames"] = json!(["g"]);
    let waiting = plane.post(DEFINITIONS, &waiting).await?.expect(201)?;
    ensure!(condition(&waiting, "Established") == "False", "{waiting}");
    let kept = widget("kept", &json!({"finalizers": ["example.com/wait"]}));
    plane.post(WIDGETS, &kept).await?.expect(201)?;
    plane
        .post(WIDGETS, &widget("other", &json!({})))
        .await?
        .expect(201)?;
    Ok(())
}

/// A plane sleeps with definitions in every state, and wakes with them.
#[tokio::test]
async fn definitions_sleep_and_wake_in_every_state() -> Result<()> {
    let site = Site::start(&["--sleep-after", "1"]).await?;
    let (_, plane) = site.plane("sleepy").await?;
    let asleep = async || until_asleep(&site.admin, Duration::from_secs(30)).await;
    in_every_state(&plane).await?;
    asleep().await?;

    // Awake at once with its kinds; then the definition goes to sleep while it is being deleted.
    let list = plane.get(WIDGETS).await?.expect(200)?;
    ensure!(names(&list) == ["kept", "other"], "{list}");
    let own = format!("{DEFINITIONS}/widgets.{GROUP}");
    plane.delete(&own).await?.expect(200)?;
    asleep().await?;
    let mut left = plane.get(WIDGETS).await?.expect(200)?;
    for _ in 0..LOOKS {
        if names(&left) == ["kept"] {
            break;
        }
        sleep(BETWEEN_LOOKS).await;
        left = plane.get(WIDGETS).await?.expect(200)?;
    }
    ensure!(names(&left) == ["kept"], "{left}");
    let path = format!("{WIDGETS}/kept");
    plane
        .post(WIDGETS, &widget("new", &json!({})))
        .await?
        .refuses(403, "terminating")?;
    asleep().await?;
    patch(&plane, &path, json!({"metadata": {"finalizers": null}})).await?;
    until(&plane, &own, 404).await?;
    asleep().await?;
    plane.get(WIDGETS).await?.expect(404)?;

    // The one that waits for a name gets it after a sleep too.
    let gears = "/apis/example.com/v1/namespaces/default/gears";
    plane.get(gears).await?.expect(404)?;
    plane
        .delete(&format!("{DEFINITIONS}/gadgets.{GROUP}"))
        .await?
        .expect(200)?;
    asleep().await?;
    until(&plane, gears, 200).await?;
    let all = plane.get(DEFINITIONS).await?.expect(200)?;
    ensure!(names(&all) == [format!("gears.{GROUP}")], "{all}");
    Ok(())
}

/// Returns a definition of two versions that only a webhook converts between, and nothing listens there.
fn gadgets() -> Value {
    let mut gadgets = definition(
        "gadgets",
        "Gadget",
        &json!({"args": {"type": "array",
        "items": {"type": "string"}}}),
    );
    let mut older = gadgets["spec"]["versions"][0].clone();
    older["name"] = json!("v1beta1");
    older["storage"] = json!(false);
    older["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["args"] =
        json!({"type": "object", "additionalProperties": {"type": "string"}});
    let versions = gadgets["spec"]["versions"].as_array_mut();
    versions.expect("it has one").push(older);
    gadgets["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"url": "https://127.0.0.1:1/convert"},
        "conversionReviewVersions": ["v1"]}});
    gadgets
}

/// Nothing is stored by a write whose object only a webhook can bring into the stored version.
#[tokio::test]
async fn what_cannot_be_converted_is_not_stored() -> Result<()> {
    let site = Site::start(&[]).await?;
    let (_, plane) = site.plane("webhook").await?;
    plane.post(DEFINITIONS, &gadgets()).await?.expect(201)?;
    let inside = |version: &str| format!("/apis/{GROUP}/{version}/namespaces/default/gadgets");
    let gadget = |name: &str, version: &str, args: &Value| {
        json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Gadget",
            "metadata": {"name": name}, "spec": {"args": args}})
    };
    let words = "conversion webhook for example.com/v1beta1, Kind=Gadget failed: ";
    let body = gadget("a", "v1beta1", &json!({"x": "y"}));
    for options in ["", "?dryRun=All"] {
        let path = inside("v1beta1");
        let created = plane.post(&format!("{path}{options}"), &body).await?;
        created.refuses(500, words)?;
        let applied = format!("{path}/a{options}");
        let joint = if options.is_empty() { '?' } else { '&' };
        let applied = format!("{applied}{joint}fieldManager=m");
        let sent = plane.typed(Method::PATCH, &applied, APPLY, body.to_string());
        sent.await?.refuses(500, words)?;
    }
    let list = plane.get(&inside("v1")).await?.expect(200)?;
    ensure!(names(&list).is_empty(), "{list}");

    // The name is free, and the stored version works; what it stores cannot be had in the other one.
    let body = gadget("a", "v1", &json!(["x"]));
    plane.post(&inside("v1"), &body).await?.expect(201)?;
    let words = "conversion webhook for example.com/v1, Kind=Gadget failed: ";
    let path = format!("{}/a", inside("v1beta1"));
    plane.get(&path).await?.refuses(500, words)?;
    let change = json!({"spec": {"args": {"x": "z"}}});
    let sent = plane.typed(Method::PATCH, &path, MERGE, change.to_string());
    sent.await?.refuses(500, words)?;
    plane.delete(&path).await?.refuses(500, words)?;
    let kept = plane
        .get(&format!("{}/a", inside("v1")))
        .await?
        .expect(200)?;
    ensure!(kept["spec"]["args"] == json!(["x"]), "{kept}");
    Ok(())
}
