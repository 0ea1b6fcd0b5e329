//! Brings a stored set in line with a schema whose relations changed.

use polyplane_apimachinery::shape::Shape;

use crate::element::PathElement;
use crate::position::{Atom, Position};
use crate::set::{FieldSet, Node};

/// Returns the set for a schema in which objects or lists became owned as a whole; `None` if it
/// stays as it is. Whoever owned a part then owns the whole. What became granular needs no change.
pub fn reconcile<'s, S: Shape<'s>>(position: Position<S>, set: &FieldSet) -> Option<FieldSet> {
    below(position, set)
}

fn below<'s, S: Shape<'s>>(at: Position<S>, set: &FieldSet) -> Option<FieldSet> {
    if set.is_empty() {
        return None;
    }
    let atom = at.atom(None);
    let mut changed: Option<Vec<Node>> = None;
    for (place, node) in set.nodes().iter().enumerate() {
        let position = match (&atom, &node.element) {
            (Atom::Object(members), PathElement::Field(name)) => members.member(name).position,
            (Atom::Object(members), _) => members.undeclared(),
            (Atom::List(items), _) => items.item,
            (Atom::Scalar(_) | Atom::Invalid, _) => return None,
        };
        if let Some(new) = node_of(position, node) {
            changed.get_or_insert_with(|| set.nodes().to_vec())[place] = new;
        }
    }
    changed.map(FieldSet::of)
}

fn node_of<'s, S: Shape<'s>>(at: Position<S>, node: &Node) -> Option<Node> {
    if node.children.is_empty() {
        return None;
    }
    let becomes_whole = match at.atom(None) {
        Atom::Object(members) if members.are_untyped() => return None,
        Atom::Object(members) => members.is_atomic,
        Atom::List(items) => items.are_atomic(),
        Atom::Scalar(_) | Atom::Invalid => return None,
    };
    let (member, children) = if becomes_whole {
        (true, FieldSet::EMPTY)
    } else {
        (node.member, below(at, &node.children)?)
    };
    Some(Node {
        element: node.element.clone(),
        member,
        children,
    })
}
