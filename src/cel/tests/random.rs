//! Random expressions: evaluation never panics, stays within its budget, and answers alike for a
//! checked and an unchecked program; a regular expression that is translated means the same.

use std::sync::Arc;

use polyplane_cel::{
    Environment, Fault, Key, Program, Sizes, Type, Value, WorkBudget, check, compile_pattern,
    estimate, parse, print,
};
use proptest::prelude::*;

/// Expressions of small depth over two variables, right and wrong ones.
fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("a".to_owned()),
        Just("m.x".to_owned()),
        Just("m.y".to_owned()),
        Just("null".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| format!("{number}u")),
        any::<f64>()
            .prop_filter("finite", |it| it.is_finite())
            .prop_map(|it| format!("{it:?}")),
        "[a-z%.]{0,4}".prop_map(|text| format!("'{text}'")),
        Just("b'\\xff'".to_owned()),
        Just("duration('1h')".to_owned()),
        Just("timestamp('2024-02-29T12:00:00Z')".to_owned()),
        Just("optional.none()".to_owned()),
        any::<bool>().prop_map(|it| it.to_string()),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        let three = (inner.clone(), inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), proptest::sample::select(OPERATORS))
                .prop_map(|((one, two), mark)| format!("({one} {mark} {two})")),
            (inner.clone(), proptest::sample::select(METHODS))
                .prop_map(|(one, method)| format!("({one}){method}")),
            (two, proptest::sample::select(LOOPS))
                .prop_map(|((one, two), name)| format!("[{one}, {two}].{name}(a, {two})")),
            three.prop_map(|(test, yes, no)| format!("({test} ? {yes} : [{no}, ?{yes}])")),
            inner
                .clone()
                .prop_map(|one| format!("{{'k': {one}, 1: {one}}}")),
            inner.prop_map(|one| format!("-({one})")),
        ]
    })
}

const OPERATORS: &[&str] = &[
    "+", "-", "*", "/", "%", "<", "<=", ">", ">=", "==", "!=", "in", "&&", "||",
];
const LOOPS: &[&str] = &["all", "exists", "exists_one", "map", "filter", "sortBy"];
const METHODS: &[&str] = &[
    ".size()",
    "[0]",
    "['k']",
    ".?k",
    "[?1]",
    ".k",
    ".startsWith('a')",
    ".matches('a*')",
    ".split('')",
    ".substring(1)",
    ".format([1, 'x'])",
    ".getHours()",
    ".sum()",
    ".distinct()",
    ".flatten()",
    ".orValue(1)",
    ".transformMap(k, v, v)",
    ".transformList(k, v, k)",
    ".lowerAscii()",
    ".indexOf('a')",
    ".reverse()",
];

struct Unknown;

impl Sizes for Unknown {
    fn size(&self, _: &[Arc<str>], _: &Type) -> Option<polyplane_cel::Range> {
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn evaluation_never_panics_and_obeys_its_budget(text in expressions(), budget in 0_u64..200) {
        let mut environment = Environment::full();
        environment.declare("a", Type::Dyn);
        environment.declare("m", Type::map(Type::String, Type::Dyn));
        let ast = parse(&text, &environment.syntax);
        prop_assert!(ast.is_ok(), "{}: {:?}", text, ast.err().map(|it| it.to_string()));
        let Ok(ast) = ast else { return Ok(()) };
        let again = parse(&print(&ast), &environment.syntax);
        prop_assert_eq!(again.map(|it| print(&it)).unwrap_or_default(), print(&ast));
        let checked = check(ast.clone(), &environment);
        let environment = Arc::new(environment);
        let entries = [("x", Value::Int(7)), ("y", Value::list(vec![Value::text("t")]))];
        let map = entries
            .into_iter()
            .filter_map(|(name, value)| Some((Key::of(&Value::text(name))?, value)))
            .collect();
        let variables = [Value::text("abc"), Value::map(map)];
        let free = Program::unchecked(&ast, &environment);
        let full = free.evaluate(&variables, u64::MAX);
        let within = free.evaluate(&variables, budget);
        // One charge may pass the budget; the evaluation ends with it.
        if full.cost > budget {
            prop_assert_eq!(within.outcome.err(), Some(Fault::Budget));
        } else {
            prop_assert_eq!(within.cost, full.cost);
        }
        if let Ok(checked) = checked {
            let program = Program::checked(&checked, &environment);
            let typed = program.evaluate(&variables, u64::MAX);
            prop_assert_eq!(typed.outcome.is_ok(), full.outcome.is_ok(), "{}", text);
            let bounds = estimate(&checked, &Unknown, 1);
            prop_assert!(bounds.min <= bounds.max, "{}: {:?}", text, bounds);
        }
    }

    #[test]
    fn patterns_never_panic(text in r"[a-c\\\[\]^$(){},*+?|.:&~dwsbpPLQE0-9<>=-]{0,12}") {
        let _ = compile_pattern(&text);
    }
}

#[test]
fn what_an_expression_makes_is_limited() {
    let doubled = format!("[[1, 2, 3]]{}[0].size()", ".map(x, x + x)".repeat(30));
    let replaced = format!("'abcdefgh'{}.size()", ".replace('', 'abcdefgh')".repeat(20));
    let joined = "lists.range(100000).map(x, 'a').join('".to_owned() + &"b".repeat(5_000) + "')";
    let nested = ".map(x, [x, x])".repeat(60);
    let compared = format!("[1]{nested} == [1]{nested}");
    let walked = format!("[1]{nested}.isSorted()");
    for text in [doubled, replaced, joined, compared, walked] {
        let environment = Arc::new(Environment::kubernetes());
        let ast = parse(&text, &environment.syntax).expect("it parses");
        let program = Program::unchecked(&ast, &environment);
        let outcome = program.evaluate(&[], 1_000_000_000).outcome;
        assert!(
            matches!(outcome, Err(Fault::Budget)),
            "{text:.40}: {outcome:?}"
        );
    }
}

/// On a thread with a small stack, in a build whose frames are large.
#[test]
fn the_deepest_expressions_fit_the_stack() {
    let deep = |open: &str, inner: &str, close: &str, levels: usize| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    let texts = [
        deep("[", "1", "]", 249),
        deep("{'a': ", "1", "}", 249),
        deep("(", "1", ")", 249),
        deep("true ? 1 : (", "2", ")", 124),
        deep("size([", "1", "])", 124),
        deep("[1].map(x, ", "x", ")", 245),
        deep("[1].all(x, ", "x == 1", ")", 245),
        deep("optional.of(1).optMap(x, ", "x", ")", 245),
        deep("1 + (", "1", ")", 124),
        format!("a{}", ".b".repeat(249)),
        format!("a{}", "[0]".repeat(249)),
        format!("[1]{}", ".map(x, x)".repeat(240)),
        "1".to_owned() + &"+1".repeat(249),
        "true".to_owned() + &" && true".repeat(5_000),
    ];
    for text in texts {
        let mut environment = Environment::kubernetes();
        environment.declare("a", Type::Dyn);
        let parsed = parse(&text, &environment.syntax);
        let ast = parsed.unwrap_or_else(|issues| panic!("{text:.40}: {issues}"));
        assert!(!print(&ast).is_empty());
        let checked = check(ast, &environment);
        let environment = Arc::new(environment);
        let checked = checked.unwrap_or_else(|issues| panic!("{text:.40}: {issues:.200}"));
        let bounds = estimate(&checked, &Unknown, 1);
        assert!(bounds.min <= bounds.max, "{text:.40}");
        let program = Program::checked(&checked, &environment);
        let evaluated = program.evaluate(&[Value::Int(1)], 10_000_000);
        assert!(evaluated.cost <= 10_000_000 + 1_000);
    }
}

/// Chains of `||` and `&&` are balanced, so a few letters make a dozen levels of the tree at each level of the text.
#[test]
fn trees_that_are_deeper_than_their_text_are_refused() {
    let syntax = Environment::kubernetes().syntax;
    let wide = format!("{}{}(", "1||".repeat(63), "1&&".repeat(63));
    for open in [wide.as_str(), "!!!!![[[["] {
        let deepest = (1..250).rev().find_map(|levels| {
            let close: String = open.chars().rev().filter_map(closing).collect();
            let text = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            parse(&text, &syntax).ok()
        });
        let ast = deepest.expect("few levels are accepted");
        assert!(!print(&ast).is_empty());
        let environment = Arc::new(Environment::kubernetes());
        // It may have wrong types; the stack is what must suffice.
        let Ok(checked) = check(ast, &environment) else {
            continue;
        };
        let bounds = estimate(&checked, &Unknown, 1);
        assert!(bounds.min <= bounds.max, "{open:.40}");
        let program = Program::checked(&checked, &environment);
        let evaluated = program.evaluate(&[], 1_000_000);
        assert!(evaluated.cost <= 1_000_000 + 1_000, "{open:.40}");
    }
    let text = format!("{}1{}", wide.repeat(249), ")".repeat(249));
    let refused = parse(&text, &syntax).expect_err("it has 3 000 levels");
    assert!(refused.to_string().contains("max recursion depth exceeded"));
}

/// Returns what closes a bracket.
fn closing(open: char) -> Option<char> {
    match open {
        '(' => Some(')'),
        '[' => Some(']'),
        _ => None,
    }
}

#[test]
fn patterns_mean_what_they_mean_in_go() {
    let matching = [
        (r"^\d+$", "12"),
        (r"^\w$", "_"),
        (r"^[a&&b]$", "&"),
        (r"^[[a]b]$", "[b]"),
        (r"^\<a\>$", "<a>"),
        (r"^a{,5}$", "a{,5}"),
        (r"^a{$", "a{"),
        (r"^\Qa.b\E$", "a.b"),
        (r"^\012$", "\n"),
        (r"^\p{^Greek}$", "a"),
        (
            r"^\p{greek}\p{Letter}\p{uppercase letter}\p{L C}\pl$",
            "αaBCd",
        ),
        (
            r"^\p{ASCII}\P{Ascii}\p{Assigned}\P{Cn}\p{^Unassigned}$",
            "aéaaa",
        ),
        (r"^\p{any}[\p{Any}]\P{Surrogate}[^\p{Cs}a]$", "abcd"),
        (r"^[a-\x{DBFF}]\x{D800}?[^\x{D800}-\x{DFFF}]$", "\u{D7FF}b"),
        (r"^[^\d]$", "x"),
        (r"^[\w-]+$", "a-b"),
        (r"^(?P<n>a)(?i)B$", "ab"),
        (r"\bstart", "a start"),
        (r"^[[:alpha:]]$", "q"),
        (r"^(?:a*)*$", "aa"),
    ];
    for (pattern, text) in matching {
        let regex = compile_pattern(pattern);
        assert!(
            regex
                .as_ref()
                .is_ok_and(|regex| regex.is_match(text, &WorkBudget::default()) == Ok(true)),
            "{pattern} {text} {:?}",
            regex.err()
        );
    }
    for (pattern, text) in [(r"^\d$", "٣"), (r"^\s$", "\u{b}"), (r"^\w$", "é")] {
        let regex = compile_pattern(pattern);
        assert!(
            regex.is_ok_and(|regex| regex.is_match(text, &WorkBudget::default()) == Ok(false)),
            "{pattern}"
        );
    }
    let refused = [
        "a**",
        "a++",
        "a*+",
        "(?x)a",
        "(?u)a",
        r"\u0041",
        r"\p{Script=Greek}",
        r"\p{Old_Italic}",
        r"\p{Latn}",
        r"\C",
        "(?P<a.b>c)",
        "a{1001}",
        "(x{500}){3}",
        "(",
        ")",
        "[b-a]",
        "*a",
        r"\",
        r"\8",
        "[[:word:]",
        "(?=a)",
    ];
    for pattern in refused {
        assert!(compile_pattern(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn what_go_refuses_is_refused_in_its_words() {
    for (pattern, expected) in [
        (r"[\pX-z]", r"invalid character class range: `\pX`"),
        (r"\p", r"invalid character class range: `\p`"),
        (r"\p_", r"invalid character class range: `\p_`"),
        (r"\p{}", r"invalid character class range: `\p{}`"),
        (r"[a\p{L]", r"invalid character class range: `\p{L]`"),
        (
            r"\p{^^Greek}",
            r"invalid character class range: `\p{^^Greek}`",
        ),
        (
            r"\p{SignWriting}",
            r"invalid character class range: `\p{SignWriting}`",
        ),
        (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
        (r"\x{2g}", r"invalid escape sequence: `\x{2g`"),
        (r"\xg1", r"invalid escape sequence: `\xg1`"),
        (r"\x1", r"invalid escape sequence: `\x1`"),
        (r"[[:^nope:]]", "invalid character class range: `[:^nope:]`"),
    ] {
        let refused = compile_pattern(pattern).err().map(|why| why.to_string());
        assert_eq!(refused.as_deref(), Some(expected), "{pattern}");
    }
}
