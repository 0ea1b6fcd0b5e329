//! Declarative validation compared with the golden files, and cases of its own.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::*;
use crate::schema::fixture::{SCHEMAS, kind, tree};

fn messages(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(FieldError::to_string).collect()
}

/// Returns the rows of all golden files, each with its kind.
fn golden() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../batteries/golden");
    let mut rows = Vec::new();
    for entry in std::fs::read_dir(folder).expect("there are golden files") {
        let path = entry.expect("the folder can be read").path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let Some(stem) = name.strip_suffix(".jsonl.gz") else {
            continue;
        };
        let mut parts = stem.rsplitn(3, '.');
        let (Some(kind), Some(version), Some(group)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let group = if group == "core" { "" } else { group };
        let mut text = String::new();
        let file = std::fs::File::open(&path).expect("a golden file opens");
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .expect("golden files are gzip");
        rows.extend(
            text.lines()
                .map(|line| (format!("{group}/{version}/{kind}"), tree(line))),
        );
    }
    rows
}

#[test]
fn every_complaint_is_one_of_upstreams() {
    let (mut checked, mut complaints, mut foreign) = (0, 0, BTreeMap::new());
    for (name, row) in golden() {
        let op = row.str_at(&["op"]);
        let Some(id) = kind(&name).filter(|_| matches!(op, "create" | "update")) else {
            continue;
        };
        let old = (op == "update").then(|| &row["old"]);
        let prepared = ["prepared", "defaulted"]
            .into_iter()
            .find_map(|key| row["out"].get(key));
        let Some(value) = prepared else {
            continue;
        };
        // A row that was refused before validation has no result of validation.
        if !matches!(row.int_at(&["out", "status", "code"]), None | Some(422)) {
            continue;
        }
        checked += 1;
        let wanted: Vec<&str> = row
            .items_at(&["out", "errors"])
            .iter()
            .map(|error| error.str_at(&["message"]))
            .collect();
        for message in messages(&SCHEMAS.validate(id, value, old, &|_| true)) {
            complaints += 1;
            if !wanted.contains(&message.as_str()) {
                foreign
                    .entry(format!("{op} {name} {message}"))
                    .or_insert_with(|| wanted.join(" | "));
            }
        }
    }
    println!(
        "validation: {complaints} complaints about {checked} objects, {} foreign",
        foreign.len()
    );
    assert!(
        checked > 1000 && complaints > 50 && foreign.is_empty(),
        "{foreign:#?}"
    );
}

#[test]
fn an_update_repeats_no_old_complaint_and_keeps_what_is_immutable() {
    let id = kind("resource.k8s.io/v1/ResourceClaim").expect("claims are served");
    let object = |driver: &str| {
        let text = r#"{"metadata":{"name":"c"},"spec":{"devices":{"requests":null,"config":[{"opaque":{"driver":"DRIVER","parameters":{}}}]}}}"#;
        tree(&text.replace("DRIVER", driver))
    };
    let bad = object("Not A Name");
    assert_eq!(
        SCHEMAS.validate(id, &object("ok"), None, &|_| true),
        Complaints::default()
    );
    assert!(!SCHEMAS.validate(id, &bad, None, &|_| true).is_empty());
    assert_eq!(
        SCHEMAS.validate(id, &bad, Some(&bad), &|_| true),
        Complaints::default()
    );
    let changed = messages(&SCHEMAS.validate(id, &object("other"), Some(&object("ok")), &|_| true));
    assert_eq!(changed, ["spec: Invalid value: null: field is immutable"]);
}
