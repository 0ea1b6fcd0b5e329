//! Fields of pods that belong to features which are off: new objects lose them, old ones keep what
//! they use.

use super::pod_defaults::{CONTAINER_LISTS, items_mut};
use super::pod_validation::containers_of;
use polyplane_apimachinery::Value;

/// Annotations that once held the containers that initialise.
const OLD_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HOOKS: [&str; 2] = ["postStart", "preStop"];
const STATUS_LISTS: [&str; 3] = [
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];

/// Removes what is off from the template at `path`; `old` is the whole object before an update.
pub fn drop_disabled_at(object: &mut Value, path: &[&str], old: Option<&Value>) {
    let old = old.and_then(|old| old.at(path));
    if let Some(template) = object.at_mut(path) {
        drop_disabled(template, old);
    }
}

/// Removes what is off from a pod or a template, its status aside.
pub fn drop_disabled(pod: &mut Value, old: Option<&Value>) {
    let none = Value::Null;
    let old_spec = old.map_or(&none, |old| &old["spec"]);
    if let Some(annotations) = pod
        .at_mut(&["metadata", "annotations"])
        .and_then(Value::as_object_mut)
    {
        for key in OLD_ANNOTATIONS {
            drop(annotations.remove(key));
        }
    }
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    for field in ["schedulingGroup", "evictionResponders"] {
        if old_spec[field].is_null() {
            drop(spec.remove(&[field]));
        }
    }
    drop_from_volumes(spec, old_spec);
    drop_from_containers(spec, old_spec);
}

fn drop_from_volumes(spec: &mut Value, old: &Value) {
    let old_volumes = old.items_at(&["volumes"]);
    let modes = old_volumes
        .iter()
        .any(|volume| volume.at(&["emptyDir", "mode"]).is_some());
    let users = old_volumes.iter().any(uses_owner);
    for volume in items_mut(spec, "volumes") {
        if !modes {
            drop(volume.remove(&["emptyDir", "mode"]));
        }
        if !users {
            drop_owners(volume);
        }
    }
}

/// True if a file or folder of the volume has an owner.
fn uses_owner(volume: &Value) -> bool {
    let has = |owner: &Value, field: &str| !owner[field].is_null();
    let items = |source: &Value| {
        source
            .items_at(&["items"])
            .iter()
            .any(|item| has(item, "user"))
    };
    ["secret", "configMap", "downwardAPI", "projected"]
        .iter()
        .any(|kind| {
            let source = &volume[*kind];
            let inner = source.items_at(&["sources"]).iter().any(|inner| {
                let members = inner
                    .as_object()
                    .into_iter()
                    .flat_map(|inner| inner.values());
                members
                    .into_iter()
                    .any(|one| has(one, "user") || items(one))
            });
            has(source, "defaultUser") || items(source) || inner
        })
}

/// Removes the owners of files, of the first kind of source only.
fn drop_owners(volume: &mut Value) {
    let kinds = ["secret", "configMap", "downwardAPI", "projected"];
    let Some(kind) = kinds.into_iter().find(|kind| !volume[*kind].is_null()) else {
        return;
    };
    let Some(source) = volume.get_mut(kind) else {
        return;
    };
    drop(source.remove(&["defaultUser"]));
    for item in items_mut(source, "items") {
        drop(item.remove(&["user"]));
    }
    let inner = [
        "secret",
        "downwardAPI",
        "configMap",
        "serviceAccountToken",
        "clusterTrustBundle",
        "podCertificate",
    ];
    for part in items_mut(source, "sources") {
        let Some(kind) = inner.into_iter().find(|kind| !part[*kind].is_null()) else {
            continue;
        };
        let Some(part) = part.get_mut(kind) else {
            continue;
        };
        if matches!(
            kind,
            "serviceAccountToken" | "clusterTrustBundle" | "podCertificate"
        ) {
            drop(part.remove(&["user"]));
        }
        for item in items_mut(part, "items") {
            drop(item.remove(&["user"]));
        }
    }
}

fn drop_from_containers(spec: &mut Value, old: &Value) {
    let any = |test: &dyn Fn(&Value) -> bool| containers_of(old).any(test);
    let mounts = any(&|one| {
        one.items_at(&["volumeMounts"])
            .iter()
            .any(|mount| !mount.items_at(&["bindMountOptions"]).is_empty())
    });
    let signals = any(&|one| one.at(&["lifecycle", "stopSignal"]).is_some());
    let modes = any(&|one| {
        PROBES
            .iter()
            .any(|probe| one.at(&[probe, "grpc", "mode"]).is_some())
    });
    let protocols = any(&|one| {
        PROBES
            .iter()
            .any(|probe| one.at(&[probe, "httpGet", "protocol"]).is_some())
            || HOOKS.iter().any(|hook| {
                one.at(&["lifecycle", hook, "httpGet", "protocol"])
                    .is_some()
            })
    });
    for list in CONTAINER_LISTS {
        for container in items_mut(spec, list) {
            if !mounts {
                for mount in items_mut(container, "volumeMounts") {
                    drop(mount.remove(&["bindMountOptions"]));
                }
            }
            for probe in PROBES {
                if !modes {
                    drop(container.remove(&[probe, "grpc", "mode"]));
                }
                if !protocols {
                    drop(container.remove(&[probe, "httpGet", "protocol"]));
                }
            }
            for hook in HOOKS.into_iter().filter(|_| !protocols) {
                drop(container.remove(&["lifecycle", hook, "httpGet", "protocol"]));
            }
            if !signals && container.remove(&["lifecycle", "stopSignal"]).is_some() {
                let empty = container["lifecycle"]
                    .as_object()
                    .is_none_or(|hooks| hooks.values().all(Value::is_null));
                if empty {
                    drop(container.remove(&["lifecycle"]));
                }
            }
        }
    }
}

/// Removes what is off from the status of a pod.
pub fn drop_disabled_status(pod: &mut Value, old: &Value) {
    let old = &old["status"];
    let Some(status) = pod.get_mut("status") else {
        return;
    };
    for field in ["volumeHealth", "nodeAllocatableResourceClaimStatuses"] {
        if old.items_at(&[field]).is_empty() {
            drop(status.remove(&[field]));
        }
    }
    let digests = STATUS_LISTS
        .iter()
        .flat_map(|list| old.items_at(&[list]))
        .flat_map(|container| container.items_at(&["volumeMounts"]))
        .any(|mount| !mount["volumeStatus"].is_null());
    for list in STATUS_LISTS.into_iter().filter(|_| !digests) {
        for container in items_mut(status, list) {
            for mount in items_mut(container, "volumeMounts") {
                drop(mount.remove(&["volumeStatus"]));
            }
        }
    }
}
