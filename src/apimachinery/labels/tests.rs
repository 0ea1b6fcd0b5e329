//! Properties and recorded vectors of this module.

use super::*;
use crate::field_selector::FieldSelector;
use crate::json::{Limits, parse as parse_json};
use crate::vectors::{assert_none, compare, vectors};

#[test]
fn selectors_are_read_printed_and_matched_as_upstream_does() {
    let sets = [
        "{}",
        r#"{"a":"b"}"#,
        r#"{"a":"","n":"5"}"#,
        r#"{"a":"c","n":"12","x":"y"}"#,
    ];
    let all = vectors("labels");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        match Selector::parse(input) {
            Ok(selector) => {
                compare(
                    &mut differences,
                    input,
                    vector.str_at(&["out"]),
                    &selector.to_string(),
                );
                for (set, go) in sets.iter().zip(vector.items_at(&["match"])) {
                    let tree = parse_json(set.as_bytes(), &Limits::default())
                        .expect("json")
                        .value;
                    let ours = (
                        selector.matches_bytes(set.as_bytes()),
                        selector.matches_value(Some(&tree)),
                    );
                    let go = go.as_bool().expect("a truth");
                    compare(
                        &mut differences,
                        &format!("{input} on {set}"),
                        &format!("{:?}", (go, go)),
                        &format!("{ours:?}"),
                    );
                }
            }
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("labels", all.len(), &differences);
}

#[test]
fn field_selectors_are_read_and_printed_as_upstream_does() {
    let all = vectors("fields");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        match FieldSelector::parse(input) {
            Ok(selector) => compare(
                &mut differences,
                input,
                vector.str_at(&["out"]),
                &selector.to_string(),
            ),
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("fields", all.len(), &differences);
}

#[test]
fn label_selectors_of_objects_mean_and_complain_as_upstream() {
    let all = vectors("label_selector");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        let object = parse_json(input.as_bytes(), &Limits::default())
            .expect("json")
            .value;
        match Selector::from_label_selector(Some(&object)) {
            Ok(selector) => compare(
                &mut differences,
                input,
                vector.str_at(&["out"]),
                &selector.to_string(),
            ),
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["err"]),
                &error.to_string(),
            ),
        }
        let spec = Path::new("spec");
        let errors = validate_label_selector(Some(&object), &spec.child("selector"));
        let ours: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let go: Vec<&str> = vector
            .items_at(&["invalid"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        compare(&mut differences, input, &go.join(" | "), &ours.join(" | "));
    }
    assert_none("label selectors", all.len(), &differences);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-c/=!(),<> inot]{0,20}") {
        if let Ok(selector) = Selector::parse(&text) {
            let printed = selector.to_string();
            proptest::prop_assert_eq!(Selector::parse(&printed).map(|s| s.to_string()), Ok(printed));
        }
    }
}
