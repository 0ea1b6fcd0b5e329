//! The body of a JSON patch request: a list of operations, checked as upstream's decoders do.

use super::{DecodeError, JsonPatch, OPERATIONS_MAX, OperandError, Operation};
use crate::json;
use crate::quote::quote;
use crate::value::Value;

/// The choice whether the fields of operations are checked, depending on the request's
/// `fieldValidation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldCheck {
    /// For `Ignore`: only needed fields are read, and the complaints are the library's.
    Ignore,
    /// For `Warn` and `Strict`: wrong types are errors, unknown and repeated fields are reported.
    Report,
}

pub(super) fn decode(
    body: &[u8],
    limits: &json::Limits,
    check: FieldCheck,
) -> Result<JsonPatch, DecodeError> {
    let parsed = json::parse(body, limits).map_err(DecodeError::NotJson)?;
    let (list, element, prefix) = match check {
        FieldCheck::Ignore => ("jsonpatch.Patch", "jsonpatch.Operation", ""),
        FieldCheck::Report => (
            "[]handlers.jsonPatchOp",
            "handlers.jsonPatchOp",
            "error decoding patch: ",
        ),
    };
    let shape = |value: &Value, target: &str| {
        let kind = value.go_kind();
        DecodeError::Shape(format!(
            "{prefix}json: cannot unmarshal {kind} into Go value of type {target}"
        ))
    };
    let items = match parsed.value {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        other => return Err(shape(&other, list)),
    };
    let wrong = items
        .iter()
        .find(|item| !matches!(item, Value::Null | Value::Object(_)));
    if let Some(wrong) = wrong {
        return Err(shape(wrong, element));
    }
    let mut strict_errors = Vec::new();
    if check == FieldCheck::Report {
        check_types(&items)?;
        // Repeated keys inside values are reported too, but not those inside an unknown field.
        for path in parsed.duplicates {
            strict_errors.push(format!("json patch duplicate field {}", quote(&path)));
        }
        strict_errors.extend(unknown_fields(&items));
        // As upstream, which reads one operation after the other.
        strict_errors.sort_by_key(|text| operation_of(text));
    }
    if items.len() > OPERATIONS_MAX {
        return Err(DecodeError::TooMany(items.len()));
    }
    Ok(JsonPatch {
        operations: items.into_iter().map(operation).collect(),
        strict_errors,
    })
}

fn check_types(items: &[Value]) -> Result<(), DecodeError> {
    for item in items {
        for field in ["op", "path", "from"] {
            if let Some(value) = item.get(field)
                && !matches!(value, Value::Null | Value::String(_))
            {
                let kind = value.go_kind();
                return Err(DecodeError::Shape(format!(
                    "error decoding patch: json: cannot unmarshal {kind} into Go struct field jsonPatchOp.{field} of type string"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the number of the operation that a complaint is about.
fn operation_of(complaint: &str) -> Option<usize> {
    let (_, path) = complaint.split_once("\"[")?;
    path.split_once(']')?.0.parse().ok()
}

fn unknown_fields(items: &[Value]) -> Vec<String> {
    let mut errors = Vec::new();
    for (index, item) in items.iter().enumerate() {
        for key in item
            .as_object()
            .into_iter()
            .flat_map(|members| members.keys())
        {
            if !matches!(key, "op" | "path" | "from" | "value") && errors.len() < 100 {
                let path = quote(&format!("[{index}].{key}"));
                errors.push(format!("json patch unknown field {path}"));
            }
        }
    }
    errors
}

fn operation(mut item: Value) -> Operation {
    let kind = match &item["op"] {
        Value::String(kind) => kind.to_string(),
        _ => "unknown".to_owned(),
    };
    let path = text(&item["path"], OperandError::PathMissing);
    let from = text(&item["from"], OperandError::FromMissing);
    Operation {
        kind,
        path,
        from,
        value: item.remove(&["value"]),
    }
}

fn text(value: &Value, missing: OperandError) -> Result<String, OperandError> {
    match value {
        Value::Null => Err(missing),
        Value::String(text) => Ok(text.to_string()),
        other => Err(OperandError::WrongType(other.go_kind())),
    }
}
