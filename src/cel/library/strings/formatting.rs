//! `format`: values inside a text, by clauses.

use crate::budget::WorkBudget;
use crate::format::plain;
use crate::library::Context;
use crate::limits::check_text;
use crate::types::Type;
use crate::value::{Fault, List, Outcome, Value};

/// Digits behind the point unless the clause says otherwise.
const PRECISION: usize = 6;
/// Most digits behind the point. Without a limit one clause could take all memory.
const PRECISION_MAX: usize = 100;

pub(super) fn format<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::List(values)] => {
            formatted(text, values, context.budget).map(Value::text)
        }
        _ => Err(Fault::no_overload()),
    }
}

/// What is said of a format that ends with a percent sign.
pub(crate) const UNEXPECTED_END: &str = "unexpected end of string";

/// Returns the letters of the clauses in a format up to one that cannot be read, and what is wrong with that.
pub(crate) fn clauses(text: &str) -> (Vec<char>, Option<String>) {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('%') {
        if let Some(behind) = behind.strip_prefix('%') {
            rest = behind;
            continue;
        }
        let unparsed = |text: String| Some(format!("could not parse formatting clause: {text}"));
        let behind = match precision(behind) {
            Ok((_, behind)) => behind,
            Err(text) => return (found, unparsed(text)),
        };
        let Some(clause) = behind.chars().next() else {
            return (found, Some(UNEXPECTED_END.to_owned()));
        };
        if !CLAUSES.contains(clause) {
            let text = format!("unrecognized formatting clause \"{clause}\"");
            return (found, unparsed(text));
        }
        found.push(clause);
        rest = &behind[1..];
    }
    (found, None)
}

/// Returns whether a clause can write values of a type, or the complaint of one that cannot.
pub(crate) fn fits(clause: char, of: &Type) -> Result<(), String> {
    let number = matches!(of, Type::Int | Type::Uint);
    let (good, what) = match clause {
        's' => (!matches!(of, Type::Opaque(..) | Type::Struct(_)), STRING),
        'd' => (number, DECIMAL),
        'f' => (*of == Type::Double, FIXED),
        'e' => (*of == Type::Double, SCIENTIFIC),
        'b' => (number || *of == Type::Bool, BINARY),
        'o' => (number, OCTAL),
        _ => (number || matches!(of, Type::String | Type::Bytes), HEX),
    };
    // The text of a special number is a number.
    let text_of_number = "fe".contains(clause) && *of == Type::String;
    if good || of.is_dynamic() || text_of_number {
        return Ok(());
    }
    Err(format!("{what}, was given {}", of.name()))
}

const CLAUSES: &str = "sdfebxXo";
const STRING: &str = "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
const DECIMAL: &str = "decimal clause can only be used on integers";
const FIXED: &str = "fixed-point clause can only be used on doubles";
const SCIENTIFIC: &str = "scientific clause can only be used on doubles";
const BINARY: &str = "only integers and bools can be formatted as binary";
const OCTAL: &str = "octal clause can only be used on integers";
const HEX: &str = "only integers, byte buffers, and strings can be formatted as hex";

fn formatted(text: &str, values: &List<'_>, budget: &WorkBudget) -> Result<String, Fault> {
    let mut made = String::new();
    let mut rest = text;
    let mut next = 0;
    while let Some((before, behind)) = rest.split_once('%') {
        made.push_str(before);
        if let Some(behind) = behind.strip_prefix('%') {
            made.push('%');
            rest = behind;
            continue;
        }
        let value = values
            .at(next)
            .ok_or_else(|| Fault::error(format!("index {next} out of range")))?;
        next += 1;
        let unparsed =
            |text: String| Fault::error(format!("could not parse formatting clause: {text}"));
        let (precision, behind) = precision(behind).map_err(unparsed)?;
        let clause = behind
            .chars()
            .next()
            .ok_or_else(|| Fault::error("unexpected end of string"))?;
        if !CLAUSES.contains(clause) {
            return Err(unparsed(format!(
                "unrecognized formatting clause \"{clause}\""
            )));
        }
        budget.parts(1)?;
        budget.read(value.bytes())?;
        let written = write(clause, precision, &value, budget);
        if budget.is_spent() {
            return Err(Fault::Budget);
        }
        let written =
            written.map_err(|text| Fault::error(format!("error during formatting: {text}")))?;
        check_text(made.len().saturating_add(written.len()))?;
        made.push_str(&written);
        rest = &behind[1..];
    }
    made.push_str(rest);
    Ok(made)
}

fn precision(text: &str) -> Result<(usize, &str), String> {
    let Some(digits) = text.strip_prefix('.') else {
        return Ok((PRECISION, text));
    };
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .ok_or("error while parsing precision: could not find end of precision specifier")?;
    let count: usize = digits[..end].parse().map_err(
        |_| "error while parsing precision: error while converting precision to integer",
    )?;
    if count > PRECISION_MAX {
        return Err(format!(
            "error while parsing precision: precision {count} exceeds maximum allowed precision {PRECISION_MAX}"
        ));
    }
    Ok((count, &digits[end..]))
}

fn write(
    clause: char,
    precision: usize,
    value: &Value<'_>,
    budget: &WorkBudget,
) -> Result<String, String> {
    match clause {
        's' => string(value, budget),
        'd' => match value {
            Value::Int(value) => Ok(value.to_string()),
            Value::Uint(value) => Ok(value.to_string()),
            Value::Double(value) if !value.is_finite() => Ok(special(*value)),
            other => Err(wrong(DECIMAL, other)),
        },
        'f' => number(value, FIXED).map(|value| finite(value, || format!("{value:.precision$}"))),
        'e' => {
            number(value, SCIENTIFIC).map(|value| finite(value, || scientific(value, precision)))
        }
        'b' => match value {
            Value::Int(value) => Ok(signed(*value, |size| format!("{size:b}"))),
            Value::Uint(value) => Ok(format!("{value:b}")),
            Value::Bool(value) => Ok(u8::from(*value).to_string()),
            other => Err(wrong(BINARY, other)),
        },
        'o' => match value {
            Value::Int(value) => Ok(signed(*value, |size| format!("{size:o}"))),
            Value::Uint(value) => Ok(format!("{value:o}")),
            other => Err(wrong(OCTAL, other)),
        },
        _ => hex(value).map(|text| match clause {
            'X' => text.to_ascii_uppercase(),
            _ => text,
        }),
    }
}

fn wrong(what: &str, value: &Value<'_>) -> String {
    format!("{what}, was given {}", value.type_name())
}

fn signed(value: i64, write: fn(u64) -> String) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", write(value.unsigned_abs()))
}

fn hex(value: &Value<'_>) -> Result<String, String> {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    let bytes = |bytes: &[u8]| {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(digit).collect()
    };
    match value {
        Value::Int(value) => Ok(signed(*value, |size| format!("{size:x}"))),
        Value::Uint(value) => Ok(format!("{value:x}")),
        Value::String(text) => Ok(bytes(text.as_bytes())),
        Value::Bytes(inner) => Ok(bytes(inner)),
        other => Err(wrong(HEX, other)),
    }
}

fn number(value: &Value<'_>, what: &str) -> Result<f64, String> {
    match value {
        Value::Double(value) => Ok(*value),
        Value::String(text) => match &**text {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(wrong(what, value)),
        },
        other => Err(wrong(what, other)),
    }
}

fn special(value: f64) -> String {
    let text = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    text.to_owned()
}

fn finite(value: f64, write: impl Fn() -> String) -> String {
    if value.is_finite() {
        write()
    } else {
        special(value)
    }
}

fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{size:0>2}")
}

/// Returns a value as text, or part of it once the budget is spent.
fn string(value: &Value<'_>, budget: &WorkBudget) -> Result<String, String> {
    if budget.parts(1).is_err() {
        return Ok(String::new());
    }
    let text = match value {
        Value::Double(value) if !value.is_finite() => special(*value),
        Value::List(list) => {
            let parts = list.iter().map(|it| string(&it, budget));
            let parts: Result<Vec<String>, String> = parts.collect();
            format!("[{}]", parts?.join(", "))
        }
        Value::Map(map) => {
            let mut parts = Vec::new();
            for (key, value) in map.iter() {
                let key = string(&key, budget)?;
                parts.push(format!("{key}: {}", string(&value, budget)?));
            }
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Optional(_) | Value::Opaque(_) => return Err(wrong(STRING, value)),
        other if budget.make(other.bytes()).is_err() => return Ok(String::new()),
        other => plain(other),
    };
    // Without this, a text inside many lists would be copied for each of them.
    Ok(budget
        .make(text.len())
        .map_or_else(|_| String::new(), |()| text))
}
