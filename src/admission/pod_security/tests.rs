//! Upstream's published pods, with the answers of upstream's own evaluator for every level and
//! version. `testdata/generate` records them.

use super::evaluate::{Pod, details, reasons, violations};
use super::policy::{self, Level, LevelVersion, Policy, Version};
use flate2::read::GzDecoder;
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::{Value, json};
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

fn at(level: Level, version: Version) -> LevelVersion {
    LevelVersion { level, version }
}

/// Returns the policy of these labels where namespaces without labels have `defaults`.
fn policy(labels: &Value, defaults: &Policy) -> Policy {
    let mut all = Value::object();
    for (name, value) in labels.as_object().expect("an object").iter() {
        all.set(
            &[&format!("pod-security.kubernetes.io/{name}")],
            value.clone(),
        );
    }
    let (policy, errors) = policy::of_labels(&all, defaults);
    assert!(errors.is_empty(), "{errors:?}");
    policy
}

#[test]
fn warnings_follow_an_enforced_level_that_is_stricter_than_theirs() {
    let latest = |level| at(level, Version::Latest);
    let defaults = Policy {
        enforce: at(Level::Baseline, Version::Minor(30)),
        audit: at(Level::Restricted, Version::Minor(31)),
        warn: at(Level::Baseline, Version::Minor(32)),
    };
    assert_eq!(policy(&json!({}), &defaults), defaults);
    let strict = policy(&json!({"enforce": "restricted"}), &defaults);
    assert_eq!(strict.enforce, at(Level::Restricted, Version::Minor(30)));
    assert_eq!(strict.audit, defaults.audit);
    assert_eq!(strict.warn, strict.enforce);
    // Not if it is not stricter, or if the level is that of the defaults.
    let relaxed = policy(&json!({"enforce": "privileged"}), &defaults);
    assert_eq!(relaxed.warn, defaults.warn);
    let versioned = policy(&json!({"enforce-version": "latest"}), &defaults);
    assert_eq!(
        (versioned.enforce, versioned.warn),
        (latest(Level::Baseline), defaults.warn)
    );
    let own = json!({"enforce": "restricted", "warn-version": "v1.2"});
    assert_eq!(
        policy(&own, &defaults).warn,
        at(Level::Restricted, Version::Minor(2))
    );
    let own = json!({"enforce": "restricted", "warn": "privileged"});
    assert_eq!(
        policy(&own, &defaults).warn,
        at(Level::Privileged, Version::Minor(32))
    );
}

#[test]
fn labels_name_the_same_policy_as_text_and_as_a_tree() {
    let defaults = Policy {
        audit: at(Level::Baseline, Version::Minor(31)),
        ..Policy::PRIVILEGED
    };
    for labels in [
        json!({}),
        json!({"kubernetes.io/metadata.name": "ns"}),
        json!({"a": "b", "pod-security.kubernetes.io/warn": "restricted"}),
        json!({"pod-security.kubernetes.io/enforce-version": "1.3"}),
    ] {
        let read = policy::of_labels_text(&json::to_vec(&labels), &defaults);
        let read = read.expect("the labels are JSON");
        assert_eq!(read, policy::of_labels(&labels, &defaults));
    }
    let none = policy::of_labels_text(b"", &defaults);
    assert_eq!(none.expect("no labels").0, defaults);
}

#[test]
fn policies_that_the_same_pods_violate_are_equivalent() {
    let privileged = |version| at(Level::Privileged, version);
    let other = Policy {
        enforce: privileged(Version::Minor(1)),
        ..Policy::PRIVILEGED
    };
    assert!(other.is_equivalent(&Policy::PRIVILEGED) && other != Policy::PRIVILEGED);
    let baseline = |version| Policy {
        audit: at(Level::Baseline, version),
        ..Policy::PRIVILEGED
    };
    let one = baseline(Version::Latest);
    assert!(one.is_equivalent(&one) && !one.is_equivalent(&Policy::PRIVILEGED));
    assert!(!one.is_equivalent(&baseline(Version::Minor(37))));
}

#[test]
fn only_levels_that_labels_name_are_shown() {
    let labels = json!({
        "pod-security.kubernetes.io/enforce": "privileged",
        "pod-security.kubernetes.io/audit-version": "v1.3",
        "other/warn": "x"
    });
    let policy = Policy {
        enforce: at(Level::Privileged, Version::Latest),
        audit: at(Level::Baseline, Version::Minor(3)),
        warn: at(Level::Restricted, Version::Latest),
    };
    assert_eq!(policy::named(&labels, &policy), "audit=baseline:v1.3");
    let labels = json!({
        "pod-security.kubernetes.io/audit": "baseline",
        "pod-security.kubernetes.io/warn": "restricted"
    });
    let shown = policy::named(&labels, &policy);
    assert_eq!(shown, "audit=baseline:v1.3, warn=restricted:latest");
}
