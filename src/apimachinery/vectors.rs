//! Golden vectors in `testdata/`: the answers of Go's own libraries, one JSON object per line.

use std::io::Read;

use crate::json::{Limits, parse};
use crate::value::Value;

/// Returns all vectors of one file.
pub(crate) fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/testdata/{name}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).expect("the vectors are in the repository");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("the vectors are gzipped text");
    let vectors: Vec<Value> = text
        .lines()
        .map(|line| {
            parse(line.as_bytes(), &Limits::default())
                .expect("a vector is JSON")
                .value
        })
        .collect();
    assert!(!vectors.is_empty(), "{name} has vectors");
    vectors
}

/// Fails with all differences at once, if there are any.
pub(crate) fn assert_none(name: &str, total: usize, differences: &[String]) {
    assert!(
        differences.is_empty(),
        "{name}: {} of {total} differ\n{}",
        differences.len(),
        differences
            .iter()
            .take(40)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}

/// Records a difference between Go's answer and ours.
pub(crate) fn compare(differences: &mut Vec<String>, input: &str, go: &str, ours: &str) {
    if go != ours {
        differences.push(format!("{input:?}\n  go   {go}\n  ours {ours}"));
    }
}

#[test]
fn characters_are_quoted_as_go_does() {
    let all = vectors("quote");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        let quoted = crate::quote::quote(input);
        compare(&mut differences, input, vector.str_at(&["out"]), &quoted);
    }
    assert_none("quote", all.len(), &differences);
}
