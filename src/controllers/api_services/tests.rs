//! The APIServices of custom kinds.

use super::{Site, held_definition};
use crate::{api_services, definitions};
use futures_util::FutureExt as _;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::Key;

fn service(name: &str) -> Key {
    Key::new("apiregistration.k8s.io", "apiservices", None, name)
}

fn spec(version: &str, priorities: [i64; 2]) -> Value {
    let [group, of_version] = priorities;
    json!({"group": "example.com", "version": version, "groupPriorityMinimum": group,
        "versionPriority": of_version})
}

async fn has_work(site: &Site) -> bool {
    api_services::has_work(&site.tenant).await
}

async fn settle(site: &Site) {
    assert!(has_work(site).await);
    let settled = api_services::settle(&site.client, &site.tenant).await;
    settled.expect("it can be written");
    assert!(!has_work(site).await, "once is enough");
}

/// Deletes a definition and its kind.
async fn undefine(site: &Site, definition: &Key) {
    site.delete(definition).await;
    assert!(
        !has_work(site).await,
        "its versions are served until it is gone"
    );
    let settled = definitions::settle(&site.client, &site.tenant, definition.name()).await;
    settled.expect("it can be written");
    site.patch(definition, json!({"metadata": {"finalizers": null}}))
        .await;
    assert!(site.object(definition).is_none());
}

#[tokio::test]
async fn a_version_with_custom_kinds_has_an_api_service_until_the_last_of_them_is_gone() {
    let site = Site::open().await;
    assert!(!has_work(&site).await, "built-in groups have theirs");
    let (widgets, body) = held_definition("widgets");
    site.create(&widgets, body).await;
    settle(&site).await;
    let name = service("v1.example.com");
    let born = site.tree(&name);
    assert_eq!(born["spec"], spec("v1", [1000, 100]));
    let label = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
    assert_eq!(born["metadata"]["labels"], label);
    let condition = &born["status"]["conditions"][0];
    assert_eq!(condition.str_at(&["status"]), "True");
    let owner = &born["metadata"]["managedFields"][0];
    assert_eq!(owner.str_at(&["manager"]), "kube-apiserver");

    site.patch(&name, json!({"spec": {"versionPriority": 7i64}}))
        .await;
    settle(&site).await;
    assert_eq!(site.tree(&name)["spec"], born["spec"]);
    site.delete(&name).await;
    settle(&site).await;
    assert_eq!(site.tree(&name)["spec"], born["spec"]);

    let (gadgets, mut body) = held_definition("gadgets");
    body.set(&["spec", "names", "kind"], "Gadget");
    site.create(&gadgets, body).await;
    assert!(!has_work(&site).await, "it is of the same version");
    undefine(&site, &widgets).await;
    assert!(!has_work(&site).await, "another kind is of the version");
    undefine(&site, &gadgets).await;
    settle(&site).await;
    assert!(site.object(&name).is_none());
}

#[tokio::test]
async fn a_version_that_is_not_served_any_more_loses_its_api_service() {
    let site = Site::open().await;
    let (key, mut body) = held_definition("widgets");
    let mut second = body["spec"]["versions"][0].clone();
    second.set(&["name"], "v2");
    second.set(&["storage"], false);
    let mut versions = body["spec"]["versions"].clone();
    let all = versions.as_array_mut().expect("it is a list");
    all.push(second.clone());
    body.set(&["spec", "versions"], versions.clone());
    site.create(&key, body).await;
    settle(&site).await;
    let services = [service("v1.example.com"), service("v2.example.com")];
    assert!(services.iter().all(|name| site.object(name).is_some()));

    second.set(&["served"], false);
    let all = versions.as_array_mut().expect("it is a list");
    all[1] = second;
    site.patch(&key, json!({"spec": {"versions": versions}}))
        .await;
    settle(&site).await;
    let are_left = services.map(|name| site.object(&name).is_some());
    assert_eq!(are_left, [true, false]);
}

#[tokio::test]
async fn an_api_service_without_the_label_belongs_to_its_users() {
    let site = Site::open().await;
    let users = service("v1.example.com");
    site.create(&users, json!({"spec": (spec("v1", [5, 5]))}))
        .await;
    let (key, body) = held_definition("widgets");
    site.create(&key, body).await;
    assert!(!has_work(&site).await);
    // With the label it is the server's, whoever created it, and so is one of a version that nothing serves.
    let labels = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
    let metadata = json!({"labels": labels});
    site.patch(&users, json!({"metadata": (metadata.clone())}))
        .await;
    let unserved = service("v9.example.com");
    site.create(
        &unserved,
        json!({"metadata": metadata, "spec": (spec("v9", [5, 5]))}),
    )
    .await;
    settle(&site).await;
    assert_eq!(site.tree(&users)["spec"], spec("v1", [1000, 100]));
    assert!(site.object(&unserved).is_none());
}

#[tokio::test]
async fn very_many_api_services_are_not_looked_at_in_one_poll() {
    let site = Site::open().await;
    let note = "x".repeat(8 << 10);
    for version in 1..=40 {
        let version = format!("v{version}");
        let key = service(&format!("{version}.example.com"));
        let metadata = json!({"annotations": {"example.com/note": (note.as_str())}});
        site.create(
            &key,
            json!({"metadata": metadata, "spec": (spec(&version, [5, 5]))}),
        )
        .await;
    }
    let first = api_services::has_work(&site.tenant).now_or_never();
    assert!(first.is_none(), "it lets others go on");
    assert!(!has_work(&site).await);
}
