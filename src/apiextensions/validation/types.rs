//! The types of values.

use super::check::{Complaint, Found, Place};
use super::numbers::is_json_integer;
use super::schema::Schema;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::FieldErrorKind;
use polyplane_apimachinery::quote::quote;

/// Returns the complaint about a value of a type that is not allowed.
pub(super) fn wrong_type(schema: &Schema, value: &Value, place: Place<'_>) -> Complaint {
    let word = type_of(value);
    let text = format!("must be of type {}: {}", schema.types, quote(word));
    place.error(FieldErrorKind::TypeInvalid, word, &text)
}

/// Checks the type of a value.
pub(super) fn types(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Found) {
    let word = type_of(value);
    let is_whole = matches!(value, Value::Float(number) if is_json_integer(*number));
    let numeric = schema.has_type("number") || schema.has_type("integer");
    let format = schema.named_format();
    if !numeric && format.is_some() && matches!(value, Value::String(_) | Value::Array(_)) {
        found.matches += 1;
        return;
    }
    let fits = schema.has_type(word)
        || is_whole && schema.has_type("integer")
        || word == "integer" && schema.has_type("number");
    if fits {
        found.matches += 1;
        return;
    }
    // Upstream compares the type in Go with the format then.
    let in_go = match value {
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        _ => "",
    };
    let is_single = !matches!(value, Value::String(_) | Value::Array(_));
    found.refuse(place, || {
        match format.filter(|format| is_single && *format != in_go) {
            Some(format) => {
                let text = format!("must be of type {format}: {}", quote(in_go));
                place.error(FieldErrorKind::TypeInvalid, in_go, &text)
            }
            None => wrong_type(schema, value, place),
        }
    });
}

/// Returns a type's name; that of nothing is `null`.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Int(_) => "integer",
        Value::Float(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
