//! Objects of a custom kind whose schema has twenty rules: the definition, an object, and what the
//! scenarios write to it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::lane::{Content, Lane};
use crate::objects::{digits, text};

/// The path of the objects of one namespace, behind the group and version.
pub const RESOURCE: &str = "widgets";
/// The group and version of the objects.
pub const GROUP_VERSION: &str = "bench.polyplane.dev/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NAME: &str = "widgets.bench.polyplane.dev";
/// Parts of an object. With three rules on each, and two on the whole, there are twenty rules.
const PARTS: [&str; 6] = ["door", "frame", "glass", "hinge", "lock", "panel"];
/// How long a server may take to serve a kind that was defined.
const SERVING: Duration = Duration::from_secs(30);
/// Bytes of text in each object, which makes it about as large as the other scenarios' ConfigMap.
const TEXT_BYTES: usize = 620;

/// Defines the kind, if it is not there, and waits until it is served: not every server serves a
/// kind from the acknowledged write on.
///
/// # Errors
/// Returns an error if the server refuses a request, or does not serve the kind in time.
pub async fn define(lane: &Lane) -> Result<()> {
    lane.create(DEFINITIONS, definition()).await?;
    let path = format!("/apis/{GROUP_VERSION}/{RESOURCE}");
    let begin = Instant::now();
    while begin.elapsed() < SERVING {
        let request = lane.request(Method::GET, &path, Content::None)?;
        if lane.start(request).await?.0 == StatusCode::OK {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("{path} is not served")
}

fn definition() -> Bytes {
    let part = json!({
        "type": "object",
        "required": ["size", "count"],
        "properties": {
            "size": {"type": "integer", "minimum": 0},
            "count": {"type": "integer", "default": 1},
            "colour": {"type": "string", "maxLength": 20, "default": "white"}
        },
        "x-kubernetes-validations": [
            {"rule": "self.size <= 1000 * self.count"},
            {"rule": "self.colour.matches('^[a-z]+$')", "message": "a colour is one word"},
            {"rule": "!has(oldSelf.size) || self.size >= oldSelf.size - 100"}
        ]
    });
    let parts: serde_json::Map<String, Value> = PARTS
        .iter()
        .map(|name| ((*name).to_owned(), part.clone()))
        .collect();
    let spec = json!({
        "type": "object",
        "properties": {
            "parts": {"type": "object", "properties": parts},
            "text": {"type": "string", "maxLength": 4096},
            "mark": {"type": "string", "maxLength": 64},
            "applied": {"type": "string", "maxLength": 64},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 100}
        },
        "x-kubernetes-validations": [
            {"rule": "self.parts.door.size >= self.parts.lock.size",
             "messageExpression": "'a ' + self.parts.door.colour + ' door has a larger lock'"},
            {"rule": "self.replicas == 0 || size(self.text) > 0"}
        ]
    });
    text(&json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "bench.polyplane.dev",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": RESOURCE},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
            }]
        }
    }))
}

/// Returns an object that satisfies the rules.
pub fn object(name: &str) -> Bytes {
    let part = json!({"size": 100, "count": 2, "colour": "green"});
    let parts: serde_json::Map<String, Value> = PARTS
        .iter()
        .map(|name| ((*name).to_owned(), part.clone()))
        .collect();
    text(&json!({
        "apiVersion": GROUP_VERSION,
        "kind": "Widget",
        "metadata": {"name": name, "labels": {"bench": "1"}},
        "spec": {"parts": parts, "text": "x".repeat(TEXT_BYTES), "mark": digits(0), "replicas": 3}
    }))
}

/// Returns a merge patch of one field.
pub fn patch(mark: u64) -> Bytes {
    text(&json!({"spec": {"mark": digits(mark)}}))
}

/// Returns the fields that an applier wants.
pub fn applied(name: &str, mark: u64) -> Bytes {
    text(&json!({
        "apiVersion": GROUP_VERSION,
        "kind": "Widget",
        "metadata": {"name": name, "labels": {"applied": "yes"}},
        "spec": {"applied": digits(mark), "parts": {"glass": {"size": 100, "count": 2}}}
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_has_twenty_rules() {
        fn rules(schema: &Value) -> usize {
            let own = schema["x-kubernetes-validations"]
                .as_array()
                .map_or(0, Vec::len);
            let below = schema["properties"].as_object();
            own + below.map_or(0, |below| below.values().map(rules).sum())
        }
        let definition: Value = serde_json::from_slice(&definition()).expect("JSON");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(rules(schema), 20);
    }

    #[test]
    fn an_object_is_as_large_as_a_config_map_and_each_write_changes_it() {
        let bytes = object("o-1").len();
        assert!((1000..1200).contains(&bytes), "{bytes}");
        assert_ne!(patch(1), patch(2));
        assert_eq!(applied("o-1", 1).len(), applied("o-1", 2).len());
    }
}
