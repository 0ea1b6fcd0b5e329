//! Fields and elements of values. As upstream, a value without parts is one that does not have this part.

use std::borrow::Cow;

use crate::format::plain;
use crate::refusal::check_index;
use crate::value::{Fault, List, Map, Outcome, Value};

fn no_such_key(name: &str) -> Fault {
    Fault::error(format!("no such key: {name}"))
}

fn no_index_type(name: &str) -> Fault {
    Fault::error(format!("unsupported index type '{name}' in list"))
}

pub(super) fn field<'a>(operand: &Value<'a>, name: &str) -> Outcome<'a> {
    match operand {
        Value::Map(map) => map.field(name).ok_or_else(|| no_such_key(name))?.valid(),
        Value::List(_) => Err(no_index_type("string")),
        _ => Err(no_such_key(name)),
    }
}

/// Returns the field of what an optional holds.
pub(super) fn optional_field<'a>(
    operand: Option<&Value<'a>>,
    name: &str,
) -> Result<Option<Value<'a>>, Fault> {
    match operand {
        Some(Value::Map(map)) => map.field(name).map(Value::valid).transpose(),
        Some(Value::List(_)) => Err(no_index_type("string")),
        _ => Ok(None),
    }
}

pub(super) fn has(operand: &Value<'_>, name: &str) -> Result<bool, Fault> {
    match operand {
        Value::Map(map) => match map.field(name) {
            None => Ok(false),
            Some(found) => found.valid().map(|_| true),
        },
        Value::List(_) => Err(no_index_type("string")),
        _ => Ok(false),
    }
}

/// Looks an element up. The outer error is of the index itself, the inner one that the element is
/// not there.
pub(super) fn element<'a>(
    operand: &Value<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, Cow<'static, str>>, Fault> {
    check_index(index).map_err(Fault::error)?;
    match operand {
        Value::List(list) => list_element(list, index),
        Value::Map(map) => map_element(map, index),
        _ => Ok(Err(no_such_element(index))),
    }
}

fn list_element<'a>(
    list: &List<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, Cow<'static, str>>, Fault> {
    let at = match index {
        Value::Int(at) => Some(*at),
        Value::Uint(at) => i64::try_from(*at).ok(),
        Value::Double(at) => crate::value::exact_int(*at),
        other => return Err(no_index_type(other.type_name())),
    };
    let Some(at) = at else {
        let shown = plain(index);
        return Err(Fault::error(format!(
            "unsupported index value {shown} in list"
        )));
    };
    let found = usize::try_from(at).ok().and_then(|at| list.at(at));
    let found = found.map(Value::valid).transpose()?;
    Ok(found.ok_or_else(|| format!("index out of bounds: {at}").into()))
}

fn map_element<'a>(
    map: &Map<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, Cow<'static, str>>, Fault> {
    let found = map.get(index).map(Value::valid).transpose()?;
    Ok(found.ok_or_else(|| no_such_element(index)))
}

fn no_such_element(index: &Value<'_>) -> Cow<'static, str> {
    format!("no such key: {}", plain(index)).into()
}

pub(super) fn optional_index<'a>(
    operand: &Value<'a>,
    index: &Value<'a>,
) -> Result<Option<Value<'a>>, Fault> {
    Ok(element(operand, index)?.ok())
}
