//! The parser: what it accepts, what it says about the rest, and that printing is its inverse.

use polyplane_cel::{Syntax, parse, print};
use proptest::prelude::*;

fn printed(text: &str) -> String {
    match parse(text, &Syntax::full()) {
        Ok(ast) => print(&ast),
        Err(issues) => panic!("{text}: {issues}"),
    }
}

fn complaint(text: &str) -> String {
    parse(text, &Syntax::kubernetes()).err().map_or_else(
        || panic!("{text} was accepted"),
        |issues| issues.to_string(),
    )
}

#[test]
fn expressions_are_printed_as_they_are_understood() {
    let same = [
        "self.replicas <= self.maxReplicas",
        "a.b[c].d(e, f)",
        "has(a.b) && !has(a.c)",
        "[1, 2u, 3.5, -4, \"five\", b\"\\x00\", null, true]",
        "{\"a\": 1, ?\"b\": c.?d}",
        "[?a, b[?0]]",
        "a.all(x, x > 0)",
        "a.transformMap(k, v, k != \"\", v + 1)",
        "a ? b : c ? d : e",
        "a || b && c",
        "(a || b) && c",
        "a - (b - c)",
        "-(-1)",
        "self.`in`.`a.b-c/d`",
        "cel.bind(x, 1, x + x)",
        "a.optMap(x, x + 1).orValue(0)",
        "google.type.Expr{title: \"x\"}",
        ".a.b",
    ];
    for text in same {
        assert_eq!(printed(text), text);
    }
    let normal = [
        ("'it\\'s'", "\"it's\""),
        ("r'\\d'", "\"\\\\d\""),
        ("'''a\nb'''", "\"a\\nb\""),
        ("0x10", "16"),
        ("!!a", "a"),
        ("- 1", "-1"),
        ("1 + 2 * 3 // sum", "1 + 2 * 3"),
    ];
    for (text, expected) in normal {
        assert_eq!(printed(text), expected, "{text}");
    }
}

#[test]
fn complaints_name_the_place_as_upstream_does() {
    let cases = [
        (
            "self.a +",
            "ERROR: <input>:1:9: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | self.a +\n | ........^",
        ),
        (
            "1.all(2, 3)",
            "ERROR: <input>:1:7: argument must be a simple name\n | 1.all(2, 3)\n | ......^",
        ),
        (
            "has(a)",
            "ERROR: <input>:1:5: invalid argument to has() macro\n | has(a)\n | ....^",
        ),
        (
            "99999999999999999999",
            "ERROR: <input>:1:1: invalid int literal\n | 99999999999999999999\n | ^",
        ),
        (
            "a.transformList(i, i, i)",
            "ERROR: <input>:1:20: duplicate variable name: i\n | a.transformList(i, i, i)\n | ...................^",
        ),
        (
            "for + 1",
            "ERROR: <input>:1:1: reserved identifier: for\n | for + 1\n | ^",
        ),
        (
            "'\\q'",
            "ERROR: <input>:1:1: Syntax error: token recognition error at: ''\\q'\n | '\\q'\n | ^",
        ),
    ];
    for (text, expected) in cases {
        let found = complaint(text);
        assert!(found.starts_with(expected), "{text}:\n{found}");
    }
}

#[test]
fn size_and_depth_are_limited() {
    let long = "a".repeat(100_001);
    assert_eq!(
        complaint(&long),
        "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000"
    );
    let nested = format!("{}1{}", "[".repeat(40_000), "]".repeat(40_000));
    assert_eq!(
        complaint(&nested),
        "ERROR: <input>:-1:0: expression recursion limit exceeded: 250"
    );
    for chain in ["a".to_owned() + &".b".repeat(300), "1+".repeat(300) + "1"] {
        assert_eq!(
            complaint(&chain),
            "ERROR: <input>:-1:0: max recursion depth exceeded"
        );
    }
    let balanced = "a && ".repeat(1_000) + "b";
    assert!(parse(&balanced, &Syntax::kubernetes()).is_ok());
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "[ -~\u{e9}\n]{0,60}") {
        let _ = parse(&text, &Syntax::full());
    }

    #[test]
    fn token_soup_parses_alike_when_printed(
        words in proptest::collection::vec(proptest::sample::select(WORDS), 0..14)
    ) {
        let text = words.concat();
        if let Ok(ast) = parse(&text, &Syntax::full()) {
            let once = print(&ast);
            let again = parse(&once, &Syntax::full());
            prop_assert!(again.is_ok(), "{text} -> {once}");
            prop_assert_eq!(again.map(|ast| print(&ast)).unwrap_or_default(), once);
        }
    }
}

const WORDS: &[&str] = &[
    "a",
    "b.c",
    "1",
    "2u",
    "-",
    "!",
    "+",
    "*",
    " in ",
    "==",
    "&&",
    "||",
    "?",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'s'",
    "b'\\xff'",
    "1.5",
    "has(a.b)",
    ".all(x,x)",
    ".?d",
    "[?0]",
    "f(",
    ".map(y,",
    "true",
    "null",
    "T{",
    "f:",
    "-5",
    "--",
];
