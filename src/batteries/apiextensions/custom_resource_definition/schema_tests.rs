//! Upstream's answers about schemas of custom kinds, recorded from its own tests: see
//! `testdata/README.md` of the crate `apiextensions`.

use super::ratchet::Ratchet;
use super::schema::{self, Charge, Checks};
use super::spec;
use super::structural_schema;
use super::version;
use crate::kind_tables::schemas;
use flate2::read::GzDecoder;
use polyplane_apiextensions::defaults::{self, UnknownMembers};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::complaints::{BYTES_MAX, COUNT_MAX, PATH_BYTES_MAX};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::{Map, Value, json};
use polyplane_cel::WorkBudget;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path as FilePath;

fn cases() -> Vec<Value> {
    let folder = FilePath::new(env!("CARGO_MANIFEST_DIR"));
    let file = File::open(folder.join("../apiextensions/testdata/schemas.jsonl.gz"));
    let lines = BufReader::new(GzDecoder::new(file.expect("vectors are committed"))).lines();
    let lines = lines.map(|line| line.expect("vectors are gzip of UTF-8"));
    lines
        .filter(|line| !line.is_empty())
        .map(|line| parse(line.as_bytes(), &Limits::default()).expect("a vector is JSON"))
        .map(|parsed| parsed.value)
        .collect()
}

/// Returns the complaints about the defaults of a schema.
fn defaults_of(schema: &Value) -> Complaints {
    let budget = WorkBudget::for_definition();
    let refused = UnknownMembers::Refused;
    defaults::validate(&schemas(), schema, &Path::NIL, refused, &budget)
}

fn ours(errors: &[FieldError]) -> Vec<String> {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

fn theirs(case: &Value) -> Vec<String> {
    let texts = case.items_at(&["errors"]).iter();
    let mut texts: Vec<String> = texts
        .map(|error| {
            let (field, message) = (error.str_at(&["field"]), error.str_at(&["message"]));
            format!("{field}: {message}")
        })
        .collect();
    texts.sort();
    texts
}

/// Returns whether upstream complains about a part of the schema that it cannot print.
fn is_unprintable(case: &Value) -> bool {
    let complaints = case.items_at(&["errors"]).iter();
    let mut places = complaints.filter(|error| {
        let message = error.str_at(&["message"]);
        message == "Forbidden: must be undefined to be structural"
    });
    places.any(|error| error.str_at(&["field"]).ends_with(".additionalProperties"))
}

#[test]
fn structure_and_defaults_of_schemas_are_judged_as_upstream_judges_them() {
    let (mut total, mut left_out, mut different) = (0, 0, Vec::new());
    for case in cases() {
        let tree = &case["schema"];
        let found = match case.str_at(&["op"]) {
            "structural" => structural_schema::validate(tree, &Path::NIL),
            _ => defaults_of(tree),
        };
        total += 1;
        if is_unprintable(&case) {
            left_out += 1;
            continue;
        }
        if ours(&found) != theirs(&case) {
            let (ours, theirs) = (ours(&found), theirs(&case));
            different.push(format!("{tree:?}: {ours:#?}, upstream {theirs:#?}"));
        }
    }
    let agree = total - left_out - different.len();
    println!("schemas: {agree} of {total} agree, {left_out} left out");
    assert!(different.is_empty(), "{different:#?}");
}

/// Upstream's own tests have no such alternatives in the junctors of junctors.
#[test]
fn only_a_schema_outside_of_junctors_may_list_an_integer_and_a_string() {
    let either = || json!([{"type": "integer"}, {"type": "string"}]);
    let inside = |junctor: &str| ["0", "1"].map(|at| format!("{junctor}.anyOf[{at}].type"));
    let cases = [
        (json!({"anyOf": (either())}), vec![]),
        (
            json!({"allOf": [{"anyOf": (either())}, {"pattern": "a"}]}),
            vec![],
        ),
        (
            json!({"allOf": [{"pattern": "a"}, {"anyOf": (either())}]}),
            inside("allOf[1]").to_vec(),
        ),
        (
            json!({"oneOf": [{"anyOf": (either())}]}),
            inside("oneOf[0]").to_vec(),
        ),
        (
            json!({"allOf": [{"anyOf": (either()), "not": {"type": "string"}}]}),
            vec!["allOf[0].not.type".to_owned()],
        ),
        (json!({"not": {"additionalProperties": false}}), vec![]),
        (
            json!({"not": {"additionalProperties": true}}),
            vec!["not.additionalProperties".to_owned()],
        ),
    ];
    for (mut property, wanted) in cases {
        property.set(&["x-kubernetes-int-or-string"], true);
        let tree = json!({"type": "object", "properties": {"a": property}});
        let found = structural_schema::validate(&tree, &Path::NIL);
        let fields = found.iter().map(|error| error.field.as_str());
        let fields: Vec<&str> = fields
            .map(|field| field.trim_start_matches("properties[a]."))
            .collect();
        assert_eq!(fields, wanted, "{tree:?}");
    }
}

#[test]
fn metadata_of_the_whole_object_may_only_limit_names() {
    for (name, value, is_good) in [
        ("nullable", json!(false), true),
        ("additionalProperties", json!(false), false),
        ("additionalProperties", json!({}), false),
        ("not", json!({}), false),
        ("externalDocs", json!({}), false),
        ("example", json!(false), false),
    ] {
        let mut tree = json!({"type": "object", "properties": {"metadata": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8i64}},
        }}});
        tree.set(&["properties", "metadata", name], value);
        let found = ours(&structural_schema::validate(&tree, &Path::NIL));
        let wanted = "properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
        let is_refused = found.iter().any(|text| text == wanted);
        assert_eq!(is_refused, !is_good, "{name}: {found:?}");
    }
}

#[test]
fn the_root_of_a_schema_with_a_status_has_few_keywords() {
    for (name, value, is_good) in [
        ("x-kubernetes-list-map-keys", json!(["a"]), false),
        ("x-kubernetes-list-type", json!(""), false),
        ("additionalProperties", json!(false), false),
        ("default", json!(false), false),
        ("nullable", json!(false), true),
        ("id", json!(""), true),
        ("title", json!("a"), true),
    ] {
        let mut tree = json!({"type": "object"});
        tree.set(&[name], value);
        let mut errors = Complaints::default();
        version::validate_root(&mut errors, &tree, &Path::NIL);
        assert_eq!(errors.is_empty(), is_good, "{name}");
    }
}

/// A property with a name of 1 MB that stands in each of a hundred thousand complaints.
#[test]
fn complaints_about_a_schema_are_bounded_in_number_and_bytes() {
    let checks = Checks {
        schemas: &schemas(),
        ratchet: &Ratchet::default(),
        structure: true,
        charge: Charge::Schema,
        budget: &WorkBudget::for_definition(),
    };
    let part = json!({"title": "t", "default": 1i64, "nullable": true, "uniqueItems": true});
    let parts = json!({"type": "string", "allOf": (vec![part; 2 * COUNT_MAX])});
    let name = "n".repeat(1 << 20);
    let properties: Map = [(name.as_str(), parts)].into_iter().collect();
    let tree = json!({"type": "object", "properties": (properties)});
    let bytes_of = |errors: &[FieldError]| errors.iter().map(FieldError::bytes).sum::<usize>();
    let structural = structural_schema::validate(&tree, &Path::NIL);
    assert!(structural.is_full() && structural.len() <= COUNT_MAX);
    assert!(bytes_of(&structural) <= BYTES_MAX + PATH_BYTES_MAX);
    let all = schema::validate(&tree, checks, &Path::NIL);
    assert!(bytes_of(&all) <= BYTES_MAX + PATH_BYTES_MAX);
    assert_eq!(all.len(), structural.len());
}

/// For each of the keys all of them were shown, and each item of a list was asked for each of them.
#[test]
fn a_list_has_few_keys() {
    let tree = |count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
        let properties = names
            .iter()
            .map(|name| (name.as_str(), json!({"type": "string"})));
        let names: Vec<Value> = names.iter().map(|name| name.as_str().into()).collect();
        json!({"type": "object", "properties": {"list": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": (names.clone()),
            "items": {
                "type": "object",
                "properties": (properties.collect::<Map>()),
                "required": (names),
            },
        }}})
    };
    let checked_over = |count: usize, ratchet: &Ratchet| {
        let checks = Checks {
            schemas: &schemas(),
            ratchet,
            structure: true,
            charge: Charge::Schema,
            budget: &WorkBudget::for_definition(),
        };
        ours(&schema::validate(&tree(count), checks, &Path::NIL))
    };
    let checked = |count: usize| checked_over(count, &Ratchet::default());
    assert!(checked(16).is_empty());
    let wanted =
        "properties[list].x-kubernetes-list-map-keys: Too many: 17: must have at most 16 items";
    assert_eq!(checked(17), [wanted]);
    // A definition that was stored with more can still be written.
    let version =
        |count: usize| json!({"name": "v1", "schema": {"openAPIV3Schema": (tree(count))}});
    let stored = |count: usize| json!({"spec": {"versions": [(version(count))]}});
    let ratchet = Ratchet::of_update(&stored(17), &stored(17));
    assert!(checked_over(17, &ratchet).is_empty());
    assert_eq!(checked_over(18, &ratchet).len(), 1, "it may have no more");
    let ratchet = Ratchet::of_update(&stored(17), &stored(16));
    assert_eq!(checked_over(17, &ratchet), [wanted]);
}

/// Upstream's first releases stored them. They are served as if they were not there.
#[test]
fn unknown_members_of_defaults_are_refused_unless_the_stored_definition_has_some() {
    let tree = |default: Value| {
        let known = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let values = json!({"type": "object", "additionalProperties": (known.clone())});
        let mut holder = known;
        holder.set(&["default"], default);
        json!({"type": "object", "properties": {"spec": holder, "values": values}})
    };
    let version =
        |schema: &Value| json!({"name": "v1", "schema": {"openAPIV3Schema": (schema.clone())}});
    let stored = |schema: &Value| json!({"spec": {"versions": [(version(schema))]}});
    let checked_over = |old: &Value, new: &Value| {
        let checks = Checks {
            schemas: &schemas(),
            ratchet: &Ratchet::of_update(&stored(new), &stored(old)),
            structure: true,
            charge: Charge::Schema,
            budget: &WorkBudget::for_definition(),
        };
        ours(&schema::validate(new, checks, &Path::NIL))
    };
    let (known, unknown) = (
        tree(json!({"a": "x"})),
        tree(json!({"a": "x", "colour": "red"})),
    );
    let refused = checked_over(&known, &unknown);
    let [complaint] = refused.as_slice() else {
        panic!("one complaint: {refused:?}");
    };
    assert!(complaint.starts_with("properties[spec].default: Invalid value: "));
    assert!(complaint.ends_with("must not have unknown fields"));
    assert!(checked_over(&unknown, &unknown).is_empty());
    // Also one that no check of defaults reaches.
    let mut hidden = known.clone();
    let place = [
        "properties",
        "values",
        "additionalProperties",
        "default",
        "colour",
    ];
    hidden.set(&place, "red");
    assert!(checked_over(&hidden, &unknown).is_empty());
    let mut loose = unknown.clone();
    loose.set(&["properties", "other"], Value::object());
    assert_eq!(
        checked_over(&loose, &unknown),
        refused,
        "it is not structural"
    );
}

/// Upstream checks defaults by a form of the schema in which such values have no type.
#[test]
fn a_default_of_integers_or_texts_is_checked_by_its_junctors_alone() {
    let found = |schema: Value| {
        let root = json!({"type": "object", "properties": {"a": schema}});
        ours(&defaults_of(&root))
    };
    for default in [
        json!(true),
        json!(1.5),
        json!({}),
        json!([]),
        json!(1i64),
        json!("x"),
    ] {
        let plain = json!({"x-kubernetes-int-or-string": true, "default": (default.clone())});
        assert!(found(plain).is_empty(), "{default:?}");
        let junctors = json!([{"type": "integer"}, {"type": "string"}]);
        let with_junctors = found(json!({
            "x-kubernetes-int-or-string": true,
            "anyOf": junctors,
            "default": (default.clone()),
        }));
        let is_good = matches!(default, Value::Int(_) | Value::String(_));
        assert_eq!(with_junctors.is_empty(), is_good, "{with_junctors:?}");
        let of_both = with_junctors
            .iter()
            .any(|text| text.contains("integer,string"));
        assert!(!of_both, "{with_junctors:?}");
    }
}

/// The whole object has a kind and metadata, whether or not its schema says so.
#[test]
fn a_default_at_the_root_must_be_an_object_with_kind_and_sound_metadata() {
    let found = |default: Value| {
        let properties = json!({"spec": {"type": "object"}});
        let root = json!({"type": "object", "default": default, "properties": properties});
        ours(&defaults_of(&root))
    };
    let missing = [
        "default.apiVersion: Required value",
        "default.kind: Required value",
    ];
    assert_eq!(found(json!({})), missing);
    assert_eq!(found(json!({"spec": {}})), missing);
    let object = |kind: &str, name: &str| {
        let metadata = json!({"name": (name.to_owned())});
        json!({"apiVersion": "v1", "kind": (kind.to_owned()), "metadata": metadata})
    };
    assert!(found(object("Widget", "a")).is_empty());
    for (kind, name, field) in [
        ("", "a", "default.kind: Invalid value"),
        ("Widget", "a/b", "default.metadata.name: Invalid value"),
    ] {
        let found = found(object(kind, name));
        assert!(
            found.len() == 1 && found[0].starts_with(field),
            "{field}: {found:?}"
        );
    }
    let mut unknown = object("Widget", "a");
    unknown.set(&["colour"], "red");
    let found = found(unknown);
    assert!(
        found.len() == 1 && found[0].ends_with("must not have unknown fields"),
        "{found:?}"
    );
}

#[test]
fn defaults_in_all_places_lose_what_metadata_does_not_have() {
    let embedded = json!({
        "type": "object",
        "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
    });
    let default = |metadata: Value| json!({"object": {"metadata": metadata}});
    let holder = |metadata: Value| {
        let properties = json!({"object": (embedded.clone())});
        json!({"type": "object", "default": (default(metadata)), "properties": properties})
    };
    let schema = |metadata: Value| {
        let list = json!({"type": "array", "items": (holder(metadata.clone()))});
        let spec = json!({
            "type": "object",
            "default": {},
            "properties": {"one": (holder(metadata)), "list": list},
        });
        json!({"type": "object", "properties": {"spec": spec}})
    };
    let schema = |metadata: Value| {
        let mut schema = schema(metadata.clone());
        let whole = json!({"apiVersion": "v1", "kind": "A", "metadata": metadata});
        schema.set(&["default"], whole);
        schema
    };
    let mut sent = schema(json!({"name": "a", "colour": "red"}));
    defaults::settle(&schemas(), &mut sent);
    assert_eq!(sent, schema(json!({"name": "a"})));
}

#[test]
fn nested_defaults_are_settled_at_the_cost_of_one() {
    const LEVELS: usize = 60;
    let schemas = schemas();
    let bytes = |with_default: usize| {
        let leaves = (0..1000).map(|at| (format!("f{at}"), json!({"type": "string"})));
        let mut schema = json!({"type": "object", "properties": (leaves.collect::<Map>())});
        for level in 0..LEVELS {
            schema = json!({"type": "object", "properties": {"a": schema}});
            if level < with_default {
                schema.set(&["default"], Value::object());
            }
        }
        allocation_counter::measure(|| defaults::settle(&schemas, &mut schema)).bytes_total
    };
    let one = bytes(1);
    assert!(one > 0, "allocations are counted");
    assert!(bytes(LEVELS) < 2 * one, "{one} bytes for one");
}

/// Upstream keeps fields and schemas that all versions share once for all of them, and wants both in one place.
#[test]
fn too_many_selectable_fields_may_stay_where_they_were() {
    let version = |name: &str, title: &str, fields: usize| {
        let properties = (0..9).map(|at| (format!("f{at}"), json!({"type": "string"})));
        let properties: Map = properties.collect();
        let tree = json!({"type": "object", "title": title, "properties": properties});
        let fields = (0..fields).map(|at| json!({"jsonPath": (format!(".f{at}"))}));
        let fields: Vec<Value> = fields.collect();
        json!({"name": name, "schema": {"openAPIV3Schema": tree}, "selectableFields": fields})
    };
    let is_full = |old: Vec<Value>, new: Vec<Value>| {
        let [old, new] = [old, new].map(|versions| json!({"spec": {"versions": versions}}));
        let (mut errors, ratchet) = (Complaints::default(), Ratchet::of_update(&new, &old));
        spec::validate(&schemas(), &mut errors, &new["spec"], &ratchet);
        let is_meant = |text: &String| text.contains("selectableFields: Too many: 9");
        ours(&errors).iter().any(is_meant)
    };
    let one = |name: &str, fields: usize| vec![version(name, "", fields)];
    let same = || vec![version("v1", "", 9), version("v2", "", 9)];
    let different = |second: usize| vec![version("v1", "1", 9), version("v2", "2", second)];
    assert!(is_full(one("v1", 8), one("v1", 9)));
    assert!(!is_full(one("v1", 9), one("v1", 9)));
    assert!(!is_full(one("v1", 9), one("v2", 9)), "of all versions");
    assert!(!is_full(one("v1", 9), same()), "of all versions");
    assert!(is_full(one("v1", 9), different(1)), "of one version now");
    assert!(is_full(different(1), one("v1", 9)), "of all versions now");
    assert!(!is_full(different(1), different(2)), "of the same version");
}

/// A server of the release before must be able to go on with what is stored.
#[test]
fn only_expressions_that_are_stored_may_use_functions_of_the_latest_release() {
    let tree = |rule: &str, message: &str| {
        let rule = json!({"rule": rule, "messageExpression": message});
        let list = json!({
            "type": "array",
            "maxItems": 4i64,
            "items": {"type": "string", "maxLength": 4i64},
            "x-kubernetes-validations": [rule],
        });
        json!({"type": "object", "properties": {"list": list}})
    };
    let complaints = |old: &Value, new: &Value| {
        let [stored, written] = [old, new].map(|schema| {
            let version = json!({"name": "v1", "schema": {"openAPIV3Schema": (schema.clone())}});
            json!({"spec": {"versions": [version]}})
        });
        let checks = Checks {
            schemas: &schemas(),
            ratchet: &Ratchet::of_update(&written, &stored),
            structure: true,
            charge: Charge::EachRule,
            budget: &WorkBudget::for_definition(),
        };
        ours(&schema::validate(new, checks, &Path::NIL))
    };
    let plain = tree("true", "'no'");
    let rule = tree("self.includes('a')", "'no'");
    let message = tree("true", "self.includes('a') ? 'a' : 'no'");
    for latest in [&rule, &message] {
        let refused = complaints(&plain, latest);
        let [complaint] = refused.as_slice() else {
            panic!("one complaint: {refused:?}");
        };
        assert!(complaint.contains("undeclared reference to 'includes'"));
        assert_eq!(complaints(latest, latest), Vec::<String>::new());
    }
}
