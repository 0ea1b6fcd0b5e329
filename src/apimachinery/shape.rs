//! One view of schemas, for the engines that walk a tree along a schema.
//!
//! A [`Shape`] is a position in a schema: it has the kind of the values there and the positions
//! below it. Generated schemas ([`BuiltIn`]) and those of custom kinds ([`crate::structural`]) both
//! implement it, so [`defaults`], [`prune`], [`nulls`], [`lists`] and strategic merge exist only
//! once. An engine is generic over its shape, so a walk over built-in kinds costs no more than a
//! walk over [`Schemas`].
//!
//! The typed decode and encode of built-in kinds, JSON and protobuf, do not use this view. They
//! follow Go's rules for structs (zero values, `omitempty`, field numbers), which custom kinds do
//! not have, and they are the hot path.
//!
//! [`Schemas`]: crate::schema::Schemas

mod built_in;
pub mod defaults;
pub mod lists;
pub mod nulls;
pub mod prune;

#[cfg(test)]
mod tests;

pub use built_in::BuiltIn;

use std::borrow::Cow;

use crate::schema::{ListType, Patch};
use crate::value::Value;

/// The kind of values at a position. Another engine complains about a `Value` of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An object with known fields; see [`Shape::child`].
    Object,
    /// An object with free keys; see [`Shape::values`].
    Map,
    /// A list; see [`Shape::item`].
    List,
    /// Text.
    String,
    /// Bytes as base64 text.
    Bytes,
    /// One byte of such a text.
    Byte,
    /// `true` or `false`.
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// Any number.
    Float64,
    /// A whole number or a text.
    IntOrString,
    /// A text with a form of its own: a time, a duration, a quantity.
    Scalar,
    /// Any JSON.
    Any,
}

/// The relation of the entries of an object when it is merged or applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapType {
    /// Each entry has owners of its own.
    #[default]
    Granular,
    /// The object is replaced as a whole.
    Atomic,
}

/// The values that field management expects at a position, which decides how they are owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A text.
    Text,
    /// `true` or `false`.
    Truth,
    /// A number, a text or a boolean.
    Scalar,
    /// An object.
    Object,
    /// A list.
    List,
    /// Any JSON, by the members and items of the position as far as it has them.
    Any,
    /// Any JSON, in which each entry of an object has owners of its own.
    Untyped,
    /// Any JSON, owned as a whole.
    Opaque,
}

impl Form {
    /// Returns the form of the values of a kind.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Object | Kind::Map => Self::Object,
            Kind::List => Self::List,
            Kind::String | Kind::Bytes => Self::Text,
            Kind::Bool => Self::Truth,
            Kind::Byte | Kind::Int32 | Kind::Int64 | Kind::Float64 => Self::Number,
            Kind::Scalar => Self::Scalar,
            // Its published schema names no type, so upstream takes anything here.
            Kind::IntOrString => Self::Untyped,
            Kind::Any => Self::Any,
        }
    }
}

/// The facts about members of an object that are not fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<S> {
    /// They are allowed, and nothing is known about their content.
    Untyped,
    /// They have this shape.
    Of(S),
}

impl<S> Values<S> {
    /// Returns the shape of the values, if one is known.
    pub fn shape(self) -> Option<S> {
        match self {
            Self::Untyped => None,
            Self::Of(shape) => Some(shape),
        }
    }
}

/// A position in a schema that lives for `'s`.
pub trait Shape<'s>: Copy {
    /// Returns the kind of the values here.
    fn kind(self) -> Kind;

    /// Returns the type's name in error texts.
    fn name(self) -> Cow<'s, str>;

    /// Returns the shape of the field `name`.
    fn child(self, name: &str) -> Option<Self>;

    /// Returns all fields.
    fn children(self) -> impl Iterator<Item = (&'s str, Self)>;

    /// Returns the number of fields.
    fn width(self) -> usize {
        self.children().count()
    }

    /// Returns the fields that have a default themselves.
    fn defaulted(self) -> impl Iterator<Item = (&'s str, Self)> {
        let children = self.children();
        children.filter(|(_, child)| child.default().is_some())
    }

    /// Returns the shape of the items of a list.
    fn item(self) -> Option<Self>;

    /// Returns the facts about members that are not fields; `None` if there may be none.
    fn values(self) -> Option<Values<Self>>;

    /// Returns how the items of a list are identified.
    fn list(self) -> &'s ListType;

    /// Returns whether the entries of an object are merged one by one.
    fn map(self) -> MapType;

    /// Returns the values that field management expects here.
    fn form(self) -> Form {
        Form::of(self.kind())
    }

    /// Returns whether this is a type of its own, about whose members the schema around it says
    /// nothing.
    fn stands_alone(self) -> bool {
        false
    }

    /// Returns whether objects here have kind and apiVersion, which may not be among the fields.
    fn has_kind(self) -> bool {
        self.is_embedded()
    }

    /// Returns the published default, with which an item of a list that omits this key is
    /// identified. Unlike [`Shape::default`] it may be a zero value.
    fn key_default(self) -> Option<&'s Value> {
        self.default()
    }

    /// Returns the treatment of a value here in strategic merge patches.
    fn patch(self) -> &'s Patch;

    /// Returns the constant that replaces an absent value.
    fn default(self) -> Option<&'s Value>;

    /// Returns whether anything below this position has a default.
    fn has_defaults(self) -> bool;

    /// Returns whether the default replaces this member of the object around it.
    fn is_absent(self, member: Option<&Value>) -> bool;

    /// Returns whether `null` is allowed here.
    fn nullable(self) -> bool;

    /// Returns whether members that are not fields are kept.
    fn preserves_unknown(self) -> bool;

    /// Returns whether the object has kind, apiVersion and metadata of its own.
    fn is_embedded(self) -> bool;

    /// Returns the shape of the member `name`, field or not.
    fn member(self, name: &str) -> Option<Self> {
        match self.child(name) {
            None => self.values().and_then(Values::shape),
            child => child,
        }
    }
}
