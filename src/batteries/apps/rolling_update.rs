//! Numbers of pods, absolute or as a percentage, that limit a rolling update.

use crate::shared::validation::numbers::NEGATIVE;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::int_or_string::IntOrString;
use polyplane_apimachinery::{Value, names};

/// Returns the percentage in a text such as `25%`.
fn percent(value: &Value) -> Option<i64> {
    let text = value.as_str()?;
    if !names::percent(text).is_empty() {
        return None;
    }
    text.strip_suffix('%')?.parse().ok()
}

/// Returns the number in a value, whether it is absolute or a percentage.
pub fn amount(value: &Value) -> i64 {
    percent(value)
        .unwrap_or_else(|| IntOrString::from_value(value).map_or(0, |value| value.int_value()))
}

/// Checks that a number or percentage is not negative.
pub fn non_negative(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    match value {
        Value::String(text) => {
            for complaint in names::percent(text) {
                errors.push(FieldError::invalid(
                    path,
                    Bad::Json(value.clone()),
                    complaint,
                ));
            }
        }
        _ => {
            if let Some(number) = value.as_int().filter(|number| *number < 0) {
                errors.push(FieldError::invalid(path, number, NEGATIVE));
            }
        }
    }
}

/// Checks that a percentage is at most 100.
pub fn at_most_all(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if percent(value).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(
            path,
            Bad::Json(value.clone()),
            "must not be greater than 100%",
        ));
    }
}

/// Returns the value, or zero as a number if it is absent.
pub fn or_zero(value: &Value) -> Value {
    if value.is_null() {
        0i64.into()
    } else {
        value.clone()
    }
}

/// Sets the members of `rollingUpdate` that are absent, if the update is a rolling one.
pub fn default(strategy: &mut Value, members: &[(&str, Value)]) {
    if strategy.str_at(&["type"]) != "RollingUpdate" {
        return;
    }
    let rolling = strategy["rollingUpdate"].make_object();
    for (name, value) in members {
        let member = rolling.entry(name);
        if member.is_null() {
            *member = value.clone();
        }
    }
}
