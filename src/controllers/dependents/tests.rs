//! The events of objects whose owners are in another namespace, and the ends of owners.

use super::{Site, rbac};
use crate::dependents::{self, DependentWork, Dependents, displaced};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Flags, Key, Prefix, Start};
use polyplane_registry::services::Removal;

fn events(site: &Site, key: &Key) -> Vec<Value> {
    let object = site.object(key).expect("it is there");
    let cut = site.tenant.plane.snapshot();
    displaced::events(&site.tenant.kinds(), &cut, &object)
}

/// Returns the event in `default`, of which there is one.
fn only_event(site: &Site) -> Value {
    let cut = site.tenant.plane.snapshot();
    let prefix = Prefix::namespaced("", "events", "default");
    let mut written = cut.range(&prefix, Start::First);
    let event = site.tree(written.next().expect("there is one").key());
    assert!(written.next().is_none());
    event
}

#[tokio::test]
async fn an_object_whose_owner_is_in_another_namespace_gets_an_event() {
    let site = Site::open().await;
    let namespace = Key::new("", "namespaces", None, "other");
    site.create(&namespace, json!({})).await;
    let owner_key = Key::new("", "configmaps", Some("other"), "owner");
    site.create(&owner_key, json!({})).await;
    let uid = Str::from(site.tree(&owner_key).str_at(&["metadata", "uid"]));
    let key = |name: &str| Key::new("", "configmaps", Some("default"), name);
    for (name, uid) in [("displaced", uid.as_str()), ("lost", "uid-of-none")] {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid});
        let owners = vec![owner];
        let body = json!({"metadata": {"ownerReferences": owners}});
        site.create(&key(name), body).await;
    }
    assert!(events(&site, &key("lost")).is_empty());
    let events = events(&site, &key("displaced"));
    displaced::write(&site.client, &site.tenant, &events).await;

    let event = only_event(&site);
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: default, name: owner, uid: {uid}] does not exist in namespace \"default\""
    );
    for (path, text) in [
        (&["message"][..], message.as_str()),
        (&["reason"][..], "OwnerRefInvalidNamespace"),
        (&["type"][..], "Warning"),
        (&["source", "component"][..], "garbage-collector-controller"),
        (&["reportingComponent"][..], "garbage-collector-controller"),
        (&["involvedObject", "apiVersion"][..], "v1"),
        (&["involvedObject", "kind"][..], "ConfigMap"),
        (&["involvedObject", "name"][..], "displaced"),
    ] {
        assert_eq!(event.str_at(path), text, "{path:?}");
    }
}

#[tokio::test]
async fn an_object_without_a_namespace_whose_owner_has_one_stays_and_gets_one_event() {
    let site = Site::open().await;
    let owner_key = Key::new("", "configmaps", Some("default"), "owner");
    site.create(&owner_key, json!({})).await;
    let uid = Str::from(site.tree(&owner_key).str_at(&["metadata", "uid"]));
    let owners = vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": (uid.clone())}),
    ];
    let role = rbac("clusterroles", None, "owned");
    let body = json!({"metadata": {"ownerReferences": owners}, "rules": []});
    site.create(&role, body).await;
    let known = Dependents::default();
    for _ in 0..2 {
        let object = site.object(&role).expect("it stays");
        let work = known.written(&site.tenant, &object, Removal::Pending);
        assert_eq!(work, [DependentWork::Dependent(role.clone())]);
        let done = dependents::dependent(&site.client, &site.tenant, &known, &role).await;
        assert!(done.is_ok());
    }
    let kept = site.tree(&role);
    assert_eq!(kept.items_at(&["metadata", "ownerReferences"]).len(), 1);

    let event = only_event(&site);
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: , name: owner, uid: {uid}] does not exist in namespace \"\""
    );
    assert_eq!(event.str_at(&["message"]), message);
    let about = &event["involvedObject"];
    assert_eq!(about.str_at(&["kind"]), "ClusterRole");
    assert!(about.get("namespace").is_none());
}

#[tokio::test]
async fn an_owner_that_waits_is_looked_at_when_a_dependent_lets_it_go() {
    let site = Site::open().await;
    let key = |name: &str| Key::new("", "configmaps", Some("default"), name);
    let finalizers = vec![Value::from("foregroundDeletion")];
    site.create(
        &key("owner"),
        json!({"metadata": {"finalizers": finalizers}}),
    )
    .await;
    let uid = Str::from(site.tree(&key("owner")).str_at(&["metadata", "uid"]));
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": true});
    let owners = vec![owner];
    site.create(
        &key("kept"),
        json!({"metadata": {"ownerReferences": owners}}),
    )
    .await;
    let known = Dependents::default();
    let written = |name: &str| {
        let object = site.object(&key(name)).expect("it is there");
        known.written(&site.tenant, &object, Removal::Pending)
    };
    assert_eq!(written("kept"), []);
    site.delete(&key("owner")).await;
    let waits = DependentWork::Owner(key("owner"));
    assert_eq!(written("owner"), std::slice::from_ref(&waits));
    site.patch(&key("kept"), json!({"metadata": {"ownerReferences": null}}))
        .await;
    assert_eq!(written("kept"), [waits]);
}

#[tokio::test]
async fn an_event_outlives_its_owner_and_an_unknown_kind_keeps_all_references() {
    let site = Site::open().await;
    let work_of = async |key: &Key, body: Value| {
        site.create(key, body).await;
        let object = site.object(key).expect("it is there");
        Dependents::default().written(&site.tenant, &object, Removal::Pending)
    };
    let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "gone", "uid": kind});
    let event = Key::new("", "events", Some("default"), "e");
    let about = json!({"kind": "ConfigMap", "namespace": "default", "name": "x"});
    let owners = vec![owner("ConfigMap")];
    let body = json!({"metadata": {"ownerReferences": owners}, "involvedObject": about});
    assert_eq!(work_of(&event, body).await, []);
    let map = Key::new("", "configmaps", Some("default"), "m");
    let owners = vec![owner("ConfigMap"), owner("Nothing")];
    let body = json!({"metadata": {"ownerReferences": owners}});
    assert_eq!(work_of(&map, body).await.len(), 1, "one owner is gone");
    let known = Dependents::default();
    let done = dependents::dependent(&site.client, &site.tenant, &known, &map).await;
    assert!(done.is_ok());
    let kept = site.tree(&map);
    assert_eq!(kept.items_at(&["metadata", "ownerReferences"]).len(), 2);
}

/// Creates a circle of objects, each of which owns the next. All but the last are being deleted in the foreground.
/// Returns their keys.
async fn circle(site: &Site, known: &Dependents, length: usize) -> Vec<Key> {
    let key = |number: usize| {
        let name = format!("m{number}");
        Key::new("", "configmaps", Some("default"), &name)
    };
    let keys: Vec<Key> = (0..length).map(key).collect();
    let owned_by = |owner: &Key| {
        let uid = Str::from(site.tree(owner).str_at(&["metadata", "uid"]));
        vec![
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": (owner.name()), "uid": uid,
            "blockOwnerDeletion": true}),
        ]
    };
    let finalizers = || vec![Value::from("foregroundDeletion")];
    let body = json!({"metadata": {"finalizers": (finalizers())}});
    site.create(&keys[0], body).await;
    for (owner, key) in keys.iter().zip(&keys[1..]) {
        let owners = owned_by(owner);
        let metadata = match *key == keys[length - 1] {
            true => json!({"ownerReferences": owners}),
            false => json!({"ownerReferences": owners, "finalizers": (finalizers())}),
        };
        site.create(key, json!({"metadata": metadata})).await;
    }
    let owners = owned_by(&keys[length - 1]);
    site.patch(&keys[0], json!({"metadata": {"ownerReferences": owners}}))
        .await;
    for key in &keys {
        let object = site.object(key).expect("it is there");
        assert_eq!(known.written(&site.tenant, &object, Removal::Pending), []);
    }
    for key in &keys[..length - 1] {
        site.delete(key).await;
        assert!(site.object(key).is_some(), "{key:?}");
    }
    keys
}

#[tokio::test]
async fn a_foreground_deletion_ends_in_a_circle_of_any_length() {
    let (site, known) = (Site::open().await, Dependents::default());
    let keys = circle(&site, &known, 300).await;
    let last = &keys[299];
    let done = dependents::dependent(&site.client, &site.tenant, &known, last).await;
    assert!(done.is_ok());
    let closing = site.object(last).expect("it waits for the first");
    assert!(closing.flags().has(Flags::DELETING));
    for key in keys[..299].iter().rev().chain([last]) {
        let done = dependents::owner(&site.client, &site.tenant, &known, key).await;
        assert!(done.is_ok());
        assert!(site.object(key).is_none(), "{key:?}");
    }
}

#[tokio::test]
async fn objects_that_all_wait_for_each_other_go_and_others_are_waited_for() {
    for (finalizer, goes) in [("foregroundDeletion", true), ("example.com/f", false)] {
        let (site, known) = (Site::open().await, Dependents::default());
        let keys = circle(&site, &known, 3).await;
        let finalizers = vec![Value::from(finalizer)];
        site.patch(&keys[2], json!({"metadata": {"finalizers": finalizers}}))
            .await;
        site.delete(&keys[2]).await;
        let done = dependents::owner(&site.client, &site.tenant, &known, &keys[1]).await;
        assert!(done.is_ok());
        assert_eq!(site.object(&keys[1]).is_none(), goes, "{finalizer}");
    }
}
