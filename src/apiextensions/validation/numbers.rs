//! The limits of numbers.

use super::check::{Found, Place};
use super::formats::Format;
use super::schema::Schema;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Bad;

/// Checks a number by its type, its format and its limits.
pub(super) fn number(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Found) {
    let typed = match &*schema.types {
        "integer" => Some("integer"),
        "number" => Some("number"),
        _ => None,
    };
    let format = schema.format;
    let in_range = |number: &Value| match (typed, format, number) {
        (Some("integer"), Some(Format::Int32), Value::Int(number)) => {
            i32::try_from(*number).is_ok()
        }
        (Some("integer"), _, Value::Int(_)) => true,
        (Some("integer"), format, Value::Float(number)) => {
            let fits = number.fract() == 0.0 && number.abs() < 9.223_372_036_854_776e18;
            let small = format != Some(Format::Int32) || number.abs() <= 2_147_483_648.0;
            fits && small
        }
        (_, Some(Format::Float), Value::Float(number)) => number.abs() <= f64::from(f32::MAX),
        _ => true,
    };
    let out_of_range = |what: &str| {
        let typed = typed.unwrap_or("");
        let format = match format {
            Some(format) => format!("with format {}", format.name()),
            None => "(default format)".to_owned(),
        };
        place.general(format!(
            "{what} value must be of type {typed} {format} in {}",
            place.path
        ))
    };
    if !in_range(value) {
        found.add(out_of_range("Checked"));
    }
    let Some(bounds) = schema.bounds.as_deref() else {
        return;
    };
    let mut limit = |bound: f64, what: &str, native: &dyn Fn() -> Option<String>| {
        if !in_range(&Value::Float(bound)) {
            found.add(out_of_range(what));
        }
        if let Some(text) = native() {
            found.add(place.invalid(value.clone(), &text));
        }
    };
    if let Some(factor) = bounds.multiple_of {
        limit(factor, "MultipleOf", &|| multiple(value, factor));
    }
    if let Some((max, exclusive)) = bounds.maximum {
        limit(max, "Maximum boundary", &|| {
            beyond(value, max, exclusive, "less", |value, max| value > max)
        });
    }
    if let Some((min, exclusive)) = bounds.minimum {
        limit(min, "Minimum boundary", &|| {
            beyond(value, min, exclusive, "greater", |value, min| value < min)
        });
    }
}

/// Returns the text about a number that is beyond a limit. Integers are compared as such.
fn beyond(
    value: &Value,
    limit: f64,
    exclusive: bool,
    word: &str,
    exceeds: fn(f64, f64) -> bool,
) -> Option<String> {
    let (is_beyond, is_equal, shown) = match value {
        Value::Int(number) => {
            let whole = limit as i64;
            let beyond = match word {
                "less" => *number > whole,
                _ => *number < whole,
            };
            (beyond, *number == whole, whole.to_string())
        }
        Value::Float(number) => {
            let shown = Bad::from(limit).to_string();
            (exceeds(*number, limit), *number == limit, shown)
        }
        _ => return None,
    };
    let or_equal = if exclusive { "" } else { " or equal to" };
    (is_beyond || exclusive && is_equal).then(|| format!("should be {word} than{or_equal} {shown}"))
}

fn multiple(value: &Value, factor: f64) -> Option<String> {
    let (shown, is_multiple) = match value {
        Value::Int(number) => {
            let factor = factor as i64;
            if factor <= 0 {
                return None;
            }
            (factor.to_string(), number % factor == 0)
        }
        Value::Float(number) => {
            let parts = match factor < 1.0 {
                true => 1.0 / factor * number,
                false => number / factor,
            };
            (Bad::from(factor).to_string(), is_json_integer(parts))
        }
        _ => return None,
    };
    (!is_multiple).then(|| format!("should be a multiple of {shown}"))
}

/// Returns whether a number is an integer that JSON can carry, within upstream's tolerance.
pub(super) fn is_json_integer(number: f64) -> bool {
    const SAFE_MAX: f64 = 9_007_199_254_740_991.0;
    if !number.is_finite() || !(-SAFE_MAX..=SAFE_MAX).contains(&number) {
        return false;
    }
    let (whole, fraction) = (number.trunc(), number.fract());
    if fraction == 0.0 {
        return true;
    }
    let diff = (number - whole).abs();
    if number == 0.0 || diff < f64::MIN_POSITIVE {
        return diff < f64::EPSILON * f64::MIN_POSITIVE;
    }
    diff / (number.abs() + whole.abs()) < 1e-9
}
