//! The texts are those of upstream's compiler for the same expressions.

use super::*;

const SCOPE: Scope<'_> = Scope {
    variables: &[
        ("device", Some(&["driver", "attributes", "capacity"])),
        ("x", None),
    ],
};

fn complaints(expression: &str) -> Vec<String> {
    let found = check(expression, &SCOPE).err().unwrap_or_default();
    found
        .lines()
        .filter(|line| line.starts_with("ERROR"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn good_expressions_pass() {
    let good = [
        r#"device.driver == "gpu.example.com""#,
        r#"device.attributes["gpu.example.com"].memory.isGreaterThan(quantity("10Gi"))"#,
        r#"device.capacity['d'].size.compareTo(quantity("1")) >= 0 && !(x in [1, 2u, 0x1F, .5, 1e3, -1,])"#,
        "x.all(item, item > 0) ? x.exists_one(a, a == 1) : x.map(i, i > 0, i * 2) == [1]",
        "x.transformList(i, v, v + i).size() > 0 || cel.bind(y, x.size(), y > 1 && y < 3)",
        "has(x.a.b) && x.?a[?0].orValue('') == r'\\d' && b\"a\\\"\" != b''",
        "{'a': 1, \"b\": {?'c': x}}.a == 1 // done",
        "Object.spec{replicas: 1}.replicas > 0 && optional.of(1).hasValue()",
        "type(x) == list && .x == \"\"\"a\"b\"\"\" && x.`a-b` == 1",
        "!!x && --1 < 2 && x\n  .b.c(1, 2)[3]",
        "x.all(i, x.all(j, i != j)) && x.filter(device, device.foo).size() == 0",
    ];
    for expression in good {
        assert_eq!(check(expression, &SCOPE).err(), None, "{expression}");
    }
}

#[test]
fn grammar_is_checked_in_the_compilers_words() {
    let cases = [
        (
            "a,b",
            "1:2: Syntax error: mismatched input ',' expecting <EOF>",
        ),
        (
            "with space",
            "1:6: Syntax error: extraneous input 'space' expecting <EOF>",
        ),
        (
            "http://x y",
            "1:5: Syntax error: extraneous input ':' expecting <EOF>",
        ),
        (
            "10.0.0.0/33",
            "1:5: Syntax error: mismatched input '.0' expecting <EOF>",
        ),
        (
            "9lives",
            "1:2: Syntax error: extraneous input 'lives' expecting <EOF>",
        ),
        (
            "..",
            "1:2: Syntax error: no viable alternative at input '..'",
        ),
        (
            "a..b",
            "1:3: Syntax error: no viable alternative at input '..'",
        ),
        ("$(x)", "1:1: Syntax error: token recognition error at: '$'"),
    ];
    for (expression, complaint) in cases {
        assert_eq!(
            complaints(expression),
            [format!("ERROR: <input>:{complaint}")],
            "{expression}"
        );
    }
    assert!(
        complaints("::1")[0]
            .starts_with("ERROR: <input>:1:1: Syntax error: mismatched input ':' expecting {'['")
    );
    assert!(
        complaints("")[0]
            .starts_with("ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting")
    );
}

#[test]
fn names_have_to_be_known() {
    assert_eq!(
        check("example.com/ok", &SCOPE),
        Err("ERROR: <input>:1:1: undeclared reference to 'example' (in container '')\n | example.com/ok\n | ^\n\
             ERROR: <input>:1:13: undeclared reference to 'ok' (in container '')\n | example.com/ok\n | ............^"
            .to_owned())
    );
    assert_eq!(
        complaints("device.nope == 1"),
        ["ERROR: <input>:1:7: undefined field 'nope'"]
    );
    assert_eq!(
        complaints("x.all(i, j)"),
        ["ERROR: <input>:1:10: undeclared reference to 'j' (in container '')"]
    );
    assert_eq!(
        complaints("x.all(i, true) && i"),
        ["ERROR: <input>:1:19: undeclared reference to 'i' (in container '')"]
    );
    let twice = complaints("/var/lib/x");
    assert!(
        twice[0].starts_with("ERROR: <input>:1:1: Syntax error: extraneous input '/' expecting")
    );
    assert_eq!(twice[1], "ERROR: <input>:1:2: reserved identifier: var");
}

#[test]
fn literals_have_a_type() {
    let types = [
        ("65536", "int"),
        ("-1", "int"),
        ("'a'", "string"),
        ("1.5", "double"),
        ("true", "bool"),
        ("(2u)", "uint"),
    ];
    for (expression, kind) in types {
        assert_eq!(check(expression, &SCOPE), Ok(Some(kind)), "{expression}");
    }
    assert_eq!(check("x > 1", &SCOPE), Ok(None));
}

#[test]
fn depth_is_bounded_and_length_is_not() {
    let deep = format!("{}x{}", "(".repeat(5000), ")".repeat(5000));
    assert!(complaints(&deep)[0].contains("recursion limit exceeded"));
    let long = format!("x{}", ".a".repeat(5000));
    assert_eq!(check(&long, &SCOPE), Ok(None));
    assert_eq!(check(&format!("{}x", "!".repeat(10_000)), &SCOPE), Ok(None));
}
