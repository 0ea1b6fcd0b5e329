//! Upstream's published pods, with the answers of upstream's own evaluator for every level and
//! version. `testdata/generate` records them.

use super::evaluate::{Pod, details, reasons, violations};
use super::policy::{Level, LevelVersion, Version};
use flate2::read::GzDecoder;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::{Limits, parse};
use std::io::Read;

const RECORDED: &[u8] = include_bytes!("../testdata/pod_security.jsonl.gz");

/// Compares the answers about one pod, and returns their number.
fn compare(case: &Value) -> usize {
    let pod = Pod::of(&case["pod"]);
    let answers = case.items_at(&["answers"]);
    let mut compared = 0;
    for answer in answers {
        let level = match answer.str_at(&["level"]) {
            "baseline" => Level::Baseline,
            _ => Level::Restricted,
        };
        let number = |field: &str| answer.int_at(&[field]).expect("a number").unsigned_abs();
        for minor in number("from")..=number("to") {
            // The last of the recorded versions is the latest one.
            let version = match minor {
                38 => Version::Latest,
                minor => Version::Minor(minor),
            };
            let found = violations(LevelVersion { level, version }, &pod);
            let context = format!("{} {level:?} v1.{minor}", case.str_at(&["file"]));
            assert_eq!(details(&found), answer.str_at(&["detail"]), "{context}");
            assert_eq!(reasons(&found), answer.str_at(&["reason"]), "{context}");
            compared += 1;
        }
    }
    compared
}

#[test]
fn upstreams_published_pods_are_judged_as_upstream_does() {
    let mut text = String::new();
    let read = GzDecoder::new(RECORDED).read_to_string(&mut text);
    read.expect("the recording is text");
    let mut compared = 0;
    let mut pods = 0;
    for line in text.lines() {
        let case = parse(line.as_bytes(), &Limits::default()).expect("a line is JSON");
        compared += compare(&case.value);
        pods += 1;
    }
    println!("{pods} pods, {compared} answers");
    assert!(
        pods > 300 && compared > 20_000,
        "{pods} pods, {compared} answers"
    );
}
