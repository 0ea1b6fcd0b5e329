//! Properties and recorded vectors of this module.

use super::*;
use crate::json::{Limits, parse, to_string};
use crate::patch::merge_patch::MergePatch;
use crate::vectors::{assert_none, compare, vectors};

fn tree(text: &str) -> Value {
    parse(text.as_bytes(), &Limits::default())
        .expect("json")
        .value
}

#[test]
fn patches_apply_and_fail_as_upstreams_do() {
    let all = vectors("json_patch");
    let mut differences = Vec::new();
    for vector in &all {
        let (document, body) = (vector.str_at(&["doc"]), vector.str_at(&["patch"]));
        let patch = JsonPatch::parse(body.as_bytes(), &Limits::default(), FieldCheck::Ignore);
        let outcome = match patch {
            Err(error) => {
                compare(
                    &mut differences,
                    body,
                    vector.str_at(&["decode"]),
                    &error.to_string(),
                );
                continue;
            }
            Ok(patch) => patch.apply(tree(document)),
        };
        // For these vectors upstream's library panics and the request fails; this one only must not
        // panic.
        if vector.bool_at(&["panic"]) {
            continue;
        }
        match outcome {
            Ok(after) => compare(
                &mut differences,
                body,
                &to_string(&tree_or_null(vector.str_at(&["out"]))),
                &to_string(&after),
            ),
            Err(error) => compare(
                &mut differences,
                body,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("json patch", all.len(), &differences);
}

fn tree_or_null(text: &str) -> Value {
    if text.is_empty() {
        Value::from("go failed")
    } else {
        tree(text)
    }
}

#[test]
fn merge_patches_apply_as_upstreams_do() {
    let all = vectors("merge_patch");
    let mut differences = Vec::new();
    for vector in &all {
        let body = vector.str_at(&["patch"]);
        let mut document = tree(vector.str_at(&["doc"]));
        MergePatch::parse(body.as_bytes(), &Limits::default())
            .expect(body)
            .apply(&mut document);
        compare(
            &mut differences,
            body,
            &to_string(&tree(vector.str_at(&["out"]))),
            &to_string(&document),
        );
    }
    assert_none("merge patch", all.len(), &differences);
}

#[test]
fn operations_and_copies_are_bounded() {
    let many = format!(
        "[{}]",
        vec![r#"{"op":"test","path":""}"#; OPERATIONS_MAX + 1].join(",")
    );
    let error = JsonPatch::parse(many.as_bytes(), &Limits::default(), FieldCheck::Ignore)
        .expect_err("too many");
    assert_eq!(
        error.to_string(),
        "The allowed maximum operations in a JSON patch is 10000, got 10001"
    );
    let copies = format!(
        "[{}]",
        vec![r#"{"op":"copy","from":"/a","path":"/a/-"}"#; 64].join(",")
    );
    let patch =
        JsonPatch::parse(copies.as_bytes(), &Limits::default(), FieldCheck::Ignore).expect("good");
    let error = patch
        .apply(tree(r#"{"a":["0123456789"]}"#))
        .expect_err("too large")
        .to_string();
    assert!(
        error.starts_with("Unable to complete the copy, the accumulated size increase of copy is "),
        "{error}"
    );
}

#[test]
fn operations_are_checked_when_asked() {
    let parse =
        |body: &str| JsonPatch::parse(body.as_bytes(), &Limits::default(), FieldCheck::Report);
    let patch = parse(r#"[{"op":"test","path":"/a","foo":1,"op":"test"}]"#).expect("good");
    assert_eq!(
        patch.strict_errors,
        [
            r#"json patch duplicate field "[0].op""#,
            r#"json patch unknown field "[0].foo""#
        ]
    );
    let odd = parse(r#"[{"op":"test","path":"/a","fo\"o":1}]"#).expect("good");
    let quoted = r#"json patch unknown field "[0].fo\"o""#;
    assert_eq!(odd.strict_errors, [quoted]);
    assert_eq!(
        parse("{}").expect_err("no list").to_string(),
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
    );
}

proptest::proptest! {
    /// If all paths exist and no index is negative, the RFC and the API server agree.
    #[test]
    fn simple_patches_apply_as_the_rfc_says(document in crate::json::tests::tree_without_arrays(),
                                            value in crate::json::tests::tree(), key in "[a-e]{1,2}") {
        let document = Value::Object([("k", document), ("l", Value::Array(vec![value.clone()]))].into_iter().collect());
        let body = crate::json!([
            {"op": "add", "path": (format!("/{key}")), "value": (value.clone())},
            {"op": "copy", "from": (format!("/{key}")), "path": "/l/0"},
            {"op": "move", "from": "/k", "path": "/l/-"},
            {"op": "test", "path": "/l/0", "value": (value)},
            {"op": "remove", "path": "/l/1"}
        ]);
        let text = to_string(&body);
        let patch = JsonPatch::parse(text.as_bytes(), &Limits::default(), FieldCheck::Report).expect("good");
        let mut theirs: serde_json::Value = serde_json::from_str(&to_string(&document)).expect("json");
        let their_patch: ::json_patch::Patch = serde_json::from_str(&text).expect("a patch");
        let their_outcome = ::json_patch::patch(&mut theirs, &their_patch);
        match patch.apply(document) {
            Ok(ours) => {
                proptest::prop_assert!(their_outcome.is_ok());
                proptest::prop_assert_eq!(ours, tree(&theirs.to_string()));
            }
            Err(_) => proptest::prop_assert!(their_outcome.is_err()),
        }
    }
}

#[test]
fn operations_that_would_shift_very_much_end_with_an_error() {
    let add = r#"{"op":"add","path":"/l/0","value":0}"#;
    let body = format!("[{}]", [add; 1_000].join(","));
    let patch = JsonPatch::parse(body.as_bytes(), &Limits::default(), FieldCheck::Report);
    let patch = patch.expect("good");
    let document = |count| crate::json!({"l": (Value::Array(vec![Value::Null; count]))});
    assert!(patch.apply(document(10_000)).is_ok());
    let error = patch.apply(document(400_000)).expect_err("too much");
    assert!(error.0.contains("too many values"), "{error}");
}

/// Applies operations, each `kind`, `from`, `path` and `value`, to an object with the member `a`.
fn nested(operations: &[(&str, String, String, String)]) -> Result<Value, ApplyError> {
    let texts = operations.iter().map(|(kind, from, path, value)| {
        format!(r#"{{"op":"{kind}","from":"{from}","path":"{path}","value":{value}}}"#)
    });
    let body = format!("[{}]", texts.collect::<Vec<_>>().join(","));
    let patch = JsonPatch::parse(body.as_bytes(), &Limits::default(), FieldCheck::Ignore);
    patch.expect("it is a patch").apply(tree(r#"{"a":{}}"#))
}

#[test]
fn no_operations_nest_values_deeper_than_a_body_may() {
    let operation = |kind, from: &str, path: String, value: &str| {
        (kind, from.to_owned(), path, value.to_owned())
    };
    let too_deep = |result: Result<Value, ApplyError>| {
        let error = result.expect_err("it is too deep").to_string();
        assert!(error.ends_with("exceeded max depth"), "{error}");
    };
    let copies = |count: u32| {
        let paths = (0..count).map(|power| "/a".repeat((1 << power) + 1));
        let copies = paths.map(|path| operation("copy", "/a", path, "null"));
        nested(&copies.collect::<Vec<_>>())
    };
    assert!(copies(8).is_ok());
    too_deep(copies(16));

    // Each makes the object a little deeper.
    for kind in ["add", "replace"] {
        let steps = |count| {
            let paths = (1..=count).map(|depth| format!("/a{}", "/b".repeat(depth)));
            let steps = paths.map(|path| operation(kind, "", path, r#"{"b":{}}"#));
            nested(&steps.collect::<Vec<_>>())
        };
        assert!(steps(500).is_ok(), "{kind}");
        too_deep(steps(600));
    }
    let under = "/a".repeat(100);
    let value = format!(
        "{}{}",
        r#"{"a":"#.repeat(450),
        "{}".to_owned() + &"}".repeat(450)
    );
    let moved = [
        operation("add", "", "/z".to_owned(), &value),
        operation("replace", "", "/a".to_owned(), &value),
        operation("move", "/z", format!("{under}/z"), "null"),
    ];
    too_deep(nested(&moved));

    // Moves that leave the depth as it is.
    let names = (0..2_000).map(|turn| match turn % 2 {
        0 => operation("move", "/a", "/b".to_owned(), "null"),
        _ => operation("move", "/b", "/a".to_owned(), "null"),
    });
    assert!(nested(&names.collect::<Vec<_>>()).is_ok());
}
