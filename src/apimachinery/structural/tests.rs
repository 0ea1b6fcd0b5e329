//! Custom objects compared with upstream's code, which `batteries/generate/structural` runs. The
//! inputs are those of upstream's tests and random ones.

use std::collections::BTreeMap;

use super::{Custom, Reading, Structural, StructuralError};
use crate::complaints::{BYTES_MAX, COUNT_MAX, PATH_BYTES_MAX, STEP_BYTES_MAX};
use crate::field_error::{FieldError, Path};
use crate::json;
use crate::schema::fixture::{SCHEMAS, tree};
use crate::shape::prune::{PATHS_MAX, Report, Root};
use crate::shape::{Shape, defaults, lists, nulls, prune};
use crate::value::{Map, Value};
use crate::vectors::vectors;

fn metadata() -> crate::schema::DefId {
    let name = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    SCHEMAS.find(name).expect("all kinds have metadata")
}

/// The number of equal answers of an engine, and the first different ones.
#[derive(Default)]
struct Tally {
    agreed: usize,
    total: usize,
    shown: Vec<String>,
}

impl Tally {
    fn compare(&mut self, row: &Value, ours: &str, theirs: &str) {
        self.total += 1;
        if ours == theirs {
            self.agreed += 1;
        } else if self.shown.len() < 3 {
            self.shown.push(format!(
                "schema {}\n  object {}\n  ours   {ours}\n  theirs {theirs}",
                json::to_string(&row["schema"]),
                json::to_string(&row["object"]),
            ));
        }
    }
}

fn with_unknown(value: &Value, unknown: &[String]) -> String {
    format!("{} {unknown:?}", json::to_string(value))
}

fn theirs(answer: &Value) -> String {
    match answer.str_at(&["error"]) {
        "" => {
            let unknown = answer.items_at(&["unknown"]).iter();
            let unknown = unknown.filter_map(|path| path.as_str().map(str::to_owned));
            with_unknown(&answer["out"], &unknown.collect::<Vec<_>>())
        }
        error => format!("error {error}"),
    }
}

fn pruned(schema: &Structural, object: &Value, root: Root) -> String {
    let mut value = object.clone();
    let unknown = prune::prune(schema.root(), &mut value, root, Report::Paths);
    with_unknown(&value, &unknown)
}

fn read(schema: &Structural, object: &Value, reading: Reading) -> String {
    let custom = Custom::new(schema, &SCHEMAS, metadata());
    let mut value = object.clone();
    let report = match reading {
        Reading::Request => Report::Paths,
        Reading::Stored => Report::Nothing,
    };
    match custom.decode(&mut value, reading, report) {
        Err(error) => format!("error {error}"),
        Ok(problems) => {
            custom.default(&mut value).expect("they are small");
            let path = |problem| match problem {
                crate::schema::decode::Problem::Unknown(path)
                | crate::schema::decode::Problem::Duplicate(path) => path,
            };
            let unknown: Vec<String> = problems.into_iter().map(path).collect();
            with_unknown(&value, &unknown)
        }
    }
}

#[test]
fn custom_objects_are_read_as_upstream_reads_them() {
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut from_upstream = 0;
    for row in vectors("structural") {
        from_upstream += usize::from(row.str_at(&["from"]) == "upstream");
        let schema = Structural::parse(&row["schema"]).expect("upstream takes the schema");
        let object = &row["object"];
        let mut compare = |engine: &'static str, ours: &str, theirs: &str| {
            let tally = tallies.entry(engine).or_default();
            tally.compare(&row, ours, theirs);
        };
        let prune = pruned(&schema, object, Root::Resource);
        compare("prune", &prune, &theirs(&row["prune"]));
        let prune = pruned(&schema, object, Root::Value);
        compare("prune a part", &prune, &theirs(&row["pruneValue"]));
        let mut value = object.clone();
        nulls::drop(schema.root(), &mut value);
        let expected = json::to_string(&row["nulls"]);
        compare("nulls", &json::to_string(&value), &expected);
        let mut value = object.clone();
        defaults::apply(schema.root(), &mut value).expect("they are small");
        let expected = json::to_string(&row["default"]);
        compare("default", &json::to_string(&value), &expected);
        let is_changed = value != *object;
        let lacks = defaults::lacks(schema.root(), object);
        assert_eq!(lacks, is_changed, "{}", json::to_string(object));
        if object.as_object().is_none() {
            continue;
        }
        let errors = lists::validate(schema.root(), object, &Path::NIL);
        let mut errors: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        errors.sort();
        let expected: Vec<&str> = row
            .items_at(&["lists"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        compare("lists", &format!("{errors:?}"), &format!("{expected:?}"));
        for (engine, member, reading) in [
            ("request", "request", Reading::Request),
            ("stored", "stored", Reading::Stored),
        ] {
            compare(
                engine,
                &read(&schema, object, reading),
                &theirs(&row[member]),
            );
        }
    }
    let mut shown = String::new();
    for (engine, tally) in &tallies {
        println!("{engine}: {} of {} agree", tally.agreed, tally.total);
        for text in &tally.shown {
            shown.push_str(&format!("{engine}: {text}\n"));
        }
    }
    assert!(
        from_upstream > 100,
        "{from_upstream} of upstream's own inputs"
    );
    let total: usize = tallies.values().map(|tally| tally.total).sum();
    assert!(
        total > 4000 && shown.is_empty(),
        "{total} compared\n{shown}"
    );
}

#[test]
fn what_cannot_be_represented_is_refused_with_its_place() {
    let refused = |text: &str| match Structural::parse(&tree(text)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{text} was taken"),
    };
    for (schema, complaint) in [
        (r#"[]"#, "openAPIV3Schema: must be an object"),
        (
            r#"{"properties":{"a":{"type":7}}}"#,
            "openAPIV3Schema.properties[a].type: must be a string",
        ),
        (
            r#"{"type":"file"}"#,
            "openAPIV3Schema.type: must be array, boolean, integer, number, object or string",
        ),
        (
            r#"{"items":[{}]}"#,
            "openAPIV3Schema.items: must be an object",
        ),
        (
            r#"{"additionalProperties":{"items":{"nullable":"yes"}}}"#,
            "openAPIV3Schema.additionalProperties.items.nullable: must be true or false",
        ),
        (
            r#"{"x-kubernetes-preserve-unknown-fields":false}"#,
            "openAPIV3Schema.x-kubernetes-preserve-unknown-fields: must be true or absent",
        ),
        (
            r#"{"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":[1]}"#,
            "openAPIV3Schema.x-kubernetes-list-map-keys: must be a list of strings",
        ),
        (
            r##"{"$ref":"#/definitions/a"}"##,
            "openAPIV3Schema.$ref: is not supported",
        ),
    ] {
        assert_eq!(refused(schema), complaint);
    }
}

#[test]
fn schemas_are_bounded_in_depth_and_size() {
    let nested = |levels: usize| {
        let mut schema = crate::json!({});
        for _ in 0..levels {
            schema = crate::json!({"items": (schema)});
        }
        Structural::parse(&schema)
    };
    assert!(nested(127).is_ok());
    assert_eq!(nested(128).map(|_| ()), Err(StructuralError::TooDeep));
    let wide = |fields: usize| {
        let fields = (0..fields).map(|at| (format!("f{at}"), Value::object()));
        let properties = Value::Object(fields.collect());
        Structural::parse(&crate::json!({"properties": (properties)}))
    };
    assert!(wide((1 << 17) - 1).is_ok());
    assert_eq!(wide(1 << 17).map(|_| ()), Err(StructuralError::TooLarge));
}

#[test]
fn lists_and_maps_say_how_they_relate() {
    let schema = tree(
        r#"{"type":"object","properties":{
            "l":{"type":"array","items":{"type":"object"},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"]},
            "m":{"type":"object","additionalProperties":{"type":"integer"},"x-kubernetes-map-type":"atomic"}}}"#,
    );
    let schema = Structural::parse(&schema).expect("a good schema");
    let child = |name| schema.root().child(name).expect("the field is there");
    assert_eq!(
        child("l").list(),
        &crate::schema::ListType::Map(vec!["k".into()])
    );
    assert_eq!(child("m").map(), crate::shape::MapType::Atomic);
    assert_eq!(child("m").kind(), crate::shape::Kind::Map);
    let value = child("m").member("any").expect("a map has values");
    assert_eq!(value.kind(), crate::shape::Kind::Int64);
}

/// A member name of 1 MB stood in each of ten thousand complaints.
#[test]
fn complaints_below_a_long_name_are_bounded_in_number_and_bytes() {
    let name = "n".repeat(1 << 20);
    let schema = json!({"type": "object", "additionalProperties": {
        "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"},
    }});
    let schema = Structural::parse(&schema).expect("it is structural");
    let twice = |at: usize| [Value::string(at.to_string()), Value::string(at.to_string())];
    let items: Vec<Value> = (0..2 * COUNT_MAX).flat_map(twice).collect();
    for (name, count) in [
        ("a", COUNT_MAX),
        (name.as_str(), BYTES_MAX / STEP_BYTES_MAX),
    ] {
        let object: Map = [(name, Value::from(items.clone()))].into_iter().collect();
        let errors = lists::validate(schema.root(), &Value::Object(object), &Path::NIL);
        let bytes: usize = errors.iter().map(FieldError::bytes).sum();
        assert!(
            !errors.is_empty() && errors.len() <= count,
            "{} complaints",
            errors.len()
        );
        assert!(bytes < BYTES_MAX + PATH_BYTES_MAX, "{bytes} bytes");
    }
}

/// An object may embed a hundred thousand others, each with an unknown member, below a long name.
#[test]
fn paths_of_unknown_members_are_bounded_in_number_and_bytes() {
    let schema = json!({"type": "object", "additionalProperties": {"type": "array", "items": {
        "type": "object", "properties": {"a": {"type": "string"}}, "x-kubernetes-embedded-resource": true,
    }}});
    let schema = Structural::parse(&schema).expect("it is structural");
    let custom = Custom::new(&schema, &SCHEMAS, metadata());
    let item = json!({"x": 1i64, "metadata": {"y": 1i64}});
    let items = vec![item; 1000];
    let name = "n".repeat(1 << 20);
    let object: Map = [(name.as_str(), Value::from(items))].into_iter().collect();
    for (report, count) in [(Report::Paths, 2 * PATHS_MAX), (Report::Nothing, 0)] {
        let mut object = Value::Object(object.clone());
        let decoded = custom.decode(&mut object, Reading::Request, report);
        let problems = decoded.expect("it can be decoded");
        assert_eq!(problems.len(), count);
        let mut texts = problems.iter().map(ToString::to_string);
        assert!(texts.all(|text| text.len() < 2 * STEP_BYTES_MAX));
        let item = &object[name.as_str()][0];
        assert!(item.get("x").is_none() && item["metadata"].get("y").is_none());
    }
}

/// A default below the items of a list multiplies: 400 KB of empty items became gigabytes.
#[test]
fn defaults_that_multiply_end_with_an_error() {
    let text = "x".repeat(20_000);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "list": {"type": "array", "items": {"type": "object", "properties": {
            "a": {"type": "string", "default": (text)},
        }}},
    }}}});
    let schema = Structural::parse(&schema).expect("it is structural");
    let custom = Custom::new(&schema, &SCHEMAS, metadata());
    for (items, fits) in [(50, true), (100_000, false)] {
        let items = vec![Value::object(); items];
        let mut object = json!({"spec": {"list": (items)}});
        assert_eq!(custom.default(&mut object).is_ok(), fits);
        let set = object["spec"].items_at(&["list"]).iter();
        let set = set.filter(|item| item.get("a").is_some()).count();
        assert_eq!(set == 50, fits);
        assert!(set < 500, "{set} are set");
    }
}

/// A schema of fifty thousand fields, with a default below each, was walked for each empty item.
#[test]
fn defaults_of_a_wide_schema_are_those_of_its_members_and_of_its_own() {
    let deep = json!({"type": "object", "properties": {"x": {"type": "string", "default": "d"}}});
    let own = json!({"type": "string", "default": "o"});
    let fields = |width: usize| {
        let mut fields: Map = (0..width)
            .map(|at| (format!("f{at}"), deep.clone()))
            .collect();
        fields.insert("own", own.clone());
        fields
    };
    for width in [1, 50_000] {
        let properties = fields(width);
        let schema =
            json!({"type": "array", "items": {"type": "object", "properties": (properties)}});
        let schema = Structural::parse(&schema).expect("it is structural");
        let mut items = vec![json!({"own": "given"}); 10_000];
        items[7]["f0"] = Value::object();
        items[8] = json!({"f0": {"x": "given"}});
        let mut value = Value::from(items);
        assert!(defaults::lacks(schema.root(), &value));
        defaults::apply(schema.root(), &mut value).expect("they are small");
        assert!(!defaults::lacks(schema.root(), &value));
        assert_eq!(value[6], json!({"own": "given"}));
        assert_eq!(value[7], json!({"own": "given", "f0": {"x": "d"}}));
        assert_eq!(value[8], json!({"own": "o", "f0": {"x": "given"}}));
    }
}
