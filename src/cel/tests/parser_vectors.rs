//! The table of upstream's parser tests: which inputs parse, and what is said of the others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use polyplane_cel::{Syntax, parse};
use serde_json::Value as Json;

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns why a case fails. Of complaints upstream goes on behind the first one; here each
/// complaint must be one of upstream's.
fn replay(case: &Json) -> Result<(), String> {
    let text = |name: &str| case.get(name).and_then(Json::as_str);
    let mut syntax = Syntax::kubernetes();
    syntax.depth_max = 32;
    let parsed = parse(text("I").unwrap_or_default(), &syntax);
    match (parsed, text("E")) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(_)) => Err("is accepted".to_owned()),
        (Err(issues), None) => Err(issues.to_string()),
        (Err(issues), Some(expected)) => {
            let expected = squeezed(expected);
            let strange = issues.all().iter().find(|issue| {
                let line = squeezed(&issue.text);
                !expected.contains(&line)
            });
            match strange {
                None => Ok(()),
                Some(issue) => Err(issue.text.clone()),
            }
        }
    }
}

#[test]
fn upstreams_table_agrees_but_for_a_list_that_only_shrinks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let cases = fs::read_to_string(folder.join("parser.jsonl")).expect("the cases are committed");
    let (mut failed, mut total) = (Vec::new(), 0);
    for line in cases.lines() {
        let case: Json = serde_json::from_str(line).expect("a line is JSON");
        // Other options than the table's own: no optional syntax, no quoted names, other macros.
        if case.get("options").is_some() {
            continue;
        }
        total += 1;
        if let Err(why) = replay(&case) {
            let input = case.get("I").and_then(Json::as_str).unwrap_or_default();
            failed.push((format!("{input:?}"), why));
        }
    }
    println!("parser {} of {total}", total - failed.len());
    assert!(total > 100, "only {total} cases were found");
    let list_path = folder.join("parser_failing.txt");
    if std::env::var_os("RECORD").is_some() {
        let lines: String = failed
            .iter()
            .map(|(input, why)| format!("{input}\t{}\n", squeezed(why)))
            .collect();
        fs::write(&list_path, lines).expect("the list can be written");
    }
    let listed = fs::read_to_string(&list_path).unwrap_or_default();
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    let found: BTreeSet<&str> = failed.iter().map(|row| row.0.as_str()).collect();
    let new: Vec<&(String, String)> = failed
        .iter()
        .filter(|row| !listed.contains(row.0.as_str()))
        .collect();
    assert!(new.is_empty(), "fail, but are not listed: {new:#?}");
    let repaired: Vec<&&str> = listed.difference(&found).collect();
    assert!(
        repaired.is_empty(),
        "pass, so take them out of the list: {repaired:?}"
    );
}
