//! Whether claims show that pods name them.

use super::{MERGE, Site, claim};
use crate::client::OwnRequest;
use crate::protection::{self, ProtectedSet};
use polyplane_apimachinery::{Value, json};
use polyplane_plane::Key;
use polyplane_registry::Verb;

async fn patch_status(site: &Site, key: &Key, status: Value) {
    let patch = json!({"status": status});
    let namespace = key.namespace().unwrap_or("");
    let own = OwnRequest {
        subresource: "status",
        content_type: MERGE,
        body: &patch,
        ..OwnRequest::new(Verb::Patch, site.row(key), namespace, key.name())
    };
    let patched = own.send(&site.client, &site.tenant).await;
    patched.expect("it is valid");
}

async fn settle(site: &Site, key: &Key) {
    let settled = protection::settle(&site.client, &site.tenant, key).await;
    settled.expect("it can be written");
    assert!(!is_pending(site, key).await, "once is enough");
}

async fn is_pending(site: &Site, key: &Key) -> bool {
    protection::pending(&site.tenant).await.contains(key)
}

/// Returns whether the last write of an object calls for the reconciler of a claim.
fn calls_for(site: &Site, written: &Key, claim: &Key) -> bool {
    let object = site.object(written).expect("it is there");
    protection::touched(&site.tenant, &object, false).contains(claim)
}

/// Returns the status and the reason of the condition.
fn shown(site: &Site, key: &Key) -> Option<(String, String)> {
    let claim = site.tree(key);
    let mut conditions = claim.items_at(&["status", "conditions"]).iter();
    let found = conditions.find(|one| one.str_at(&["type"]) == "Unused")?;
    assert!(!found.str_at(&["lastTransitionTime"]).is_empty());
    let text = |field: &str| found.str_at(&[field]).to_owned();
    Some((text("status"), text("reason")))
}

fn unused() -> Option<(String, String)> {
    Some(("True".to_owned(), "NoPodsUsingPVC".to_owned()))
}

fn used() -> Option<(String, String)> {
    Some(("False".to_owned(), "PodUsingPVC".to_owned()))
}

fn pod(name: &str, volumes: usize) -> (Key, Value) {
    let volume = |number: usize| {
        let claim = match number {
            0 => "c".to_owned(),
            _ => format!("c{number}"),
        };
        json!({"name": (format!("v{number}")), "persistentVolumeClaim": {"claimName": claim}})
    };
    let volumes: Vec<Value> = (0..volumes).map(volume).collect();
    let containers = json!([{"name": "c", "image": "i"}]);
    let body = json!({"spec": {"containers": containers, "volumes": volumes}});
    (Key::new("", "pods", Some("default"), name), body)
}

#[tokio::test]
async fn a_bound_claim_shows_whether_a_pod_names_it_that_has_not_ended() {
    let site = Site::open().await;
    let (key, body) = claim();
    site.create(&key, body).await;
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), None, "it is not bound");

    patch_status(&site, &key, json!({"phase": "Bound"})).await;
    assert!(calls_for(&site, &key, &key) && is_pending(&site, &key).await);
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), unused());
    assert!(!calls_for(&site, &key, &key));

    // A pod counts before it has a node.
    let (pod_key, body) = pod("p", 1);
    site.create(&pod_key, body).await;
    assert!(calls_for(&site, &pod_key, &key) && is_pending(&site, &key).await);
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), used());
    assert!(!calls_for(&site, &pod_key, &key), "it says so already");
    patch_status(&site, &pod_key, json!({"phase": "Succeeded"})).await;
    assert!(calls_for(&site, &pod_key, &key));
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), unused());

    let (pod_key, body) = pod("q", 1);
    site.create(&pod_key, body).await;
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), used());
    let gone = site.object(&pod_key).expect("it is there");
    site.delete(&pod_key).await;
    assert!(protection::touched(&site.tenant, &gone, true).contains(&key));
    settle(&site, &key).await;
    assert_eq!(shown(&site, &key), unused());
}

#[tokio::test]
async fn a_pod_with_many_volumes_leaves_the_search_for_claims_in_use_to_a_reconciler() {
    let site = Site::open().await;
    let (key, body) = claim();
    site.create(&key, body).await;
    patch_status(&site, &key, json!({"phase": "Bound"})).await;
    settle(&site, &key).await;
    let (pod_key, body) = pod("p", 100);
    site.create(&pod_key, body).await;
    assert!(!calls_for(&site, &pod_key, &key));
    let pod = site.object(&pod_key).expect("it is there");
    let set = ProtectedSet::Claims("default".into());
    let freed = protection::freed(&site.tenant, &pod, false);
    assert_eq!(freed.as_ref(), Some(&set));
    assert_eq!(protection::pending_of(&site.tenant, &set).await, [key]);
}
