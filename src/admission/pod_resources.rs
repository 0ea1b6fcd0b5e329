//! The resources that a whole pod requests and is limited to.

use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::{Str, Value};
use std::collections::BTreeMap;

/// Quantities by the names of their resources.
pub(crate) type Resources = BTreeMap<Str, Quantity>;

/// Returns whether a resource is the time of processors or memory.
pub(crate) fn is_cpu_or_memory(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

/// Returns a quantity of an object, or zero if there is none.
pub(crate) fn quantity(value: &Value) -> Quantity {
    let text = value.as_str().unwrap_or("");
    Quantity::parse(text).unwrap_or_default()
}

/// Returns the quantities of an object with names of resources.
pub(crate) fn resources(list: &Value) -> Resources {
    let members = list.as_object().into_iter().flat_map(|list| list.iter());
    members
        .map(|(name, value)| (name.into(), quantity(value)))
        .collect()
}

/// The two lists of resources that containers and pods have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Requests,
    Limits,
}

impl Amount {
    /// Returns the name of the list.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// Returns the resources of all containers together, without the overhead of the pod's runtime. A pod can
/// state processors, memory and huge pages for all its containers.
pub(crate) fn of_pod(pod: &Value, amount: Amount) -> Resources {
    of_pod_stating(pod, amount, |resource| {
        is_cpu_or_memory(resource) || resource.starts_with("hugepages-")
    })
}

/// Works as [`of_pod`] for a pod that can state the given resources for all its containers. With such a
/// statement the sum over the containers does not count. Init containers run one after the other, before
/// the others, unless they are sidecars.
pub(crate) fn of_pod_stating(
    pod: &Value,
    amount: Amount,
    can_state: fn(&str) -> bool,
) -> Resources {
    let of = |container: &Value| resources(&container["resources"][amount.field()]);
    let spec = &pod["spec"];
    let mut total = Resources::new();
    for container in spec.items_at(&["containers"]) {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut highest) = (Resources::new(), Resources::new());
    for container in spec.items_at(&["initContainers"]) {
        let mut at_this_time = of(container);
        if container.str_at(&["restartPolicy"]) == "Always" {
            add(&mut total, &at_this_time);
            add(&mut sidecars, &at_this_time);
            at_this_time = sidecars.clone();
        } else {
            add(&mut at_this_time, &sidecars);
        }
        raise(&mut highest, at_this_time);
    }
    raise(&mut total, highest);
    for (name, stated) in of(spec) {
        if can_state(&name) {
            total.insert(name, stated);
        }
    }
    total
}

/// Adds resources to others.
pub(crate) fn add(total: &mut Resources, more: &Resources) {
    for (name, quantity) in more {
        match total.get_mut(name) {
            Some(sum) => sum.add(quantity),
            None => drop(total.insert(name.clone(), quantity.clone())),
        }
    }
}

/// Raises each resource to that of `other`, if the latter is more.
fn raise(highest: &mut Resources, other: Resources) {
    for (name, quantity) in other {
        let present = highest.get(&name);
        if present.is_none_or(|present| quantity > *present) {
            highest.insert(name, quantity);
        }
    }
}
