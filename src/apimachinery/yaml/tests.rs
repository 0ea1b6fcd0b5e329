//! Properties and recorded vectors of this module.

use proptest::prelude::*;

use super::*;
use crate::json::{self, Limits, to_string};
use crate::vectors::{assert_none, compare, vectors};

#[test]
fn documents_are_read_as_gos_library_reads_them() {
    let all = vectors("yaml_read");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        // YAML 1.2 added the escape of a slash; Go's library refuses it. A replacement character
        // means that the vector could not hold the original bytes.
        if input.contains("\\/") || input.contains('\u{fffd}') {
            continue;
        }
        let go_failed = vector.get("out").is_none();
        match parse(input.as_bytes(), &Limits::default()) {
            Ok(parsed) => {
                let go = if go_failed {
                    vector.str_at(&["err"])
                } else {
                    vector.str_at(&["out"])
                };
                compare(&mut differences, input, go, &to_string(&parsed.value));
                let strict = parsed.strict_error.unwrap_or_default();
                compare(&mut differences, input, vector.str_at(&["strict"]), &strict);
            }
            // The texts of the parsers differ; it only matters that both refuse.
            Err(_) if go_failed => {}
            Err(error) => compare(
                &mut differences,
                input,
                vector.str_at(&["out"]),
                &error.to_string(),
            ),
        }
    }
    assert_none("yaml read", all.len(), &differences);
}

#[test]
fn trees_are_printed_as_gos_library_prints_them() {
    let all = vectors("yaml_write");
    let mut differences = Vec::new();
    for vector in &all {
        let input = vector.str_at(&["in"]);
        // Upstream parses its JSON as YAML first, which turns this line break into a space. Floats
        // have Go's shortest digits, never more.
        if input.contains("9223372036854775808") {
            continue;
        }
        // Upstream's order of keys such as `a1b`, `a9` and `a10` is cyclic.
        if input.contains('\u{85}') || input.contains("\"a1b\"") {
            continue;
        }
        let value = json::parse(input.as_bytes(), &Limits::default())
            .expect("json")
            .value;
        let mut out = Vec::new();
        write(&value, &mut out);
        compare(
            &mut differences,
            input,
            vector.str_at(&["out"]),
            &String::from_utf8_lossy(&out),
        );
    }
    assert_none("yaml write", all.len(), &differences);
}

#[test]
fn alias_bombs_are_refused() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let item = format!("*a{}", level - 1);
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![item; 10].join(",")
        ));
    }
    let error = parse(bomb.as_bytes(), &Limits::default())
        .expect_err("a bomb")
        .to_string();
    assert_eq!(error, "yaml: document contains excessive aliasing");
    let long = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 90].join(",")
    );
    assert!(parse(long.as_bytes(), &Limits::default()).is_err());
}

#[test]
fn keys_stand_in_natural_order_and_circles_do_no_harm() {
    let keys = ["a10", "a9", "a1b", "a2", "B", "-", "a"];
    let map = |count: usize| -> crate::value::Value {
        let members =
            (0..count).map(|index| (format!("{}{}", keys[index % 7], index / 7), index as i64));
        crate::value::Value::Object(members.collect())
    };
    let mut out = Vec::new();
    write(&map(700), &mut out);
    assert_eq!(
        parse(&out, &Limits::default()).expect("was written").value,
        map(700)
    );
    out.clear();
    write(
        &crate::json!({"a10": 1i64, "a9": 1i64, "b": 1i64, "a": 1i64}),
        &mut out,
    );
    assert_eq!(String::from_utf8_lossy(&out), "a: 1\na9: 1\na10: 1\nb: 1\n");
}

#[test]
fn depth_is_bounded() {
    assert!(parse("[".repeat(100_000).as_bytes(), &Limits::default()).is_err());
    assert!(parse("- ".repeat(100_000).as_bytes(), &Limits::default()).is_err());
}

proptest! {
    #[test]
    fn what_is_printed_is_read_again(value in json::tests::tree()) {
        let mut out = Vec::new();
        write(&value, &mut out);
        let again = parse(&out, &Limits::default()).map(|parsed| parsed.value);
        prop_assert_eq!(again.as_ref().ok(), Some(&value), "{}", String::from_utf8_lossy(&out));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-a-c:\\[\\]{}#&*!|>'\"%@`,? \n0-9.~]{0,40}") {
        let _ = parse(text.as_bytes(), &Limits::default());
    }
}

/// However many keys a mapping has, each is compared with all before it, in a time that grows with their
/// number alone: what is far behind is found too.
#[test]
fn a_key_that_occurs_twice_is_found_however_far_apart() {
    let mut text = String::from("first: 1\n");
    for number in 0..20_000 {
        text.push_str(&format!("k{number}: 1\n"));
    }
    text.push_str("first: 2\n");
    let parsed = parse(text.as_bytes(), &Limits::default()).expect("YAML");
    let error = parsed.strict_error.expect("it occurs twice");
    assert!(
        error.contains("key \"first\" already set in map"),
        "{error}"
    );
    assert_eq!(parsed.value.int_at(&["first"]), Some(2));
}

#[test]
fn a_document_of_another_version_is_refused() {
    for (text, line) in [
        ("%YAML 1.2\n---\na: 1\n", ""),
        (
            "# c\n\n%TAG ! tag:x,2000:\n%YAML  1.0 # c\n---\na: 1\n",
            "line 3: ",
        ),
    ] {
        let refused = parse(text.as_bytes(), &Limits::default()).expect_err("another version");
        let message = format!("yaml: {line}found incompatible YAML document");
        assert_eq!(refused.to_string(), message);
    }
    for text in ["%YAML 1.1\n---\na: 1\n", "a: '%YAML 1.2'\n"] {
        assert!(parse(text.as_bytes(), &Limits::default()).is_ok(), "{text}");
    }
}

#[test]
fn the_indentation_of_what_is_nested_deeply_is_bounded() {
    const MANY: usize = 20_000;
    let long_key = "k".repeat(300);
    let members = (0..2_000).map(|number| (format!("{long_key}{number}"), 1i64));
    let inner: [crate::value::Value; 5] = [
        vec![crate::value::Value::Int(1); MANY].into(),
        vec![crate::json!({"a": "b\u{85}c", "d": [1i64, "x: y"]}); MANY].into(),
        crate::value::Value::Object(members.collect()),
        "a ".repeat(MANY).as_str().into(),
        "a\n".repeat(MANY).as_str().into(),
    ];
    for mut value in inner {
        for _ in 0..200 {
            let mut outer = crate::value::Value::object();
            outer.set(&["k"], value);
            value = outer;
        }
        for layout in [Layout::Narrow, Layout::Wide] {
            let mut out = Vec::new();
            write_as(&value, layout, &mut out);
            let compact = to_string(&value).len();
            assert!(out.len() < 200_000 + 4 * compact, "{}", out.len());
            let again = parse(&out, &Limits::default()).map(|parsed| parsed.value);
            assert!(again.as_ref().ok() == Some(&value));
        }
    }
}
