//! Single walks over objects.

use polyplane_apimachinery::json;
use polyplane_apimachinery::value::Value;
use polyplane_managedfields::{
    Duplicates, Faults, Position, compare, equal, extract, field_set, merge, reconcile, remove,
    validate, with_named_fields,
};

use crate::vectors::{Tally, Vectors, same, set, text};

#[test]
fn objects_are_walked_as_upstream_does() {
    let vectors = Vectors::read("objects.jsonl.gz");
    let mut tally = Tally::default();
    for line in &vectors.lines {
        tally.check(line, walk(line, &vectors));
    }
    tally.report("objects");
}

fn walk(line: &Value, vectors: &Vectors) -> Result<(), String> {
    let mut schema = vectors.schema(line);
    let root = schema.resolve(&line["type"]);
    let at = Position::root(schema.at(root));
    let (a, b) = (&line["a"], &line["b"]);
    match line.str_at(&["op"]) {
        "validate" => {
            let duplicates = match line.bool_at(&["duplicates"]) {
                true => Duplicates::Allowed,
                false => Duplicates::Refused,
            };
            faults(
                validate(at, a, duplicates).map(|()| String::new()),
                "",
                line,
            )
        }
        "field_set" => same(&text(&field_set(at, a)), line.str_at(&["out"])),
        "merge" => match (merge(at, a, b), line["error"].as_str()) {
            (Ok(merged), None) => object(&merged, &line["out"]),
            (merged, _) => faults(merged.map(|merged| json::to_string(&merged)), "", line),
        },
        "compare" => {
            let show = |of: [String; 3]| of.join("\n       ");
            let wanted = ["added", "modified", "removed"];
            let wanted = wanted.map(|name| line.str_at(&["out", name]).to_owned());
            let got = compare(at, a, b)
                .map(|got| show([text(&got.added), text(&got.modified), text(&got.removed)]));
            faults(got, &show(wanted), line)
        }
        "remove" => {
            let mut rest = a.clone();
            remove(at, &mut rest, &set(&line["set"]));
            object(&rest, &line["out"])
        }
        "extract" => {
            let mut wanted = set(&line["set"]);
            if line.bool_at(&["keys"]) {
                wanted = wanted.with_keys(&field_set(at, a));
            }
            object(&extract(at, a, &wanted), &line["out"])
        }
        "reconcile" => {
            let got = reconcile(at, &set(&line["set"])).as_ref().map(text);
            same(got.as_deref().unwrap_or_default(), line.str_at(&["out"]))
        }
        "named" => {
            let got = with_named_fields(at, &set(a));
            same(&text(&got), line.str_at(&["out"]))
        }
        other => Err(format!("unknown operation {other}")),
    }
}

fn object(got: &Value, wanted: &Value) -> Result<(), String> {
    if equal(got, wanted) {
        return Ok(());
    }
    same(&json::to_string(got), &json::to_string(wanted))
}

/// Compares a result or its faults.
pub fn faults(got: Result<String, Faults>, wanted: &str, line: &Value) -> Result<(), String> {
    // Trees from YAML have another Go type than those of requests.
    let error = line
        .str_at(&["error"])
        .replace("map[interface {}]", "map[string]");
    match (got, error.as_str()) {
        (Ok(got), "") => same(&got, wanted),
        (Ok(got), error) => Err(format!("got  {got}\n  want the error {error}")),
        // Upstream visits members in the order of a Go map.
        (Err(faults), error) => {
            let sorted = |text: &str| {
                let mut lines: Vec<&str> = text.lines().collect();
                lines.sort_unstable();
                lines.join("\n")
            };
            same(&sorted(&faults.to_string()), &sorted(error))
        }
    }
}
