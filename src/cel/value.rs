//! Values, borrowed from the caller's trees wherever possible.

mod equality;
pub(crate) mod relations;
mod tree;

pub(crate) use equality::{compare_numbers, exact_int, exact_uint};
pub use tree::{Elements, Fields, Node, Relation};

use std::any::Any;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::library::Question;
use crate::time::Timestamp;

/// A text, borrowed or shared.
#[derive(Debug, Clone)]
pub enum Text<'a> {
    /// A part of the caller's tree or of the expression.
    Borrowed(&'a str),
    /// A computed text.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

/// Bytes, borrowed or shared.
#[derive(Debug, Clone)]
pub enum Blob<'a> {
    /// A part of the expression.
    Borrowed(&'a [u8]),
    /// Computed bytes.
    Shared(Arc<[u8]>),
}

impl Deref for Blob<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// A value of a type that only a library knows.
pub trait Opaque: fmt::Debug + Send + Sync {
    /// Returns the name of the type.
    fn type_name(&self) -> &'static str;
    /// Returns whether two values of the type are equal.
    fn equals(&self, other: &dyn Opaque) -> bool;
    /// Returns the order of two values of the type, if it has one.
    fn compare(&self, other: &dyn Opaque) -> Option<Ordering> {
        let _ = other;
        None
    }
    /// Returns the value as text, if the type can be converted.
    fn text(&self) -> Option<String> {
        None
    }
    /// Returns the size that the cost of an operation depends on.
    fn cost_size(&self) -> u64 {
        1
    }
    /// Returns the bytes that it takes.
    fn bytes(&self) -> usize {
        64
    }
    /// Returns the value for the library that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A list.
#[derive(Debug, Clone)]
pub enum List<'a> {
    /// A list of the caller's.
    Tree(&'a dyn Elements),
    /// A computed list.
    Owned(Arc<Vec<Value<'a>>>),
    /// A list computed from one whose elements have no order; or, with an order, one list behind another.
    Related(Arc<(Vec<Value<'a>>, Relation)>),
}

impl<'a> List<'a> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Tree(elements) => elements.len(),
            Self::Owned(elements) => elements.len(),
            Self::Related(list) => list.0.len(),
        }
    }

    /// Returns true if there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an element.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Value<'a>> {
        match self {
            Self::Tree(elements) => elements.at(index).map(Value::from),
            Self::Owned(elements) => elements.get(index).cloned(),
            Self::Related(list) => list.0.get(index).cloned(),
        }
    }

    /// Returns how the elements are related.
    #[must_use]
    pub fn relation(&self) -> Relation {
        match self {
            Self::Tree(elements) => elements.relation(),
            Self::Owned(_) => Relation::Ordered,
            Self::Related(list) => list.1.clone(),
        }
    }

    /// Iterates over the elements.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.at(index))
    }

    /// Returns whether nobody else has the elements.
    pub(crate) fn is_own(&self) -> bool {
        match self {
            Self::Tree(_) => false,
            Self::Owned(elements) => Arc::strong_count(elements) == 1,
            Self::Related(list) => Arc::strong_count(list) == 1,
        }
    }

    /// Returns the elements to add to, without a copy if nobody else has them.
    #[must_use]
    pub fn into_vec(self) -> Vec<Value<'a>> {
        match self {
            Self::Tree(_) => self.iter().collect(),
            Self::Owned(elements) => Arc::try_unwrap(elements).unwrap_or_else(|it| (*it).clone()),
            Self::Related(list) => match Arc::try_unwrap(list) {
                Ok((elements, _)) => elements,
                Err(list) => list.0.clone(),
            },
        }
    }
}

/// The key of a map. Numbers are equal if their values are, whatever their type.
#[derive(Debug, Clone)]
pub enum Key<'a> {
    /// `true` or `false`
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A text.
    String(Text<'a>),
}

impl<'a> Key<'a> {
    /// Makes a key of a value that may be one; a whole `double` finds the key of that number.
    #[must_use]
    pub fn of(value: &Value<'a>) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::String(value) => Self::String(value.clone()),
            Value::Double(value) => exact_int(*value)
                .map(Self::Int)
                .or_else(|| exact_uint(*value).map(Self::Uint))?,
            _ => return None,
        })
    }

    /// Returns the key as a value.
    #[must_use]
    pub fn value(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::Int(*value),
            Self::Uint(value) => Value::Uint(*value),
            Self::String(value) => Value::String(value.clone()),
        }
    }

    fn rank(&self) -> (u8, i128, &str) {
        match self {
            Self::Bool(value) => (0, i128::from(*value), ""),
            Self::Int(value) => (1, i128::from(*value), ""),
            Self::Uint(value) => (1, i128::from(*value), ""),
            Self::String(value) => (2, 0, value),
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}
impl Eq for Key<'_> {}
impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A map.
#[derive(Debug, Clone)]
pub enum Map<'a> {
    /// An object of the caller's.
    Tree(&'a dyn Fields),
    /// A computed map.
    Owned(Arc<BTreeMap<Key<'a>, Value<'a>>>),
}

impl<'a> Map<'a> {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Tree(fields) => fields.len(),
            Self::Owned(entries) => entries.len(),
        }
    }

    /// Returns true if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Self::Tree(fields) => fields.get(name).map(Value::from),
            Self::Owned(entries) => {
                let key = Key::String(Text::Borrowed(name));
                // The map's keys may live longer than the name that is looked up.
                let found = entries.range::<Key<'_>, _>((
                    std::ops::Bound::Included(shorten(&key)),
                    std::ops::Bound::Unbounded,
                ));
                let (at, value) = found.into_iter().next()?;
                (*at == key).then(|| value.clone())
            }
        }
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &Value<'a>) -> Option<Value<'a>> {
        match self {
            Self::Tree(_) => match key {
                Value::String(name) => self.field(name),
                _ => None,
            },
            Self::Owned(entries) => entries.get(&Key::of(key)?).cloned(),
        }
    }

    /// Iterates over the entries.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (Value<'a>, Value<'a>)> + '_> {
        match self {
            Self::Tree(fields) => {
                let fields: &'a dyn Fields = *fields;
                Box::new((0..fields.len()).filter_map(move |index| {
                    let (name, node) = fields.at(index)?;
                    Some((Value::String(Text::Borrowed(name)), Value::from(node)))
                }))
            }
            Self::Owned(entries) => Box::new(
                entries
                    .iter()
                    .map(|(key, value)| (key.value(), value.clone())),
            ),
        }
    }

    /// Returns whether nobody else has the entries.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Owned(entries) if Arc::strong_count(entries) == 1)
    }

    /// Returns the entries to add to, without a copy if nobody else has them.
    #[must_use]
    pub fn into_entries(self) -> BTreeMap<Key<'a>, Value<'a>> {
        match self {
            Self::Tree(_) => self
                .iter()
                .filter_map(|(key, value)| Some((Key::of(&key)?, value)))
                .collect(),
            Self::Owned(entries) => Arc::try_unwrap(entries).unwrap_or_else(|it| (*it).clone()),
        }
    }
}

fn shorten<'short>(key: &'short Key<'short>) -> &'short Key<'short> {
    key
}

/// A value.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Blob<'a>),
    /// A list.
    List(List<'a>),
    /// A map or an object.
    Map(Map<'a>),
    /// A span of time in nanoseconds.
    Duration(i64),
    /// A point in time.
    Timestamp(Timestamp),
    /// A type, by its name.
    Type(Text<'a>),
    /// A value that may be missing.
    Optional(Option<Arc<Value<'a>>>),
    /// A value of a library's type.
    Opaque(Arc<dyn Opaque>),
}

impl<'a> From<Node<'a>> for Value<'a> {
    fn from(node: Node<'a>) -> Self {
        match node {
            Node::Null => Self::Null,
            Node::Bool(value) => Self::Bool(value),
            Node::Int(value) => Self::Int(value),
            Node::Double(value) => Self::Double(value),
            Node::String(value) => Self::String(Text::Borrowed(value)),
            Node::List(value) => Self::List(List::Tree(value)),
            Node::Map(value) => Self::Map(Map::Tree(value)),
            Node::Bytes(value) => Self::Bytes(Blob::Borrowed(value)),
            Node::Duration(value) => Self::Duration(value),
            Node::Timestamp(value) => Self::Timestamp(value),
            Node::Invalid(why) => Self::Opaque(Arc::new(tree::Invalid(why))),
        }
    }
}

impl<'a> Value<'a> {
    /// Returns the value, unless it does not fit its schema.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub(crate) fn valid(self) -> Outcome<'a> {
        match self.invalid() {
            Some(why) => Err(Fault::error(why)),
            None => Ok(self),
        }
    }

    /// Returns what is wrong with the value if it does not fit its schema.
    fn invalid(&self) -> Option<&'static str> {
        match self {
            Self::Opaque(value) => {
                let found: Option<&tree::Invalid> = value.as_any().downcast_ref();
                found.map(|found| found.0)
            }
            _ => None,
        }
    }

    /// Makes a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::String(Text::from(text.into()))
    }

    /// Makes a list.
    #[must_use]
    pub fn list(elements: Vec<Value<'a>>) -> Self {
        Self::List(List::Owned(Arc::new(elements)))
    }

    /// Makes a map.
    #[must_use]
    pub fn map(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        Self::Map(Map::Owned(Arc::new(entries)))
    }

    /// Makes a value that is there.
    #[must_use]
    pub fn some(value: Value<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// Returns the name of the value's type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Opaque(value) => value.type_name(),
        }
    }

    /// Returns the size that the cost of an operation depends on.
    #[must_use]
    pub fn cost_size(&self) -> u64 {
        let size = match self {
            Self::String(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => return value.cost_size(),
            Self::Opaque(value) => return value.cost_size(),
            _ => 1,
        };
        size as u64
    }

    /// Returns the bytes of the value itself, without the parts of lists and maps.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Opaque(value) => value.bytes(),
            Self::Optional(Some(_)) => size_of::<Self>(),
            _ => 0,
        }
    }

    /// Like [`Self::bytes`], but nothing for what belongs to the caller's tree or to the expression.
    pub(crate) fn made_bytes(&self) -> usize {
        match self {
            Self::String(Text::Borrowed(_)) | Self::Bytes(Blob::Borrowed(_)) => 0,
            other => other.bytes(),
        }
    }
}

/// Why an evaluation has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The expression failed on these values. `&&` and `||` absorb it.
    #[error("{0}")]
    Error(Cow<'static, str>),
    /// The evaluation cost more than it may. Nothing absorbs it.
    #[error("operation cancelled: actual cost limit exceeded")]
    Budget,
    /// An answer of the authorizer is missing. Nothing absorbs it: the caller asks and evaluates
    /// again, and charges only the last evaluation.
    #[error("the authorizer has not been asked")]
    Need(Box<Question>),
}

impl Fault {
    /// Returns whether nothing in the expression can absorb the fault.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Error(_))
    }

    /// Makes an error of the expression.
    #[must_use]
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }

    /// Returns the error of a function that does not take such values.
    #[must_use]
    pub const fn no_overload() -> Self {
        Self::Error(Cow::Borrowed("no such overload"))
    }
}

/// A value, or why there is none.
pub type Outcome<'a> = Result<Value<'a>, Fault>;
