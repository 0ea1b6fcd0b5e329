//! Annotations that held a pod's init containers in old releases. Upstream's conversion drops
//! them.

use polyplane_apimachinery::Value;

const OLD: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// Drops these annotations from the pod or template at `path`.
pub fn drop_at(object: &mut Value, path: &[&str]) {
    let pod = object.at_mut(path);
    let annotations = pod.and_then(|pod| pod.at_mut(&["metadata", "annotations"]));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        for key in OLD {
            drop(annotations.remove(key));
        }
    }
}
