//! Parts of a definition as the internal types of upstream show them in JSON. Some complaints show the
//! value that they are about in this form, with every field, also those that are not set.

use polyplane_apiextensions::rules::definition::shown_rule;
use polyplane_apimachinery::complaints::BoundedText;
use polyplane_apimachinery::{Map, Value, json};

/// How a field is written.
#[derive(Clone, Copy)]
enum Form {
    /// Text; empty if absent.
    Text,
    /// A flag; false if absent.
    Flag,
    /// A count; 0 if absent.
    Count,
    /// Anything that is null if absent, and else as it is.
    AsIs,
    Object(&'static [Field]),
    Objects(&'static [Field]),
    Schema,
    Schemas,
    SchemaMap,
    SchemaOrSchemas,
    SchemaOrFlag,
    SchemasOrTexts,
    Rules,
}

/// The published name of a field, its name in Go, and its form.
type Field = (&'static str, &'static str, Form);

const SCHEMA: [Field; 44] = [
    ("id", "ID", Form::Text),
    ("$schema", "Schema", Form::Text),
    ("$ref", "Ref", Form::AsIs),
    ("description", "Description", Form::Text),
    ("type", "Type", Form::Text),
    ("nullable", "Nullable", Form::Flag),
    ("format", "Format", Form::Text),
    ("title", "Title", Form::Text),
    ("default", "Default", Form::AsIs),
    ("maximum", "Maximum", Form::AsIs),
    ("exclusiveMaximum", "ExclusiveMaximum", Form::Flag),
    ("minimum", "Minimum", Form::AsIs),
    ("exclusiveMinimum", "ExclusiveMinimum", Form::Flag),
    ("maxLength", "MaxLength", Form::AsIs),
    ("minLength", "MinLength", Form::AsIs),
    ("pattern", "Pattern", Form::Text),
    ("maxItems", "MaxItems", Form::AsIs),
    ("minItems", "MinItems", Form::AsIs),
    ("uniqueItems", "UniqueItems", Form::Flag),
    ("multipleOf", "MultipleOf", Form::AsIs),
    ("enum", "Enum", Form::AsIs),
    ("maxProperties", "MaxProperties", Form::AsIs),
    ("minProperties", "MinProperties", Form::AsIs),
    ("required", "Required", Form::AsIs),
    ("items", "Items", Form::SchemaOrSchemas),
    ("allOf", "AllOf", Form::Schemas),
    ("oneOf", "OneOf", Form::Schemas),
    ("anyOf", "AnyOf", Form::Schemas),
    ("not", "Not", Form::Schema),
    ("properties", "Properties", Form::SchemaMap),
    (
        "additionalProperties",
        "AdditionalProperties",
        Form::SchemaOrFlag,
    ),
    ("patternProperties", "PatternProperties", Form::SchemaMap),
    ("dependencies", "Dependencies", Form::SchemasOrTexts),
    ("additionalItems", "AdditionalItems", Form::SchemaOrFlag),
    ("definitions", "Definitions", Form::SchemaMap),
    ("externalDocs", "ExternalDocs", Form::Object(&DOCS)),
    ("example", "Example", Form::AsIs),
    (
        "x-kubernetes-preserve-unknown-fields",
        "XPreserveUnknownFields",
        Form::AsIs,
    ),
    (
        "x-kubernetes-embedded-resource",
        "XEmbeddedResource",
        Form::Flag,
    ),
    ("x-kubernetes-int-or-string", "XIntOrString", Form::Flag),
    ("x-kubernetes-list-map-keys", "XListMapKeys", Form::AsIs),
    ("x-kubernetes-list-type", "XListType", Form::AsIs),
    ("x-kubernetes-map-type", "XMapType", Form::AsIs),
    ("x-kubernetes-validations", "XValidations", Form::Rules),
];

const DOCS: [Field; 2] = [
    ("description", "Description", Form::Text),
    ("url", "URL", Form::Text),
];

const VERSION: [Field; 9] = [
    ("name", "Name", Form::Text),
    ("served", "Served", Form::Flag),
    ("storage", "Storage", Form::Flag),
    ("deprecated", "Deprecated", Form::Flag),
    ("deprecationWarning", "DeprecationWarning", Form::AsIs),
    ("schema", "Schema", Form::Object(&VALIDATION)),
    ("subresources", "Subresources", Form::Object(&SUBRESOURCES)),
    (
        "additionalPrinterColumns",
        "AdditionalPrinterColumns",
        Form::Objects(&COLUMN),
    ),
    (
        "selectableFields",
        "SelectableFields",
        Form::Objects(&SELECTABLE),
    ),
];

const VALIDATION: [Field; 1] = [("openAPIV3Schema", "OpenAPIV3Schema", Form::Schema)];

const SUBRESOURCES: [Field; 2] = [
    ("status", "Status", Form::Object(&[])),
    ("scale", "Scale", Form::Object(&SCALE)),
];

const SCALE: [Field; 3] = [
    ("specReplicasPath", "SpecReplicasPath", Form::Text),
    ("statusReplicasPath", "StatusReplicasPath", Form::Text),
    ("labelSelectorPath", "LabelSelectorPath", Form::AsIs),
];

const COLUMN: [Field; 6] = [
    ("name", "Name", Form::Text),
    ("type", "Type", Form::Text),
    ("format", "Format", Form::Text),
    ("description", "Description", Form::Text),
    ("priority", "Priority", Form::Count),
    ("jsonPath", "JSONPath", Form::Text),
];

const SELECTABLE: [Field; 1] = [("jsonPath", "JSONPath", Form::Text)];

/// Bytes of a shown value at most. Upstream shows all of it, but every schema has 44 fields there: without a bound, a
/// body of some megabytes became gigabytes. This is a schema of some hundred fields.
const SHOWN_BYTES_MAX: usize = 256 << 10;

/// Returns a schema in the form of upstream's internal type.
pub fn schema(schema: &Value) -> String {
    shown(|out| object(out, schema, &SCHEMA))
}

/// Returns the items of a schema: one schema, or a list of them.
pub fn items(items: &Value) -> String {
    shown(|out| written(out, items, Form::SchemaOrSchemas))
}

/// Returns the versions of a definition.
pub fn versions(versions: impl Iterator<Item = Value>) -> String {
    shown(|out| {
        out.push("[");
        for (at, version) in versions.enumerate() {
            if at > 0 {
                out.push(",");
            }
            if out.is_cut() {
                return;
            }
            object(out, &version, &VERSION);
        }
        out.push("]");
    })
}

fn shown(write: impl FnOnce(&mut BoundedText)) -> String {
    let mut out = BoundedText::new(SHOWN_BYTES_MAX);
    write(&mut out);
    out.into_string()
}

fn object(out: &mut BoundedText, value: &Value, fields: &[Field]) {
    out.push("{");
    for (at, (name, go_name, form)) in fields.iter().enumerate() {
        if at > 0 {
            out.push(",");
        }
        if out.is_cut() {
            return;
        }
        out.push(&format!("{go_name:?}:"));
        written(out, &value[*name], *form);
    }
    out.push("}");
}

fn list(out: &mut BoundedText, items: &[Value], write: impl Fn(&mut BoundedText, &Value)) {
    out.push("[");
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(",");
        }
        if out.is_cut() {
            return;
        }
        write(out, item);
    }
    out.push("]");
}

fn map(out: &mut BoundedText, members: &Map, write: impl Fn(&mut BoundedText, &Value)) {
    out.push("{");
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(",");
        }
        if out.is_cut() {
            return;
        }
        out.push(&json::to_string(&name.into()));
        out.push(":");
        write(out, value);
    }
    out.push("}");
}

fn nested(out: &mut BoundedText, schema: &Value) {
    object(out, schema, &SCHEMA);
}

fn written(out: &mut BoundedText, value: &Value, form: Form) {
    if out.is_cut() {
        return;
    }
    match (form, value) {
        (Form::Text, Value::Null) => out.push("\"\""),
        (Form::Flag, Value::Null) => out.push("false"),
        (Form::Count, Value::Null) => out.push("0"),
        (_, Value::Null) => out.push("null"),
        (Form::Object(fields), value) => object(out, value, fields),
        (Form::Objects(fields), Value::Array(items)) => {
            list(out, items, |out, item| object(out, item, fields));
        }
        (Form::Schema, value) => nested(out, value),
        (Form::Schemas, Value::Array(items)) => list(out, items, nested),
        (Form::SchemaMap, Value::Object(members)) => map(out, members, nested),
        (Form::SchemaOrSchemas, Value::Array(_)) => {
            out.push("{\"Schema\":null,\"JSONSchemas\":");
            written(out, value, Form::Schemas);
            out.push("}");
        }
        (Form::SchemaOrSchemas, value) => {
            out.push("{\"Schema\":");
            nested(out, value);
            out.push(",\"JSONSchemas\":null}");
        }
        (Form::SchemaOrFlag, Value::Bool(allows)) => {
            out.push(&format!("{{\"Allows\":{allows},\"Schema\":null}}"));
        }
        (Form::SchemaOrFlag, value) => {
            out.push("{\"Allows\":true,\"Schema\":");
            nested(out, value);
            out.push("}");
        }
        (Form::SchemasOrTexts, Value::Object(members)) => map(out, members, schema_or_texts),
        (Form::Rules, Value::Array(rules)) => {
            list(out, rules, |out, rule| out.push(&shown_rule(rule)));
        }
        (_, value) => out.push(&json::to_string(value)),
    }
}

fn schema_or_texts(out: &mut BoundedText, part: &Value) {
    if let Value::Array(_) = part {
        out.push("{\"Schema\":null,\"Property\":");
        out.push(&json::to_string(part));
        out.push("}");
    } else {
        out.push("{\"Schema\":");
        nested(out, part);
        out.push(",\"Property\":null}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_shown() {
        let shown = versions(std::iter::once(json!({
            "name": "v1",
            "schema": {"openAPIV3Schema": {
                "additionalProperties": true,
                "items": [{"type": "string"}],
                "properties": {"<": {"x-kubernetes-validations": [{"rule": "true"}]}}
            }},
            "subresources": {"status": {}}
        })));
        for part in [
            r#"{"Name":"v1","Served":false,"Storage":false,"#,
            r#""AdditionalProperties":{"Allows":true,"Schema":null}"#,
            r#""Items":{"Schema":null,"JSONSchemas":[{"ID":"","Schema":"","Ref":null,"#,
            r#""Properties":{"\u003c":{"ID":"""#,
            r#""XValidations":[{"Rule":"true","#,
            r#""Subresources":{"Status":{},"Scale":null},"AdditionalPrinterColumns":null"#,
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }

    #[test]
    fn a_shown_value_is_bounded() {
        let parts = vec![json!({}); 100_000];
        let wide = json!({"allOf": (parts.clone())});
        let mut deep = json!({"title": ("t".repeat(1 << 20))});
        for _ in 0..100 {
            deep = json!({"not": (deep)});
        }
        for text in [
            schema(&wide),
            schema(&deep),
            items(&Value::from(parts.clone())),
            versions(parts.into_iter()),
        ] {
            assert_eq!(text.len(), SHOWN_BYTES_MAX + "…".len());
        }
    }
}
