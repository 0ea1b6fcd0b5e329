//! Removal of nulls where a schema allows none.

use super::Shape;
use crate::value::Value;

/// Drops members that are `null` although their schema is neither nullable nor has a default. One
/// with a default is kept: [`super::defaults`] replaces it. Items of lists are kept, because
/// dropping one would move the others.
pub fn drop<'s, S: Shape<'s>>(shape: S, value: &mut Value) {
    match value {
        Value::Object(members) => members.retain(|name, value| {
            let Some(member) = shape.member(name) else {
                return true;
            };
            if value.is_null() {
                return member.nullable() || member.default().is_some();
            }
            drop(member, value);
            true
        }),
        Value::Array(items) => {
            if let Some(item) = shape.item() {
                items.iter_mut().for_each(|value| drop(item, value));
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}
