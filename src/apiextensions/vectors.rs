//! What upstream's own tests of custom kinds call, and what came back: `testdata/README.md` says
//! which. What differs is named in `testdata/failing.txt`, which may only shrink.
//!
//! `RECORD=1 cargo test -p polyplane-apiextensions` writes the list anew.

use crate::definition::Column;
use crate::embedded;
use crate::json_path::JsonPath;
use crate::rules::definition::estimates;
use crate::rules::{Limits, Rules, Steps, Write, find_field};
use crate::table::Columns;
use crate::validation::{Change, Schema, validate};
use flate2::read::GzDecoder;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::{self, Limits as JsonLimits};
use polyplane_apimachinery::structural::Structural;
use polyplane_cel::WorkBudget;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;

const FILES: [&str; 6] = [
    "rules",
    "costs",
    "values",
    "columns",
    "field_paths",
    "embedded",
];

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn lines(name: &str) -> Vec<String> {
    let file = fs::File::open(folder().join(format!("{name}.jsonl.gz")));
    let mut text = String::new();
    GzDecoder::new(file.expect("vectors are committed"))
        .read_to_string(&mut text)
        .expect("vectors are gzip of UTF-8");
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// What a case is called in the list: the test, a sum of the line, and a part of the line that a
/// reader knows it by.
fn name(file: &str, line: &str, case: &Value) -> String {
    let sum = line.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let rules = case["schema"]
        .items_at(&["x-kubernetes-validations"])
        .iter();
    let rules: Vec<&str> = rules.map(|rule| rule.str_at(&["rule"])).collect();
    let known_by = match case.str_at(&["path"]) {
        path if matches!(file, "columns" | "field_paths") => path.to_owned(),
        _ => rules.join("; ").chars().take(80).collect(),
    };
    let from = case.str_at(&["from"]);
    format!(
        "{file} {sum:016x} {from}: {}",
        known_by.replace(['\n', '\t'], " ")
    )
}

fn number(case: &Value, name: &str) -> Option<i128> {
    case.str_at(&[name]).parse().ok()
}

/// Returns complaints as they are recorded, sorted: upstream's order is that of a Go map.
fn ours(errors: &[FieldError]) -> Vec<String> {
    let texts = errors
        .iter()
        .map(|error| format!("{} {}: {}", error.kind.reason(), error.field, error.body()));
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

fn theirs(case: &Value) -> Vec<String> {
    let texts = case.items_at(&["errors"]).iter().map(|error| {
        let text = |name: &str| error.str_at(&[name]);
        format!("{} {}: {}", text("type"), text("field"), text("message"))
    });
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts
}

/// Returns what differs; `None` if nothing does.
fn difference(ours: &impl std::fmt::Debug, theirs: &impl std::fmt::Debug) -> Option<String> {
    let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
    (ours != theirs).then(|| format!("{ours}, upstream {theirs}"))
}

fn rules(case: &Value) -> Option<String> {
    let schema = &case["schema"];
    let budget = WorkBudget::default();
    let compiled = Rules::compile_part(schema, case.bool_at(&["root"]), &budget);
    let limit = |name: &str| u64::try_from(number(case, name).unwrap_or(0).max(0)).unwrap_or(0);
    let limits = Limits {
        call: limit("limit"),
        object: limit("budget"),
    };
    let write = Write {
        new: &case["object"],
        old: case.get("old").filter(|old| !old.is_null()),
        keeps_unchanged: case.bool_at(&["ratchets"]),
    };
    let known = Schema::compile(schema).expect("upstream's schemas are shallow");
    let place = match case.str_at(&["path"]) {
        "<nil>" => Path::NIL,
        path => Path::new(path),
    };
    let found = compiled.check_within(&known, write, limits, &place, &WorkBudget::default());
    let left = found.left.map_or(-1, i128::from);
    let remaining = number(case, "remaining").map(|left| left.max(-1));
    difference(&ours(&found.errors), &theirs(case)).or_else(|| difference(&Some(left), &remaining))
}

fn costs(case: &Value) -> Option<String> {
    let ours = estimates(&case["schema"], case.bool_at(&["root"]))
        .into_iter()
        .map(|estimate| {
            let cardinality = estimate.rule.is_ok().then_some(estimate.times_max);
            let (cost, error) = parts(Some(estimate.rule));
            let (message_cost, message_error) = parts(estimate.message);
            let times = cardinality.map(|times| times.to_string());
            (
                estimate.uses_old,
                cost,
                times,
                error,
                message_cost,
                message_error,
            )
        });
    let theirs = case.items_at(&["results"]).iter().map(|result| {
        let text = |name: &str| result.get(name).and_then(Value::as_str).map(str::to_owned);
        let uses_old = result.bool_at(&["uses_old"]);
        let (cost, times) = (text("cost"), text("cardinality"));
        let message = (text("message_cost"), text("message_error"));
        (uses_old, cost, times, text("error"), message.0, message.1)
    });
    difference(&ours.collect::<Vec<_>>(), &theirs.collect::<Vec<_>>())
}

/// Returns a cost and an error, of which there is one.
fn parts(of: Option<Result<u64, String>>) -> (Option<String>, Option<String>) {
    match of {
        None => (None, None),
        Some(Ok(cost)) => (Some(cost.to_string()), None),
        Some(Err(why)) => (None, Some(why)),
    }
}

fn values(case: &Value) -> Option<String> {
    let schema = Schema::compile(&case["schema"]).expect("upstream's schemas are shallow");
    let new = &case["object"];
    let change = match case.get("old") {
        None => Change::Created(new),
        Some(old) => Change::Updated(new, old),
    };
    let found = validate(&schema, change, None, &WorkBudget::default());
    difference(&ours(&found), &theirs(case))
}

fn embedded(case: &Value) -> Option<String> {
    let structural = Structural::parse(&case["schema"]).expect("upstream's schemas are structural");
    let place = match case.str_at(&["path"]) {
        "<nil>" => Path::NIL,
        path => Path::new(path),
    };
    let found = embedded::validate(structural.root(), &case["object"], &place);
    difference(&ours(&found), &theirs(case))
}

fn field_path(case: &Value) -> Option<String> {
    let steps = match case.bool_at(&["arrays"]) {
        true => Steps::NamesAndKeys,
        false => Steps::Names,
    };
    let found = find_field(case.str_at(&["path"]), &case["schema"], steps);
    let ours = found.map(|found| found.shown);
    let theirs = match case.get("error").and_then(Value::as_str) {
        Some(error) => Err(error.to_owned()),
        None => Ok(case.str_at(&["shown"]).replace("<nil>", "")),
    };
    difference(&ours, &theirs)
}

fn columns(case: &Value) -> Option<String> {
    match case.str_at(&["op"]) {
        "cells" => cells(case),
        _ => path(case),
    }
}

fn path(case: &Value) -> Option<String> {
    let parsed = JsonPath::parse(case.str_at(&["path"]));
    let wanted = case.get("error").is_none();
    let path = match parsed {
        Ok(_) if !wanted => return Some("accepted".to_owned()),
        Ok(path) => path,
        Err(_) if !wanted => return None,
        Err(why) => return Some(why.to_string()),
    };
    let text = |value: &Value| json::to_string(value);
    let mut ours: Vec<String> = path.find(&case["object"]).into_iter().map(text).collect();
    let mut theirs: Vec<String> = case.items_at(&["found"]).iter().map(text).collect();
    // Upstream's order of an object's members is that of a Go map.
    ours.sort();
    theirs.sort();
    difference(&ours, &theirs)
}

fn cells(case: &Value) -> Option<String> {
    let columns = case.items_at(&["columns"]).iter().map(|column| Column {
        name: column.str_at(&["name"]).into(),
        kind: column.str_at(&["type"]).into(),
        format: "".into(),
        description: "".into(),
        priority: 0,
        path: column.str_at(&["jsonPath"]).into(),
    });
    let (columns, _) = Columns::of(&columns.collect::<Vec<_>>());
    let ours = &columns.cells(&case["object"], 0)[1..];
    difference(&ours, &case.items_at(&["cells"]))
}

/// Each test of upstream's packages has its cases counted, and those that call what is recorded. A
/// test with cases that do not is in `not_recorded.tsv`, with the reason.
#[test]
fn cases_of_upstreams_tests_that_are_not_recorded_have_a_reason() {
    let read = |name: &str| {
        let text = fs::read_to_string(folder().join(name)).expect("the tables are committed");
        let lines = text.lines().map(|line| line.split('\t').map(str::to_owned));
        lines.map(Iterator::collect).collect::<Vec<Vec<String>>>()
    };
    let reasons = read("not_recorded.tsv");
    let reason = |test: &str| {
        let mut reasons = reasons.iter();
        reasons.find(|line| line[0] == test).map(|line| &line[1])
    };
    let (mut cases, mut recorded, mut open) = (0, 0, BTreeSet::new());
    for line in read("cases.tsv") {
        let [all, called] = [1, 2].map(|at| line[at].parse::<usize>().expect("a count"));
        cases += all;
        recorded += called;
        if called < all {
            println!("{}: {} of {all} not recorded", line[0], all - called);
            open.insert(line[0].clone());
        }
    }
    println!("upstreams_tests: {recorded} of {cases} cases are recorded");
    let unexplained: Vec<_> = open.iter().filter(|test| reason(test).is_none()).collect();
    assert!(unexplained.is_empty(), "no reason: {unexplained:#?}");
    let settled: Vec<_> = reasons
        .iter()
        .filter(|line| !open.contains(&line[0]))
        .collect();
    assert!(settled.is_empty(), "recorded after all: {settled:#?}");
}

#[test]
fn upstreams_tests_of_custom_kinds_agree_but_for_a_list_that_only_shrinks() {
    let limits = JsonLimits::default();
    let (mut failed, mut found): (Vec<String>, BTreeSet<String>) = Default::default();
    for file in FILES {
        let (mut total, mut equal, mut skipped) = (0, 0, 0);
        for line in lines(file) {
            let case = json::parse(line.as_bytes(), &limits);
            let case = case.expect("a vector is JSON").value;
            total += 1;
            if case.get("skipped").is_some() {
                skipped += 1;
                continue;
            }
            let difference = match file {
                "rules" => rules(&case),
                "costs" => costs(&case),
                "values" => values(&case),
                "field_paths" => field_path(&case),
                "embedded" => embedded(&case),
                _ => columns(&case),
            };
            match difference {
                None => equal += 1,
                Some(difference) => {
                    let name = name(file, &line, &case);
                    failed.push(format!("{name}\t{}", difference.replace('\n', " ")));
                    found.insert(name);
                }
            }
        }
        println!("{file}: {equal} of {total} agree, {skipped} left out");
        assert!(total > 10, "only {total} cases of {file} were found");
    }
    let list = folder().join("failing.txt");
    if std::env::var_os("RECORD").is_some() {
        let text: String = failed.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&list, text).expect("the list can be written");
    }
    let listed = fs::read_to_string(&list).unwrap_or_default();
    let listed: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| Some(line.split_once('\t')?.0.to_owned()))
        .collect();
    let new: Vec<&String> = failed
        .iter()
        .filter(|line| !listed.contains(line.split('\t').next().unwrap_or_default()))
        .collect();
    assert!(new.is_empty(), "differ, but are not listed: {new:#?}");
    let repaired: Vec<&String> = listed.difference(&found).collect();
    assert!(
        repaired.is_empty(),
        "agree: take them out of the list: {repaired:#?}"
    );
}
