//! Defaults of pods, and of pod specs inside other kinds, that depend on several fields.
//!
//! Constant defaults are set before, from data. These are the defaults in which one field decides
//! about another. All of them are idempotent.

pub mod image_name;

use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::{Map, Value};

/// The lists of containers of a pod spec.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Sets the defaults of the pod template at `path` of an object, if there is one.
pub fn default_template_at(object: &mut Value, path: &[&str]) {
    if let Some(template) = object.at_mut(path) {
        default_pod_template(template);
    }
}

/// Sets the defaults of a pod template.
pub fn default_pod_template(template: &mut Value) {
    if let Some(spec) = template.get_mut("spec") {
        default_pod_spec(spec);
    }
}

/// Sets the defaults of a pod spec, in a pod or in a template.
pub fn default_pod_spec(spec: &mut Value) {
    keep_service_accounts_equal(spec);
    for volume in items_mut(spec, "volumes") {
        default_volume(volume);
    }
    for list in CONTAINER_LISTS {
        for container in items_mut(spec, list) {
            if container.str_at(&["imagePullPolicy"]).is_empty() {
                let policy = pull_policy(container.str_at(&["image"]));
                container.set(&["imagePullPolicy"], policy);
            }
            round_resources(container);
        }
    }
    round_resources(spec);
    if let Some(overhead) = spec.get_mut("overhead") {
        round_up(overhead);
    }
}

/// Sets the defaults of a pod: of its spec, and of the fields that only whole pods have.
pub fn default_pod(pod: &mut Value) {
    if let Some(spec) = pod.get_mut("spec") {
        default_pod_spec(spec);
        default_whole_pod_spec(spec);
    } else if let Some(pod) = pod.as_object_mut() {
        let mut spec = Value::object();
        default_whole_pod_spec(&mut spec);
        drop(pod.insert("spec", spec));
    }
    if let Some(status) = pod.get_mut("status") {
        default_status(status);
    }
}

fn default_whole_pod_spec(spec: &mut Value) {
    if spec
        .int_at(&["terminationGracePeriodSeconds"])
        .is_some_and(|seconds| seconds < 0)
    {
        spec.set(&["terminationGracePeriodSeconds"], 1i64);
    }
    let host_network = spec.bool_at(&["hostNetwork"]);
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            request_what_is_limited(container);
            if host_network {
                default_host_ports(container);
            }
        }
    }
    if spec.get("enableServiceLinks").is_none_or(Value::is_null) {
        spec.set(&["enableServiceLinks"], true);
    }
}

/// Sets a missing request to the limit.
fn request_what_is_limited(container: &mut Value) {
    let Some(limits) = container
        .at(&["resources", "limits"])
        .and_then(Value::as_object)
    else {
        return;
    };
    let limits = limits.clone();
    for (name, limit) in limits {
        if container
            .at(&["resources", "requests"])
            .and_then(|requests| requests.get(&name))
            .is_none()
        {
            container.set(&["resources", "requests", name.as_str()], limit);
        }
    }
}

/// Sets the host ports of a container in a pod with the network of the host: they are the
/// container's ports.
fn default_host_ports(container: &mut Value) {
    for port in items_mut(container, "ports") {
        let number = port.int_at(&["containerPort"]).unwrap_or(0);
        if port.int_at(&["hostPort"]).unwrap_or(0) == 0 && number != 0 {
            port.set(&["hostPort"], number);
        }
    }
}

/// Makes `podIP` and the first of `podIPs` equal; `podIP` wins.
fn default_status(status: &mut Value) {
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for container in items_mut(status, list) {
            round_resources(container);
            if let Some(allocated) = container.get_mut("allocatedResources") {
                round_up(allocated);
            }
        }
    }
    round_resources(status);
    if let Some(allocated) = status.get_mut("allocatedResources") {
        round_up(allocated);
    }
    let single = status.str_at(&["podIP"]).to_owned();
    let first = status
        .items_at(&["podIPs"])
        .first()
        .map(|item| item.str_at(&["ip"]).to_owned());
    match first {
        Some(first) if single.is_empty() => {
            if !first.is_empty() {
                status.set(&["podIP"], first);
            }
        }
        Some(first) if first == single => {}
        None if single.is_empty() => {}
        Some(_) | None => {
            let mut item = Value::object();
            item.set(&["ip"], single);
            status.set(&["podIPs"], Value::Array(vec![item]));
        }
    }
}

/// Makes the two names of the field for the service account equal; the newer one wins.
fn keep_service_accounts_equal(spec: &mut Value) {
    let newer = spec.str_at(&["serviceAccountName"]);
    let name = if newer.is_empty() {
        spec.str_at(&["serviceAccount"])
    } else {
        newer
    }
    .to_owned();
    if !name.is_empty() {
        spec.set(&["serviceAccountName"], name.as_str());
        spec.set(&["serviceAccount"], name);
    }
}

fn default_volume(volume: &mut Value) {
    let Some(members) = volume.as_object() else {
        return;
    };
    if !members
        .iter()
        .any(|(key, source)| key != "name" && !source.is_null())
    {
        volume.set(&["emptyDir"], Value::object());
    }
    if let Some(image) = volume.get_mut("image")
        && image.as_object().is_some()
        && image.str_at(&["pullPolicy"]).is_empty()
    {
        let policy = pull_policy(image.str_at(&["reference"]));
        image.set(&["pullPolicy"], policy);
    }
    if let Some(spec) = volume.at_mut(&["ephemeral", "volumeClaimTemplate", "spec"]) {
        round_resources(spec);
    }
}

/// Returns the default pull policy: an image that may change under its name is always pulled.
fn pull_policy(image: &str) -> &'static str {
    if image_name::tag(image).as_deref() == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    }
}

/// Rounds the quantities of `resources` up to thousandths.
pub fn round_resources(owner: &mut Value) {
    for list in ["limits", "requests"] {
        if let Some(list) = owner.at_mut(&["resources", list]) {
            round_up(list);
        }
    }
}

/// Rounds the quantities of a resource list up to thousandths.
pub fn round_up(list: &mut Value) {
    let Some(list) = list.as_object_mut() else {
        return;
    };
    for (_, amount) in list.iter_mut() {
        if amount.as_str().is_some_and(Quantity::is_plain) {
            continue;
        }
        let Some(exact) = amount.as_str().and_then(|text| Quantity::parse(text).ok()) else {
            continue;
        };
        let thousandths = exact.milli_value();
        // Beyond this size the number of thousandths overflows, as in Go. No amount that large has
        // a fraction.
        if exact.as_f64().abs() > 9e15 {
            continue;
        }
        let rounded = Quantity::from_milli(thousandths, exact.format());
        if rounded != exact {
            *amount = Value::string(rounded.to_string());
        }
    }
}

/// Returns the items of a list for changes; none if there is no such list.
pub fn items_mut<'a>(owner: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    owner
        .get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flat_map(|items| items.iter_mut())
}

/// Returns the labels of a template, if it has any.
pub fn template_labels(template: &Value) -> Option<Map> {
    template
        .at(&["metadata", "labels"])?
        .as_object()
        .filter(|labels| !labels.is_empty())
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_pod_gets_what_a_template_does_not() {
        let spec = json!({
            "hostNetwork": true,
            "serviceAccount": "robot",
            "volumes": [{"name": "scratch"}],
            "containers": [{
                "image": "nginx",
                "ports": [{"containerPort": 80i64}],
                "resources": {"limits": {"cpu": "1"}},
            }],
        });
        let mut pod = json!({"spec": (spec.clone())});
        default_pod(&mut pod);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container.str_at(&["imagePullPolicy"]), "Always");
        assert_eq!(container["ports"][0].int_at(&["hostPort"]), Some(80));
        assert_eq!(container.str_at(&["resources", "requests", "cpu"]), "1");
        assert_eq!(pod["spec"]["volumes"][0]["emptyDir"], Value::object());
        let mut template = json!({"spec": (spec)});
        default_pod_template(&mut template);
        let container = &template["spec"]["containers"][0];
        assert!(container.at(&["resources", "requests"]).is_none());
        assert!(container["ports"][0].get("hostPort").is_none());
        assert_eq!(template.str_at(&["spec", "serviceAccountName"]), "robot");
    }

    #[test]
    fn amounts_are_rounded_up_to_thousandths() {
        let mut list = json!({"cpu": "100u", "memory": "1Gi", "x": "-5n"});
        round_up(&mut list);
        assert_eq!(list, json!({"cpu": "1m", "memory": "1Gi", "x": "-1m"}));
    }
}
