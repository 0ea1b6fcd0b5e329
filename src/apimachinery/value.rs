//! The tree of an object while it is changed or tested.
//!
//! Owns the in-memory form only: no syntax (see [`mod@crate::json`], [`crate::yaml`]) and no kinds
//! (see [`crate::schema`]). Stored objects are bytes; a `Value` lives no longer than a request.
//!
//! Invariant: the entries of a [`Map`] are sorted by key bytes and no key occurs twice. This is the
//! order in which Go writes a `map[string]any`, so untyped parts need no sorting when they are
//! written.

use std::cmp::Ordering;
use std::ops::{Index, IndexMut};

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

/// Number of members up to which they are compared one by one, which is faster than a binary
/// search.
const LOOKED_THROUGH_MAX: usize = 16;

/// The members of an object, sorted by key bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map(Vec<(Str, Value)>);

impl Map {
    /// Creates a map without members.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Creates a map of members in any order. If a key occurs more than once, the last member is
    /// kept and the key is passed to `duplicate`.
    pub fn from_unsorted(mut members: Vec<(Str, Value)>, mut duplicate: impl FnMut(&str)) -> Self {
        if !members.is_sorted_by(|a, b| a.0 < b.0) {
            members.sort_by(|a, b| a.0.cmp(&b.0));
            members.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    duplicate(&earlier.0);
                    std::mem::swap(later, earlier);
                }
                same
            });
        }
        Self(members)
    }

    /// Creates a map of members that are already sorted by key bytes, each key once.
    ///
    /// # Panics
    /// Panics in debug builds if they are not.
    pub fn from_sorted(members: Vec<(Str, Value)>) -> Self {
        debug_assert!(
            members.is_sorted_by(|a, b| a.0 < b.0),
            "members are sorted and distinct"
        );
        Self(members)
    }

    /// Returns the position of a member, or the one at which it would be inserted.
    fn position(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|member| member.0.as_str().cmp(key))
    }

    /// Returns the position of a member. Objects are small, few of their keys begin with the same
    /// letter, and many of those that are looked for are absent.
    fn find(&self, key: &str) -> Option<usize> {
        if self.0.len() > LOOKED_THROUGH_MAX {
            return self.position(key).ok();
        }
        let key = key.as_bytes();
        for (at, (name, _)) in self.0.iter().enumerate() {
            let name = name.as_bytes();
            match name.first().cmp(&key.first()) {
                Ordering::Less => {}
                Ordering::Equal if name == key => return Some(at),
                Ordering::Equal => {}
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the member `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.find(key).map(|at| &self.0[at].1)
    }

    /// Returns the member `key` for changes.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.find(key).map(|at| &mut self.0[at].1)
    }

    /// Returns true if there is a member `key`, `null` included.
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Sets the member `key` and returns its previous value.
    pub fn insert(&mut self, key: impl Into<Str>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        match self.position(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Returns the member `key` for changes; creates it as `null` if it is absent.
    pub fn entry(&mut self, key: &str) -> &mut Value {
        let at = self.position(key).unwrap_or_else(|at| {
            self.0.insert(at, (key.into(), Value::Null));
            at
        });
        &mut self.0[at].1
    }

    /// Removes the member `key`.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.find(key).map(|at| self.0.remove(at).1)
    }

    /// Keeps the members for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Value) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }

    /// Returns the members in order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &Value)> + ExactSizeIterator {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the members in order of their keys, with values for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        self.0.iter_mut().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the member at a position in the order of keys.
    pub(crate) fn nth(&self, at: usize) -> Option<(&str, &Value)> {
        self.0.get(at).map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    /// Returns the values in order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl IntoIterator for Map {
    type Item = (Str, Value);
    type IntoIter = std::vec::IntoIter<(Str, Value)>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Into<Str>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Self {
        let members = members.into_iter().map(|(k, v)| (k.into(), v.into()));
        Self::from_unsorted(members.collect(), |_| {})
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
    fn a_map_is_sorted_and_the_last_of_equal_keys_wins() {
        let mut seen = Vec::new();
        let members = [("b", 1i64), ("a", 2), ("b", 3), ("a", 4), ("b", 5)];
        let members = members
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let map = Map::from_unsorted(members, |key| seen.push(key.to_owned()));
        assert_eq!(
            map.iter().map(|(k, v)| (k, v.as_int())).collect::<Vec<_>>(),
            [("a", Some(4)), ("b", Some(5))]
        );
        assert_eq!(seen, ["a", "b", "b"]);
    }

    #[test]
    fn set_makes_objects_on_the_way_and_remove_gives_back() {
        let mut value = json!({"a": "text"});
        value.set(&["a", "b", "c"], 7i64);
        assert_eq!(value, json!({"a": {"b": {"c": 7i64}}}));
        assert_eq!(value.remove(&["a", "b", "c"]), Some(Value::Int(7)));
        assert_eq!(value.remove(&["x", "b"]), None);
    }
}
