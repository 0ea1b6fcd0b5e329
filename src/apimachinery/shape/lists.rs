//! Finds duplicate items of lists that are sets or maps.

use std::collections::{HashMap, HashSet};

use super::{Shape, Values};
use crate::complaints::Complaints;
use crate::field_error::{FieldError, Path};
use crate::json;
use crate::schema::ListType;
use crate::value::{Map, Str, Value};

/// Complains about duplicate items of sets, and duplicate keys of maps. Each is named once, where
/// it occurs the second time. Those for which an answer has no room are not looked for.
pub fn validate<'s, S: Shape<'s>>(shape: S, value: &Value, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    node(shape, value, path, &mut errors);
    errors
}

fn node<'s, S: Shape<'s>>(shape: S, value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if errors.is_full() {
        return;
    }
    match value {
        Value::Object(members) => {
            for (name, value) in members.iter() {
                if let Some(child) = shape.child(name) {
                    node(child, value, &path.child(name), errors);
                }
                if let Some(Values::Of(values)) = shape.values() {
                    node(values, value, &path.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            match shape.list() {
                ListType::Atomic => {}
                ListType::Set => set(items, path, errors),
                ListType::Map(keys) => map(items, keys, path, errors),
            }
            if let Some(item) = shape.item() {
                for (at, value) in items.iter().enumerate() {
                    node(item, value, &path.index(at), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}

/// The identity of an item. The numbers 1 and 1.0 differ as items but not inside items, as
/// upstream.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'v> {
    /// The key of an item that has none.
    Unspecified,
    Null,
    Bool(bool),
    Int(i64),
    Float(u64),
    Text(&'v str),
    Compound(String),
}

impl<'v> Identity<'v> {
    fn of(value: &'v Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Bool(*truth),
            Value::Int(number) => Self::Int(*number),
            // Adding zero turns negative zero into zero.
            Value::Float(number) => Self::Float((number + 0.0).to_bits()),
            Value::String(text) => Self::Text(text),
            Value::Array(_) | Value::Object(_) => Self::Compound(json::to_string(value)),
        }
    }
}

/// Returns the positions at which an identity occurs the second time.
fn repeated<'v>(items: impl Iterator<Item = Identity<'v>>) -> Vec<usize> {
    let mut seen: HashMap<Identity<'v>, usize> = HashMap::new();
    let mut places = Vec::new();
    for (at, identity) in items.enumerate() {
        let times = seen.entry(identity).or_default();
        *times += 1;
        if *times == 2 {
            places.push(at);
        }
    }
    places
}

fn set(items: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    for at in repeated(items.iter().map(Identity::of)) {
        if errors.is_full() {
            return;
        }
        errors.push(FieldError::duplicate(&path.index(at), items[at].clone()));
    }
}

fn map(items: &[Value], keys: &[Str], path: &Path<'_>, errors: &mut Complaints) {
    let fits = |item: &Value| matches!(item, Value::Null | Value::Object(_));
    if let Some(at) = items.iter().position(|item| !fits(item)) {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(
            &path.index(at),
            items[at].clone(),
            detail,
        ));
        return;
    }
    let wanted: HashSet<&str> = keys.iter().map(Str::as_str).collect();
    let key_of = |item: &Value| -> Value {
        // By the members of the item: a schema may have many keys, and a list many empty items.
        let members = item.as_object().into_iter().flat_map(Map::iter);
        let members = members.filter(|(name, _)| wanted.contains(name));
        let members = members.map(|(name, value)| (Str::from(name), value.clone()));
        Value::Object(members.collect::<Map>())
    };
    let places = match keys {
        [key] => repeated(
            items
                .iter()
                .map(|item| item.get(key).map_or(Identity::Unspecified, Identity::of)),
        ),
        _ => repeated(
            items
                .iter()
                .map(|item| Identity::Compound(json::to_string(&key_of(item)))),
        ),
    };
    for at in places {
        if errors.is_full() {
            return;
        }
        errors.push(FieldError::duplicate(&path.index(at), key_of(&items[at])));
    }
}
