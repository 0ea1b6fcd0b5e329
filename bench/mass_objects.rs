//! The objects that mass deletions delete.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::objects::text;
use crate::owned;

/// A kind of objects that a namespace is filled with.
pub struct MassKind {
    /// The path before the namespace.
    group: &'static str,
    resource: &'static str,
    /// What an object has beside its metadata.
    content: fn() -> Value,
}

/// Ten kinds, none of which a controller of the reference does anything with.
pub const KINDS: [MassKind; 10] = [
    core("configmaps", || json!({"data": {"text": "x".repeat(200)}})),
    core("secrets", || json!({"stringData": {"text": "x"}})),
    core("serviceaccounts", || json!({})),
    core("services", || json!({"spec": {"ports": [{"port": 80}]}})),
    core(
        "podtemplates",
        || json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
    ),
    named("/apis/apps/v1", "deployments", deployment),
    named(
        "/apis/rbac.authorization.k8s.io/v1",
        "roles",
        || json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
    ),
    named("/apis/rbac.authorization.k8s.io/v1", "rolebindings", || {
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "ServiceAccount", "name": "default"}]})
    }),
    named(
        "/apis/networking.k8s.io/v1",
        "networkpolicies",
        || json!({"spec": {"podSelector": {}}}),
    ),
    LEASES,
];

/// The kind of the dependents.
pub const LEASES: MassKind = named("/apis/coordination.k8s.io/v1", "leases", || json!({}));

const fn core(resource: &'static str, content: fn() -> Value) -> MassKind {
    named("/api/v1", resource, content)
}

const fn named(group: &'static str, resource: &'static str, content: fn() -> Value) -> MassKind {
    MassKind {
        group,
        resource,
        content,
    }
}

/// Returns what a Deployment has beside its metadata.
fn deployment() -> Value {
    let mut object: Value = serde_json::from_slice(&owned::deployment("d", 0)).unwrap_or_default();
    if let Some(members) = object.as_object_mut() {
        members.remove("metadata");
    }
    object
}

impl MassKind {
    /// Returns the path of the objects in the namespace at this path.
    pub fn collection(&self, namespace: &str) -> String {
        let name = namespace.rsplit('/').next().unwrap_or_default();
        format!("{}/namespaces/{name}/{}", self.group, self.resource)
    }

    /// Returns the name of an object.
    pub fn name(&self, number: u64) -> String {
        format!("{}-{number}", self.resource)
    }

    /// Returns a new object.
    pub fn body(&self, number: u64) -> Bytes {
        let mut object = (self.content)();
        object["metadata"] = json!({"name": self.name(number)});
        text(&object)
    }
}

/// Returns the path of a namespace.
pub fn namespace_path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

/// Returns a dependent of the ConfigMap of this name and uid.
pub fn lease(number: u64, owner: &str, uid: &str) -> Bytes {
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid,
        "blockOwnerDeletion": true});
    text(&json!({"metadata": {"name": LEASES.name(number), "ownerReferences": [owner]}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mass_objects_of_ten_kinds_have_names_of_their_own() {
        let path = namespace_path("n");
        let mut paths: Vec<String> = KINDS.iter().map(|kind| kind.collection(&path)).collect();
        assert!(paths.contains(&"/apis/apps/v1/namespaces/n/deployments".to_owned()));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 10);
        for kind in &KINDS {
            let object: Value = serde_json::from_slice(&kind.body(7)).expect("JSON");
            assert_eq!(object["metadata"], json!({"name": kind.name(7)}));
        }
    }
}
