//! Constant defaults of a schema. Defaults that depend on other fields belong to the kinds.

use super::{Shape, Values};
use crate::value::{Map, Value};

/// Sets absent fields to their constant defaults, wherever their parent is present.
///
/// Applying this twice has the same effect as once.
pub fn apply<'s, S: Shape<'s>>(shape: S, value: &mut Value) {
    if !shape.has_defaults() {
        return;
    }
    match value {
        Value::Object(members) => object(shape, members),
        Value::Array(items) => {
            if let Some(item) = shape.item() {
                items.iter_mut().for_each(|value| entry(item, value));
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}

/// Returns whether [`apply`] would change the value.
pub fn lacks<'s, S: Shape<'s>>(shape: S, value: &Value) -> bool {
    if !shape.has_defaults() {
        return false;
    }
    let entry = |shape: S, value: &Value| {
        shape.default().is_some() && shape.is_absent(Some(value)) || lacks(shape, value)
    };
    match value {
        Value::Object(members) => {
            let mut fields = shape.children();
            let field = |(name, child): (&str, S)| match members.get(name) {
                None => child.default().is_some() && child.is_absent(None),
                Some(value) => entry(child, value),
            };
            fields.any(field)
                || matches!(shape.values(), Some(Values::Of(values)) if members
                    .iter()
                    .any(|(name, value)| shape.child(name).is_none() && entry(values, value)))
        }
        Value::Array(items) => shape
            .item()
            .is_some_and(|item| items.iter().any(|value| entry(item, value))),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => false,
    }
}

fn object<'s, S: Shape<'s>>(shape: S, members: &mut Map) {
    for (name, child) in shape.children() {
        if let Some(default) = child.default()
            && child.is_absent(members.get(name))
        {
            members.insert(name, default.clone());
        }
        if child.has_defaults()
            && let Some(value) = members.get_mut(name)
        {
            apply(child, value);
        }
    }
    if let Some(Values::Of(values)) = shape.values() {
        for (name, value) in members.iter_mut() {
            if shape.child(name).is_none() {
                entry(values, value);
            }
        }
    }
}

/// Applies the defaults of an item of a list or a value of a map. It is never missing, but it may
/// be a `null` that its default replaces.
fn entry<'s, S: Shape<'s>>(shape: S, value: &mut Value) {
    if let Some(default) = shape.default()
        && shape.is_absent(Some(value))
    {
        *value = default.clone();
    }
    apply(shape, value);
}
