//! The tree of an object while it is changed or tested.
//!
//! Owns the in-memory form only: no syntax (see [`mod@crate::json`], [`crate::yaml`]) and no kinds
//! (see [`crate::schema`]). Stored objects are bytes; a `Value` lives no longer than a request.
//!
//! Invariant: the entries of a [`Map`] are sorted by key bytes and no key occurs twice. This is the
//! order in which Go writes a `map[string]any`, so untyped parts need no sorting when they are
//! written.

mod map;
mod shared;
mod weight;

use std::ops::{Index, IndexMut};

pub use map::Map;
pub(crate) use shared::{DEPTH_MAX as SHARED_DEPTH_MAX, MEMBER as SHARED_MEMBER};
pub use shared::{SharedObjects, Sharing};
pub use weight::Weight;

/// The string type of trees: up to 24 bytes are stored in place.
pub type Str = compact_str::CompactString;

/// A JSON value with Go's number model: integers that fit `i64` are exact, other numbers are `f64`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction and exponent that fits 64 bits signed.
    Int(i64),
    /// Any other number; always finite.
    Float(f64),
    /// A string. Lone surrogates were replaced by U+FFFD when it was parsed.
    String(Str),
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(Map),
}

static NULL: Value = Value::Null;

impl Value {
    /// Returns the type of an untyped value as Go's `%T` prints it.
    #[must_use]
    pub const fn go_type(&self) -> &'static str {
        match self {
            Self::Null => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int64",
            Self::Float(_) => "float64",
            Self::String(_) => "string",
            Self::Array(_) => "[]interface {}",
            Self::Object(_) => "map[string]interface {}",
        }
    }

    /// Returns the kind of a JSON value as Go's decoding errors name it.
    #[must_use]
    pub const fn go_kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Float(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// Returns an untyped value as Go's `%v` prints it.
    #[must_use]
    pub fn go_text(&self) -> String {
        let mut text = String::new();
        crate::schema::go::print(self, &mut text);
        text
    }

    /// Creates a string value.
    pub fn string(text: impl Into<Str>) -> Self {
        Self::String(text.into())
    }

    /// Creates an empty object.
    pub fn object() -> Self {
        Self::Object(Map::new())
    }

    /// Returns true for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns the text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of an integer.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// Returns the entries of an object.
    pub fn as_object(&self) -> Option<&Map> {
        match self {
            Self::Object(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the entries of an object for changes.
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Object(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the items of a list.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the items of a list for changes.
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the member `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_object()?.get(key)
    }

    /// Returns the member `key` for changes, if this is an object that has it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.as_object_mut()?.get_mut(key)
    }

    /// Returns the value at a chain of member names.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(self, |value, key| value.get(key))
    }

    /// Returns the value at a chain of member names, for changes.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut Value> {
        path.iter().try_fold(self, |value, key| value.get_mut(key))
    }

    /// Returns the text at a chain of member names; absent, null and other types give `""`.
    pub fn str_at(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or("")
    }

    /// Returns the integer at a chain of member names.
    pub fn int_at(&self, path: &[&str]) -> Option<i64> {
        self.at(path).and_then(Value::as_int)
    }

    /// Returns the boolean at a chain of member names; absent counts as false.
    pub fn bool_at(&self, path: &[&str]) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the items at a chain of member names; absent counts as empty.
    pub fn items_at(&self, path: &[&str]) -> &[Value] {
        self.at(path).and_then(Value::as_array).unwrap_or(&[])
    }

    /// Returns this value as an object. If it is anything else, it becomes an empty object first.
    pub fn make_object(&mut self) -> &mut Map {
        if !matches!(self, Self::Object(_)) {
            *self = Self::object();
        }
        match self {
            Self::Object(map) => map,
            _ => unreachable!("was made an object above"),
        }
    }

    /// Sets the value at a chain of member names, and creates objects on the way.
    ///
    /// # Panics
    /// Panics if `path` is empty.
    pub fn set(&mut self, path: &[&str], value: impl Into<Value>) {
        let (last, parents) = path.split_last().expect("a path has at least one name");
        let mut target = self;
        for key in parents {
            target = target.make_object().entry(key);
        }
        target.make_object().insert(*last, value.into());
    }

    /// Removes and returns the value at a chain of member names.
    pub fn remove(&mut self, path: &[&str]) -> Option<Value> {
        let (last, parents) = path.split_last()?;
        self.at_mut(parents)?.as_object_mut()?.remove(last)
    }

    /// Returns the value and leaves `null` in its place.
    pub fn take(&mut self) -> Value {
        std::mem::take(self)
    }
}

impl Index<&str> for Value {
    type Output = Value;
    /// Returns the member `key`, or `null`.
    fn index(&self, key: &str) -> &Value {
        self.get(key).unwrap_or(&NULL)
    }
}

impl IndexMut<&str> for Value {
    /// Returns the member `key` for changes. If this is not an object it becomes one, and an absent
    /// member is created as `null`.
    fn index_mut(&mut self, key: &str) -> &mut Value {
        self.make_object().entry(key)
    }
}

impl Index<usize> for Value {
    type Output = Value;
    /// Returns the item at `index`, or `null`.
    fn index(&self, index: usize) -> &Value {
        self.as_array()
            .and_then(|items| items.get(index))
            .unwrap_or(&NULL)
    }
}

macro_rules! from {
    ($($source:ty => $variant:ident($convert:expr)),* $(,)?) => {$(
        impl From<$source> for Value {
            fn from(source: $source) -> Self {
                Self::$variant($convert(source))
            }
        }
    )*};
}
from!(
    bool => Bool(|truth| truth),
    i64 => Int(|number| number),
    i32 => Int(i64::from),
    u32 => Int(i64::from),
    u16 => Int(i64::from),
    f64 => Float(|number| number),
    &str => String(Str::from),
    String => String(Str::from),
    Str => String(|text| text),
    Map => Object(|map| map),
    Vec<Value> => Array(|items| items),
);

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(source: Option<T>) -> Self {
        source.map_or(Self::Null, Into::into)
    }
}

/// Builds a [`Value`] from a literal that looks like JSON. Any expression that converts into a
/// `Value` may be used as a value, in parentheses if it is more than one token.
#[macro_export]
macro_rules! json {
    (null) => { $crate::value::Value::Null };
    ([]) => { $crate::value::Value::Array(::std::vec::Vec::new()) };
    ({}) => { $crate::value::Value::object() };
    ([ $($item:tt),+ $(,)? ]) => {
        $crate::value::Value::Array(::std::vec![ $($crate::json!($item)),+ ])
    };
    ({ $($key:tt : $value:tt),+ $(,)? }) => {
        $crate::value::Value::Object(
            [ $(($key, $crate::json!($value))),+ ].into_iter().collect::<$crate::value::Map>()
        )
    };
    ($other:expr) => { $crate::value::Value::from($other) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_makes_objects_on_the_way_and_remove_gives_back() {
        let mut value = json!({"a": "text"});
        value.set(&["a", "b", "c"], 7i64);
        assert_eq!(value, json!({"a": {"b": {"c": 7i64}}}));
        assert_eq!(value.remove(&["a", "b", "c"]), Some(Value::Int(7)));
        assert_eq!(value.remove(&["x", "b"]), None);
    }

    #[test]
    fn values_are_printed_as_go_prints_them() {
        let value = json!({"a": [1i64, "b", null], "c": {"d": true, "e": 1.5}, "f": []});
        let shown = value.go_text();
        assert_eq!(shown, "map[a:[1 b <nil>] c:map[d:true e:1.5] f:[]]");
        assert_eq!(Value::object().go_text(), "map[]");
        let large = json!([1e20, 1234567.5, 123456.5, 0.00001, 0.0001]);
        let shown = "[1e+20 1.2345675e+06 123456.5 1e-05 0.0001]";
        assert_eq!(large.go_text(), shown);
    }
}
