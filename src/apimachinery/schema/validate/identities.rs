//! Finding an item of a list by what identifies it, in a time that does not grow with the square of the
//! lists' lengths.

use super::Checker;
use crate::schema::{ListType, Type};
use crate::value::Value;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// Items up to which a list is looked through: fewer than that are found faster without an index.
const FEW: usize = 16;

/// The items of a list, by what identifies them.
pub(super) struct Identities<'v, 'k> {
    items: &'v [Value],
    of: &'k Type,
    kind: &'k ListType,
    /// The positions of items by hash, in order; `None` if there are few.
    places: Option<(RandomState, HashMap<u64, Vec<usize>>)>,
}

impl<'v, 'k> Identities<'v, 'k> {
    /// Indexes the items, which are of the type `of`, of a list of a `kind`.
    pub(super) fn new(items: &'v [Value], of: &'k Type, kind: &'k ListType) -> Self {
        let places = (items.len() > FEW).then(|| {
            let state = RandomState::new();
            let mut places: HashMap<u64, Vec<usize>> = HashMap::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                places.entry(hash(&state, kind, item)).or_default().push(at);
            }
            (state, places)
        });
        Self {
            items,
            of,
            kind,
            places,
        }
    }

    /// Returns the first item that is the same one as `value`.
    pub(super) fn find(&self, checker: &Checker<'_, '_>, value: &Value) -> Option<&'v Value> {
        self.find_before(self.items.len(), checker, value)
    }

    /// Returns the first item before the position `end` that is the same one as `value`.
    pub(super) fn find_before(
        &self,
        end: usize,
        checker: &Checker<'_, '_>,
        value: &Value,
    ) -> Option<&'v Value> {
        if matches!(self.kind, ListType::Atomic) {
            return None;
        }
        let matches = |item: &&Value| checker.matches(self.of, self.kind, item, value);
        let Some((state, places)) = &self.places else {
            return self.items[..end].iter().find(matches);
        };
        let alike = places.get(&hash(state, self.kind, value))?;
        let alike = alike.iter().take_while(|at| **at < end);
        alike.map(|at| &self.items[*at]).find(matches)
    }
}

/// Returns a number that is equal for items that are the same one.
fn hash(state: &RandomState, kind: &ListType, item: &Value) -> u64 {
    let mut hasher = state.build_hasher();
    match kind {
        ListType::Atomic => {}
        ListType::Set => hash_scalar(item, &mut hasher),
        ListType::Map(keys) => {
            for key in keys {
                hash_scalar(item.get(key).unwrap_or(&Value::Null), &mut hasher);
            }
        }
    }
    hasher.finish()
}

/// Zero values are the same as absent ones; of other types than texts and numbers no list's keys are.
fn hash_scalar(value: &Value, hasher: &mut impl Hasher) {
    match value {
        Value::String(text) if !text.is_empty() => text.hash(hasher),
        Value::Int(number) if *number != 0 => number.hash(hasher),
        _ => 0.hash(hasher),
    }
}
