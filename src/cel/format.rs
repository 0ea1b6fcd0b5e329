//! How values are written inside texts of errors and by conversions to text.

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
