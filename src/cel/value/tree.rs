//! The caller's trees, as values read them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Opaque;
use crate::time::Timestamp;

/// A part of a tree of the caller's: what JSON knows, and texts that a schema reads as times or bytes.
#[derive(Debug, Clone, Copy)]
pub enum Node<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number that fits into 64 bits.
    Int(i64),
    /// Any other number.
    Double(f64),
    /// A text.
    String(&'a str),
    /// A list.
    List(&'a dyn Elements),
    /// An object.
    Map(&'a dyn Fields),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A span of time in nanoseconds.
    Duration(i64),
    /// A point in time.
    Timestamp(Timestamp),
    /// A value that does not fit its schema. Whatever reads it fails with this text.
    Invalid(&'static str),
}

/// [`Node::Invalid`] as a value.
#[derive(Debug)]
pub(crate) struct Invalid(pub(crate) &'static str);

impl Opaque for Invalid {
    fn type_name(&self) -> &'static str {
        "error"
    }

    fn equals(&self, _: &dyn Opaque) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A list of the caller's.
pub trait Elements: fmt::Debug + Sync {
    /// Returns the number of elements.
    fn len(&self) -> usize;
    /// Returns true if there is no element.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns an element.
    fn at(&self, index: usize) -> Option<Node<'_>>;
    /// Returns how the elements are related, which decides which lists are equal.
    fn relation(&self) -> Relation {
        Relation::Ordered
    }
    /// Returns whether a schema says that this is a list: to compare it with anything but a list is an error
    /// then, if it is on the left, as upstream.
    fn is_typed(&self) -> bool {
        false
    }
}

/// How the elements of a list are related.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relation {
    /// They have an order.
    Ordered,
    /// They have no order, and each is there once.
    Set,
    /// They have no order, and are objects that differ in these fields.
    Keyed(Arc<[Box<str>]>),
}

/// An object of the caller's: names and values.
pub trait Fields: fmt::Debug + Sync {
    /// Returns the number of fields.
    fn len(&self) -> usize;
    /// Returns true if there is no field.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns a field's value.
    fn get(&self, name: &str) -> Option<Node<'_>>;
    /// Returns the field at a place, in an order that stays the same.
    fn at(&self, index: usize) -> Option<(&str, Node<'_>)>;
    /// Returns the fields that expressions cannot read, with texts that are equal if their values
    /// are. They count when objects are compared.
    fn hidden(&self) -> Vec<(&str, String)> {
        Vec::new()
    }
    /// Returns whether a schema says that this is an object, see [`Elements::is_typed`].
    fn is_typed(&self) -> bool {
        false
    }
}
