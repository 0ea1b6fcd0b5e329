//! The checks, and the words that their messages share.

pub(super) mod containers;
pub(super) mod host;
pub(super) mod profiles;
pub(super) mod users;
pub(super) mod volumes;

use super::evaluate::{Pod, Violation};
use polyplane_apimachinery::Value;
use std::collections::BTreeSet;

/// Returns a violation, unless there is nothing to say about it.
fn violation(reason: &'static str, detail: String) -> Option<Violation> {
    Some(Violation { reason, detail })
}

fn quoted<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    let items: Vec<String> = items
        .into_iter()
        .map(|item| format!("\"{}\"", item.as_ref()))
        .collect();
    items.join(", ")
}

fn plural(count: usize, singular: &'static str, plural: &'static str) -> &'static str {
    if count == 1 { singular } else { plural }
}

/// Returns `container "a"` or `containers "a", "b"`.
fn named_containers(names: &[&str]) -> String {
    let word = plural(names.len(), "container", "containers");
    format!("{word} {}", quoted(names))
}

/// Returns who sets something wrong: the pod, containers, or both.
fn setters(pod: bool, containers: &[&str]) -> String {
    let mut setters = Vec::new();
    if pod {
        setters.push("pod".to_owned());
    }
    if !containers.is_empty() {
        setters.push(named_containers(containers));
    }
    setters.join(" and ")
}

/// Returns the names of the containers for which `is_wrong` returns true.
fn wrong_containers<'a>(
    pod: &Pod<'a>,
    mut is_wrong: impl FnMut(&'a Value) -> bool,
) -> Vec<&'a str> {
    let wrong = pod.containers().filter(|container| is_wrong(container));
    wrong.map(|container| container.str_at(&["name"])).collect()
}

/// Returns a member of an object's security context, if it is set.
fn security<'a>(owner: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let context = owner.get("securityContext")?;
    context.at(path).filter(|found| !found.is_null())
}

/// The texts of forbidden values, sorted and each once.
type Values<'a> = BTreeSet<&'a str>;
