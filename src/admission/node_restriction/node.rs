//! What a kubelet may write into its node.

use super::{NodeWrite, is_empty, is_same};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_registry::plan::Operation;
use std::collections::BTreeSet;

/// The domain of labels that only others may give a node.
const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// The labels of Kubernetes' own domains that a kubelet may set.
const ALLOWED: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// The domains of which a kubelet may set any label.
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Checks a write of a node.
pub(super) fn check(write: &NodeWrite<'_>) -> Result<(), ApiError> {
    let name = write.what.name;
    if name != write.node {
        return write.refuse_node(&format!("is not allowed to modify node {}", quote(name)));
    }
    match (write.what.operation, write.object, write.what.old) {
        (Operation::Create, Some(node), _) => check_new(write, node),
        (Operation::Update, Some(node), Some(old)) => check_change(write, node, old),
        _ => Ok(()),
    }
}

fn check_new(write: &NodeWrite<'_>, node: &Value) -> Result<(), ApiError> {
    if config_source(node).is_some() {
        let why = "is not allowed to create pods with a non-nil configSource";
        return write.refuse_node(why);
    }
    let forbidden = forbidden_labels(node, &Value::Null);
    if !forbidden.is_empty() {
        return write.refuse_node(&format!(
            "is not allowed to set the following labels: {}",
            forbidden.join(", ")
        ));
    }
    Ok(())
}

fn check_change(write: &NodeWrite<'_>, node: &Value, old: &Value) -> Result<(), ApiError> {
    if config_source(node).is_some() && config_source(node) != config_source(old) {
        let why = "is not allowed to update configSource to a new non-nil configSource";
        return write.refuse_node(why);
    }
    if !is_same(node, old, &["spec", "taints"]) {
        return write.refuse_node("is not allowed to modify taints");
    }
    if !is_same(node, old, &["metadata", "ownerReferences"]) {
        return write.refuse_node("is not allowed to modify ownerReferences");
    }
    let forbidden = forbidden_labels(node, old);
    if !forbidden.is_empty() {
        let labels = forbidden.join(", ");
        return write.refuse(format!("is not allowed to modify labels: {labels}"));
    }
    Ok(())
}

fn config_source(node: &Value) -> Option<&Value> {
    node.at(&["spec", "configSource"])
        .filter(|source| !source.is_null())
}

/// Returns the labels that differ and that a kubelet may not change, in order.
fn forbidden_labels<'a>(node: &'a Value, old: &'a Value) -> Vec<&'a str> {
    let labels = |object: &'a Value| {
        object
            .at(&["metadata", "labels"])
            .filter(|all| !is_empty(all))
    };
    let (new, old) = (labels(node), labels(old));
    let keys = |labels: Option<&'a Value>| {
        let labels = labels.and_then(Value::as_object).into_iter();
        labels.flat_map(|labels| labels.iter().map(|(key, _)| key))
    };
    let of = |labels: Option<&'a Value>, key: &str| labels.and_then(|labels| labels.get(key));
    let all: BTreeSet<&str> = keys(new).chain(keys(old)).collect();
    all.into_iter()
        .filter(|key| of(new, key) != of(old, key) && is_forbidden(key))
        .collect()
}

fn is_forbidden(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let is_in = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let is_own = is_in("kubernetes.io") || is_in("k8s.io");
    let is_allowed = ALLOWED.contains(&label) || ALLOWED_DOMAINS.into_iter().any(is_in);
    is_in(RESTRICTED) || (is_own && !is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_sets_its_own_labels_and_those_of_strangers_domains() {
        for label in [
            "role",
            "example.com/role",
            "kubernetes.io/os",
            "node.kubernetes.io/speed",
            "a.kubelet.kubernetes.io/x",
            "nokubernetes.io/x",
        ] {
            assert!(!is_forbidden(label), "{label}");
        }
        for label in [
            "node-restriction.kubernetes.io/x",
            "a.node-restriction.kubernetes.io/x",
            "kubernetes.io/role",
            "node-role.kubernetes.io/master",
            "k8s.io/x",
            "a.k8s.io/x",
        ] {
            assert!(is_forbidden(label), "{label}");
        }
    }
}
