//! Properties and recorded vectors of this module.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::number::write_float_verb;
use super::*;
use crate::json;
use crate::value::Value;
use crate::vectors::{assert_none, compare, vectors};

/// Generates any tree without arrays.
pub(crate) fn tree_without_arrays() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 32, 6, |inner| object(inner).boxed())
}

/// Generates any tree.
pub(crate) fn tree() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            object(inner.clone()),
            proptest::collection::vec(inner, 0..6).prop_map(Value::Array)
        ]
    })
}

fn object(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    proptest::collection::vec(("[a-e&\"é]{0,3}", inner), 0..6)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        // Eighths are exact in every parser; whole numbers would be parsed as integers.
        any::<i32>().prop_map(|eighths| Value::Float(f64::from(eighths / 8) + 0.125)),
        ".{0,12}".prop_map(Value::from),
    ]
}

#[test]
fn documents_are_read_and_refused_as_go_does() {
    let all = vectors("json");
    let mut differences = Vec::new();
    for vector in &all {
        let bytes = STANDARD.decode(vector.str_at(&["in"])).expect("base64");
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let (go_answer, ours) = match parse(&bytes, &Limits::default()) {
            Ok(parsed) => {
                let dups: Vec<Value> = parsed
                    .duplicates
                    .iter()
                    .map(|path| path.as_str().into())
                    .collect();
                compare(
                    &mut differences,
                    &shown,
                    &to_string(&Value::Array(vector.items_at(&["dups"]).to_vec())),
                    &to_string(&Value::Array(dups)),
                );
                (vector.str_at(&["out"]), to_string(&parsed.value))
            }
            Err(error) => (vector.str_at(&["err"]), error.to_string()),
        };
        // Negative zero is written as `0`, which it becomes after one round trip.
        let go_answer = if go_answer == "-0" { "0" } else { go_answer };
        compare(&mut differences, &shown, go_answer, &ours);
    }
    assert_none("json", all.len(), &differences);
}

#[test]
fn floats_print_as_go_prints_them() {
    let all = vectors("float");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        let number: f64 = input.parse().expect("a float");
        let mut out = Vec::new();
        write_float(number, &mut out);
        compare(
            &mut differences,
            input,
            vector.str_at(&["json"]),
            &String::from_utf8_lossy(&out),
        );
        out.clear();
        write_float_verb(number, &mut out);
        compare(
            &mut differences,
            input,
            vector.str_at(&["v"]),
            &String::from_utf8_lossy(&out),
        );
    }
    assert_none("float", all.len(), &differences);
}

#[test]
fn depth_and_size_are_bounded() {
    let deep = vec![b'['; 1 << 20];
    let error = parse(&deep, &Limits::default())
        .expect_err("too deep")
        .to_string();
    assert_eq!(error, "invalid character '[' exceeded max depth");
    // README says so.
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    for (levels, is_taken) in [(512, true), (513, false)] {
        let parsed = parse(nested(levels).as_bytes(), &Limits::default());
        assert_eq!(parsed.is_ok(), is_taken, "{levels}");
    }
    let limits = Limits {
        bytes_max: 10,
        ..Limits::default()
    };
    assert!(matches!(
        parse(b"[1,2,3,4,5,6]", &limits),
        Err(JsonError::TooLarge { .. })
    ));
}

#[test]
fn typed_duplicates_are_merged() {
    let limits = Limits {
        duplicates: Duplicates::MergeObjects,
        ..Limits::default()
    };
    let text = br#"{"metadata":{"name":"a"},"metadata":{"labels":{"b":"c"}},"l":[1],"l":[2]}"#;
    let parsed = parse(text, &limits).expect("good");
    assert_eq!(
        parsed.value,
        json!({"metadata": {"name": "a", "labels": {"b": "c"}}, "l": [2i64]})
    );
    assert_eq!(parsed.duplicates, ["metadata", "l"]);
}

#[test]
fn values_are_found_in_bytes() {
    let bytes = br#"{"a":{"b":"x\u003cy","c":[1,{"d":2}]},"e\u003c":true,"f":-1.5}"#;
    assert_eq!(scan::string_at(bytes, &["a", "b"]).as_deref(), Some("x<y"));
    let found = scan::find(bytes, &["a", "c"]).expect("there");
    assert_eq!(&bytes[found.clone()], br#"[1,{"d":2}]"#);
    assert_eq!(
        scan::items(&bytes[found.clone()])
            .map(|item| item.len())
            .collect::<Vec<_>>(),
        [1, 7]
    );
    assert_eq!(&bytes[scan::find(bytes, &["e<"]).expect("there")], b"true");
    assert_eq!(&bytes[scan::find(bytes, &["f"]).expect("there")], b"-1.5");
    assert_eq!(scan::find(bytes, &["a", "z"]), None);
}

#[test]
fn indented_text_is_gos() {
    let mut out = Vec::new();
    pretty(br#"{"a":{},"b":[],"c":[1,{"d":"x:,{}"}]}"#, &mut out);
    let text = "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \"d\": \"x:,{}\"\n    }\n  ]\n}";
    assert_eq!(String::from_utf8_lossy(&out), text);
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(value in tree()) {
        let bytes = to_vec(&value);
        prop_assert_eq!(&parse(&bytes, &Limits::default()).expect("was written").value, &value);
        let mut indented = Vec::new();
        pretty(&bytes, &mut indented);
        prop_assert_eq!(&parse(&indented, &Limits::default()).expect("was written").value, &value);
    }

    #[test]
    fn pieces_are_indented_as_the_whole_is(value in tree(), cuts in proptest::collection::vec(1..9_usize, 1..9)) {
        let bytes = to_vec(&value);
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        pretty(&bytes, &mut whole);
        let mut indenter = Indenter::default();
        let (mut rest, mut cuts) = (&bytes[..], cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
            indenter.write(piece, &mut pieces);
            rest = behind;
        }
        prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes, &Limits::default());
        let _ = scan::find(&bytes, &["a"]);
        let _ = scan::members(&bytes).count();
        let mut out = Vec::new();
        pretty(&bytes, &mut out);
    }

    #[test]
    fn a_scan_finds_what_the_tree_has(value in tree_without_arrays()) {
        let bytes = to_vec(&value);
        for (key, member) in value.as_object().into_iter().flat_map(|map| map.iter()) {
            let found = scan::find(&bytes, &[key]).expect("is a member");
            prop_assert_eq!(bytes[found].to_vec(), to_vec(member));
            for (inner, value) in member.as_object().into_iter().flat_map(|map| map.iter()) {
                let found = scan::find(&bytes, &[key, inner]).expect("is a member of it");
                prop_assert_eq!(bytes[found].to_vec(), to_vec(value));
            }
        }
    }
}

#[test]
fn indentation_of_deep_lists_is_bounded() {
    let depth = 400;
    let numbers = vec!["1"; 500_000].join(",");
    let compact = format!("{}{numbers}{}", "[".repeat(depth), "]".repeat(depth));
    let mut indented = Vec::new();
    pretty(compact.as_bytes(), &mut indented);
    assert!(
        indented.len() < 20 * compact.len() + (2 << 20),
        "{}",
        indented.len()
    );
    let mut again = indented;
    again.retain(|byte| !byte.is_ascii_whitespace());
    assert_eq!(again, compact.as_bytes());
}
