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

/// Returns whether a pod can state a resource for all its containers.
fn is_of_whole_pod(resource: &str) -> bool {
    is_cpu_or_memory(resource) || resource.starts_with("hugepages-")
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
    of_pod_stating(pod, amount, is_of_whole_pod)
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
    with_whole_pod(pod, amount, of_containers(pod, of), can_state)
}

/// Returns the resources that a pod may hold while a node resizes it: of each resource, the most of
/// what the spec wants, what the node has reserved and what it has set. The spec does not count if
/// the node cannot follow it. The overhead of the pod's runtime is not included.
pub(crate) fn held_by_pod(pod: &Value, amount: Amount) -> Resources {
    let is_infeasible = is_resize_infeasible(pod);
    let lists = ["containerStatuses", "initContainerStatuses"];
    let is_reported = |list: &str| !pod.items_at(&["status", list]).is_empty();
    // New pods are many, and their usage is computed inside the sequencer.
    if !is_infeasible && !lists.into_iter().any(is_reported) {
        return of_pod(pod, amount);
    }
    let wanted = |container: &Value| resources(&container["resources"][amount.field()]);
    let reported = |container: &Value, lists: &[&[&str]]| {
        let status = status_of(pod, container);
        let present = lists.iter().filter_map(|list| status?.at(list));
        let mut present = present.map(resources).filter(|list| !list.is_empty());
        match present.next() {
            Some(list) => list,
            None if is_infeasible => Resources::new(),
            None => wanted(container),
        }
    };
    let set: &[&str] = &["resources", amount.field()];
    let reserved: &[&str] = &["allocatedResources"];
    let mut total = match is_infeasible {
        true => Resources::new(),
        false => of_containers(pod, wanted),
    };
    match amount {
        Amount::Requests => {
            let by_reservation = of_containers(pod, |one| reported(one, &[reserved]));
            raise(&mut total, by_reservation);
            let by_setting = of_containers(pod, |one| reported(one, &[set, reserved]));
            raise(&mut total, by_setting);
        }
        Amount::Limits => raise(&mut total, of_containers(pod, |one| reported(one, &[set]))),
    }
    with_whole_pod(pod, amount, total, is_of_whole_pod)
}

/// Returns whether the pod's node has said that it can never have what the spec wants.
fn is_resize_infeasible(pod: &Value) -> bool {
    let mut conditions = pod.items_at(&["status", "conditions"]).iter();
    let pending = conditions.find(|one| one.str_at(&["type"]) == "PodResizePending");
    pending.is_some_and(|pending| pending.str_at(&["reason"]) == "Infeasible")
}

/// Returns what the node reports about a container of the pod.
fn status_of<'a>(pod: &'a Value, container: &Value) -> Option<&'a Value> {
    let lists = ["containerStatuses", "initContainerStatuses"].into_iter();
    let mut statuses = lists.flat_map(|list| pod.items_at(&["status", list]));
    let name = container.str_at(&["name"]);
    statuses.find(|status| status.str_at(&["name"]) == name)
}

/// Returns the resources of all containers together, of which `of` returns those of one. Init
/// containers run one after the other, before the others, unless they are sidecars.
fn of_containers(pod: &Value, of: impl Fn(&Value) -> Resources) -> Resources {
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
    total
}

/// Replaces the sums over the containers by what the pod states for all of them together, of the
/// resources that it can state.
fn with_whole_pod(
    pod: &Value,
    amount: Amount,
    mut total: Resources,
    can_state: fn(&str) -> bool,
) -> Resources {
    for (name, stated) in resources(&pod["spec"]["resources"][amount.field()]) {
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
