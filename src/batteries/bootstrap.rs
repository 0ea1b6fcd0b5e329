//! The objects every new plane is born with, as a layer.
//!
//! What differs between planes is left open in the layer and filled from the plane's record: uids,
//! the time of birth, certificates, and the address clients reach the server at. The range of
//! service addresses is the same in every plane, for no two planes share a network.

use crate::catalog::tenant_kinds;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Map, Str, Value, json};
use polyplane_plane::{Flags, Key, Layer, LayerObject, NewObject};
use polyplane_registry::{KindTable, Scope};
use std::sync::{Arc, OnceLock};

const BOOTSTRAP: &[u8] = include_bytes!("data/bootstrap.json");
/// The range of service addresses.
pub const SERVICE_RANGE: ([u8; 4], u8) = ([10, 0, 0, 0], 16);
/// The address of the service `kubernetes`: the first of the range.
pub const KUBERNETES_ADDRESS: &str = "10.0.0.1";
/// Stands for the port while the object is encoded, which takes numbers only.
const PORT_SENTINEL: i64 = 2_147_483_646;

/// The names that a plane's record has to fill.
pub mod params {
    /// Certificates that sign the serving certificate, PEM.
    pub const SERVING_CA: &str = "SERVING_CA";
    /// Certificates that sign clients, PEM.
    pub const CLIENT_CA: &str = "CLIENT_CA";
    /// Certificates that sign front proxies, PEM.
    pub const REQUESTHEADER_CA: &str = "REQUESTHEADER_CA";
    /// Address at which the server is reached.
    pub const ADVERTISE_ADDRESS: &str = "ADVERTISE_ADDRESS";
    /// Port at which the server is reached.
    pub const ADVERTISE_PORT: &str = "ADVERTISE_PORT";
}

/// When an object of the layer comes back after it was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    /// At once.
    Now,
    /// With the next step of the layer.
    Step,
}

/// One object of the layer, before it is encoded.
#[derive(Clone, Debug)]
pub struct BootstrapObject {
    /// Its key.
    pub key: Key,
    /// Its tree, with placeholders and without system fields.
    pub tree: Value,
    /// When it comes back.
    pub restore: Restore,
}

/// The objects of the layer.
pub fn objects() -> &'static [BootstrapObject] {
    static SHARED: OnceLock<Vec<BootstrapObject>> = OnceLock::new();
    SHARED.get_or_init(|| {
        let parsed = json::parse(BOOTSTRAP, &json::Limits::default());
        let list = parsed.expect("the generated objects are JSON").value;
        list.as_array().unwrap_or(&[]).iter().map(read).collect()
    })
}

/// The layer of a new plane.
pub fn layer() -> Arc<Layer> {
    static SHARED: OnceLock<Arc<Layer>> = OnceLock::new();
    let build = || {
        let kinds = tenant_kinds();
        let objects = objects()
            .iter()
            .map(|object| encode(&kinds, object))
            .collect();
        Layer::build(objects).expect("the generated objects make a layer")
    };
    Arc::clone(SHARED.get_or_init(build))
}

fn read(item: &Value) -> BootstrapObject {
    let text = |name: &str| item.str_at(&[name]).to_owned();
    let namespace = text("namespace");
    let mut tree = item["object"].clone();
    substitute(&mut tree);
    // Who manages which field is not kept yet.
    drop(tree.remove(&["metadata", "managedFields"]));
    let name = constant(&text("name")).unwrap_or_else(|| text("name").into());
    let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
    let restore = if item.str_at(&["restore"]) == "now" {
        Restore::Now
    } else {
        Restore::Step
    };
    BootstrapObject {
        key: Key::new(&text("group"), &text("resource"), namespace, &name),
        tree,
        restore,
    }
}

/// Replaces the placeholders that are the same in every plane.
fn substitute(tree: &mut Value) {
    match tree {
        Value::String(text) => {
            if let Some(replacement) = constant(text) {
                *text = replacement;
            } else if text == "${ADVERTISE_PORT}" {
                *tree = Value::Int(PORT_SENTINEL);
            } else if text == "<time>" {
                *text = "${BIRTH_TIME}".into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(substitute),
        Value::Object(members) => members.iter_mut().for_each(|(_, value)| substitute(value)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}

fn constant(text: &str) -> Option<Str> {
    let ([a, b, c, d], bits) = SERVICE_RANGE;
    text.contains("${")
        .then(|| {
            let range = format!("{a}.{b}.{c}.{d}/{bits}");
            text.replace("${CLUSTER_IP}", KUBERNETES_ADDRESS)
                .replace("${SERVICE_CIDR}", &range)
        })
        .filter(|replaced| replaced != text)
        .map(Str::from)
}

fn encode(kinds: &KindTable, object: &BootstrapObject) -> LayerObject {
    let row = kinds
        .stored(object.key.group(), object.key.resource())
        .expect("every generated object is of a served kind");
    let mut tree = object.tree.clone();
    if row.scope == Scope::Namespaced {
        tree.set(
            &["metadata", "namespace"],
            object.key.namespace().unwrap_or(""),
        );
    }
    open_times(&mut tree);
    kinds
        .schemas()
        .decode(row.stored_definition, &mut tree, Empties::Null)
        .expect("every generated object fits its schema");
    let encoded = kinds.schemas().encode_stored(row.stored_definition, &tree);
    let slot = encoded
        .version
        .expect("every generated object has metadata");
    let (body, version_slot, labels) = fill_in(&encoded.bytes, slot.following(), encoded.labels);
    LayerObject {
        key: object.key.clone(),
        object: NewObject {
            body: body.into(),
            version_slot,
            labels,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

/// A moment that stands for the time of birth while the object is encoded, which takes times only.
const TIME_SENTINEL: &str = "1999-12-31T23:59:59Z";

fn open_times(tree: &mut Value) {
    fn replace(value: &mut Value) {
        match value {
            Value::String(text) if text == "${BIRTH_TIME}" => *text = TIME_SENTINEL.into(),
            Value::Array(items) => items.iter_mut().for_each(replace),
            Value::Object(members) => members.iter_mut().for_each(|(_, value)| replace(value)),
            _ => {}
        }
    }
    tree.set(&["metadata", "uid"], "${UID}");
    tree.set(&["metadata", "creationTimestamp"], TIME_SENTINEL);
    replace(tree);
}

/// Puts the placeholders where the sentinels stand. Offsets behind a replaced text move with it.
fn fill_in(
    bytes: &[u8],
    slot: usize,
    labels: Option<std::ops::Range<usize>>,
) -> (Vec<u8>, usize, Option<std::ops::Range<usize>>) {
    let text = std::str::from_utf8(bytes).expect("canonical JSON is UTF-8");
    let open = |part: &str| {
        part.replace(TIME_SENTINEL, "${BIRTH_TIME}")
            .replace(&PORT_SENTINEL.to_string(), "${ADVERTISE_PORT}")
    };
    let moved = |offset: usize| open(&text[..offset]).len();
    let labels = labels.map(|range| moved(range.start)..moved(range.end));
    (open(text).into_bytes(), moved(slot), labels)
}

/// An object of the layer that is gone, as a new object of the plane's own: placeholders of the
/// record filled, system fields left to whoever writes it.
pub fn restored(object: &BootstrapObject, params: &dyn Fn(&str) -> Option<Str>) -> Value {
    let mut tree = object.tree.clone();
    fill_params(&mut tree, params);
    tree
}

fn fill_params(tree: &mut Value, params: &dyn Fn(&str) -> Option<Str>) {
    match tree {
        Value::String(text) => {
            let name = text
                .strip_prefix("${")
                .and_then(|rest| rest.strip_suffix('}'));
            if let Some(filled) = name.and_then(params) {
                *text = filled;
            }
        }
        Value::Int(PORT_SENTINEL) => {
            let port = params(params::ADVERTISE_PORT).and_then(|port| port.parse().ok());
            *tree = Value::Int(port.unwrap_or(0));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_params(item, params)),
        Value::Object(members) => {
            members
                .iter_mut()
                .for_each(|(_, value): (&str, &mut Value)| fill_params(value, params));
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
    }
}

/// The members of a map of strings.
pub fn string_map(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    let members = value.as_object().into_iter().flat_map(Map::iter);
    members.filter_map(|(key, value)| Some((key, value.as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_holds_every_generated_object_and_asks_for_known_params_only() {
        let layer = layer();
        assert_eq!(layer.len(), objects().len());
        let known = [
            params::SERVING_CA,
            params::CLIENT_CA,
            params::REQUESTHEADER_CA,
            params::ADVERTISE_ADDRESS,
            params::ADVERTISE_PORT,
        ];
        for param in layer.params() {
            assert!(known.contains(&param.as_str()), "{param} is not known");
        }
    }
}
