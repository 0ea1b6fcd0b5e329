//! Errors about values in trees that upstream converts: results of strategic merge patches and applies.

use crate::schema::Type;
use crate::schema::scalars::BadBytes;
use crate::value::Value;

/// Returns the error about a value of the wrong type with the text of upstream's converter, which names kinds
/// of values where its decoder names fields. `wanted` is the type in Go.
///
/// A number that 32 bits do not hold is an error here; upstream's converter keeps the bits that fit.
pub(super) fn type_text(value: &Value, ty: &Type, wanted: &str) -> String {
    let found = kind_of(value);
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
        (Type::List(_) | Type::Bytes, _) => format!("cannot restore slice from {found}"),
        (Type::Map(_), _) => format!("cannot restore map from {found}"),
        _ => format!("cannot restore struct from: {found}"),
    }
}

/// Returns the error about a value that is no bytes, with the text of upstream's converter.
pub(super) fn bytes_text(value: &Value, bad: BadBytes) -> String {
    match bad {
        BadBytes::Text(text) => format!("error decoding from json: {text}"),
        BadBytes::Item(at) => match &value[at] {
            number @ (Value::Int(_) | Value::Float(_)) => {
                format!("cannot convert {} to uint8", kind_of(number))
            }
            _ => "unrecognized type: uint8".to_owned(),
        },
    }
}

/// Returns Go's name for the kind of a value.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::decode::Numbers;
    use crate::schema::fixture::{SCHEMAS, kind, tree};

    #[test]
    fn bytes_in_converted_trees_are_refused_in_the_words_of_the_converter() {
        let secret = kind("/v1/Secret").expect("secrets are known");
        for (data, by_value, as_written) in [
            (
                r#""a*""#,
                "error decoding from json: illegal base64 data at input byte 1",
                "illegal base64 data at input byte 1",
            ),
            (
                r#"["a"]"#,
                "unrecognized type: uint8",
                "json: cannot unmarshal string into Go struct field Secret.data of type uint8",
            ),
            (
                "{}",
                "cannot restore slice from map",
                "json: cannot unmarshal object into Go struct field Secret.data of type []uint8",
            ),
        ] {
            for (numbers, text) in [
                (Numbers::ByValue, by_value),
                (Numbers::AsWritten, as_written),
            ] {
                let mut object = tree(&format!(r#"{{"data":{{"k":{data}}}}}"#));
                let outcome = SCHEMAS.decode_as_sent(secret, &mut object, numbers);
                assert_eq!(outcome.expect_err(data).to_string(), text);
            }
        }
    }

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
