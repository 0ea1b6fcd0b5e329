//! How values are written inside texts of errors and by conversions to text.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;

use crate::limits::SHOWN_BYTES_MAX;
use crate::value::Value;

/// Writes a floating-point number as the `%g` of Go does: the shortest digits, and an exponent below
/// -4 and from 6 on.
#[must_use]
pub(crate) fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The characters beyond ASCII that Go writes as they are.
static PRINTABLE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[\p{L}\p{M}\p{N}\p{P}\p{S}]$").expect("a constant pattern compiles")
});

/// Writes a text in quotes, as complaints of Go show it.
#[must_use]
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        let code = u32::from(letter);
        // Writing to a text cannot fail.
        let _ = match letter {
            '"' | '\\' => write!(out, "\\{letter}"),
            '\u{7}' => out.write_str("\\a"),
            '\u{8}' => out.write_str("\\b"),
            '\u{c}' => out.write_str("\\f"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\u{b}' => out.write_str("\\v"),
            ' '..='~' => out.write_char(letter),
            '\0'..'\u{80}' => write!(out, "\\x{code:02x}"),
            _ if PRINTABLE.is_match(letter.encode_utf8(&mut [0; 4])) => out.write_char(letter),
            '\u{80}'..='\u{ffff}' => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
    out.push('"');
    out
}

/// Writes a value as errors name it. Of a large list or map only the beginning is written.
#[must_use]
pub(crate) fn plain(value: &Value<'_>) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value<'_>, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Uint(value) => out.push_str(&value.to_string()),
        Value::Double(value) => out.push_str(&double(*value)),
        Value::String(text) | Value::Type(text) => out.push_str(text),
        Value::Bytes(bytes) => out.push_str(&String::from_utf8_lossy(bytes)),
        Value::Duration(nanos) => out.push_str(&crate::time::format_duration(*nanos)),
        Value::Timestamp(at) => out.push_str(&at.to_string()),
        Value::List(list) => {
            out.push('[');
            for (number, element) in list.iter().enumerate() {
                if out.len() > SHOWN_BYTES_MAX {
                    break;
                }
                out.push_str(if number == 0 { "" } else { ", " });
                write(&element, out);
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (number, (key, value)) in map.iter().enumerate() {
                if out.len() > SHOWN_BYTES_MAX {
                    break;
                }
                out.push_str(if number == 0 { "" } else { ", " });
                write(&key, out);
                out.push_str(": ");
                write(&value, out);
            }
            out.push('}');
        }
        Value::Optional(Some(inner)) => {
            out.push_str("optional(");
            write(inner, out);
            out.push(')');
        }
        Value::Optional(None) => out.push_str("optional.none()"),
        Value::Opaque(value) => out.push_str(value.type_name()),
    }
}
