//! The shape of whole custom objects: the schema of their kind, with typed metadata in the object
//! itself and in objects that are embedded in it.

use std::borrow::Cow;

use super::{SchemaNode, Structural};
use crate::schema::{DefId, ListType, Patch, Schemas};
use crate::shape::{BuiltIn, Form, Kind, MapType, Shape, Values};
use crate::value::Value;

/// A position in a custom object.
#[derive(Clone, Copy)]
pub struct ObjectShape<'s> {
    place: Place<'s>,
    metadata: BuiltIn<'s>,
}

#[derive(Clone, Copy)]
enum Place<'s> {
    /// A position in the schema of the kind.
    Own {
        node: SchemaNode<'s>,
        /// Whether this is an object with metadata.
        has_metadata: bool,
    },
    /// A position in metadata.
    Metadata(BuiltIn<'s>),
}

impl<'s> ObjectShape<'s> {
    /// Returns the shape of whole objects, with `metadata` as `schemas` defines it.
    pub fn root(schema: &'s Structural, schemas: &'s Schemas, metadata: DefId) -> Self {
        Self {
            place: Place::Own {
                node: schema.root(),
                has_metadata: true,
            },
            metadata: BuiltIn::root(schemas, metadata),
        }
    }

    fn own(self, node: SchemaNode<'s>) -> Self {
        let has_metadata = node.is_embedded();
        self.at(Place::Own { node, has_metadata })
    }

    fn at(self, place: Place<'s>) -> Self {
        Self { place, ..self }
    }

    fn with<T>(
        self,
        own: impl FnOnce(SchemaNode<'s>) -> T,
        metadata: impl FnOnce(BuiltIn<'s>) -> T,
    ) -> T {
        match self.place {
            Place::Own { node, .. } => own(node),
            Place::Metadata(shape) => metadata(shape),
        }
    }
}

impl<'s> Shape<'s> for ObjectShape<'s> {
    fn kind(self) -> Kind {
        self.with(Shape::kind, Shape::kind)
    }

    fn name(self) -> Cow<'s, str> {
        self.with(Shape::name, Shape::name)
    }

    fn child(self, name: &str) -> Option<Self> {
        match self.place {
            Place::Own {
                has_metadata: true, ..
            } if name == "metadata" => Some(self.at(Place::Metadata(self.metadata))),
            Place::Own { node, .. } => node.child(name).map(|node| self.own(node)),
            Place::Metadata(shape) => {
                let child = shape.child(name);
                child.map(|shape| self.at(Place::Metadata(shape)))
            }
        }
    }

    fn children(self) -> impl Iterator<Item = (&'s str, Self)> {
        let (node, shape) = match self.place {
            Place::Own { node, .. } => (Some(node), None),
            Place::Metadata(shape) => (None, Some(shape)),
        };
        let has_metadata = matches!(
            self.place,
            Place::Own {
                has_metadata: true,
                ..
            }
        );
        let metadata =
            has_metadata.then_some(("metadata", self.at(Place::Metadata(self.metadata))));
        let own = node.into_iter().flat_map(Shape::children);
        let own = own.filter(move |(name, _)| !(has_metadata && *name == "metadata"));
        let own = own.map(move |(name, node)| (name, self.own(node)));
        let typed = shape.into_iter().flat_map(Shape::children);
        let typed = typed.map(move |(name, shape)| (name, self.at(Place::Metadata(shape))));
        metadata.into_iter().chain(own).chain(typed)
    }

    fn item(self) -> Option<Self> {
        match self.place {
            Place::Own { node, .. } => node.item().map(|node| self.own(node)),
            Place::Metadata(shape) => shape.item().map(|shape| self.at(Place::Metadata(shape))),
        }
    }

    fn values(self) -> Option<Values<Self>> {
        match self.place {
            Place::Own { node, .. } => match node.values()? {
                Values::Untyped => Some(Values::Untyped),
                Values::Of(node) => Some(Values::Of(self.own(node))),
            },
            Place::Metadata(shape) => match shape.values()? {
                Values::Untyped => Some(Values::Untyped),
                Values::Of(shape) => Some(Values::Of(self.at(Place::Metadata(shape)))),
            },
        }
    }

    fn list(self) -> &'s ListType {
        self.with(Shape::list, Shape::list)
    }

    fn map(self) -> MapType {
        self.with(Shape::map, Shape::map)
    }

    fn form(self) -> Form {
        self.with(Shape::form, Shape::form)
    }

    fn stands_alone(self) -> bool {
        matches!(self.place, Place::Metadata(_))
    }

    fn has_kind(self) -> bool {
        self.with(Shape::has_kind, Shape::has_kind)
    }

    fn key_default(self) -> Option<&'s Value> {
        self.with(Shape::key_default, Shape::key_default)
    }

    fn patch(self) -> &'s Patch {
        self.with(Shape::patch, Shape::patch)
    }

    fn default(self) -> Option<&'s Value> {
        self.with(Shape::default, Shape::default)
    }

    fn has_defaults(self) -> bool {
        self.with(Shape::has_defaults, Shape::has_defaults)
    }

    fn is_absent(self, member: Option<&Value>) -> bool {
        match self.place {
            Place::Own { node, .. } => node.is_absent(member),
            Place::Metadata(shape) => shape.is_absent(member),
        }
    }

    fn nullable(self) -> bool {
        self.with(Shape::nullable, Shape::nullable)
    }

    fn preserves_unknown(self) -> bool {
        self.with(Shape::preserves_unknown, Shape::preserves_unknown)
    }

    fn is_embedded(self) -> bool {
        self.with(Shape::is_embedded, Shape::is_embedded)
    }
}
