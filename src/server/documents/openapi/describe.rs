//! Adds descriptions to definitions.

use polyplane_apimachinery::{Map, Value};
use polyplane_descriptions::Descriptions;

/// A type whose kind, version and metadata are described as those of all objects.
const OBJECT: &str = "io.k8s.api.core.v1.Pod";
/// A type whose metadata is described as that of all lists.
const LIST: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

/// The kind whose metadata upstream describes neither in an object nor in a list.
const UNDESCRIBED: [&str; 2] = [
    "io.k8s.api.certificates.v1.CertificateSigningRequest",
    "io.k8s.api.certificates.v1.CertificateSigningRequestList",
];

/// Describes the definitions and their fields as far as there is a text for them.
pub(super) fn describe(definitions: &mut Map, all: &Descriptions) {
    for (name, schema) in definitions.iter_mut() {
        let described = all.of(name);
        if let Some(text) = described.definition() {
            schema["description"] = Value::string(text);
        }
        if schema.get("x-kubernetes-group-version-kind").is_some() {
            describe_head(schema, all);
        }
        if UNDESCRIBED.contains(&name) {
            drop(schema.remove(&["properties", "metadata", "description"]));
        }
        let Some(Value::Object(fields)) = schema.get_mut("properties") else {
            continue;
        };
        for (field, schema) in fields.iter_mut() {
            if let Some(text) = described.field(field) {
                let text = with_values(text, schema.items_at(&["enum"]));
                schema["description"] = Value::string(text);
            }
            unwrap_alone(schema);
        }
    }
}

/// Replaces a reference in `allOf` by the reference itself if nothing is said beside it.
fn unwrap_alone(schema: &mut Value) {
    let alone = match (schema.as_object(), schema.get("allOf")) {
        (Some(members), Some(Value::Array(all))) if members.len() == 1 => match all.as_slice() {
            [only] if only.get("$ref").is_some() => only.clone(),
            _ => return,
        },
        _ => return,
    };
    *schema = alone;
}

/// Adds the values that a field may have to its description, as upstream, but without upstream's sentence
/// about each, for which there is no source.
fn with_values(text: &str, values: &[Value]) -> String {
    let mut text = text.to_owned();
    if !values.is_empty() {
        text.push_str("\n\nPossible enum values:");
    }
    for value in values.iter().filter_map(Value::as_str) {
        text.push_str("\n - `\"");
        text.push_str(value);
        text.push_str("\"`");
    }
    text
}

/// Describes kind, version and metadata of an object or list.
pub(super) fn describe_head(schema: &mut Value, all: &Descriptions) {
    let Some(Value::Object(fields)) = schema.get_mut("properties") else {
        return;
    };
    let metadata_of = match fields.contains_key("items") {
        true => LIST,
        false => OBJECT,
    };
    for (field, like) in [
        ("apiVersion", OBJECT),
        ("kind", OBJECT),
        ("metadata", metadata_of),
    ] {
        if let (Some(schema), Some(text)) = (fields.get_mut(field), all.of(like).field(field)) {
            schema["description"] = Value::string(text);
        }
    }
}
