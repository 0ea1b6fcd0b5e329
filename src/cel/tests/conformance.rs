//! CEL's published conformance cases. `testdata/generate` converts them; the cases that fail are
//! named in a list that may only shrink: `RECORD=1` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polyplane_cel::{
    Blob, Environment, Key, Overload, Program, Text, Timestamp, Type, Value, check, parse,
};
use serde_json::Value as Json;

/// More than any case needs.
const COST_MAX: u64 = 1_000_000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/conformance")
}

fn value(json: &Json) -> Option<Value<'static>> {
    let (kind, inner) = json.as_object()?.iter().next()?;
    let text = || inner.as_str().map(str::to_owned);
    Some(match kind.as_str() {
        "null" => Value::Null,
        "bool" => Value::Bool(inner.as_bool()?),
        "int" => Value::Int(text()?.parse().ok()?),
        "uint" => Value::Uint(text()?.parse().ok()?),
        "double" => Value::Double(f64::from_bits(u64::from_str_radix(&text()?, 16).ok()?)),
        "string" => Value::text(text()?),
        "bytes" => Value::Bytes(Blob::Shared(base64(&text()?).into())),
        "type" => Value::Type(Text::from(text()?)),
        "duration" => Value::Duration(text()?.parse().ok()?),
        "timestamp" => {
            let part = |at: usize| inner.get(at)?.as_str();
            let (seconds, nanos) = (part(0)?.parse().ok()?, part(1)?.parse().ok()?);
            Value::Timestamp(Timestamp::new(seconds, nanos).ok()?)
        }
        "list" => Value::list(inner.as_array()?.iter().map(value).collect::<Option<_>>()?),
        "map" => {
            let entry = |pair: &Json| Some((Key::of(&value(pair.get(0)?)?)?, value(pair.get(1)?)?));
            let entries: Option<BTreeMap<_, _>> = inner.as_array()?.iter().map(entry).collect();
            Value::map(entries?)
        }
        _ => return None,
    })
}

fn base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut made = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = LETTERS.iter().position(|letter| *letter == byte);
        bits = bits << 6 | u32::try_from(digit.unwrap_or(0)).unwrap_or(0);
        count += 6;
        if count >= 8 {
            count -= 8;
            made.push(u8::try_from(bits >> count & 0xff).unwrap_or(0));
        }
    }
    made
}

/// Whether two values are the same, with their types.
fn same(one: &Value<'_>, two: &Value<'_>) -> bool {
    match (one, two) {
        (Value::Double(one), Value::Double(two)) => one == two || one.is_nan() && two.is_nan(),
        (Value::List(one), Value::List(two)) => {
            one.len() == two.len() && one.iter().zip(two.iter()).all(|(a, b)| same(&a, &b))
        }
        (Value::Map(one), Value::Map(two)) => {
            one.len() == two.len()
                && one
                    .iter()
                    .zip(two.iter())
                    .all(|(a, b)| same(&a.0, &b.0) && same(&a.1, &b.1))
        }
        (one, two) => one.type_name() == two.type_name() && one.equals(two),
    }
}

fn text<'a>(case: &'a Json, name: &str) -> &'a str {
    case.get(name).and_then(Json::as_str).unwrap_or_default()
}

fn flag(case: &Json, name: &str) -> bool {
    case.get(name).and_then(Json::as_bool).unwrap_or(false)
}

fn list<'a>(case: &'a Json, name: &str) -> &'a [Json] {
    case.get(name)
        .and_then(Json::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Declares what a case declares. Returns the values of the variables, in their order.
fn declare(case: &Json, environment: &mut Environment) -> Result<Vec<Value<'static>>, String> {
    environment.container = text(case, "container").to_owned();
    let object = |name: &str| case.get(name).and_then(Json::as_object);
    let mut declared: BTreeMap<&str, Type> = BTreeMap::new();
    for (name, of) in object("variables").into_iter().flatten() {
        let of = of
            .as_str()
            .and_then(Type::parse)
            .ok_or("a type of a message")?;
        declared.insert(name, of);
    }
    let bindings = object("bindings");
    for name in bindings.into_iter().flatten().map(|(name, _)| name) {
        declared.entry(name).or_insert(Type::Dyn);
    }
    let mut values = Vec::new();
    for (name, of) in declared {
        environment.declare(name, of);
        let bound = bindings.and_then(|bindings| bindings.get(name));
        values.push(match bound {
            Some(bound) => value(bound).ok_or("a binding of a message")?,
            None => Value::Null,
        });
    }
    for function in list(case, "functions") {
        let parsed = |of: &Json| of.as_str().and_then(Type::parse);
        let parameters: Option<Vec<Type>> =
            list(function, "parameters").iter().map(parsed).collect();
        let overload = Overload {
            id: text(function, "id").into(),
            member: flag(function, "member"),
            parameters: parameters.ok_or("a function of a message")?,
            result: function
                .get("result")
                .and_then(parsed)
                .ok_or("a function's type")?,
        };
        environment.declare_function(text(function, "name"), overload);
    }
    Ok(values)
}

fn replay(case: &Json, base: &Environment) -> Result<(), String> {
    let mut environment = base.clone();
    let values = declare(case, &mut environment)?;
    if flag(case, "no_macros") {
        return Err("macros cannot be switched off".to_owned());
    }
    let ast = parse(text(case, "expr"), &environment.syntax)
        .map_err(|issues| first_line(&issues.to_string()))?;
    let environment = Arc::new(environment);
    let program = if flag(case, "unchecked") {
        Program::unchecked(&ast, &environment)
    } else {
        let checked = check(ast, &environment).map_err(|issues| first_line(&issues.to_string()))?;
        let expected = text(case, "type");
        if !expected.is_empty() {
            let parsed = Type::parse(expected).ok_or("the type of a message")?;
            if *checked.result() != parsed {
                return Err(format!("type {} instead of {parsed}", checked.result()));
            }
        }
        if flag(case, "check_only") {
            return Ok(());
        }
        Program::checked(&checked, &environment)
    };
    let outcome = program.evaluate(&values, COST_MAX).outcome;
    match (outcome, case.get("value")) {
        (Err(_), None) if flag(case, "error") => Ok(()),
        (Err(fault), _) => Err(fault.to_string()),
        (Ok(_), None) if flag(case, "error") => Err("no error".to_owned()),
        (Ok(_), None) => Ok(()),
        (Ok(found), Some(expected)) => match value(expected) {
            Some(expected) if same(&found, &expected) => Ok(()),
            Some(expected) => Err(format!("{found:?} instead of {expected:?}")),
            None => Err("a result of a message".to_owned()),
        },
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn published_cases_pass_but_for_a_list_that_only_shrinks() {
    let base = Environment::full();
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the cases are committed")
        .map(|entry| entry.expect("an entry can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    let (mut failed, mut passed, mut total) = (BTreeMap::new(), 0, 0);
    for path in files {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let cases = fs::read_to_string(&path).expect("the cases are text");
        let (mut good, mut all) = (0, 0);
        for line in cases.lines() {
            let case: Json = serde_json::from_str(line).expect("a line is JSON");
            all += 1;
            match replay(&case, &base) {
                Ok(()) => good += 1,
                Err(why) => {
                    failed.insert(format!("{name}/{}", text(&case, "name")), why);
                }
            }
        }
        println!("{name:<16} {good:>4} of {all:>4}");
        passed += good;
        total += all;
    }
    println!("{:<16} {passed:>4} of {total:>4}", "all");
    assert!(total > 2_000, "only {total} cases were found");
    let list_path = folder().join("failing.txt");
    if std::env::var_os("RECORD").is_some() {
        let lines: String = failed
            .iter()
            .map(|(name, why)| format!("{name}\t{}\n", why.replace('\n', " ")))
            .collect();
        fs::write(&list_path, lines).expect("the list can be written");
    }
    let listed = fs::read_to_string(&list_path).unwrap_or_default();
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    let new: Vec<String> = failed
        .iter()
        .filter(|(name, _)| !listed.contains(name.as_str()))
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    assert!(
        new.is_empty(),
        "fail, but are not listed:\n{}",
        new.join("\n")
    );
    let repaired: Vec<&&str> = listed
        .iter()
        .filter(|name| !failed.contains_key(**name))
        .collect();
    assert!(
        repaired.is_empty(),
        "pass, so take them out of the list: {repaired:?}"
    );
}
