//! What costs little in upstream's measure, but takes much work or memory, ends.

use std::sync::Arc;
use std::time::Instant;

use polyplane_cel::{Environment, Fault, Program, check, parse};

/// A text of 15 MB, which costs about 800.
fn large_text() -> String {
    let text = |letter: &str| format!("'{}'", letter.repeat(3_900));
    format!("{}.replace('a', {})", text("a"), text("b"))
}

/// Binds a name to a value in an expression.
fn with(name: &str, value: &str, body: &str) -> String {
    format!("[{value}].all({name}, {body})")
}

/// Evaluates something so often that it would take hours.
fn often(body: &str) -> String {
    format!("lists.range(10000).all(i, {body})")
}

/// A list of ten lists of ten lists…, all of which are one list.
fn shared_lists(body: &str) -> String {
    let mut text = body.to_owned();
    for (name, above) in ["f", "e", "d", "c", "b", "a"]
        .into_iter()
        .zip(["e", "d", "c", "b", "a", "1"])
    {
        text = with(name, &format!("[{}]", [above; 10].join(", ")), &text);
    }
    text
}

#[test]
fn what_costs_little_but_takes_much_work_or_memory_ends() {
    let text = large_text();
    let of_text = |body: &str| with("s", &text, &often(body));
    let of_list = |body: &str| with("l", "lists.range(200000)", &often(body));
    let url = "url('/?' + 'a'.replace('a', 'a&'))";
    let query = url
        .replace("'a'.", &format!("'{}'.", "a".repeat(3_900)))
        .replace("'a&'", &format!("'{}'", "a&".repeat(600)));
    let expressions = [
        shared_lists(&often("f == f")),
        shared_lists(&often("f in [f]")),
        shared_lists(&often("sets.contains([f], [f])")),
        shared_lists(&often("[f, f].distinct().size() > 0")),
        shared_lists(&often("'%s'.format([f]) != ''")),
        of_text("s.charAt(15000000) != ''"),
        of_text("s.size() > 0"),
        of_text("s == 'a' || true"),
        of_text("'%x'.format([s]) != ''"),
        of_text("s in ['a', 'b'] || true"),
        of_text("{s: 1}.size() > 0"),
        // The text is quoted in an error that nobody sees.
        of_text("timestamp('2020-01-01T00:00:00Z').getHours(s + ':') == 1 || true"),
        of_list("(l + l).size() > 0"),
        of_list("[l, l, l].flatten().size() > 0"),
        of_list("l.reverse().size() > 0 || true"),
        of_list("l.indexOf(200000) == 0 || true"),
        with("u", &query, &often("u.getQuery().size() > 0")),
        format!("lists.range(10000).map(i, {text}).size() > 0"),
        with(
            "l",
            "lists.range(200000)",
            "lists.range(10000).map(i, l + l).size() > 0",
        ),
        with(
            "s",
            &text,
            "'%s'.format([[s, s, s, s, s, s, s, s, s, s, s, s]]) != ''",
        ),
    ];
    let environment = Arc::new(Environment::kubernetes());
    for expression in expressions {
        let shown = &expression[expression.len().saturating_sub(80)..];
        let ast = parse(&expression, &environment.syntax).expect(shown);
        let checked = check(ast, &environment).expect(shown);
        let begin = Instant::now();
        let program = Program::checked(&checked, &environment);
        let evaluated = program.evaluate(&[], 1_000_000);
        assert!(
            matches!(evaluated.outcome, Err(Fault::Budget)),
            "{shown}: {:?}",
            evaluated.cost
        );
        // Without the limits this would not come to its end.
        println!(
            "{:?} at a cost of {}: …{shown}",
            begin.elapsed(),
            evaluated.cost
        );
    }
}

#[test]
fn short_expressions_that_grow_without_end_when_they_are_compiled_are_refused() {
    let environment = Environment::kubernetes();
    let copies = format!("optional.of(1){}", ".optMap(x, x)".repeat(40));
    let found = parse(&copies, &environment.syntax).map(|_| ());
    let text = found
        .expect_err("each copies what is before it")
        .to_string();
    assert!(text.contains("too large once its macros"), "{text}");

    let doubled = format!("[1]{}", ".map(x, {x: x})".repeat(40));
    let ast = parse(&doubled, &environment.syntax).expect("it is well-formed");
    let found = check(ast, &environment).map(|_| ());
    let text = found.expect_err("each type is twice as large").to_string();
    assert!(text.contains("have too many parts"), "{text}");

    // No type of these is too large, but all of them together are.
    let wide = ["x"; 20_000].join(",");
    let many = format!("[1]{}.map(x, [{wide}])", ".map(x, {x: x})".repeat(8));
    let ast = parse(&many, &environment.syntax).expect("it is well-formed");
    let found = check(ast, &environment).map(|_| ());
    let text = found.expect_err("each of them has the type").to_string();
    assert!(text.contains("have too many parts"), "{text}");

    for ordinary in [
        "optional.of(1).optMap(x, x + 1).optMap(x, x * 2).optMap(x, x - 1).orValue(0) == 3",
        "[1].map(x, {x: x}).map(x, {'a': x}).map(x, [x]).map(x, {'b': x}).size() == 1",
    ] {
        let ast = parse(ordinary, &environment.syntax).expect(ordinary);
        assert!(check(ast, &environment).is_ok(), "{ordinary}");
    }
}
