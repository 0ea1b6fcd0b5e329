//! The set of all fields of an object.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::Value;

use super::Sorted;
use crate::element::Borrowed;
use crate::position::{Atom, Items, Members, Position};
use crate::set::{Builder, FieldSet};

/// Returns the set of all fields and items of an object: what a manager owns that applies it. The
/// object should be one that [`crate::validate`] accepts; what does not fit the schema is left out.
pub fn field_set<'s, S: Shape<'s>>(position: Position<S>, object: &Value) -> FieldSet {
    let mut builder = Builder::default();
    node(position, object, &mut builder);
    builder.set()
}

/// Adds what is below a value, and returns whether the value is a field of its own.
fn node<'s, S: Shape<'s>>(at: Position<S>, value: &Value, out: &mut Builder) -> bool {
    match at.atom(Some(value)) {
        Atom::Scalar(_) => true,
        Atom::Object(members) if members.is_atomic => true,
        Atom::List(items) if items.are_atomic() => true,
        Atom::Object(members) => {
            object(&members, value, out);
            false
        }
        Atom::List(items) => {
            list(&items, value, out);
            false
        }
        Atom::Invalid => false,
    }
}

fn object<'s, S: Shape<'s>>(members: &Members<S>, value: &Value, out: &mut Builder) {
    let Some(map) = value.as_object() else { return };
    for (name, value) in map.iter() {
        let member = members.member(name);
        let mark = out.begin();
        let is_leaf = node(member.position, value, out);
        let is_empty = match value {
            Value::Null => true,
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let own = is_leaf || is_empty || !member.is_field;
        out.end(mark, &Borrowed::Field(name), own);
    }
}

fn list<'s, S: Shape<'s>>(items: &Items<'s, S>, value: &Value, out: &mut Builder) {
    let Some(list) = value.as_array() else { return };
    let sorted = Sorted::of(items, list, |_, _| {});
    for group in sorted.groups() {
        let (element, at) = &group[0];
        let mark = out.begin();
        // What is inside of duplicates belongs to none of them.
        if group.len() == 1 {
            node(items.item, &list[*at], out);
        }
        out.end(mark, element, true);
    }
}
