//! What a deleted namespace says about the content that remains in it.

use super::Site;
use crate::namespaces;
use crate::work::Progress;
use polyplane_apimachinery::json;
use polyplane_plane::{Flags, Key};

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
