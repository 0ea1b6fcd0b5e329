//! Constant defaults of a schema. Defaults that depend on other fields belong to the kinds.

use super::{Shape, Values};
use crate::value::{Map, Value};

/// Fields of a shape up to which each is looked up in an object. Of a wider one, the members of the object are looked
/// up in the shape: a user's schema may have a hundred thousand fields, and an object as many empty items.
const WIDTH_MAX: usize = 128;

/// Bytes that a [`Budget`] counts for each value, beside its texts.
const VALUE_BYTES: usize = 16;

/// Most bytes of the defaults of one object. Every value counts [`VALUE_BYTES`], so an object that a store takes has
/// fewer.
const DEFAULTS_BYTES_MAX: usize = 8 << 20;

/// The defaults that were set are larger than they may be together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of its schema make the object too large")]
pub struct TooLarge;

/// The bytes that further defaults may take.
///
/// Below the items of a list they multiply: a body of 400 KB became gigabytes with those of a user's definition, and a
/// pod of a million empty containers 600 MB.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, value: &Value) -> Result<(), TooLarge> {
        let texts = match value {
            Value::String(text) => text.len(),
            Value::Object(members) => members.keys().map(str::len).sum(),
            Value::Array(_) | Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 0,
        };
        self.0 = self.0.checked_sub(VALUE_BYTES + texts).ok_or(TooLarge)?;
        match value {
            Value::Object(members) => members.values().try_for_each(|value| self.spend(value)),
            Value::Array(items) => items.iter().try_for_each(|value| self.spend(value)),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {
                Ok(())
            }
        }
    }
}

/// Sets absent fields to their constant defaults, wherever their parent is present, as far as they have room.
///
/// Applying this twice has the same effect as once.
///
/// # Errors
/// Returns an error if there are more; some of them are set then.
pub fn apply<'s, S: Shape<'s>>(shape: S, value: &mut Value) -> Result<(), TooLarge> {
    set(shape, value, &mut Budget(DEFAULTS_BYTES_MAX))
}

fn set<'s, S: Shape<'s>>(shape: S, value: &mut Value, budget: &mut Budget) -> Result<(), TooLarge> {
    if !shape.has_defaults() {
        return Ok(());
    }
    match value {
        Value::Object(members) => object(shape, members, budget),
        Value::Array(items) => match shape.item() {
            Some(item) => items
                .iter_mut()
                .try_for_each(|value| entry(item, value, budget)),
            None => Ok(()),
        },
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => Ok(()),
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
            let of_field = |(name, child): (&str, S)| match members.get(name) {
                None => child.default().is_some() && child.is_absent(None),
                Some(value) => entry(child, value),
            };
            let of_member = |(name, value): (&str, &Value)| {
                let child = shape.child(name);
                child.is_some_and(|child| entry(child, value))
            };
            let is_wide = shape.width() > WIDTH_MAX;
            let fields = match is_wide {
                true => shape.defaulted().any(of_field) || members.iter().any(of_member),
                false => shape.children().any(of_field),
            };
            fields
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

fn object<'s, S: Shape<'s>>(
    shape: S,
    members: &mut Map,
    budget: &mut Budget,
) -> Result<(), TooLarge> {
    if shape.width() > WIDTH_MAX {
        for (name, child) in shape.defaulted() {
            absent(name, child, members, budget)?;
        }
        for (name, value) in members.iter_mut() {
            if let Some(child) = shape.child(name) {
                set(child, value, budget)?;
            }
        }
    } else {
        for (name, child) in shape.children() {
            absent(name, child, members, budget)?;
            if child.has_defaults()
                && let Some(value) = members.get_mut(name)
            {
                set(child, value, budget)?;
            }
        }
    }
    if let Some(Values::Of(values)) = shape.values() {
        for (name, value) in members.iter_mut() {
            if shape.child(name).is_none() {
                entry(values, value, budget)?;
            }
        }
    }
    Ok(())
}

/// Sets a member that is absent to its default, if it has one.
fn absent<'s, S: Shape<'s>>(
    name: &str,
    shape: S,
    members: &mut Map,
    budget: &mut Budget,
) -> Result<(), TooLarge> {
    if let Some(default) = shape.default()
        && shape.is_absent(members.get(name))
    {
        budget.spend(default)?;
        members.insert(name, default.clone());
    }
    Ok(())
}

/// Applies the defaults of an item of a list or a value of a map. It is never missing, but it may
/// be a `null` that its default replaces.
fn entry<'s, S: Shape<'s>>(
    shape: S,
    value: &mut Value,
    budget: &mut Budget,
) -> Result<(), TooLarge> {
    if let Some(default) = shape.default()
        && shape.is_absent(Some(value))
    {
        budget.spend(default)?;
        *value = default.clone();
    }
    set(shape, value, budget)
}
