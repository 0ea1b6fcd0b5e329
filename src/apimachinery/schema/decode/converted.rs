//! Errors about values in trees that upstream converts: results of strategic merge patches and applies.

use crate::schema::Type;
use crate::value::Value;

/// Returns the error about a value of the wrong type with the text of upstream's converter, which names kinds
/// of values where its decoder names fields. `wanted` is the type in Go.
///
/// A number that 32 bits do not hold is an error here; upstream's converter keeps the bits that fit.
pub(super) fn type_text(value: &Value, ty: &Type, wanted: &str) -> String {
    let found = match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    match (ty, value) {
        (Type::String, Value::Int(_))
        | (Type::Int32 | Type::Int64, Value::Int(_) | Value::Float(_)) => {
            format!("cannot convert {found} to {wanted}")
        }
        (Type::String, _) => "unrecognized type: string".to_owned(),
        (Type::Bool, _) => "unrecognized type: bool".to_owned(),
        (Type::Int32, _) => "unrecognized type: int32".to_owned(),
        (Type::Int64, _) => "unrecognized type: int64".to_owned(),
        (Type::Float64, _) => "unrecognized type: float64".to_owned(),
        (Type::List(_), _) => format!("cannot restore slice from {found}"),
        (Type::Map(_), _) => format!("cannot restore map from {found}"),
        _ => format!("cannot restore struct from: {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_types_in_converted_trees_are_named_by_kind() {
        let list = Type::List(Box::new(Type::String));
        for (value, ty, wanted, text) in [
            (
                Value::Array(Vec::new()),
                Type::Quantity,
                "v1.DeploymentSpec",
                "cannot restore struct from: slice",
            ),
            (
                Value::object(),
                list,
                "[]v1.Container",
                "cannot restore slice from map",
            ),
            (
                Value::from("1"),
                Type::Int32,
                "int32",
                "unrecognized type: int32",
            ),
            (
                Value::Float(1.5),
                Type::Int32,
                "int32",
                "cannot convert float64 to int32",
            ),
            (
                Value::Int(1),
                Type::String,
                "v1.Type",
                "cannot convert int64 to v1.Type",
            ),
            (
                Value::Bool(true),
                Type::String,
                "v1.Type",
                "unrecognized type: string",
            ),
        ] {
            assert_eq!(type_text(&value, &ty, wanted), text);
        }
    }
}
