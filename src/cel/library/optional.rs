//! Values that may be missing.

use std::sync::Arc;

use crate::library::{Context, Library};
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        optional_of: optional.of(V) -> optional_type(V)
        optional_ofNonZeroValue: optional.ofNonZeroValue(V) -> optional_type(V)
        optional_none: optional.none() -> optional_type(V)
        optional_value: value:(optional_type(V)) -> V
        optional_hasValue: hasValue:(optional_type(V)) -> bool
        optional_or_optional: or:(optional_type(V), optional_type(V)) -> optional_type(V)
        optional_orValue_value: orValue:(optional_type(V), V) -> V
        select_optional_field: _?._(dyn, string) -> optional_type(V)
        list_optindex_optional_int: _[?_](list(V), int) -> optional_type(V)
        optional_list_optindex_optional_int: _[?_](optional_type(list(V)), int) -> optional_type(V)
        map_optindex_optional_value: _[?_](map(K, V), K) -> optional_type(V)
        optional_map_optindex_optional_value: _[?_](optional_type(map(K, V)), K) -> optional_type(V)
        optional_list_index_int: _[_](optional_type(list(V)), int) -> optional_type(V)
        optional_map_index_value: _[_](optional_type(map(K, V)), K) -> optional_type(V)
        list_last: last:(list(V)) -> optional_type(V)
        list_first: first:(list(V)) -> optional_type(V)
        optional_unwrap: optional.unwrap(list(optional_type(V))) -> list(V)
        optional_unwrapOpt: unwrapOpt:(list(optional_type(V))) -> list(V)",
    runs: &[
        ("optional.of", |_, args| match args {
            [value] => Ok(Value::some(value.clone())),
            _ => Err(Fault::no_overload()),
        }),
        ("optional.ofNonZeroValue", |_, args| match args {
            [value] if is_zero(value) => Ok(Value::Optional(None)),
            [value] => Ok(Value::some(value.clone())),
            _ => Err(Fault::no_overload()),
        }),
        ("optional.none", |_, _| Ok(Value::Optional(None))),
        ("value", |_, args| match args {
            [Value::Optional(Some(inner))] => Ok((**inner).clone()),
            [Value::Optional(None)] => Err(Fault::error("optional.none() dereference")),
            _ => Err(Fault::no_overload()),
        }),
        ("hasValue", |_, args| match args {
            [Value::Optional(inner)] => Ok(Value::Bool(inner.is_some())),
            _ => Err(Fault::no_overload()),
        }),
        ("first", |_, args| match args {
            [Value::List(list)] => Ok(Value::Optional(list.at(0).map(Arc::new))),
            _ => Err(Fault::no_overload()),
        }),
        ("last", |_, args| match args {
            [Value::List(list)] => {
                let last = list.len().checked_sub(1).and_then(|at| list.at(at));
                Ok(Value::Optional(last.map(Arc::new)))
            }
            _ => Err(Fault::no_overload()),
        }),
        ("optional.unwrap", unwrap),
        ("unwrapOpt", unwrap),
    ],
    types: &["optional_type"],
};

/// Go's zero time, in seconds since 1970.
const ZERO_TIME_SECONDS: i64 = -62_135_596_800;

fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        // The first moment of the year 1 is Go's zero time.
        Value::Timestamp(time) => time.order() == (ZERO_TIME_SECONDS, 0),
        Value::Type(_) | Value::Optional(Some(_)) | Value::Opaque(_) => false,
    }
}

fn unwrap<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return Err(Fault::no_overload());
    };
    context.budget.elements(list.len())?;
    let mut made = Vec::new();
    for element in list.iter() {
        match element {
            Value::Optional(Some(inner)) => made.push((*inner).clone()),
            Value::Optional(None) => {}
            _ => return Err(Fault::no_overload()),
        }
    }
    Ok(Value::list(made))
}
