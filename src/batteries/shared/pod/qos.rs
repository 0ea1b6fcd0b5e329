//! The quality of service of a pod when a node runs short of resources, and the resources of a pod
//! as a whole.

use super::validation::containers_of;
use super::validation::resources::{Amounts, aggregate, is_of_pods, list_of};
use crate::shared::resource_names::{amount, is_huge_pages, may_overcommit};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quantity::Quantity;

const BEST_EFFORT: &str = "BestEffort";
const BURSTABLE: &str = "Burstable";
const GUARANTEED: &str = "Guaranteed";

/// Returns the class of a pod: the one in its status, or the one that follows from its resources.
pub fn class(pod: &Value) -> &str {
    match pod.str_at(&["status", "qosClass"]) {
        "" => computed_class(pod),
        class => class,
    }
}

/// Returns the class that follows from the resources of a pod.
pub fn computed_class(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let own = &spec["resources"];
    if list_of(own, "requests")
        .chain(list_of(own, "limits"))
        .any(|(name, _)| is_of_pods(name))
    {
        return class_of(own);
    }
    let containers = spec
        .items_at(&["initContainers"])
        .iter()
        .chain(spec.items_at(&["containers"]));
    let mut classes = containers.map(|container| class_of(&container["resources"]));
    let Some(first) = classes.next() else {
        return BEST_EFFORT;
    };
    if classes.all(|class| class == first) {
        first
    } else {
        BURSTABLE
    }
}

fn class_of(resources: &Value) -> &'static str {
    let of = |name: &str| {
        let request = amount(resources["requests"].get(name));
        let limit = amount(resources["limits"].get(name));
        if request != limit {
            BURSTABLE
        } else if request.is_zero() {
            BEST_EFFORT
        } else {
            GUARANTEED
        }
    };
    let (cpu, memory) = (of("cpu"), of("memory"));
    if cpu == memory { cpu } else { BURSTABLE }
}

/// Sets defaults of the resources of a whole pod that has some of them: huge pages from its
/// containers, requests from its containers or its limits, limits from its containers.
pub fn default_pod_resources(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    let own = &spec["resources"];
    if list_of(own, "requests").next().is_none() && list_of(own, "limits").next().is_none() {
        return;
    }
    let limits = aggregate(spec, "limits");
    for (name, total) in limits.iter().filter(|(name, _)| is_huge_pages(name)) {
        if !has(spec, "requests", name) && !has(spec, "limits", name) {
            put(spec, "limits", name, total);
        }
    }
    for (name, total) in &aggregate(spec, "requests") {
        if !has(spec, "requests", name) && is_of_pods(name) && may_overcommit(name) {
            put(spec, "requests", name, total);
        }
    }
    for (name, limit) in amounts(spec, "limits") {
        if !has(spec, "requests", &name) && is_of_pods(&name) {
            put(spec, "requests", &name, &limit);
        }
    }
    for (name, request) in amounts(spec, "requests") {
        let everywhere =
            containers_of(spec).all(|one| one["resources"]["limits"].get(&name).is_some());
        if has(spec, "limits", &name) || !is_of_pods(&name) || !everywhere {
            continue;
        }
        if let Some(total) = limits.get(&name) {
            put(
                spec,
                "limits",
                &name,
                if request > *total { &request } else { total },
            );
        }
    }
}

fn amounts(spec: &Value, list: &str) -> Amounts {
    list_of(&spec["resources"], list)
        .map(|(name, value)| (name.into(), amount(Some(value))))
        .collect()
}

fn has(spec: &Value, list: &str, name: &str) -> bool {
    spec["resources"][list].get(name).is_some()
}

fn put(spec: &mut Value, list: &str, name: &str, quantity: &Quantity) {
    spec.set(&["resources", list, name], quantity.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn the_class_follows_requests_and_limits() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"resources": (resources)}]}});
        assert_eq!(computed_class(&pod(json!({}))), "BestEffort");
        assert_eq!(
            computed_class(&pod(json!({"requests": {"cpu": "1"}}))),
            "Burstable"
        );
        let all = json!({"cpu": "1", "memory": "1Gi"});
        let both = json!({"requests": (all.clone()), "limits": (all)});
        assert_eq!(computed_class(&pod(both)), "Guaranteed");
    }

    #[test]
    fn a_pod_asks_for_what_its_containers_ask() {
        let mut pod = json!({"spec": {
            "resources": {"limits": {"cpu": "4"}},
            "containers": [
                {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
                {"resources": {"requests": {"cpu": "500m"}}},
            ],
        }});
        default_pod_resources(&mut pod);
        let wanted = json!({"limits": {"cpu": "4"}, "requests": {"cpu": "1500m", "memory": "1Gi"}});
        assert_eq!(pod["spec"]["resources"], wanted);
    }
}
