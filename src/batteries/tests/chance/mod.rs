//! Handling of the values in upstream's answers that depend on randomness and on the time.

use polyplane_apimachinery::Value;
use polyplane_registry::Resource;

/// Replaces service addresses and ports, which upstream chooses at random, by the fixed ones in the
/// golden files.
pub fn blank_allocations(row: &Resource, tree: &mut Value, given: &Value) {
    if row.kind != "Service" || given.is_null() {
        return;
    }
    let address = tree.str_at(&["spec", "clusterIP"]).to_owned();
    let wished = given.str_at(&["spec", "clusterIP"]);
    let listed = given.items_at(&["spec", "clusterIPs"]).is_empty();
    if !address.is_empty() && address != "None" && wished.is_empty() && listed {
        tree.set(&["spec", "clusterIP"], "10.0.0.100");
        tree.set(&["spec", "clusterIPs"], vec![Value::string("10.0.0.100")]);
    }
    let given_ports = given.items_at(&["spec", "ports"]).to_vec();
    if let Some(ports) = tree
        .at_mut(&["spec", "ports"])
        .and_then(Value::as_array_mut)
    {
        for (at, port) in ports.iter_mut().enumerate() {
            let wished = given_ports
                .get(at)
                .and_then(|port| port.int_at(&["nodePort"]))
                .unwrap_or(0);
            if wished == 0 && port.get("nodePort").is_some() {
                port.set(&["nodePort"], 30100 + at as i64);
            }
        }
    }
    let check = given.int_at(&["spec", "healthCheckNodePort"]).unwrap_or(0);
    if check == 0 && tree.int_at(&["spec", "healthCheckNodePort"]).is_some() {
        tree.set(&["spec", "healthCheckNodePort"], 30200i64);
    }
}

/// The time of the request, as the server writes it.
const NOW: &str = "2024-05-06T12:53:20Z";

/// The creation time of objects that existed before the request; recorded like the time of the
/// request.
const BEFORE: &str = "2024-05-06T07:08:09Z";

/// Replaces the time of the request by a mark, wherever the server writes it.
pub fn blank_times(tree: &mut Value) {
    replace(tree, NOW, "<time>");
    replace(tree, BEFORE, "<time>");
}

/// Replaces the mark by the time of the request, so that the tree can be decoded as an object.
pub fn fill_times(tree: &mut Value) {
    replace(tree, "<time>", NOW);
}

fn replace(tree: &mut Value, from: &str, to: &str) {
    match tree {
        Value::String(text) if text == from => *text = to.into(),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, from, to)),
        Value::Object(members) => members
            .iter_mut()
            .for_each(|(_, value)| replace(value, from, to)),
        _ => {}
    }
}
