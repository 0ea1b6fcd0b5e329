//! Parts of a definition as the internal types of upstream show them in JSON. Some complaints show the
//! value that they are about in this form, with every field, also those that are not set.

use polyplane_apiextensions::rules::definition::shown_rule;
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

/// Returns a schema in the form of upstream's internal type.
pub fn schema(schema: &Value) -> String {
    object(schema, &SCHEMA)
}

/// Returns the items of a schema: one schema, or a list of them.
pub fn items(items: &Value) -> String {
    written(items, Form::SchemaOrSchemas)
}

/// Returns a version of a definition.
pub fn version(version: &Value) -> String {
    object(version, &VERSION)
}

fn object(value: &Value, fields: &[Field]) -> String {
    let members: Vec<String> = fields
        .iter()
        .map(|(name, go_name, form)| format!("{go_name:?}:{}", written(&value[*name], *form)))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn list(items: &[Value], write: impl Fn(&Value) -> String) -> String {
    let items: Vec<String> = items.iter().map(write).collect();
    format!("[{}]", items.join(","))
}

fn map(members: &Map, write: impl Fn(&Value) -> String) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("{}:{}", json::to_string(&name.into()), write(value)))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn written(value: &Value, form: Form) -> String {
    match (form, value) {
        (Form::Text, Value::Null) => "\"\"".to_owned(),
        (Form::Flag, Value::Null) => "false".to_owned(),
        (Form::Count, Value::Null) => "0".to_owned(),
        (_, Value::Null) => "null".to_owned(),
        (Form::Object(fields), value) => object(value, fields),
        (Form::Objects(fields), Value::Array(items)) => list(items, |item| object(item, fields)),
        (Form::Schema, value) => schema(value),
        (Form::Schemas, Value::Array(items)) => list(items, schema),
        (Form::SchemaMap, Value::Object(members)) => map(members, schema),
        (Form::SchemaOrSchemas, Value::Array(_)) => {
            let schemas = written(value, Form::Schemas);
            format!("{{\"Schema\":null,\"JSONSchemas\":{schemas}}}")
        }
        (Form::SchemaOrSchemas, value) => {
            format!("{{\"Schema\":{},\"JSONSchemas\":null}}", schema(value))
        }
        (Form::SchemaOrFlag, Value::Bool(allows)) => {
            format!("{{\"Allows\":{allows},\"Schema\":null}}")
        }
        (Form::SchemaOrFlag, value) => format!("{{\"Allows\":true,\"Schema\":{}}}", schema(value)),
        (Form::SchemasOrTexts, Value::Object(members)) => map(members, |part| match part {
            Value::Array(_) => {
                format!("{{\"Schema\":null,\"Property\":{}}}", json::to_string(part))
            }
            part => format!("{{\"Schema\":{},\"Property\":null}}", schema(part)),
        }),
        (Form::Rules, Value::Array(rules)) => list(rules, shown_rule),
        (_, value) => json::to_string(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_shown() {
        let shown = version(&json!({
            "name": "v1",
            "schema": {"openAPIV3Schema": {
                "additionalProperties": true,
                "items": [{"type": "string"}],
                "properties": {"<": {"x-kubernetes-validations": [{"rule": "true"}]}}
            }},
            "subresources": {"status": {}}
        }));
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
}
