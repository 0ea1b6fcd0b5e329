//! What whoever creates an object owns, as `fieldsV1` has it.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Str, Value};

use super::{Sorted, list_of, map_of};
use crate::element::PathElement;
use crate::fault::Faults;
use crate::position::{Atom, Items, Members, Position};
use crate::scalar;

/// The mark of an element that is in a set though others follow it.
pub(crate) const MEMBER: &str = ".";

/// Returns the fields that `new` has and `empty` has not, or has with another value: the tree of what
/// [`super::compare::compare`] finds to be added or modified, made without sets. `empty` is the
/// object without content. `None` means that only that function can decide.
pub(crate) fn first_fields<'s, S: Shape<'s>>(
    position: Position<S>,
    empty: &Value,
    new: &Value,
) -> Option<Map> {
    let Found { below, .. } = changed(position, empty, new)?;
    Some(below)
}

/// What is found at a position.
struct Found {
    /// Whether the position itself is in the set.
    is_member: bool,
    /// The tree of what is in the set below it.
    below: Map,
}

impl Found {
    /// Returns the tree; `None` if nothing is in the set.
    fn into_tree(self) -> Option<Value> {
        (self.is_member || !self.below.is_empty()).then_some(Value::Object(self.below))
    }
}

/// Finds what is in `new` alone, or differs from `old`.
fn changed<'s, S: Shape<'s>>(at: Position<S>, old: &Value, new: &Value) -> Option<Found> {
    let atom = at.atom(Some(new));
    if !at.atom(Some(old)).is_like(&atom) {
        return None;
    }
    let leaf = || Found {
        is_member: !scalar::equal(old, new),
        below: Map::new(),
    };
    let below = match atom {
        Atom::Object(members) => {
            let (before, after) = (map_of(Some(old)), map_of(Some(new)));
            if members.is_atomic || (before.is_empty() && after.is_empty()) {
                return Some(leaf());
            }
            members_of(&members, before, after, None)?
        }
        Atom::List(items) => {
            let (before, after) = (list_of(Some(old)), list_of(Some(new)));
            if items.are_atomic() || (before.is_empty() && after.is_empty()) {
                return Some(leaf());
            }
            if !before.is_empty() {
                return None;
            }
            items_of(&items, after, None)?
        }
        Atom::Scalar(allowed) => {
            // A value that does not fit is compared in another way.
            let fits = allowed.check(new, "", &mut Faults::default());
            return fits.then(leaf);
        }
        Atom::Invalid => return None,
    };
    Some(Found {
        is_member: false,
        below,
    })
}

/// Returns the tree of a value that nothing was in the place of.
fn added<'s, S: Shape<'s>>(at: Position<S>, new: &Value) -> Option<Value> {
    static NONE: Map = Map::new();
    let below = match at.atom(Some(new)) {
        Atom::Scalar(_) => Map::new(),
        Atom::Object(members) => match map_of(Some(new)) {
            map if members.is_atomic || map.is_empty() => Map::new(),
            map => members_of(&members, &NONE, map, Some(mark()))?,
        },
        Atom::List(items) => match list_of(Some(new)) {
            list if items.are_atomic() || list.is_empty() => Map::new(),
            list => items_of(&items, list, Some(mark()))?,
        },
        Atom::Invalid => return None,
    };
    Some(Value::Object(below))
}

fn mark() -> (Str, Value) {
    (Str::const_new(MEMBER), Value::object())
}

fn members_of<'s, S: Shape<'s>>(
    members: &Members<S>,
    old: &Map,
    new: &Map,
    mark: Option<(Str, Value)>,
) -> Option<Map> {
    let mut tree = Vec::with_capacity(new.len() + usize::from(mark.is_some()));
    tree.extend(mark);
    for (name, value) in new.iter() {
        let position = || members.member(name).position;
        let found = match old.get(name) {
            Some(before) if before == value => None,
            Some(before) => changed(position(), before, value)?.into_tree(),
            None => Some(added(position(), value)?),
        };
        tree.extend(found.map(|found| (PathElement::field_name(name), found)));
    }
    Some(Map::from_sorted(tree))
}

fn items_of<'s, S: Shape<'s>>(
    items: &Items<'s, S>,
    list: &[Value],
    mark: Option<(Str, Value)>,
) -> Option<Map> {
    let mut is_sound = true;
    let sorted = Sorted::of(items, list, |_, _| is_sound = false);
    let mut tree = Vec::with_capacity(list.len() + usize::from(mark.is_some()));
    tree.extend(mark);
    for group in sorted.groups() {
        let (element, at) = &group[0];
        // What is inside of duplicates belongs to none of them.
        let below = match group.len() {
            1 => added(items.item, &list[*at])?,
            _ => Value::object(),
        };
        tree.push((element.name(), below));
    }
    match is_sound {
        true => Some(Map::from_unsorted(tree, |_| {})),
        false => None,
    }
}
