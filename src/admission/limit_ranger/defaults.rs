//! The requests and limits of containers that state none.

use polyplane_apimachinery::{Str, Value};
use polyplane_registry::plan::Mutated;

/// The annotation that says what was added.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Adds the defaults of a LimitRange to the containers of a pod.
pub(super) fn set(pod: &mut Value, range: &Value) -> Mutated {
    let of_containers = |limit: &&Value| limit.str_at(&["type"]) == "Container";
    let limits = range.items_at(&["spec", "limits"]).iter();
    let limits: Vec<&Value> = limits.filter(of_containers).collect();
    let mut added = Vec::new();
    for (list, kind) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        let containers = pod.at_mut(&["spec", list]).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for (from, to, what) in [
                ("defaultRequest", "requests", "request"),
                ("default", "limits", "limit"),
            ] {
                let names = add_missing(container, to, &limits, from);
                if !names.is_empty() {
                    let name = container.str_at(&["name"]);
                    added.push(format!("{} {what} for {kind} {name}", names.join(", ")));
                }
            }
        }
    }
    if added.is_empty() {
        return Mutated::Unchanged;
    }
    let text = format!("LimitRanger plugin set: {}", added.join("; "));
    pod.set(&["metadata", "annotations", ANNOTATION], text);
    Mutated::Completed
}

/// Adds the resources to a list of a container that the container lacks, and returns their names.
/// The last of several limits that name a resource counts.
fn add_missing(container: &mut Value, list: &str, limits: &[&Value], from: &str) -> Vec<Str> {
    let mut defaults = Value::object();
    for limit in limits {
        let members = limit[from].as_object().into_iter();
        for (name, quantity) in members.flat_map(|members| members.iter()) {
            defaults.set(&[name], quantity.clone());
        }
    }
    let mut names = Vec::new();
    let members = defaults.as_object().into_iter();
    for (name, quantity) in members.flat_map(|members| members.iter()) {
        if container.at(&["resources", list, name]).is_none() {
            container.set(&["resources", list, name], quantity.clone());
            names.push(name.into());
        }
    }
    names
}
