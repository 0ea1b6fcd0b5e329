//! How values are written inside texts of errors and by conversions to text.

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

/// Writes a value as errors name it.
#[must_use]
pub(crate) fn plain(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double(*value),
        Value::String(text) | Value::Type(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Duration(nanos) => crate::time::format_duration(*nanos),
        Value::Timestamp(at) => at.to_string(),
        Value::List(list) => {
            let inner: Vec<String> = list.iter().map(|it| plain(&it)).collect();
            format!("[{}]", inner.join(", "))
        }
        Value::Map(map) => {
            let inner: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", plain(&key), plain(&value)))
                .collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::Optional(Some(inner)) => format!("optional({})", plain(inner)),
        Value::Optional(None) => "optional.none()".to_owned(),
        Value::Opaque(value) => value.type_name().to_owned(),
    }
}
