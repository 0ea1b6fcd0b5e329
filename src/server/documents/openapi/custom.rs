//! The definitions of kinds that objects of a plane define, from the schemas that these have.
//!
//! A schema is published as upstream publishes it: without members that say nothing, with the two
//! types of an int-or-string spelled out, with kind and metadata in embedded objects, and in version
//! 2 of OpenAPI without what that version, or a kubectl that reads it, does not understand.

use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::schema::openapi::Document;
use polyplane_apimachinery::{Map, Value, json};
use polyplane_descriptions::Descriptions;
use polyplane_registry::kinds::custom::CustomKind;
use polyplane_registry::{Resource, ServedVersion};

use super::describe::describe_head;
use super::node::{Members, Node};
use super::operations::META;

/// Members that hold lists of schemas which restrict values.
const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Groups that upstream's client library does not know.
const SERVERS_GROUPS: [&str; 4] = [
    "admission.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "imagepolicy.k8s.io",
];
const KINDS: &str = "x-kubernetes-group-version-kind";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";

/// Returns whether a version has only kinds that objects define.
pub(super) fn is_only(version: &ServedVersion) -> bool {
    version.resources.iter().all(|row| row.custom.is_some())
}

/// Returns the name of a kind's definition: the group backwards, version and kind.
pub(super) fn name_of(row: &Resource) -> String {
    format!("{}.{}", package_of(row), row.kind)
}

/// Returns the name of the definition of a kind's lists.
pub(super) fn list_name_of(row: &Resource) -> String {
    format!("{}.{}", package_of(row), row.list_kind)
}

fn package_of(row: &Resource) -> String {
    let group: Vec<&str> = row.group.rsplit('.').collect();
    format!("{}.{}", group.join("."), row.version)
}

/// Returns the definitions of a version, by name. Each is made when it is written, because a plane may have many large
/// ones.
pub(super) fn definitions<'t>(
    version: &'t ServedVersion,
    document: Document<'t>,
    descriptions: &'t Descriptions,
) -> Members<'t> {
    let described = move |mut schema: Value| {
        describe_head(&mut schema, descriptions);
        schema
    };
    let mut all = Members::new();
    for row in &version.resources {
        let Some(custom) = &row.custom else { continue };
        let whole = Node::made(move || described(whole(row, custom, document)));
        all.insert(name_of(row).into(), whole);
        let list = Node::made(move || described(list(row, document)));
        all.insert(list_name_of(row).into(), list);
    }
    all
}

/// Says of the options of a deletion which kinds they are. Upstream's documents of custom kinds name
/// those that its client library knows.
pub(super) fn name_clients_kinds(schemas: &Schemas, components: &mut Map) {
    let name = format!("{META}DeleteOptions");
    let (Some(known), Some(shown)) = (schemas.find(&name), components.get_mut(&name)) else {
        return;
    };
    let mut all = schemas.openapi(known, Document::V2);
    let mut kinds = all[KINDS].take();
    if let Value::Array(kinds) = &mut kinds {
        kinds.retain(|kind| !SERVERS_GROUPS.contains(&kind.str_at(&["group"])));
    }
    shown[KINDS] = kinds;
}

/// Returns the schema of a whole object.
fn whole(row: &Resource, custom: &CustomKind, document: Document<'_>) -> Value {
    let parsed = parse(custom.schema.source(), &Limits::default());
    let mut schema = parsed.map_or_else(|_| Value::object(), |parsed| parsed.value);
    let writer = Writer { document };
    if writer.is_version_2() && schema.bool_at(&[PRESERVES]) {
        // kubectl would refuse all other members if the schema had some.
        schema = json!({"type": "object"});
    } else {
        writer.node(&mut schema);
        schema.set(&["properties", "apiVersion"], json!({"type": "string"}));
        schema.set(&["properties", "kind"], json!({"type": "string"}));
        schema.set(&["properties", "metadata"], writer.reference("ObjectMeta"));
    }
    extend(row, &row.kind, &mut schema);
    schema
}

/// Returns the schema of a list.
fn list(row: &Resource, document: Document<'_>) -> Value {
    let writer = Writer { document };
    let item = format!("{}{}", writer.prefix(), name_of(row));
    let mut schema = json!({
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"items": {"$ref": (item)}, "type": "array"},
            "kind": {"type": "string"},
            "metadata": (writer.reference("ListMeta"))
        },
        "required": ["items"],
        "type": "object"
    });
    extend(row, &row.list_kind, &mut schema);
    schema
}

/// Adds the kind that a schema describes, and the fields that selectors may name.
fn extend(row: &Resource, kind: &str, schema: &mut Value) {
    schema[KINDS] = Value::Array(vec![json!({
        "group": (row.group.as_str()), "kind": (kind), "version": (row.version.as_str())
    })]);
    let fields = row.selectable_fields.iter();
    // Those of metadata belong to all kinds.
    let fields = fields.filter(|path| !path.starts_with("metadata."));
    let fields: Vec<Value> = fields
        .map(|path| json!({"fieldPath": (path.as_str())}))
        .collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = Value::Array(fields);
    }
}

/// Writes schemas for one kind of document.
#[derive(Clone, Copy)]
struct Writer<'d> {
    document: Document<'d>,
}

impl Writer<'_> {
    fn is_version_2(self) -> bool {
        self.document == Document::V2
    }

    fn prefix(self) -> &'static str {
        match self.document {
            Document::V2 => "#/definitions/",
            Document::V3 { .. } => "#/components/schemas/",
        }
    }

    /// Returns a reference to a definition that stands beside a description.
    fn reference(self, name: &str) -> Value {
        let reference = json!({"$ref": (format!("{}{META}{name}", self.prefix()))});
        match self.document {
            Document::V2 => reference,
            Document::V3 { .. } => json!({"allOf": [(reference)]}),
        }
    }

    /// Rewrites a schema and all below it. The depth is limited by the parser.
    fn node(self, schema: &mut Value) {
        let Value::Object(members) = schema else {
            return;
        };
        drop_silent(members);
        unfold(members);
        if self.is_version_2() {
            restrict(members);
        }
        for name in JUNCTORS {
            let list = members.get_mut(name).and_then(Value::as_array_mut);
            list.into_iter().flatten().for_each(nested);
        }
        if let Some(not) = members.get_mut("not") {
            nested(not);
        }
        below(members, |schema| self.node(schema));
        self.embed(schema);
    }

    /// Adds kind and metadata to the schema of an embedded object.
    fn embed(self, schema: &mut Value) {
        let is_open = self.is_version_2() && schema.bool_at(&[PRESERVES]);
        if is_open || !schema.bool_at(&[EMBEDDED]) {
            return;
        }
        schema.set(&["properties", "apiVersion"], json!({"type": "string"}));
        schema.set(&["properties", "kind"], json!({"type": "string"}));
        schema.set(&["properties", "metadata"], self.reference("ObjectMeta"));
        let mut required = schema.items_at(&["required"]).to_vec();
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known.as_str() == Some(name)) {
                required.push(Value::string(name));
            }
        }
        schema["required"] = Value::Array(required);
    }
}

/// Visits the schemas of the members and items of a value.
fn below(members: &mut Map, mut visit: impl FnMut(&mut Value)) {
    for (name, member) in members.iter_mut() {
        match (name, member) {
            ("properties", Value::Object(properties)) => {
                properties.iter_mut().for_each(|(_, schema)| visit(schema));
            }
            ("items" | "additionalProperties", schema) => visit(schema),
            _ => {}
        }
    }
}

/// Takes out members that say no more than if they were absent.
fn drop_silent(members: &mut Map) {
    members.retain(|name, value| match (name, value) {
        (_, Value::Null) => false,
        ("default" | "example", _) => true,
        (_, Value::Bool(truth)) => *truth || name == "additionalProperties",
        (_, Value::String(text)) => !text.is_empty(),
        (_, Value::Array(items)) => !items.is_empty(),
        (_, Value::Object(all)) => name != "properties" || !all.is_empty(),
        (_, Value::Int(_) | Value::Float(_)) => true,
    });
}

/// Rewrites a schema that only restricts values.
fn nested(schema: &mut Value) {
    let Value::Object(members) = schema else {
        return;
    };
    drop_silent(members);
    // Upstream does not publish what such a schema says about the values of maps.
    members.remove("additionalProperties");
    for name in JUNCTORS {
        let list = members.get_mut(name).and_then(Value::as_array_mut);
        list.into_iter().flatten().for_each(nested);
    }
    if let Some(not) = members.get_mut("not") {
        nested(not);
    }
    below(members, nested);
}

/// Spells out that an int-or-string is one of both, unless the schema does so itself.
fn unfold(members: &mut Map) {
    if members.get(INT_OR_STRING) != Some(&Value::Bool(true)) {
        return;
    }
    let both = || json!([{"type": "integer"}, {"type": "string"}]);
    let first = members.get("allOf").and_then(|all| all[0].get("anyOf"));
    if members.get("anyOf") == Some(&both()) || first == Some(&both()) {
        return;
    }
    if members.get("anyOf").is_none() {
        members.insert("anyOf", both());
        return;
    }
    let mut all = vec![json!({"anyOf": (both())})];
    let known = members.get("allOf").and_then(Value::as_array);
    all.extend(known.into_iter().flatten().cloned());
    members.insert("allOf", Value::Array(all));
}

/// Takes out what version 2 cannot say. A value that may be null, or may have any members, has no
/// type there.
fn restrict(members: &mut Map) {
    let is = |members: &Map, name: &str| members.get(name) == Some(&Value::Bool(true));
    let (may_be_null, is_open) = (is(members, "nullable"), is(members, PRESERVES));
    if may_be_null || is_open {
        members.remove("items");
        members.remove("properties");
    }
    let has_type =
        |members: &Map, name: &str| members.get("type").and_then(Value::as_str) == Some(name);
    let is_untyped = may_be_null
        || has_type(members, "array") && !members.contains_key("items")
        || has_type(members, "object") && is_open;
    // What is not required may be absent, and so may what is null.
    let can_be_null = |schema: &Value| schema.bool_at(&["nullable"]);
    let properties = members.get("properties").and_then(Value::as_object);
    let nullable = properties.into_iter().flat_map(Map::iter);
    let nullable = nullable.filter(|(_, schema)| can_be_null(schema));
    let nullable: Vec<String> = nullable.map(|(name, _)| name.to_owned()).collect();
    let values_may_be_null = members.get("additionalProperties").is_some_and(can_be_null);
    if let Some(Value::Array(required)) = members.get_mut("required") {
        let goes = |name: &Value| nullable.iter().any(|known| name.as_str() == Some(known));
        required.retain(|name| !values_may_be_null && !goes(name));
    }
    members.retain(|name, value| match name {
        "allOf" | "anyOf" | "default" | "not" | "nullable" | "oneOf" => false,
        "type" => !is_untyped,
        "required" => value.as_array().is_none_or(|names| !names.is_empty()),
        _ => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: Document<'_> = Document::V3 {
        group: "g",
        version: "v1",
    };

    fn written(document: Document<'_>, mut schema: Value) -> Value {
        Writer { document }.node(&mut schema);
        schema
    }

    #[test]
    fn both_types_of_an_int_or_string_are_spelled_out_once() {
        let both = json!([{"type": "integer"}, {"type": "string"}]);
        let plain = json!({"x-kubernetes-int-or-string": true});
        assert_eq!(written(V3, plain)["anyOf"], both);
        let spelled = json!({"anyOf": (both.clone()), "x-kubernetes-int-or-string": true});
        assert_eq!(written(V3, spelled.clone()), spelled);
        let other = json!({"anyOf": [{"minimum": 1}], "x-kubernetes-int-or-string": true});
        assert_eq!(written(V3, other)["allOf"], json!([{"anyOf": (both)}]));
    }

    #[test]
    fn embedded_objects_have_kind_and_metadata() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true});
        let shown = written(V3, json!({"items": (embedded.clone())}));
        assert_eq!(shown["items"]["required"], json!(["kind", "apiVersion"]));
        assert!(shown.at(&["items", "properties", "metadata"]).is_some());
        let mut open = embedded;
        open[PRESERVES] = Value::Bool(true);
        assert!(
            written(Document::V2, open.clone())
                .get("properties")
                .is_none()
        );
        assert!(written(V3, open).get("properties").is_some());
    }

    #[test]
    fn version_2_leaves_out_what_it_cannot_say() {
        let schema = json!({
            "type": "object", "required": ["a", "b"],
            "properties": {
                "a": {"type": "object", "nullable": true, "properties": {"x": {}}},
                "b": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {}},
                "c": {"type": "string", "default": "", "not": {"pattern": "x"}}
            }
        });
        let open = json!({"x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(
            written(Document::V2, schema),
            json!({
                "type": "object", "required": ["b"],
                "properties": {"a": {}, "b": (open), "c": {"type": "string"}}
            })
        );
    }
}
