//! The check whether the defaults in a schema match the schema that has them.

use super::structural_schema::{kind, members};
use crate::shared::validation::complaints::Errors;
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::field_error::{Bad, FieldError, FieldErrorKind, Path};
use polyplane_apimachinery::{Value, json};

/// Checks every default of a structural schema.
pub fn validate(errors: &mut Errors, schema: &Value, path: &Path<'_>) {
    if schema.as_object().is_none() {
        return;
    }
    let default = &schema["default"];
    if present(default) {
        validate_value(errors, default, schema, &path.child("default"));
    }
    for (name, property) in members(schema, "properties") {
        validate(errors, property, &path.child("properties").key(name));
    }
    validate(errors, &schema["items"], &path.child("items"));
    validate(
        errors,
        &schema["additionalProperties"],
        &path.child("additionalProperties"),
    );
}

fn fits(value: &Value, kind: &str) -> bool {
    match (kind, value) {
        ("", _)
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("integer" | "number", Value::Int(_))
        | ("number", Value::Float(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => true,
        ("integer", Value::Float(number)) => number.fract() == 0.0,
        _ => false,
    }
}

fn word(value: &Value) -> &'static str {
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

fn validate_value(errors: &mut Errors, value: &Value, schema: &Value, path: &Path<'_>) {
    if value.is_null() && schema.bool_at(&["nullable"]) {
        return;
    }
    let either = schema.bool_at(&["x-kubernetes-int-or-string"]);
    let wanted = if either { "" } else { kind(schema) };
    // Upstream shows the type instead of a value that has the wrong type.
    let fitting = fits(value, wanted);
    let bad = if fitting {
        Bad::from(value.clone())
    } else {
        Bad::from(word(value))
    };
    if !fitting {
        let detail = format!(" in body must be of type {wanted}: {:?}", word(value));
        let kind = FieldErrorKind::TypeInvalid;
        errors.push(FieldError::new(kind, path, Bad::from(word(value)), detail));
    }
    let allowed = schema.items_at(&["enum"]);
    if !allowed.is_empty() && !allowed.contains(value) {
        let shown: Vec<String> = allowed
            .iter()
            .map(|value| {
                value
                    .as_str()
                    .map_or_else(|| json::to_string(value), str::to_owned)
            })
            .collect();
        errors.push(FieldError::not_supported(path, bad, &shown));
    }
    validate_number(errors, value, schema, path);
    validate_size(errors, value, schema, path);
    if let Value::Array(items) = value {
        for (at, item) in items.iter().enumerate() {
            if schema["items"].as_object().is_some() {
                validate_value(errors, item, &schema["items"], &path.index(at));
            }
        }
    }
    if value.as_object().is_some() {
        for name in texts(&schema["required"]) {
            if value.get(name).is_none() {
                errors.push(FieldError::required(&path.child(name), ""));
            }
        }
        for (name, property) in members(schema, "properties") {
            if let Some(member) = value.get(name) {
                validate_value(errors, member, property, &path.child(name));
            }
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

fn validate_number(errors: &mut Errors, value: &Value, schema: &Value, path: &Path<'_>) {
    let Some(given) = number(value) else { return };
    let mut bound = |field: &str, exclusive: &str, words: &str, beyond: fn(f64, f64) -> bool| {
        let Some(limit) = number(&schema[field]) else {
            return;
        };
        let strict = schema.bool_at(&[exclusive]);
        if beyond(given, limit) || strict && given == limit {
            let or_equal = if strict { "" } else { " or equal to" };
            let detail = format!(
                " in body should be {words} than{or_equal} {}",
                Bad::from(limit)
            );
            errors.push(FieldError::invalid(path, value.clone(), detail));
        }
    };
    bound("maximum", "exclusiveMaximum", "less", |given, limit| {
        given > limit
    });
    bound("minimum", "exclusiveMinimum", "greater", |given, limit| {
        given < limit
    });
    if let Some(factor) =
        number(&schema["multipleOf"]).filter(|factor| (given / factor).fract() != 0.0)
    {
        let detail = format!(" in body should be a multiple of {}", Bad::from(factor));
        errors.push(FieldError::invalid(path, value.clone(), detail));
    }
}

fn validate_size(errors: &mut Errors, value: &Value, schema: &Value, path: &Path<'_>) {
    let (size, most, least) = match value {
        Value::String(text) => {
            let pattern = schema.str_at(&["pattern"]);
            if regex::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text)) {
                let detail = format!(" in body should match '{pattern}'");
                errors.push(FieldError::invalid(path, text.as_str(), detail));
            }
            (text.chars().count(), "maxLength", "minLength")
        }
        Value::Array(items) => (items.len(), "maxItems", "minItems"),
        Value::Object(members) => (members.len(), "maxProperties", "minProperties"),
        _ => return,
    };
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    if let Some(limit) = schema.int_at(&[most]).filter(|limit| size > *limit) {
        let limit = usize::try_from(limit).unwrap_or(0);
        errors.push(match value {
            Value::String(_) => FieldError::too_long(path, limit),
            _ => FieldError::too_many(path, usize::try_from(size).unwrap_or(0), limit),
        });
    }
    if let Some(limit) = schema.int_at(&[least]).filter(|limit| size < *limit) {
        let unit = if value.as_str().is_some() {
            "chars long"
        } else {
            "items"
        };
        let detail = format!(" in body should be at least {limit} {unit}");
        errors.push(FieldError::invalid(path, value.clone(), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_checked_where_they_stand() {
        let schema = json!({
            "type": "object",
            "properties": {
                "size": {"type": "integer", "default": 3i64, "maximum": 2i64},
                "name": {"type": "string", "default": 1i64},
                "list": {"type": "array", "items": {"type": "string", "enum": ["a"]}, "default": ["a", "b"]}
            }
        });
        let mut errors = Errors::new();
        validate(&mut errors, &schema, &Path::new("s"));
        let mut fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "s.properties[list].default[1]",
                "s.properties[name].default",
                "s.properties[size].default"
            ]
        );
    }
}
