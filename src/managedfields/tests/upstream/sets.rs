//! Sets, elements and their stored form.

use std::cmp::Ordering;

use polyplane_apimachinery::value::Value;
use polyplane_managedfields::{Conflict, Conflicts, FieldSet, Filter, PathElement, Pattern, equal};

use crate::vectors::{
    Tally, Vectors, element, managers, path, pattern, same, set, show_managers, text,
};

#[test]
fn sets_are_combined_as_upstream_does() {
    let vectors = Vectors::read("sets.jsonl.gz");
    let mut tally = Tally::default();
    for line in &vectors.lines {
        tally.check(line, combine(line));
    }
    tally.report("sets");
}

fn combine(line: &Value) -> Result<(), String> {
    let (a, b) = (set(&line["a"]), set(&line["b"]));
    let got = match line.str_at(&["op"]) {
        "union" => a.union(&b),
        "intersection" => {
            let both = a.intersection(&b);
            assert_eq!(a.intersects(&b), !both.is_empty());
            both
        }
        "difference" => {
            let rest = a.difference(&b);
            assert_eq!(a.is_subset(&b), rest.is_empty());
            rest
        }
        "recursive_difference" => a.recursive_difference(&b),
        "leaves" => a.leaves(),
        "include" => Filter::Include(pattern(&line["pattern"])).apply(&a),
        "patterns" => return patterns(line),
        "has" => {
            let found = a.has(&path(&line["path"]).0);
            return same(&found.to_string(), &line.bool_at(&["out"]).to_string());
        }
        "equals" => return same(&(a == b).to_string(), &line.bool_at(&["out"]).to_string()),
        "set_text" => return same(&a.to_string(), line.str_at(&["out"])),
        "managers_difference" => {
            let (a, b) = (managers(&line["a"]), managers(&line["b"]));
            let wanted = managers(&line["out"]);
            let got = a.symmetric_difference(&b);
            return same(&show_managers(&got), &show_managers(&wanted));
        }
        other => return Err(format!("unknown operation {other}")),
    };
    same(&text(&got), line.str_at(&["out"]))
}

fn patterns(line: &Value) -> Result<(), String> {
    let parts = line.items_at(&["parts"]).iter().map(pattern);
    let joined = parts.reduce(Pattern::or).unwrap_or(Pattern::All);
    same(
        &format!("{joined:?}"),
        &format!("{:?}", pattern(&line["out"])),
    )
}

#[test]
fn sets_are_stored_as_upstream_does() {
    let vectors = Vectors::read("serialize.jsonl.gz");
    let mut tally = Tally::default();
    for line in &vectors.lines {
        tally.check(line, store(line));
    }
    tally.report("serialize");
}

fn store(line: &Value) -> Result<(), String> {
    let wanted = line.str_at(&["out"]);
    let is_refused = line["error"].as_str().is_some();
    let refused = |error: String| match is_refused {
        true => Ok(()),
        false => Err(error),
    };
    match line.str_at(&["op"]) {
        "write" => {
            let paths: Vec<_> = line.items_at(&["paths"]).iter().map(path).collect();
            let set: FieldSet = paths.iter().map(|path| path.0.as_slice()).collect();
            same(&text(&set), wanted)
        }
        "read" => match FieldSet::from_json(line.str_at(&["in"]).as_bytes()) {
            Ok(set) if !is_refused => same(&text(&set), wanted),
            Ok(set) => Err(format!("was read: {set:?}")),
            Err(error) => refused(format!("{error:?}")),
        },
        "read_element" => match PathElement::read(line.str_at(&["in"])) {
            Ok(Some(read)) if !is_refused => same(&read.name(), &element(&line["out"]).name()),
            Ok(None) if line["error"].as_str() == Some("unknown path element type") => Ok(()),
            Ok(read) => Err(format!("was read: {read:?}")),
            Err(error) => refused(format!("{error:?}")),
        },
        "write_element" if line["in"][0].as_str() == Some("none") => Ok(()),
        "write_element" => same(&element(&line["in"]).name(), wanted),
        "order" => order(&element(&line["a"]), &element(&line["b"]), line),
        "value_order" => order(
            &PathElement::value(line["a"].clone()),
            &PathElement::value(line["b"].clone()),
            line,
        ),
        "value_equals" => {
            let got = equal(&line["a"], &line["b"]);
            same(&got.to_string(), &line.bool_at(&["out"]).to_string())
        }
        "path_text" => same(&path(&line["path"]).to_string(), wanted),
        "conflicts_text" => {
            let list = line.items_at(&["in"]).iter().map(|pair| Conflict {
                manager: pair[0].as_str().expect("a manager").into(),
                fields: [path(&pair[1]).0.as_slice()].into_iter().collect(),
            });
            let mut list: Vec<Conflict> = list.collect();
            list.sort_by(|a, b| a.manager.cmp(&b.manager));
            same(&Conflicts(list).to_string(), wanted)
        }
        other => Err(format!("unknown operation {other}")),
    }
}

fn order(a: &PathElement, b: &PathElement, line: &Value) -> Result<(), String> {
    let got = match a.cmp(b) {
        Ordering::Less => -1i64,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    };
    same(
        &got.to_string(),
        &line.int_at(&["out"]).unwrap_or(9).to_string(),
    )
}
