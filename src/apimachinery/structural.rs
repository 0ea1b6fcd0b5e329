//! Schemas of custom kinds: the structural part of a CustomResourceDefinition's
//! `openAPIV3Schema`, and reading objects by it.
//!
//! Owns what says which members exist, what they may be and how they merge. What only narrows
//! values (`pattern`, `maximum`, `allOf` …) and expressions are not kept. Which schemas a
//! CustomResourceDefinition may hold is checked where one is written; [`Structural::parse`] refuses
//! only what it cannot represent.
//!
//! Invariant: parsed schemas are bounded in depth and in number of nodes, so walks may recurse.

mod decode;
mod metadata;
mod parse;

#[cfg(test)]
mod tests;

pub use decode::{Custom, Reading};
pub use parse::StructuralError;

use std::borrow::Cow;

use crate::schema::{ListType, Patch};
use crate::shape::{Kind, MapType, Shape, Values};
use crate::value::{Str, Value};

static ATOMIC: ListType = ListType::Atomic;
static PLAIN: Patch = Patch::PLAIN;

/// The schema of one version of a custom kind.
#[derive(Clone, Debug)]
pub struct Structural {
    /// The root is the last one: every node stands behind those it refers to.
    nodes: Vec<Node>,
}

/// The place of a node among those of its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeId(u32);

/// One schema in a schema.
#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    flags: Flags,
    /// Fields, sorted by name.
    fields: Box<[(Str, NodeId)]>,
    item: Option<NodeId>,
    values: Option<Values<NodeId>>,
    /// What few nodes have.
    notes: Option<Box<Notes>>,
}

/// What can be said of a node in a word.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    nullable: bool,
    preserves_unknown: bool,
    is_embedded: bool,
    /// Something below the node has a default.
    has_defaults: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Notes {
    default: Option<Value>,
    list: ListType,
    map: MapType,
}

impl Structural {
    /// Returns the place of the whole object.
    pub fn root(&self) -> SchemaNode<'_> {
        SchemaNode {
            schema: self,
            node: self.nodes.last().expect("a schema has a root"),
        }
    }

    /// Bytes that the schema takes in memory, as budgets count them.
    pub fn bytes(&self) -> usize {
        let names = |node: &Node| node.fields.len() * size_of::<(Str, NodeId)>();
        let notes = |node: &Node| node.notes.as_ref().map_or(0, |_| size_of::<Notes>());
        let of = |node: &Node| size_of::<Node>() + names(node) + notes(node);
        self.nodes.iter().map(of).sum()
    }
}

/// A place in a [`Structural`].
#[derive(Clone, Copy)]
pub struct SchemaNode<'s> {
    schema: &'s Structural,
    node: &'s Node,
}

impl<'s> SchemaNode<'s> {
    fn at(self, id: NodeId) -> Self {
        Self {
            schema: self.schema,
            node: &self.schema.nodes[id.0 as usize],
        }
    }
}

impl<'s> Shape<'s> for SchemaNode<'s> {
    fn kind(self) -> Kind {
        self.node.kind
    }

    fn name(self) -> Cow<'s, str> {
        Cow::Borrowed("object")
    }

    fn child(self, name: &str) -> Option<Self> {
        let fields = &self.node.fields;
        let at = fields.binary_search_by(|(known, _)| known.as_str().cmp(name));
        at.ok().map(|at| self.at(fields[at].1))
    }

    fn children(self) -> impl Iterator<Item = (&'s str, Self)> {
        let fields = self.node.fields.iter();
        fields.map(move |(name, id)| (name.as_str(), self.at(*id)))
    }

    fn item(self) -> Option<Self> {
        self.node.item.map(|id| self.at(id))
    }

    fn values(self) -> Option<Values<Self>> {
        Some(match self.node.values? {
            Values::Untyped => Values::Untyped,
            Values::Of(id) => Values::Of(self.at(id)),
        })
    }

    fn list(self) -> &'s ListType {
        self.node
            .notes
            .as_ref()
            .map_or(&ATOMIC, |notes| &notes.list)
    }

    fn map(self) -> MapType {
        let notes = self.node.notes.as_ref();
        notes.map_or(MapType::Granular, |notes| notes.map)
    }

    /// Custom kinds take no strategic merge patches.
    fn patch(self) -> &'s Patch {
        &PLAIN
    }

    fn default(self) -> Option<&'s Value> {
        self.node.notes.as_ref()?.default.as_ref()
    }

    fn has_defaults(self) -> bool {
        self.node.flags.has_defaults
    }

    fn is_absent(self, member: Option<&Value>) -> bool {
        match member {
            None => true,
            Some(Value::Null) => !self.nullable(),
            Some(_) => false,
        }
    }

    fn nullable(self) -> bool {
        self.node.flags.nullable
    }

    fn preserves_unknown(self) -> bool {
        self.node.flags.preserves_unknown
    }

    fn is_embedded(self) -> bool {
        self.node.flags.is_embedded
    }
}
