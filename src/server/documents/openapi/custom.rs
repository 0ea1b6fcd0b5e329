//! The definitions of kinds that objects of a plane define, from the schemas that these have.

use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::schema::openapi::Document;
use polyplane_apimachinery::{Map, Value, json};
use polyplane_registry::{Resource, ServedVersion};

use super::operations::META;

/// Members of a schema that version 2 of OpenAPI does not have.
const ONLY_VERSION_3: [&str; 6] = ["allOf", "anyOf", "default", "not", "nullable", "oneOf"];

/// Returns the name of a kind's definition: the group backwards, version and kind.
pub(super) fn name_of(row: &Resource) -> String {
    let group: Vec<&str> = row.group.rsplit('.').collect();
    format!("{}.{}.{}", group.join("."), row.version, row.kind)
}

/// Returns the definitions of a version, by name.
pub(super) fn definitions(version: &ServedVersion, document: Document<'_>) -> Map {
    let mut all = Map::new();
    for row in &version.resources {
        let Some(custom) = &row.custom else { continue };
        let parsed = parse(custom.schema.source(), &Limits::default());
        let mut schema = parsed.map_or_else(|_| Value::object(), |parsed| parsed.value);
        if let Document::V2 = document {
            strip(&mut schema);
        }
        complete(&mut schema, document);
        schema["x-kubernetes-group-version-kind"] = Value::Array(vec![json!({
            "group": (row.group.as_str()),
            "kind": (row.kind.as_str()),
            "version": (row.version.as_str())
        })]);
        all.insert(name_of(row), schema);
    }
    all
}

/// Adds kind, version and metadata to the schema of a whole object.
fn complete(schema: &mut Value, document: Document<'_>) {
    let reference = match document {
        Document::V2 => json!({"$ref": (format!("#/definitions/{META}ObjectMeta"))}),
        Document::V3 { .. } => {
            let reference = format!("#/components/schemas/{META}ObjectMeta");
            json!({"allOf": [{"$ref": (reference)}]})
        }
    };
    let is_open = schema.bool_at(&["x-kubernetes-preserve-unknown-fields"]);
    if is_open && schema.get("properties").is_none() && matches!(document, Document::V2) {
        return;
    }
    schema.set(&["properties", "apiVersion"], json!({"type": "string"}));
    schema.set(&["properties", "kind"], json!({"type": "string"}));
    schema.set(&["properties", "metadata"], reference);
    schema.set(&["type"], "object");
}

/// Takes out what version 2 cannot say. A value that may be null has no type there.
fn strip(schema: &mut Value) {
    let Value::Object(members) = schema else {
        return;
    };
    let may_be_null = members.get("nullable") == Some(&Value::Bool(true));
    members.retain(|name, _| {
        let of_null = may_be_null && matches!(name, "type" | "properties" | "items");
        !ONLY_VERSION_3.contains(&name) && !of_null
    });
    for (name, member) in members.iter_mut() {
        match (name, member) {
            ("properties", Value::Object(properties)) => {
                properties.iter_mut().for_each(|(_, schema)| strip(schema));
            }
            ("items" | "additionalProperties", nested) => strip(nested),
            _ => {}
        }
    }
}
