//! What a deleted namespace says about the content that remains in it.

use super::Site;
use crate::namespaces;
use crate::work::Progress;
use polyplane_apimachinery::json;
use polyplane_auth::{Attributes, Authorizer, Decision, Subject, Verdict};
use polyplane_plane::{Flags, Key};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NAMESPACE: &str = "n";
const FINALIZER: &str = "example.com/other";

fn namespace() -> Key {
    Key::new("", "namespaces", None, NAMESPACE)
}

fn key(resource: &str) -> Key {
    Key::new("", resource, Some(NAMESPACE), "x")
}

async fn empty(site: &Site) -> Progress {
    let done = namespaces::empty(&site.client, &site.tenant, NAMESPACE).await;
    done.expect("it can be written")
}

/// Returns the status, the reason and the message of a condition.
fn shown(site: &Site, kind: &str) -> [String; 3] {
    let namespace = site.tree(&namespace());
    let mut conditions = namespace.items_at(&["status", "conditions"]).iter();
    let found = conditions.find(|one| one.str_at(&["type"]) == kind);
    let found = found.expect("it is shown");
    ["status", "reason", "message"].map(|field| found.str_at(&[field]).to_owned())
}

/// Removes the finalizers of an object.
async fn let_go(site: &Site, key: &Key) {
    let none = json!({"metadata": {"finalizers": null}});
    site.patch(key, none).await;
}

#[tokio::test]
async fn a_deleted_namespace_counts_what_remains_only_once_its_pods_are_gone() {
    let site = Site::open().await;
    site.create(&namespace(), json!({})).await;
    let (pod, map) = (key("pods"), key("configmaps"));
    let body = json!({"metadata": {"finalizers": [FINALIZER]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    site.create(&pod, body).await;
    let body = json!({"metadata": {"finalizers": [FINALIZER]}});
    site.create(&map, body).await;
    site.delete(&namespace()).await;

    let is_deleting = |key: &Key| {
        let object = site.object(key).expect("it is there");
        object.flags().has(Flags::DELETING)
    };
    assert!(matches!(empty(&site).await, Progress::Waiting));
    assert!(is_deleting(&pod) && !is_deleting(&map));
    for (kind, reason, message) in [
        (
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            "ContentRemoved",
            "All content successfully removed",
        ),
        (
            "NamespaceFinalizersRemaining",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
        ),
    ] {
        assert_eq!(shown(&site, kind), ["False", reason, message], "{kind}");
    }

    let_go(&site, &pod).await;
    site.delete(&pod).await;
    assert!(matches!(empty(&site).await, Progress::Waiting));
    assert!(is_deleting(&map));
    for (kind, reason, message) in [
        (
            "NamespaceContentRemaining",
            "SomeResourcesRemain",
            "Some resources are remaining: configmaps. has 1 resource instances",
        ),
        (
            "NamespaceFinalizersRemaining",
            "SomeFinalizersRemain",
            "Some content in the namespace has finalizers remaining: example.com/other in 1 resource instances",
        ),
    ] {
        assert_eq!(shown(&site, kind), ["True", reason, message], "{kind}");
    }

    let_go(&site, &map).await;
    assert!(matches!(empty(&site).await, Progress::Done));
    assert!(site.object(&namespace()).is_none());
}

/// Keeps the controller from config maps while this is true.
struct KeepsMaps(Arc<AtomicBool>);

impl Authorizer for KeepsMaps {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let is_of_maps = match attributes.subject {
            Subject::Resource { resource, .. } => resource == "configmaps",
            Subject::Path(_) => false,
        };
        let is_kept = is_of_maps && attributes.verb == "deletecollection";
        Verdict::now(match is_kept && self.0.load(Ordering::SeqCst) {
            true => Decision::Deny("they are kept".to_owned()),
            false => Decision::Allow,
        })
    }
}

#[tokio::test]
async fn a_kind_that_cannot_be_deleted_is_complained_about_and_holds_up_no_other_kind() {
    let keeps = Arc::new(AtomicBool::new(true));
    let site = Site::under(KeepsMaps(Arc::clone(&keeps))).await;
    site.create(&namespace(), json!({})).await;
    let (map, secret) = (key("configmaps"), key("secrets"));
    site.create(&map, json!({})).await;
    site.create(&secret, json!({})).await;
    site.delete(&namespace()).await;

    let refused = namespaces::empty(&site.client, &site.tenant, NAMESPACE).await;
    let Err(refused) = refused else {
        panic!("nothing else tries it again");
    };
    assert!(site.object(&secret).is_none());
    assert!(site.object(&map).is_some());
    let message = format!("Failed to delete all resource types, 1 remaining: {refused}");
    let failure = shown(&site, "NamespaceDeletionContentFailure");
    assert_eq!(failure, ["True", "ContentDeletionFailed", message.as_str()]);
    let remaining = shown(&site, "NamespaceContentRemaining");
    assert_eq!(remaining[0], "False", "as upstream");

    keeps.store(false, Ordering::SeqCst);
    assert!(matches!(empty(&site).await, Progress::Done));
    assert!(site.object(&namespace()).is_none());
}
