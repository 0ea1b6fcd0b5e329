//! One view of a schema for the engines that walk a tree beside it.
//!
//! A [`Shape`] is a place in a schema: what the values there may be, and the places below it.
//! Generated schemas ([`BuiltIn`]) and those of custom kinds ([`crate::structural`]) both offer it,
//! so [`defaults`], [`prune`], [`nulls`], [`lists`] and strategic merge exist once. An engine is
//! generic over its shape, so a walk over built-in kinds costs what a walk over [`Schemas`] costs.
//!
//! Not behind this view: the typed decode and encode of built-in kinds, JSON and protobuf. They
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

/// What values are at a place. A `Value` that does not fit is some other engine's complaint.
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
    /// One of those bytes.
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

/// How the entries of an object relate to each other when it is merged or applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapType {
    /// Each entry has owners of its own.
    #[default]
    Granular,
    /// The object is replaced as a whole.
    Atomic,
}

/// What is known of the members of an object that are not fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<S> {
    /// They may be there, and nothing is known of what is in them.
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

/// A place in a schema that lives for `'s`.
pub trait Shape<'s>: Copy {
    /// What values are here.
    fn kind(self) -> Kind;

    /// Returns the type's name in error texts.
    fn name(self) -> Cow<'s, str>;

    /// Returns the shape of the field `name`.
    fn child(self, name: &str) -> Option<Self>;

    /// Returns all fields.
    fn children(self) -> impl Iterator<Item = (&'s str, Self)>;

    /// Returns the shape of the items of a list.
    fn item(self) -> Option<Self>;

    /// What members that are not fields may be; `None` if there may be none.
    fn values(self) -> Option<Values<Self>>;

    /// How the items of a list are told apart.
    fn list(self) -> &'s ListType;

    /// Whether the entries of an object are merged one by one.
    fn map(self) -> MapType;

    /// How strategic merge patches treat a value here.
    fn patch(self) -> &'s Patch;

    /// Returns the constant that stands for an absent value.
    fn default(self) -> Option<&'s Value>;

    /// Returns whether anything below this place has a default.
    fn has_defaults(self) -> bool;

    /// Returns whether the default stands for this member of the object around it.
    fn is_absent(self, member: Option<&Value>) -> bool;

    /// Returns whether `null` is a value here.
    fn nullable(self) -> bool;

    /// Returns whether members that are not fields stay.
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
