//! The places where upstream's answers depend on chance and on the moment.

use polyplane_apimachinery::Value;
use polyplane_registry::Resource;

/// Upstream draws service addresses and ports at random; the golden files hold fixed ones.
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

/// The moment of the request, as the server writes it.
const NOW: &str = "2024-05-06T12:53:20Z";

/// When objects were created that exist before the request; recorded like the moment itself.
const BEFORE: &str = "2024-05-06T07:08:09Z";

/// The moment of the request, wherever the server writes it.
pub fn blank_times(tree: &mut Value) {
    replace(tree, NOW, "<time>");
    replace(tree, BEFORE, "<time>");
}

/// The other way round, so that the tree can be read as an object.
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
