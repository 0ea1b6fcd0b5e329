//! Schemas of custom kinds: the structural part of a CustomResourceDefinition's `openAPIV3Schema`,
//! and decoding objects by it.
//!
//! Owns the facts about which members exist, which types they may have and how they are merged.
//! Keywords that only restrict values (`pattern`, `maximum`, `allOf` …) and expressions are not
//! kept. Which schemas a CustomResourceDefinition may have is checked when one is written;
//! [`Structural::parse`] refuses only schemas that it cannot represent.
//!
//! Invariant: parsed schemas are limited in depth and in number of nodes, so walks may recurse.

mod decode;
mod metadata;
mod object_shape;
mod parse;
mod pruned_defaults;

#[cfg(test)]
mod tests;

pub use decode::{Custom, Reading};
pub use object_shape::ObjectShape;
pub use parse::StructuralError;

use std::borrow::Cow;

use crate::schema::{ListType, Patch};
use crate::shape::{Form, Kind, MapType, Shape, Values};
use crate::value::{Str, Value};

static ATOMIC: ListType = ListType::Atomic;
static PLAIN: Patch = Patch::PLAIN;

/// The schema of one version of a custom kind.
#[derive(Clone, Debug)]
pub struct Structural {
    /// The nodes. The root is the last one: every node comes after those that it refers to.
    nodes: Vec<Node>,
}

/// The position of a node among those of its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeId(u32);

/// One schema within a schema.
#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    flags: Flags,
    /// The fields, sorted by name.
    fields: Box<[(Str, NodeId)]>,
    item: Option<NodeId>,
    values: Option<Values<NodeId>>,
    /// Facts that only few nodes have.
    notes: Option<Box<Notes>>,
}

/// The facts about a node that are true or false.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    nullable: bool,
    /// True for a text with another format than that of bytes. Field management takes any scalar
    /// there.
    has_format: bool,
    preserves_unknown: bool,
    is_embedded: bool,
    /// True if something below the node has a default.
    has_defaults: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Notes {
    default: Option<Value>,
    list: ListType,
    map: MapType,
    /// The positions of the fields that have a default themselves.
    defaulted: Box<[u32]>,
}

impl Structural {
    /// Returns the position of the whole object.
    pub fn root(&self) -> SchemaNode<'_> {
        SchemaNode {
            schema: self,
            node: self.nodes.last().expect("a schema has a root"),
        }
    }

    /// Returns the bytes of memory that the schema takes, as budgets count them.
    pub fn bytes(&self) -> usize {
        let names = |node: &Node| node.fields.len() * size_of::<(Str, NodeId)>();
        let notes = |node: &Node| {
            let of = |notes: &Notes| size_of::<Notes>() + size_of_val(&*notes.defaulted);
            node.notes.as_deref().map_or(0, of)
        };
        let of = |node: &Node| size_of::<Node>() + names(node) + notes(node);
        self.nodes.iter().map(of).sum()
    }
}

/// A position in a [`Structural`].
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

    fn form(self) -> Form {
        match self.node.kind {
            Kind::String if self.node.flags.has_format => Form::Scalar,
            kind => Form::of(kind),
        }
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

    fn width(self) -> usize {
        self.node.fields.len()
    }

    fn defaulted(self) -> impl Iterator<Item = (&'s str, Self)> {
        let notes = self.node.notes.as_deref();
        let places = notes.map_or(&[][..], |notes| &*notes.defaulted);
        places.iter().map(move |at| {
            let (name, id) = &self.node.fields[*at as usize];
            (name.as_str(), self.at(*id))
        })
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

    /// Returns no strategy, because custom kinds do not accept strategic merge patches.
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
