//! The rules that make a schema structural: every field has a type, and keywords that only restrict
//! values are separate.

use crate::shared::validation::members::present;
use polyplane_apiextensions::rules::check_pattern;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Map, Value};

/// The keywords for lists of schemas of which any one, all or exactly one must match.
pub const JUNCTORS: [&str; 3] = ["anyOf", "allOf", "oneOf"];
/// Members that a structural schema cannot have, and their names in texts.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("patternProperties", "patternProperties"),
    ("dependencies", "dependencies"),
    ("additionalItems", "additionalItems"),
    ("definitions", "definitions"),
];

/// Members of which also an empty or false one is set.
const POINTERS: [&str; 5] = [
    "additionalProperties",
    "example",
    "externalDocs",
    "items",
    "not",
];

/// The position of a schema within a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The whole schema.
    Root,
    /// The items of a list.
    Item,
    /// A field.
    Field,
}

/// Returns the type that a schema requires; empty if it requires none.
pub fn kind(schema: &Value) -> &str {
    schema.str_at(&["type"])
}

/// Returns true for a member that has an effect.
pub fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => true,
    }
}

/// Returns the first member of the schema, or of one inside it, that structural schemas cannot
/// have.
pub fn unsupported(schema: &Value) -> Option<&'static str> {
    let own = UNSUPPORTED.iter().find(|(member, _)| match *member {
        "additionalItems" => present(&schema["additionalItems"]),
        member => is_set(&schema[member]),
    });
    if let Some((_, name)) = own {
        return Some(name);
    }
    let preserves = "x-kubernetes-preserve-unknown-fields";
    if schema[preserves] == Value::Bool(false) {
        return Some(preserves);
    }
    if schema["items"]
        .as_array()
        .is_some_and(|items| !items.is_empty())
    {
        return Some("items");
    }
    let inner = members(schema, "properties").map(|(_, schema)| schema);
    let nested = JUNCTORS.iter().flat_map(|name| schema.items_at(&[name]));
    let single = ["items", "additionalProperties", "not"]
        .iter()
        .map(|name| &schema[*name]);
    inner
        .chain(nested)
        .chain(single)
        .filter(|schema| schema.as_object().is_some())
        .find_map(unsupported)
}

/// Returns true for the list of schemas that means an integer or a string.
fn is_int_or_string(list: &[Value]) -> bool {
    let only = |schema: &Value, wanted: &str| {
        let mut set = schema
            .as_object()
            .into_iter()
            .flat_map(Map::iter)
            .filter(|(_, value)| is_set(value));
        kind(schema) == wanted && set.all(|(key, _)| key == "type")
    };
    matches!(list, [first, second] if only(first, "integer") && only(second, "string"))
}

/// Returns the complaints about a schema that is not structural, sorted as upstream sorts them. Those for which an
/// answer has no room are not looked for.
pub fn validate(schema: &Value, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    invariants(&mut errors, schema, Level::Root, path);
    completeness(&mut errors, schema, path);
    errors.sort();
    errors
}

/// Checks the rules that apply at every position, whatever the values are.
fn invariants(errors: &mut Complaints, schema: &Value, level: Level, path: &Path<'_>) {
    if errors.is_full() {
        return;
    }
    let (items, additional) = (&schema["items"], &schema["additionalProperties"]);
    if kind(schema) == "array" && !present(items) {
        errors.push(FieldError::required(
            &path.child("items"),
            "must be specified",
        ));
    }
    if present(items) {
        invariants(errors, items, Level::Item, &path.child("items"));
    }
    for (name, property) in members(schema, "properties") {
        invariants(
            errors,
            property,
            Level::Field,
            &path.child("properties").key(name),
        );
    }
    if present(additional) && level == Level::Root {
        errors.push(FieldError::forbidden(
            &path.child("additionalProperties"),
            "must not be used at the root",
        ));
    }
    if additional.as_object().is_some() {
        invariants(
            errors,
            additional,
            Level::Field,
            &path.child("additionalProperties"),
        );
    }
    let (either, keeps, embeds) = (
        schema.bool_at(&["x-kubernetes-int-or-string"]),
        schema.bool_at(&["x-kubernetes-preserve-unknown-fields"]),
        schema.bool_at(&["x-kubernetes-embedded-resource"]),
    );
    for (bad, name) in [
        (keeps, "x-kubernetes-preserve-unknown-fields"),
        (embeds, "x-kubernetes-embedded-resource"),
    ] {
        if either && bad {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(&path.child(name), true, detail));
        }
    }
    value_rules(errors, schema, Alternatives::Outside, path);
    validate_type(errors, schema, level, path);
    if embeds && present(additional) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(
            &path.child("additionalProperties"),
            detail,
        ));
    }
    validate_meta(errors, schema, level, path);
    if embeds && !keeps && !is_set(&schema["properties"]) {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(&path.child("properties"), detail));
    }
}

fn validate_type(errors: &mut Complaints, schema: &Value, level: Level, path: &Path<'_>) {
    let (kind, place) = (kind(schema), path.child("type"));
    let flag = |name: &str| schema.bool_at(&[name]);
    if flag("x-kubernetes-embedded-resource") && kind != "object" {
        needs_type(
            errors,
            kind,
            "object",
            "x-kubernetes-embedded-resource is true",
            &place,
        );
    } else if kind.is_empty()
        && !flag("x-kubernetes-int-or-string")
        && !flag("x-kubernetes-preserve-unknown-fields")
    {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&place, detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            &place,
            kind,
            "must be object at the root",
        ));
    }
}

/// Complains about a type that another part of the schema excludes.
pub fn needs_type(
    errors: &mut Complaints,
    kind: &str,
    wanted: &str,
    reason: &str,
    place: &Path<'_>,
) {
    let detail = format!("must be {wanted} if {reason}");
    errors.push(match kind {
        "" => FieldError::required(place, detail),
        kind => FieldError::invalid(place, kind, detail),
    });
}

fn validate_meta(errors: &mut Complaints, schema: &Value, level: Level, path: &Path<'_>) {
    let checked = level == Level::Root || schema.bool_at(&["x-kubernetes-embedded-resource"]);
    let properties = path.child("properties");
    for name in ["kind", "apiVersion"] {
        let property = &schema["properties"][name];
        if checked && present(property) && kind(property) != "string" {
            let place = properties.key(name);
            errors.push(FieldError::invalid(
                &place.child("type"),
                kind(property),
                "must be string",
            ));
        }
    }
    let metadata = &schema["properties"]["metadata"];
    if !present(metadata) {
        return;
    }
    let place = properties.key("metadata");
    if checked && kind(metadata) != "object" {
        errors.push(FieldError::invalid(
            &place.child("type"),
            kind(metadata),
            "must be object",
        ));
    }
    let names_only =
        members(metadata, "properties").all(|(name, _)| matches!(name, "name" | "generateName"));
    let mut others = metadata
        .as_object()
        .into_iter()
        .flat_map(Map::iter)
        .filter(|(key, value)| is_set(value) || POINTERS.contains(key) && present(value));
    let plain = others.all(|(key, value)| {
        matches!(key, "type" | "default")
            || key == "properties" && names_only
            || *value == Value::Bool(false) && !POINTERS.contains(&key)
    });
    if level == Level::Root && !plain {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.push(FieldError::forbidden(&place, detail));
    }
}

/// The place of a schema among those that may list an integer and a string as alternatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alternatives {
    /// Outside of all junctors: its `anyOf` may, and that of the first of its `allOf`.
    Outside,
    /// The first of the `allOf` of such a schema: its `anyOf` may.
    First,
    /// Anywhere else. None may.
    Inside,
}

/// Checks keywords about values: the schemas below them may only restrict values.
fn value_rules(errors: &mut Complaints, schema: &Value, place: Alternatives, path: &Path<'_>) {
    for name in JUNCTORS {
        let list = schema.items_at(&[name]);
        if name == "anyOf" && place != Alternatives::Inside && is_int_or_string(list) {
            continue;
        }
        for (at, nested) in list.iter().enumerate() {
            let below = match (place, name, at) {
                (Alternatives::Outside, "allOf", 0) => Alternatives::First,
                _ => Alternatives::Inside,
            };
            narrowing(errors, nested, below, &path.child(name).index(at));
        }
    }
    let pattern = schema.str_at(&["pattern"]);
    if let Err(error) = check_pattern(pattern) {
        let intro = "must be a valid regular expression, but isn't: error parsing regexp";
        let detail = format!("{intro}: {error}");
        errors.push(FieldError::invalid(&path.child("pattern"), pattern, detail));
    }
    let not = &schema["not"];
    if present(not) {
        narrowing(errors, not, Alternatives::Inside, &path.child("not"));
    }
}

fn narrowing(errors: &mut Complaints, schema: &Value, place: Alternatives, path: &Path<'_>) {
    if errors.is_full() {
        return;
    }
    value_rules(errors, schema, place, path);
    let inside = Alternatives::Inside;
    if schema["items"].as_object().is_some() {
        narrowing(errors, &schema["items"], inside, &path.child("items"));
    }
    for (name, property) in members(schema, "properties") {
        let properties = path.child("properties");
        narrowing(errors, property, inside, &properties.key(name));
    }
    for (name, word) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        let set = match word {
            // Upstream reads no additional properties as none being said.
            "undefined" if name == "additionalProperties" => {
                present(&schema[name]) && schema[name] != Value::Bool(false)
            }
            "undefined" => present(&schema[name]),
            "false" => schema.bool_at(&[name]),
            _ => is_set(&schema[name]),
        };
        if set {
            errors.push(FieldError::forbidden(
                &path.child(name),
                format!("must be {word} to be structural"),
            ));
        }
    }
    if present(&schema["properties"]["metadata"]) {
        let place = path.child("properties");
        errors.push(FieldError::forbidden(
            &place.key("metadata"),
            "must not be specified in a nested context",
        ));
    }
}

/// Checks that the schemas under junctors of the whole schema are about fields, items and values
/// that the schema itself has.
fn completeness(errors: &mut Complaints, schema: &Value, path: &Path<'_>) {
    complete_values(errors, schema, (schema, path), path);
}

/// Checks the junctors of one schema, which stands at `at`, against the schema itself.
fn complete_values(
    errors: &mut Complaints,
    values: &Value,
    schema: (&Value, &Path<'_>),
    at: &Path<'_>,
) {
    complete(errors, &values["not"], schema, &at.child("not"));
    for name in JUNCTORS {
        for (index, nested) in values.items_at(&[name]).iter().enumerate() {
            complete(errors, nested, schema, &at.child(name).index(index));
        }
    }
}

fn complete(
    errors: &mut Complaints,
    nested: &Value,
    (schema, path): (&Value, &Path<'_>),
    at: &Path<'_>,
) {
    if !present(nested) || errors.is_full() {
        return;
    }
    if !present(schema) {
        let detail = format!("because it is defined in {at}");
        return errors.push(FieldError::required(path, detail));
    }
    complete_values(errors, nested, (schema, path), at);
    let (items, items_at) = (path.child("items"), at.child("items"));
    complete(
        errors,
        &nested["items"],
        (&schema["items"], &items),
        &items_at,
    );
    let (properties, properties_at) = (path.child("properties"), at.child("properties"));
    for (name, nested) in members(nested, "properties") {
        let property = &schema["properties"][name];
        let place = properties.key(name);
        complete(errors, nested, (property, &place), &properties_at.key(name));
    }
}

/// Returns the named schemas of a member.
pub fn members<'v>(schema: &'v Value, name: &str) -> impl Iterator<Item = (&'v str, &'v Value)> {
    schema[name].as_object().into_iter().flat_map(Map::iter)
}
