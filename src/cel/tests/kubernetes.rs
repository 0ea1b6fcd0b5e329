//! What the environment of Kubernetes 1.37 says of the expressions in upstream's tests: complaints,
//! estimated costs, costs and outcomes. What differs is named in a list that may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use polyplane_cel::{Environment, Program, Range, Sizes, Type, Value, check, estimate, parse};
use serde_json::Value as Json;

/// The cost at which Kubernetes stops an evaluation.
const COST_MAX: u64 = 1_000_000;

struct Unknown;

impl Sizes for Unknown {
    fn size(&self, _: &[Arc<str>], _: &Type) -> Option<Range> {
        None
    }
}

/// The aspects in which an expression differs, each with what was found.
type Differences = Vec<(&'static str, String)>;

fn number(case: &Json, name: &str, at: usize) -> Option<u64> {
    let found = case.get(name)?;
    let found = found.get(at).unwrap_or(found);
    found.as_str()?.parse().ok()
}

fn replay(case: &Json, environment: &Arc<Environment>) -> Differences {
    let text = |name: &str| case.get(name).and_then(Json::as_str);
    let expression = text("expr").unwrap_or_default();
    let checked = parse(expression, &environment.syntax).and_then(|ast| check(ast, environment));
    let checked = match (checked, text("complaint")) {
        (Ok(_), Some(_)) => return vec![("complaint", "accepted".to_owned())],
        (Err(issues), None) => return vec![("complaint", issues.to_string())],
        (Err(issues), Some(expected)) => {
            let found = issues.to_string();
            return if found == expected {
                Vec::new()
            } else {
                vec![("text of the complaint", found)]
            };
        }
        (Ok(checked), None) => checked,
    };
    let mut different = Vec::new();
    let range = estimate(&checked, &Unknown, 0);
    let expected = (number(case, "estimate", 0), number(case, "estimate", 1));
    if expected != (Some(range.min), Some(range.max)) {
        different.push(("estimate", format!("{range:?}")));
    }
    if text("type") != Some(&checked.result().to_string()) {
        different.push(("type", checked.result().to_string()));
    }
    let program = Program::checked(&checked, environment);
    if let Some(why) = program.broken() {
        if text("fault") != Some(why) {
            different.push(("fault", why.to_owned()));
        }
        return different;
    }
    let evaluated = program.evaluate(&[], COST_MAX);
    if let Some(cost) = number(case, "cost", 0)
        && cost != evaluated.cost
    {
        different.push(("cost", evaluated.cost.to_string()));
    }
    match (evaluated.outcome, text("fault")) {
        (Ok(value), Some(_)) => different.push(("fault", format!("{value:?}"))),
        (Err(fault), None) => different.push(("fault", fault.to_string())),
        (Err(fault), Some(expected)) if fault.to_string() != expected => {
            different.push(("text of the fault", fault.to_string()));
        }
        (Ok(Value::Bool(value)), None)
            if case.get("bool").and_then(Json::as_bool) != Some(value) =>
        {
            different.push(("value", value.to_string()));
        }
        _ => {}
    }
    different
}

#[test]
fn upstreams_environment_agrees_but_for_a_list_that_only_shrinks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let cases = fs::read_to_string(folder.join("kubernetes.jsonl")).expect("they are committed");
    let environment = Arc::new(Environment::kubernetes());
    let (mut failed, mut total, mut equal) = (Vec::new(), 0, 0);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in cases.lines() {
        let case: Json = serde_json::from_str(line).expect("a line is JSON");
        total += 1;
        let different = replay(&case, &environment);
        equal += usize::from(different.is_empty());
        let expression = case.get("expr").and_then(Json::as_str).unwrap_or_default();
        for (aspect, found) in different {
            *counts.entry(aspect).or_default() += 1;
            let found = found.replace('\n', " ");
            failed.push((format!("{aspect}: {expression:?}"), found));
        }
    }
    println!("kubernetes {equal} of {total}; different: {counts:?}");
    assert!(total > 500, "only {total} expressions were found");
    compare(&folder.join("kubernetes_failing.txt"), &failed);
}

/// Compares what differs with the list of what may, which only shrinks.
fn compare(list_path: &Path, failed: &[(String, String)]) {
    if std::env::var_os("RECORD").is_some() {
        let lines: String = failed
            .iter()
            .map(|(name, found)| format!("{name}\t{found}\n"))
            .collect();
        fs::write(list_path, lines).expect("the list can be written");
    }
    let listed = fs::read_to_string(list_path).unwrap_or_default();
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    let found: BTreeSet<&str> = failed.iter().map(|row| row.0.as_str()).collect();
    let new: Vec<&(String, String)> = failed
        .iter()
        .filter(|row| !listed.contains(row.0.as_str()))
        .collect();
    assert!(new.is_empty(), "differ, but are not listed: {new:#?}");
    let repaired: Vec<&&str> = listed.difference(&found).collect();
    assert!(
        repaired.is_empty(),
        "agree, so take them out of the list: {repaired:?}"
    );
}

#[test]
fn the_first_complaint_about_a_broken_expression_is_upstreams() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let cases = fs::read_to_string(folder.join("broken.jsonl")).expect("they are committed");
    let environment = Environment::kubernetes();
    let (mut failed, mut total) = (Vec::new(), 0);
    for line in cases.lines() {
        let case: Json = serde_json::from_str(line).expect("a line is JSON");
        total += 1;
        let text = |name: &str| case.get(name).and_then(Json::as_str).unwrap_or_default();
        let checked = parse(text("expr"), &environment.syntax)
            .and_then(|ast| check(ast, &environment).map(|_| ()));
        let found = checked.err().map(|issues| issues.to_string());
        let found = found.as_deref().and_then(|text| text.lines().next());
        let found = found.unwrap_or_default();
        if found != text("complaint") {
            let expression = text("expr");
            failed.push((format!("{expression:?}"), found.to_owned()));
        }
    }
    println!("broken {} of {total}", total - failed.len());
    assert!(total > 500, "only {total} expressions were found");
    compare(&folder.join("broken_failing.txt"), &failed);
}

/// Upstream registers the types of addresses alone.
#[test]
fn names_of_library_types_are_values_as_far_as_upstream_registers_them() {
    let environment = Environment::kubernetes();
    let is_known = |name: &str| {
        let ast = parse(&format!("type(1) == {name}"), &environment.syntax).expect(name);
        check(ast, &environment).is_ok()
    };
    for name in ["int", "optional_type", "net.IP", "net.CIDR"] {
        assert!(is_known(name), "{name}");
    }
    for name in [
        "kubernetes.Quantity",
        "kubernetes.Semver",
        "kubernetes.URL",
        "kubernetes.NamedFormat",
        "kubernetes.authorization.Authorizer",
    ] {
        assert!(!is_known(name), "{name}");
    }
}
