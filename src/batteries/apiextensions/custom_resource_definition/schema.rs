//! Schemas inside CustomResourceDefinitions: which keywords of JSON Schema may be used, and where.

use super::internal_form;
use super::ratchet::{Ratchet, Rule, TYPES};
use super::structural_schema::{
    self, JUNCTORS, Level, is_set, kind, members, needs_type, unsupported,
};
use crate::shared::validation::members::{present, texts};
use polyplane_apiextensions::defaults::{self, UnknownMembers};
use polyplane_apiextensions::rules;
pub use polyplane_apiextensions::rules::definition::Charge;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::{Value, json};
use polyplane_cel::WorkBudget;
use std::collections::{BTreeSet, HashSet};

/// Most different keys of a list. For each item of a list each key is looked up, and upstream has no limit: with ten thousand
/// keys and a million items that took hours. Known definitions have up to four.
const LIST_KEYS_MAX: usize = 16;
const META: [&str; 3] = ["metadata", "kind", "apiVersion"];
const LIST_TYPES: [&str; 3] = ["atomic", "set", "map"];
const MAP_TYPES: [&str; 2] = ["atomic", "granular"];
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// The checks that a schema must pass.
#[derive(Clone, Copy, Debug)]
pub struct Checks<'r> {
    /// The schemas of built-in types.
    pub schemas: &'r Schemas,
    /// The rules that do not apply because the definition broke them before.
    pub ratchet: &'r Ratchet,
    /// Whether the schema must be structural. The expressions of one that is not are not checked.
    pub structure: bool,
    /// What the estimated cost of expressions is compared with.
    pub charge: Charge,
    /// What the check of the definition may still take.
    pub budget: &'r WorkBudget,
}

/// Validates a whole schema.
pub fn validate(schema: &Value, checks: Checks<'_>, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let unsupported = unsupported(schema).filter(|_| checks.structure);
    if checks.structure && unsupported.is_none() {
        errors = structural_schema::validate(schema, path);
        if errors.is_empty() {
            let unknown = match checks.ratchet.demands(Rule::PrunedDefaults) {
                true => UnknownMembers::Refused,
                false => UnknownMembers::Kept,
            };
            errors = defaults::validate(checks.schemas, schema, path, unknown, checks.budget);
        }
    }
    let is_structural = checks.structure && unsupported.is_none() && errors.is_empty();
    let mut found = Complaints::default();
    Walker {
        defaults: Ok(()),
        in_meta: false,
        ratchet: checks.ratchet,
    }
    .validate(&mut found, schema, Level::Root, path);
    // Rules of a schema that is not sound would be blamed for what is wrong with it.
    if is_structural {
        let unsound: Vec<String> = found.iter().map(|error| error.field.clone()).collect();
        found.extend(rules::definition::validate(
            schema,
            path,
            &unsound,
            (checks.charge, checks.ratchet.stored_expressions()),
            checks.budget,
        ));
    }
    errors.extend(found);
    if let (Some(name), true) = (unsupported, errors.is_empty()) {
        let detail = format!("OpenAPIV3Schema '{name}' is not supported");
        errors.push(FieldError::invalid(path, "", detail));
    }
    errors
}

/// A walk through every schema inside a schema.
#[derive(Clone, Copy)]
struct Walker<'s> {
    /// The reason why defaults are refused, if they are.
    defaults: Result<(), &'s str>,
    in_meta: bool,
    ratchet: &'s Ratchet,
}

impl Walker<'_> {
    fn validate(self, errors: &mut Complaints, schema: &Value, level: Level, path: &Path<'_>) {
        if schema.as_object().is_none() || errors.is_full() {
            return;
        }
        self.validate_members(errors, schema, path);
        if schema.bool_at(&["uniqueItems"]) {
            let detail =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
        }
        let additional = &schema["additionalProperties"];
        let place = path.child("additionalProperties");
        if present(additional) && is_set(&schema["properties"]) && *additional != Value::Bool(true)
        {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(&place, detail));
        }
        let mut inner = self;
        if self.in_meta {
            inner.defaults = Err(" inside additionalProperties applying to object metadata");
        }
        inner.validate(errors, additional, Level::Field, &place);
        for (name, property) in members(schema, "properties") {
            let mut inner = self;
            let reason = format!(" in top-level {name}");
            if META.contains(&name)
                && (level == Level::Root || schema.bool_at(&["x-kubernetes-embedded-resource"]))
            {
                inner.in_meta = true;
                if level == Level::Root {
                    inner.defaults = Err(&reason);
                }
            }
            inner.validate(
                errors,
                property,
                Level::Field,
                &path.child("properties").key(name),
            );
        }
        self.validate(errors, &schema["not"], Level::Field, &path.child("not"));
        for name in JUNCTORS {
            for (at, nested) in schema.items_at(&[name]).iter().enumerate() {
                self.validate(errors, nested, Level::Field, &path.child(name).index(at));
            }
        }
        for name in ["definitions", "dependencies"] {
            for (key, nested) in members(schema, name) {
                self.validate(errors, nested, Level::Field, &path.child(name).key(key));
            }
        }
        self.validate(errors, &schema["items"], Level::Item, &path.child("items"));
        for (at, nested) in schema.items_at(&["items"]).iter().enumerate() {
            self.validate(errors, nested, Level::Item, &path.child("items").index(at));
        }
        extensions(errors, schema, self.ratchet, path);
        validate_rules(errors, schema, path);
    }

    fn validate_members(self, errors: &mut Complaints, schema: &Value, path: &Path<'_>) {
        let kind = kind(schema);
        let knows_types = self.ratchet.demands(Rule::Types);
        if knows_types && !kind.is_empty() && !TYPES.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
        }
        if let (Err(reason), true) = (self.defaults, present(&schema["default"])) {
            errors.push(FieldError::forbidden(
                &path.child("default"),
                format!("must not be set{reason}"),
            ));
        }
        for name in [
            "id",
            "additionalItems",
            "patternProperties",
            "definitions",
            "dependencies",
            "$ref",
        ] {
            let set = match name {
                "id" | "patternProperties" | "definitions" => is_set(&schema[name]),
                _ => present(&schema[name]),
            };
            if set {
                errors.push(FieldError::forbidden(
                    &path.child(name),
                    format!("{name} is not supported"),
                ));
            }
        }
        if kind == "null" {
            let detail = "type cannot be set to null, use nullable as an alternative";
            errors.push(FieldError::forbidden(&path.child("type"), detail));
        }
        if schema["items"]
            .as_array()
            .is_some_and(|items| !items.is_empty())
        {
            let detail = "items must be a schema object and not an array";
            errors.push(FieldError::forbidden(&path.child("items"), detail));
        }
        if self.in_meta && schema.bool_at(&["x-kubernetes-embedded-resource"]) {
            let place = path.child("x-kubernetes-embedded-resource");
            errors.push(FieldError::forbidden(
                &place,
                "must not be used inside of resource meta",
            ));
        }
    }
}

/// Checks the keywords that only Kubernetes defines.
fn extensions(errors: &mut Complaints, schema: &Value, ratchet: &Ratchet, path: &Path<'_>) {
    let (kind, place) = (kind(schema), path.child("type"));
    if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(false) {
        let place = path.child("x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(
            &place,
            false,
            "must be true or undefined",
        ));
    }
    if let Some(map) = schema["x-kubernetes-map-type"].as_str() {
        if kind != "object" {
            needs_type(
                errors,
                kind,
                "object",
                "x-kubernetes-map-type is specified",
                &place,
            );
        }
        if !MAP_TYPES.contains(&map) {
            errors.push(FieldError::not_supported(
                &path.child("x-kubernetes-map-type"),
                map,
                &MAP_TYPES,
            ));
        }
    }
    let list = schema["x-kubernetes-list-type"].as_str();
    let list_place = path.child("x-kubernetes-list-type");
    if let Some(list) = list {
        if kind != "array" {
            needs_type(
                errors,
                kind,
                "array",
                "x-kubernetes-list-type is specified",
                &place,
            );
        } else if list == "set" && ratchet.demands(Rule::AtomicSets) {
            atomic_items(errors, &schema["items"], path);
        }
        if !LIST_TYPES.contains(&list) {
            errors.push(FieldError::not_supported(&list_place, list, &LIST_TYPES));
        }
    }
    if is_set(&schema["x-kubernetes-list-map-keys"]) && list != Some("map") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match list {
            None => FieldError::required(&list_place, detail),
            Some(list) => FieldError::invalid(&list_place, list, detail),
        });
    }
    if list == Some("map") {
        validate_keys(errors, schema, path, ratchet);
    }
    if ratchet.demands(Rule::Keys) {
        validate_key_properties(errors, schema, list.unwrap_or(""), path);
    }
}

/// Returns true for a set whose items are lists or maps that are not atomic.
pub fn has_inner_lists(schema: &Value) -> bool {
    let mut errors = Complaints::default();
    if schema.str_at(&["x-kubernetes-list-type"]) == "set" {
        atomic_items(&mut errors, &schema["items"], &Path::NIL);
    }
    !errors.is_empty()
}

/// Returns true for a set or map whose items or keys may be null or absent.
pub fn has_bad_keys(schema: &Value) -> bool {
    let mut errors = Complaints::default();
    let list = schema.str_at(&["x-kubernetes-list-type"]);
    validate_key_properties(&mut errors, schema, list, &Path::NIL);
    !errors.is_empty()
}

fn atomic_items(errors: &mut Complaints, items: &Value, path: &Path<'_>) {
    let (name, bad) = match kind(items) {
        "array" => {
            let name = "x-kubernetes-list-type";
            (
                name,
                items[name].as_str().is_some_and(|list| list != "atomic"),
            )
        }
        "object" => {
            let name = "x-kubernetes-map-type";
            (name, items.str_at(&[name]) != "atomic")
        }
        _ => return,
    };
    if bad {
        let place = path.child("items");
        let shown = Bad::Json(items["x-kubernetes-list-type"].clone());
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        errors.push(FieldError::invalid(&place.child(name), shown, detail));
    }
}

/// Returns the number of different keys of a list.
pub fn different_keys(schema: &Value) -> usize {
    let keys = texts(&schema["x-kubernetes-list-map-keys"]);
    keys.into_iter().collect::<BTreeSet<_>>().len()
}

fn validate_keys(errors: &mut Complaints, schema: &Value, path: &Path<'_>, ratchet: &Ratchet) {
    let place = path.child("x-kubernetes-list-map-keys");
    let keys = texts(&schema["x-kubernetes-list-map-keys"]);
    if keys.is_empty() {
        errors.push(FieldError::required(
            &place,
            "must not be empty if x-kubernetes-list-type is map",
        ));
    }
    let different = different_keys(schema);
    let most = ratchet.list_keys().max(LIST_KEYS_MAX);
    if different > most {
        errors.push(FieldError::too_many(&place, different, most));
        return;
    }
    let (items, items_place) = (&schema["items"], path.child("items"));
    match items {
        Value::Null => {
            let detail = "must have a schema if x-kubernetes-list-type is map";
            errors.push(FieldError::required(&items_place, detail));
            return;
        }
        Value::Array(_) => {
            let detail = "must only have a single schema if x-kubernetes-list-type is map";
            let shown = Bad::Shown(internal_form::items(items).into());
            errors.push(FieldError::invalid(&items_place, shown, detail));
            return;
        }
        _ => {}
    }
    if kind(items) != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(
            &items_place.child("type"),
            kind(items),
            detail,
        ));
        return;
    }
    validate_each_key(errors, (schema, &keys), &place, &items_place);
}

/// Checks that the keys of a list are scalar properties of its items, each once.
fn validate_each_key(
    errors: &mut Complaints,
    (schema, keys): (&Value, &[&str]),
    place: &Path<'_>,
    items_place: &Path<'_>,
) {
    let items = &schema["items"];
    let bad = || Bad::Json(schema["x-kubernetes-list-map-keys"].clone());
    let mut seen = BTreeSet::new();
    for &key in keys {
        // Each of these complaints may show all keys.
        if errors.is_full() {
            return;
        }
        let property = &items["properties"][key];
        if !present(property) {
            errors.push(FieldError::invalid(
                place,
                bad(),
                "entries must all be names of item properties",
            ));
        } else if matches!(kind(property), "array" | "object") {
            let properties = items_place.child("properties");
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.push(FieldError::invalid(
                &properties.key(key).child("type"),
                "object",
                detail,
            ));
        }
        if !seen.insert(key) {
            errors.push(FieldError::invalid(
                place,
                bad(),
                "must not contain duplicate entries",
            ));
        }
    }
}

fn validate_key_properties(errors: &mut Complaints, schema: &Value, list: &str, path: &Path<'_>) {
    let (items, place) = (&schema["items"], path.child("items"));
    if !matches!(list, "set" | "map") || items.as_object().is_none() {
        return;
    }
    if items.bool_at(&["nullable"]) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        errors.push(FieldError::forbidden(&place.child("nullable"), detail));
    }
    if list == "set" {
        return;
    }
    let required: HashSet<&str> = texts(&items["required"]).into_iter().collect();
    for key in texts(&schema["x-kubernetes-list-map-keys"]) {
        let property = &items["properties"][key];
        if !present(property) {
            continue;
        }
        let properties = place.child("properties");
        let place = properties.key(key);
        if !required.contains(key) && !present(&property["default"]) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(&place.child("default"), detail));
        }
        if property.bool_at(&["nullable"]) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(FieldError::forbidden(&place.child("nullable"), detail));
        }
    }
}

/// Checks validation rules, except for their expressions.
fn validate_rules(errors: &mut Complaints, schema: &Value, path: &Path<'_>) {
    let given_rules = schema.items_at(&["x-kubernetes-validations"]);
    let list = path.child("x-kubernetes-validations");
    let breaks = |text: &str| text.contains(['\n', '\r']);
    // The schema is walked once, not for each rule.
    let mut known = None;
    let mut is_readable = || *known.get_or_insert_with(|| unsupported(schema).is_none());
    for (at, rule) in given_rules.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let place = list.index(at);
        let text = |field: &str| rule.str_at(&[field]);
        let blank = |field: &str| !text(field).is_empty() && text(field).trim().is_empty();
        let message = place.child("message");
        if text("rule").trim().is_empty() {
            errors.push(FieldError::required(
                &place.child("rule"),
                "rule is not specified",
            ));
        } else if blank("message") {
            errors.push(FieldError::invalid(
                &message,
                text("message"),
                "must be non-empty if specified",
            ));
        } else if breaks(text("message").trim()) {
            errors.push(FieldError::invalid(
                &message,
                text("message"),
                "must not contain line breaks",
            ));
        } else if breaks(text("rule").trim()) && text("message").is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&message, detail));
        }
        if blank("messageExpression") {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(
                &place.child("messageExpression"),
                detail,
            ));
        }
        if let Some(reason) = rule["reason"]
            .as_str()
            .filter(|reason| !REASONS.contains(reason))
        {
            let bad = Bad::Shown(json::to_string(&reason.into()).into());
            errors.push(FieldError::not_supported(
                &place.child("reason"),
                bad,
                &REASONS,
            ));
        }
        let blames = (text("fieldPath"), schema);
        let place = place.child("fieldPath");
        validate_field_path(errors, blames, &mut is_readable, &place);
    }
}

/// Checks the field of a schema that a rule blames. `is_readable` returns whether upstream can read the schema; it
/// looks for no field in another one.
fn validate_field_path(
    errors: &mut Complaints,
    (given, schema): (&str, &Value),
    is_readable: &mut dyn FnMut() -> bool,
    path: &Path<'_>,
) {
    if !given.is_empty() && given.trim().is_empty() {
        let detail = "must be non-empty if specified";
        errors.push(FieldError::invalid(path, given, detail));
    }
    if given.contains(['\n', '\r']) {
        let detail = "must not contain line breaks";
        errors.push(FieldError::invalid(path, given, detail));
    }
    if !given.is_empty() && rules::normalized(given, schema).is_none() && is_readable() {
        errors.push(FieldError::invalid(path, given, "must be a valid path"));
    }
}
