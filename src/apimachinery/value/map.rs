//! The members of an object.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::shared::SharedObject;
use super::{Str, Value};

/// Number of members up to which they are compared one by one, which is faster than a binary
/// search.
const LOOKED_THROUGH_MAX: usize = 16;

/// Number of members up to which each is added or removed alone. Each moves all members behind it,
/// which is slow for many.
const MOVED_ALONE_MAX: usize = 16;

/// The members of an object, sorted by key bytes. A clone of a map that
/// [`SharedObjects`](crate::value::SharedObjects) has made shares the members until one of the two
/// is changed.
#[derive(Clone)]
pub struct Map(Members);

#[derive(Clone)]
enum Members {
    Own(Vec<(Str, Value)>),
    Shared(Arc<SharedObject>),
}

impl Map {
    /// Creates a map without members.
    pub const fn new() -> Self {
        Self(Members::Own(Vec::new()))
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
        Self(Members::Own(members))
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
        Self(Members::Own(members))
    }

    /// Creates a map of members that other maps have too.
    pub(super) fn from_shared(shared: Arc<SharedObject>) -> Self {
        Self(Members::Shared(shared))
    }

    /// Returns the object that the members are shared with, if they are.
    pub(crate) fn shared(&self) -> Option<&SharedObject> {
        match &self.0 {
            Members::Own(_) => None,
            Members::Shared(shared) => Some(shared),
        }
    }

    /// Returns true if [`Self::note_checked`] was called with this number on a map that shares its
    /// members with this one.
    pub fn is_checked(&self, number: u64) -> bool {
        self.shared()
            .is_some_and(|shared| shared.checked() == number)
    }

    /// Notes, if the members are shared, that they have passed the check of this number, which must
    /// depend on nothing but the members. Zero is no number.
    pub fn note_checked(&self, number: u64) {
        if let Some(shared) = self.shared() {
            shared.note_checked(number);
        }
    }

    #[inline]
    fn members(&self) -> &[(Str, Value)] {
        match &self.0 {
            Members::Own(members) => members,
            Members::Shared(shared) => shared.members(),
        }
    }

    /// Returns the members for changes. Shared ones are copied first.
    #[inline]
    fn own(&mut self) -> &mut Vec<(Str, Value)> {
        if let Members::Shared(shared) = &self.0 {
            self.0 = Members::Own(shared.members().to_vec());
        }
        match &mut self.0 {
            Members::Own(members) => members,
            Members::Shared(_) => unreachable!("was made an own one above"),
        }
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.members().len()
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.members().is_empty()
    }

    /// Returns the member `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let members = self.members();
        find(members, key).map(|at| &members[at].1)
    }

    /// Returns the member `key` for changes.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        let at = find(self.members(), key)?;
        Some(&mut self.own()[at].1)
    }

    /// Returns true if there is a member `key`, `null` included.
    pub fn contains_key(&self, key: &str) -> bool {
        find(self.members(), key).is_some()
    }

    /// Sets the member `key` and returns its previous value.
    pub fn insert(&mut self, key: impl Into<Str>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        match position(self.members(), &key) {
            Ok(at) => Some(std::mem::replace(&mut self.own()[at].1, value)),
            Err(at) => {
                self.own().insert(at, (key, value));
                None
            }
        }
    }

    /// Returns the member `key` for changes; creates it as `null` if it is absent.
    pub fn entry(&mut self, key: &str) -> &mut Value {
        let found = position(self.members(), key);
        let members = self.own();
        let at = found.unwrap_or_else(|at| {
            members.insert(at, (key.into(), Value::Null));
            at
        });
        &mut members[at].1
    }

    /// Removes the member `key`.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = find(self.members(), key)?;
        Some(self.own().remove(at).1)
    }

    /// Adds members that are not there yet.
    pub fn add_all(&mut self, added: Vec<(Str, Value)>) {
        if added.len() > MOVED_ALONE_MAX {
            let mut all = std::mem::take(self.own());
            all.extend(added);
            *self = Self::from_unsorted(all, |_| {});
            return;
        }
        for (key, value) in added {
            self.insert(key, value);
        }
    }

    /// Removes the members with these keys, which are sorted.
    pub fn remove_all<K: AsRef<str>>(&mut self, keys: &[K]) {
        if keys.len() > MOVED_ALONE_MAX {
            let find = |key: &str| keys.binary_search_by(|known| known.as_ref().cmp(key));
            self.retain(|key, _| find(key).is_err());
            return;
        }
        for key in keys {
            self.remove(key.as_ref());
        }
    }

    /// Keeps the members for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Value) -> bool) {
        self.own().retain_mut(|(key, value)| keep(key, value));
    }

    /// Returns the members in order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &Value)> + ExactSizeIterator {
        self.members()
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the members in order of their keys, with values for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        self.own()
            .iter_mut()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the member at a position in the order of keys.
    pub(crate) fn nth(&self, at: usize) -> Option<(&str, &Value)> {
        self.members()
            .get(at)
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.members().iter().map(|(key, _)| key.as_str())
    }

    /// Returns the values in order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.members().iter().map(|(_, value)| value)
    }
}

/// Returns the position of a member, or the one at which it would be inserted.
fn position(members: &[(Str, Value)], key: &str) -> Result<usize, usize> {
    members.binary_search_by(|member| member.0.as_str().cmp(key))
}

/// Returns the position of a member. Objects are small, few of their keys begin with the same
/// letter, and many of those that are looked for are absent.
fn find(members: &[(Str, Value)], key: &str) -> Option<usize> {
    if members.len() > LOOKED_THROUGH_MAX {
        return position(members, key).ok();
    }
    let key = key.as_bytes();
    for (at, (name, _)) in members.iter().enumerate() {
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

impl Default for Map {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Members::Shared(one), Members::Shared(other)) if Arc::ptr_eq(one, other) => true,
            _ => self.members() == other.members(),
        }
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_map().entries(self.iter()).finish()
    }
}

impl IntoIterator for Map {
    type Item = (Str, Value);
    type IntoIter = std::vec::IntoIter<(Str, Value)>;
    fn into_iter(mut self) -> Self::IntoIter {
        std::mem::take(self.own()).into_iter()
    }
}

impl<K: Into<Str>, V: Into<Value>> FromIterator<(K, V)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Self {
        let members = members.into_iter().map(|(k, v)| (k.into(), v.into()));
        Self::from_unsorted(members.collect(), |_| {})
    }
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
}
