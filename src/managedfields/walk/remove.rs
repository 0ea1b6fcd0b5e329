//! Removes fields from an object.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::Value;

use crate::element::Borrowed;
use crate::position::{Atom, Position};
use crate::set::FieldSet;

/// Removes the fields and items of a set from an object, with everything below them. An object or
/// list of which nothing is left becomes `null`, as upstream does.
pub fn remove<'s, S: Shape<'s>>(position: Position<S>, object: &mut Value, set: &FieldSet) {
    match (position.atom(Some(object)), &mut *object) {
        (Atom::Scalar(_), _) => {}
        (Atom::Object(members), Value::Object(map)) if !members.is_atomic => {
            map.retain(|name, value| match set.find(&Borrowed::Field(name)) {
                Some(node) if node.member => false,
                Some(node) => {
                    remove(members.member(name).position, value, &node.children);
                    true
                }
                None => true,
            });
            if map.is_empty() {
                *object = Value::Null;
            }
        }
        (Atom::List(items), Value::Array(list)) if !items.are_atomic() => {
            list.retain_mut(|item| {
                let element = items.element(item).ok();
                match element.and_then(|element| set.find(&element)) {
                    Some(node) if node.member => false,
                    Some(node) => {
                        remove(items.item, item, &node.children);
                        true
                    }
                    None => true,
                }
            });
            if list.is_empty() {
                *object = Value::Null;
            }
        }
        (Atom::Object(_) | Atom::List(_) | Atom::Invalid, _) => *object = Value::Null,
    }
}
