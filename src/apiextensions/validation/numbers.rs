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
    let in_range = |number: &Value| is_in_range(typed, format, number);
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
        found.refuse(place, || out_of_range("Checked"));
    }
    let Some(bounds) = schema.bounds.as_deref() else {
        return;
    };
    // Upstream compares numbers of the value's kind, but if the limit is none of the type, it compares
    // floating ones.
    let mut limit = |bound: f64, what: &str, check: &dyn Fn(&Value, &mut Found)| {
        let fits = in_range(&Value::Float(bound));
        if !fits {
            found.refuse(place, || out_of_range(what));
        }
        match value {
            Value::Int(number) if !fits => check(&Value::Float(*number as f64), found),
            value => check(value, found),
        }
    };
    if let Some(factor) = bounds.multiple_of {
        limit(factor, "MultipleOf", &|value: &Value, found: &mut Found| {
            multiple(value, factor, place, found);
        });
    }
    if let Some((max, exclusive)) = bounds.maximum {
        limit(
            max,
            "Maximum boundary",
            &|value: &Value, found: &mut Found| {
                let exceeds: Exceeds = |value, max| value > max;
                beyond(value, (max, exclusive), ("less", exceeds), place, found);
            },
        );
    }
    if let Some((min, exclusive)) = bounds.minimum {
        limit(
            min,
            "Minimum boundary",
            &|value: &Value, found: &mut Found| {
                let exceeds: Exceeds = |value, min| value < min;
                beyond(value, (min, exclusive), ("greater", exceeds), place, found);
            },
        );
    }
}

/// Returns whether a number is one of a type and its format.
fn is_in_range(typed: Option<&str>, format: Option<Format>, number: &Value) -> bool {
    match (typed, format, number) {
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
    }
}

/// Says whether a number is on the wrong side of a limit.
type Exceeds = fn(f64, f64) -> bool;

/// Refuses a number that is beyond a limit. Integers are compared as such.
fn beyond(
    value: &Value,
    (limit, exclusive): (f64, bool),
    (word, exceeds): (&str, Exceeds),
    place: Place<'_>,
    found: &mut Found,
) {
    let (is_beyond, is_equal) = match value {
        Value::Int(number) => {
            let whole = limit as i64;
            let beyond = match word {
                "less" => *number > whole,
                _ => *number < whole,
            };
            (beyond, *number == whole)
        }
        Value::Float(number) => (exceeds(*number, limit), *number == limit),
        _ => return,
    };
    if !(is_beyond || exclusive && is_equal) {
        return;
    }
    found.refuse(place, || {
        let shown = match value {
            Value::Int(_) => (limit as i64).to_string(),
            _ => Bad::from(limit).to_string(),
        };
        let or_equal = if exclusive { "" } else { " or equal to" };
        place.invalid(
            value.clone(),
            &format!("should be {word} than{or_equal} {shown}"),
        )
    });
}

fn multiple(value: &Value, factor: f64, place: Place<'_>, found: &mut Found) {
    let (factor, is_positive, is_multiple) = match value {
        Value::Int(number) => {
            // A factor below one is zero then, as in Go.
            let whole = factor as i64;
            let is_positive = whole > 0;
            let is_multiple = is_positive && number % whole == 0;
            (Value::Int(whole), is_positive, is_multiple)
        }
        Value::Float(number) => {
            let parts = match factor < 1.0 {
                true => 1.0 / factor * number,
                false => number / factor,
            };
            (Value::Float(factor), factor > 0.0, is_json_integer(parts))
        }
        _ => return,
    };
    let shown = || Bad::from(factor.clone()).to_string();
    if !is_positive {
        found.refuse(place, || {
            let text = format!(
                "factor MultipleOf declared for {} must be positive: {}",
                place.path,
                shown()
            );
            place.about(factor.clone(), text)
        });
    } else if !is_multiple {
        found.refuse(place, || {
            let text = format!("should be a multiple of {}", shown());
            place.invalid(value.clone(), &text)
        });
    }
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

#[cfg(test)]
mod tests {
    use super::super::{Change, Schema, validate};
    use polyplane_apimachinery::{Value, json};
    use polyplane_cel::WorkBudget;

    #[test]
    fn numbers_are_compared_with_limits_as_upstream_compares_them() {
        let range = |what: &str, typed: &str| {
            format!(
                "<nil>: Invalid value: \"\": {what} value must be of type {typed} (default format) in "
            )
        };
        let cases: [(Value, Value, Vec<String>); 7] = [
            (
                json!({"type": "integer", "multipleOf": 0.1}),
                json!(9_007_199_254_740_993i64),
                vec![
                    range("MultipleOf", "integer"),
                    "<nil>: Invalid value: 9.007199254740992e+15:  in body should be a multiple of 0.1".to_owned(),
                ],
            ),
            (
                json!({"type": "integer", "minimum": 1.5}),
                json!(1i64),
                vec![
                    range("Minimum boundary", "integer"),
                    "<nil>: Invalid value: 1:  in body should be greater than or equal to 1.5".to_owned(),
                ],
            ),
            (
                json!({"type": "integer", "maximum": 1.5}),
                json!(1i64),
                vec![range("Maximum boundary", "integer")],
            ),
            (
                json!({"type": "number", "minimum": 1.5}),
                json!(1i64),
                Vec::new(),
            ),
            (
                json!({"type": "number", "multipleOf": 0.5}),
                json!(1i64),
                vec![
                    "<nil>: Invalid value: 0: factor MultipleOf declared for  must be positive: 0".to_owned(),
                ],
            ),
            (json!({"type": "number", "multipleOf": 0.5}), json!(1.5), Vec::new()),
            (json!({"type": "integer", "multipleOf": 3i64}), json!(9i64), Vec::new()),
        ];
        for (schema, value, wanted) in cases {
            let known = Schema::compile(&schema).expect("it is shallow");
            let found = validate(
                &known,
                Change::Created(&value),
                None,
                &WorkBudget::default(),
            );
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, wanted, "{schema:?}");
        }
    }
}
