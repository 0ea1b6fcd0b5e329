//! Reduces an object to some of its fields.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Value};

use crate::element::Borrowed;
use crate::position::{Atom, Position};
use crate::set::FieldSet;

/// Returns the fields and items of a set, with their values, from an object. A value that is owned
/// as a whole, or is empty, is returned whole; if nothing is found the result is `null`.
pub fn extract<'s, S: Shape<'s>>(position: Position<S>, object: &Value, set: &FieldSet) -> Value {
    match (position.atom(Some(object)), object) {
        (Atom::Object(members), Value::Object(map)) if !members.is_atomic && !map.is_empty() => {
            let found = map.iter().filter_map(|(name, value)| {
                let node = set.find(&Borrowed::Field(name))?;
                // A member that the set has is reduced by the set around it: upstream expects sets
                // of leaves.
                let below = if node.member { set } else { &node.children };
                let value = extract(members.member(name).position, value, below);
                Some((name.into(), value))
            });
            let found: Vec<_> = found.collect();
            if found.is_empty() {
                return Value::Null;
            }
            Value::Object(Map::from_sorted(found))
        }
        (Atom::List(items), Value::Array(list)) if !items.are_atomic() && !list.is_empty() => {
            let found = list.iter().filter_map(|item| {
                let node = set.find(&items.element(item).ok()?)?;
                Some(if node.children.is_empty() {
                    item.clone()
                } else {
                    extract(items.item, item, &node.children)
                })
            });
            let found: Vec<Value> = found.collect();
            if found.is_empty() {
                return Value::Null;
            }
            Value::Array(found)
        }
        (Atom::Scalar(_), value) => value.clone(),
        (Atom::Object(_), value @ Value::Object(_)) | (Atom::List(_), value @ Value::Array(_)) => {
            value.clone()
        }
        (Atom::Object(_) | Atom::List(_) | Atom::Invalid, _) => Value::Null,
    }
}
