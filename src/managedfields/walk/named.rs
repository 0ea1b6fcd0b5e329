//! Adds to a set the fields that contain what it owns.

use polyplane_apimachinery::shape::Shape;

use crate::element::PathElement;
use crate::position::Position;
use crate::set::{FieldSet, Node};

/// Returns the set with each field of a schema that contains a path of it. Members of maps and items
/// of lists are not added: these are owned by name.
pub fn with_named_fields<'s, S: Shape<'s>>(position: Position<S>, set: &FieldSet) -> FieldSet {
    let (members, items) = (position.members(), position.items());
    let nodes = set.nodes().iter().map(|node| {
        if node.children.is_empty() {
            return node.clone();
        }
        let (below, is_field) = match &node.element {
            PathElement::Field(name) => {
                let member = members.map(|members| members.member(name));
                member.map_or((Position::UNDECLARED, false), |member| {
                    (member.position, member.is_field)
                })
            }
            PathElement::Key(_) => (
                items.map_or(Position::UNDECLARED, |items| items.item),
                false,
            ),
            PathElement::Value(_) | PathElement::Index(_) => (Position::UNDECLARED, false),
        };
        Node {
            element: node.element.clone(),
            member: node.member || is_field,
            children: with_named_fields(below, &node.children),
        }
    });
    FieldSet::of(nodes.collect())
}
