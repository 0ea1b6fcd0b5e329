//! Changes that the server makes to pods, and fields that writes through a subresource may not
//! change.

use crate::shared::pod::defaults::items_mut;
use crate::shared::pod::qos;
use crate::shared::pod::validation::annotations::{
    APP_ARMOR, APP_ARMOR_IS_DEPRECATED, app_armor_profile,
};
use crate::shared::pod::validation::security;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::request::warnings::Warnings;
use std::collections::BTreeMap;

/// Adds the condition that a pod with scheduling gates must not be scheduled yet.
pub fn hold_back(pod: &mut Value, now: i64) {
    if pod.items_at(&["spec", "schedulingGates"]).is_empty() {
        return;
    }
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": null,
        "lastTransitionTime": (Timestamp::from_seconds(now).to_rfc3339()),
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    });
    pod.set(&["status", "conditions"], Value::Array(vec![condition]));
}

/// Turns label keys whose values come from the pod itself into requirements of the selectors.
pub fn resolve_label_keys(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    for field in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec.at_mut(&["affinity", field]) else {
            continue;
        };
        for term in items_mut(affinity, "requiredDuringSchedulingIgnoredDuringExecution") {
            add_requirements(term, &labels);
        }
        for weighted in items_mut(affinity, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                add_requirements(term, &labels);
            }
        }
    }
    for constraint in items_mut(spec, "topologySpreadConstraints") {
        add_requirements(constraint, &labels);
    }
}

fn add_requirements(owner: &mut Value, labels: &Value) {
    if owner["labelSelector"].is_null() {
        return;
    }
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in owner.items_at(&[field]).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [(value.clone())]}));
            }
        }
    }
    if added.is_empty() {
        return;
    }
    let path = ["labelSelector", "matchExpressions"];
    let mut all = owner.items_at(&path).to_vec();
    all.append(&mut added);
    owner.set(&path, Value::Array(all));
}

/// Turns AppArmor profiles in annotations into fields, if they differ from that of the pod. Warns of annotations
/// without a field of the client's own: only here is it known which fields the client has set.
pub fn take_app_armor_from_annotations(pod: &mut Value, warnings: &Warnings) {
    if pod.str_at(&["spec", "os", "name"]) == "windows" {
        return;
    }
    let annotations = pod["metadata"]["annotations"].clone();
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    let of_pod = spec["securityContext"]["appArmorProfile"].clone();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(spec, list) {
            let key = format!("{APP_ARMOR}{}", container.str_at(&["name"]));
            let Some(text) = annotations.get(&key).and_then(Value::as_str) else {
                continue;
            };
            if !container["securityContext"]["appArmorProfile"].is_null() {
                continue;
            }
            match app_armor_profile(text).filter(is_valid) {
                Some(profile) if profile == of_pod => continue,
                Some(profile) => container.set(&["securityContext", "appArmorProfile"], profile),
                None => {}
            }
            warnings.add(format!(
                "metadata.annotations[{key}]: {APP_ARMOR_IS_DEPRECATED}"
            ));
        }
    }
}

fn is_valid(profile: &Value) -> bool {
    let mut complaints = Complaints::default();
    security::validate_app_armor(profile, &Path::NIL, &mut complaints);
    complaints.is_empty()
}

fn keep(object: &mut Value, old: &Value, path: &[&str]) {
    match old.at(path) {
        Some(value) => object.set(path, value.clone()),
        None => drop(object.remove(path)),
    }
}

/// Keeps the resources of the whole pod if they are missing in the request, because the client may
/// not know the field.
pub fn keep_pod_resources(object: &mut Value, old: &Value) {
    if object["spec"]["resources"].is_null() {
        keep(object, old, &["spec", "resources"]);
    }
}

/// Keeps the metadata, apart from field management.
fn keep_metadata(object: &mut Value, old: &Value) {
    for field in [
        "deletionTimestamp",
        "generation",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ] {
        keep(object, old, &["metadata", field]);
    }
}

/// Prepares a write through `status`: the spec and the owners are kept.
pub fn keep_all_but_status(object: &mut Value, old: &Value) {
    for path in [
        &["spec"][..],
        &["metadata", "deletionTimestamp"],
        &["metadata", "ownerReferences"],
    ] {
        keep(object, old, path);
    }
    if object.str_at(&["status", "qosClass"]).is_empty() {
        keep(object, old, &["status", "qosClass"]);
    }
    for field in [
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
    ] {
        if object["status"][field].is_null() {
            keep(object, old, &["status", field]);
        }
    }
    if object
        .int_at(&["status", "observedGeneration"])
        .unwrap_or(0)
        == 0
    {
        keep(object, old, &["status", "observedGeneration"]);
    }
    keep_observed_generations(object, old);
}

/// Keeps the observed generation of each condition. The first condition of a type gets that of the
/// old first one.
fn keep_observed_generations(object: &mut Value, old: &Value) {
    let field = "observedGeneration";
    let mut known: BTreeMap<&str, std::collections::VecDeque<i64>> = BTreeMap::new();
    for condition in old.items_at(&["status", "conditions"]) {
        let generation = condition.int_at(&[field]).unwrap_or(0);
        known
            .entry(condition.str_at(&["type"]))
            .or_default()
            .push_back(generation);
    }
    let Some(status) = object.get_mut("status") else {
        return;
    };
    for condition in items_mut(status, "conditions") {
        let before = known
            .get_mut(condition.str_at(&["type"]))
            .and_then(std::collections::VecDeque::pop_front);
        let before = before.unwrap_or(0);
        if condition.int_at(&[field]).unwrap_or(0) == 0 && before != 0 {
            condition.set(&[field], before);
        }
    }
}

/// Prepares a write through `ephemeralcontainers`: everything else is kept.
pub fn keep_all_but_ephemeral(object: &mut Value, old: &Value) {
    let containers = object["spec"]["ephemeralContainers"].clone();
    keep(object, old, &["spec"]);
    keep(object, old, &["status"]);
    keep_metadata(object, old);
    if containers.is_null() {
        drop(object.remove(&["spec", "ephemeralContainers"]));
    } else {
        object.set(&["spec", "ephemeralContainers"], containers);
    }
}

/// A write through `resize` changes resources and resize policies only. If a client adds, removes
/// or reorders containers, the change stays in the object for validation to refuse.
pub fn keep_all_but_resources(object: &mut Value, old: &Value) {
    let lists = ["containers", "initContainers"];
    let count = |pod: &Value, list: &str| pod.items_at(&["spec", list]).len();
    if lists
        .iter()
        .all(|list| count(object, list) == count(old, list))
    {
        let given = object["spec"].clone();
        keep(object, old, &["spec"]);
        keep(object, old, &["status"]);
        keep_metadata(object, old);
        match given.get("resources") {
            Some(resources) => object.set(&["spec", "resources"], resources.clone()),
            None => drop(object.remove(&["spec", "resources"])),
        }
        for list in lists {
            let new = given.items_at(&[list]);
            if !new.is_empty() {
                let merged = merge_resources(new, old.items_at(&["spec", list]));
                object.set(&["spec", list], Value::Array(merged));
            }
        }
    }
    keep_pod_resources(object, old);
    if !object["spec"]["resources"].is_null() {
        qos::default_pod_resources(object);
    }
}

/// Returns the old containers with the resources and resize policies of the new ones. If a name
/// differs, returns the new containers as they are, so that validation refuses them.
fn merge_resources(new: &[Value], old: &[Value]) -> Vec<Value> {
    if new
        .iter()
        .zip(old)
        .any(|(new, old)| new["name"] != old["name"])
    {
        return new.to_vec();
    }
    let merge = |(new, old): (&Value, &Value)| {
        let mut merged = old.clone();
        keep(&mut merged, new, &["resources"]);
        keep(&mut merged, new, &["resizePolicy"]);
        merged
    };
    new.iter().zip(old).map(merge).collect()
}
