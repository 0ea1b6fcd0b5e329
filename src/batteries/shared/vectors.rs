//! Upstream's answers about the expressions in upstream's tests, which `generate/expressions` has written.

use flate2::read::GzDecoder;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// Asks about all expressions of a file, by scope and text, and compares type or cost, or the complaint. What
/// differs is named in a list that may only shrink; `RECORD=1` writes it.
pub(crate) fn compare(name: &str, mut answer: impl FnMut(&str, &str) -> Result<String, String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expressions");
    let file = File::open(folder.join(format!("{name}.jsonl.gz"))).expect("it is committed");
    let list = folder.join(format!("{name}_different.txt"));
    let known = fs::read_to_string(&list).unwrap_or_default();
    let known: BTreeSet<&str> = known.lines().collect();
    let (mut total, mut different) = (0, BTreeSet::new());
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let line = line.expect("it can be read");
        let case: Json = serde_json::from_str(&line).expect("a line is JSON");
        let text = |field: &str| case.get(field).and_then(Json::as_str);
        let (scope, expression) = (text("scope").expect("it has one"), text("expr"));
        let expression = expression.expect("it has one");
        let expected = match text("error") {
            Some(error) => Err(error.to_owned()),
            None => Ok(text("type")
                .or(text("cost"))
                .expect("one of them")
                .to_owned()),
        };
        total += 1;
        let found = answer(scope, expression);
        if found != expected {
            let shown = format!("{scope} {expression:?}");
            if !known.contains(shown.as_str()) {
                println!("{shown}\n  found    {found:?}\n  expected {expected:?}");
            }
            different.insert(shown);
        }
    }
    println!("{name}: {total} expressions, {} different", different.len());
    assert!(total > 500, "only {total} expressions");
    if std::env::var_os("RECORD").is_some() {
        let lines: String = different.iter().map(|one| format!("{one}\n")).collect();
        fs::write(&list, lines).expect("it can be written");
        return;
    }
    let found: BTreeSet<&str> = different.iter().map(String::as_str).collect();
    assert!(found == known, "{} has what differs", list.display());
}
