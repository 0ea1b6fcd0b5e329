//! What differs between two objects.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Value};

use super::{Sorted, list_of, map_of};
use crate::element::Borrowed;
use crate::fault::Faults;
use crate::filter::Filter;
use crate::position::{Atom, Items, Members, Position};
use crate::scalar;
use crate::set::{Builder, FieldSet};

/// The fields in which a new object differs from an old one. No field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The fields that only the new object has.
    pub added: FieldSet,
    /// The fields that both have, with different values.
    pub modified: FieldSet,
    /// The fields that only the old object has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Returns true if the objects do not differ.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Returns the differences in fields that the filter keeps.
    pub(crate) fn filtered(self, filter: Option<&Filter>) -> Self {
        match filter {
            None => self,
            Some(filter) => Self {
                added: filter.apply(&self.added),
                modified: filter.apply(&self.modified),
                removed: filter.apply(&self.removed),
            },
        }
    }
}

/// Compares two objects of one schema. Parts that are equal are neither walked nor checked.
///
/// # Errors
/// Returns the faults of parts that do not fit the schema.
pub fn compare<'s, S: Shape<'s>>(
    position: Position<S>,
    old: &Value,
    new: &Value,
) -> Result<Comparison, Faults> {
    compare_outside(position, old, new, FieldSet::EMPTY)
}

/// Compares two objects that fit their schema, and keeps the differences that the filter keeps. What
/// it excludes is not walked.
///
/// # Errors
/// See [`compare`].
pub(crate) fn compare_filtered<'s, S: Shape<'s>>(
    position: Position<S>,
    old: &Value,
    new: &Value,
    filter: Option<&Filter>,
) -> Result<Comparison, Faults> {
    let excluded = match filter {
        Some(Filter::Exclude(excluded)) => excluded.clone(),
        Some(Filter::Include(_)) | None => FieldSet::EMPTY,
    };
    let differences = compare_outside(position, old, new, excluded)?;
    Ok(differences.filtered(filter))
}

fn compare_outside<'s, S: Shape<'s>>(
    position: Position<S>,
    old: &Value,
    new: &Value,
    excluded: FieldSet,
) -> Result<Comparison, Faults> {
    if old == new {
        return Ok(Comparison::default());
    }
    let mut walk = Walk {
        excluded,
        ..Walk::default()
    };
    walk.node(position, Some(old), Some(new));
    walk.faults.check()?;
    Ok(Comparison {
        added: walk.added.set(),
        modified: walk.modified.set(),
        removed: walk.removed.set(),
    })
}

#[derive(Default)]
struct Walk {
    /// The parts of the value here that are left out, each with everything below it.
    excluded: FieldSet,
    added: Builder,
    modified: Builder,
    removed: Builder,
    faults: Faults,
}

/// The differences of a value itself, which say nothing about what is below it.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    is_added: bool,
    is_modified: bool,
    is_removed: bool,
}

impl Own {
    const SAME: Self = Self {
        is_added: false,
        is_modified: false,
        is_removed: false,
    };
    const ADDED: Self = Self {
        is_added: true,
        ..Self::SAME
    };
    const MODIFIED: Self = Self {
        is_modified: true,
        ..Self::SAME
    };
    const REMOVED: Self = Self {
        is_removed: true,
        ..Self::SAME
    };

    fn and(self, other: Self) -> Self {
        Self {
            is_added: self.is_added || other.is_added,
            is_modified: self.is_modified || other.is_modified,
            is_removed: self.is_removed || other.is_removed,
        }
    }
}

/// The state of the walk when it enters an element.
struct Marks {
    added: usize,
    modified: usize,
    removed: usize,
    faults: usize,
}

impl Walk {
    fn begin(&self) -> Marks {
        Marks {
            added: self.added.begin(),
            modified: self.modified.begin(),
            removed: self.removed.begin(),
            faults: self.faults.len(),
        }
    }

    fn end(&mut self, marks: &Marks, element: &Borrowed<'_>, own: Own) {
        self.added.end(marks.added, element, own.is_added);
        self.modified.end(marks.modified, element, own.is_modified);
        self.removed.end(marks.removed, element, own.is_removed);
        self.faults.prefix(marks.faults, element);
    }

    fn node<'s, S: Shape<'s>>(
        &mut self,
        at: Position<S>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Own {
        let atom = at.atom(new.or(old));
        if let (Some(_), Some(_)) = (old, new) {
            let before = at.atom(old);
            if !before.is_like(&atom) {
                // The value changed its form. What was below the old one is compared, too.
                let first = self.visit(before, old, new);
                let second = self.visit(atom, old, new);
                return first.and(second);
            }
        }
        self.visit(atom, old, new)
    }

    fn visit<'s, S: Shape<'s>>(
        &mut self,
        atom: Atom<'s, S>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Own {
        match atom {
            Atom::Scalar(allowed) => {
                let mut faults = Faults::default();
                let mut fits = |value: Option<&Value>, side| {
                    value.is_none_or(|value| allowed.check(value, side, &mut faults))
                };
                let (left, right) = (fits(old, "lhs: "), fits(new, "rhs: "));
                if !left && !right {
                    self.faults.append(faults);
                    return container(old, new);
                }
                leaf(old, new)
            }
            Atom::Object(members) => {
                let (before, after) = (map_of(old), map_of(new));
                if members.is_atomic || (before.is_empty() && after.is_empty()) {
                    return leaf(old, new);
                }
                self.object(&members, before, after);
                container(old, new)
            }
            Atom::List(items) => {
                let (before, after) = (list_of(old), list_of(new));
                if items.are_atomic() || (before.is_empty() && after.is_empty()) {
                    return leaf(old, new);
                }
                self.list(&items, before, after);
                container(old, new)
            }
            Atom::Invalid => {
                self.faults.push("schema error: invalid atom: inlined");
                container(old, new)
            }
        }
    }

    fn object<'s, S: Shape<'s>>(&mut self, members: &Members<S>, old: &Map, new: &Map) {
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let name = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some((a, _)), Some((b, _))) => (*a).min(*b),
                (Some((name, _)), None) | (None, Some((name, _))) => *name,
            };
            let before = old.next_if(|(own, _)| *own == name).map(|(_, value)| value);
            let after = new.next_if(|(own, _)| *own == name).map(|(_, value)| value);
            let excluded = self.excluded.find(&Borrowed::Field(name));
            if excluded.is_some_and(|node| node.member) || before == after {
                continue;
            }
            let below = excluded.map(|node| node.children.clone());
            let here = std::mem::replace(&mut self.excluded, below.unwrap_or_default());
            let marks = self.begin();
            let own = self.node(members.member(name).position, before, after);
            self.end(&marks, &Borrowed::Field(name), own);
            self.excluded = here;
        }
    }

    fn list<'s, S: Shape<'s>>(&mut self, items: &Items<'s, S>, old: &[Value], new: &[Value]) {
        // Only members of objects are left out.
        self.excluded = FieldSet::EMPTY;
        let mut faults = Faults::default();
        let before = Sorted::of(items, old, |at, error| {
            faults.push(format!("element {at}: {error}"));
        });
        let after = Sorted::of(items, new, |at, error| {
            faults.push(format!("element {at}: {error}"));
        });
        self.faults.append(faults);
        let (mut left, mut right) = (before.groups().peekable(), after.groups().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return,
                (Some(left), Some(right)) => left[0].0.order(&right[0].0),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
            };
            let l = if order.is_le() { left.next() } else { None };
            let r = if order.is_ge() { right.next() } else { None };
            let (l, r) = (l.unwrap_or_default(), r.unwrap_or_default());
            if let Some((element, _)) = l.first().or(r.first()) {
                let old: Vec<&Value> = l.iter().map(|(_, at)| &old[*at]).collect();
                let new: Vec<&Value> = r.iter().map(|(_, at)| &new[*at]).collect();
                self.group(items, element, &old, &new);
            }
        }
    }

    /// Compares the items with one element. Duplicates are compared as a whole.
    fn group<'s, S: Shape<'s>>(
        &mut self,
        items: &Items<'s, S>,
        element: &Borrowed<'_>,
        old: &[&Value],
        new: &[&Value],
    ) {
        let marks = self.begin();
        let own = match (old, new) {
            ([] | [_], [] | [_]) => {
                let (old, new) = (old.first().copied(), new.first().copied());
                if old == new {
                    return;
                }
                self.node(items.item, old, new)
            }
            ([_, _, ..], [_, _, ..]) => {
                let mut pairs = old.iter().zip(new);
                let same =
                    old.len() == new.len() && pairs.all(|(old, new)| scalar::equal(old, new));
                if same { Own::SAME } else { Own::MODIFIED }
            }
            ([_, _, ..], _) => {
                let next = new.first();
                let next = next.map(|new| self.node(items.item, None, Some(new)));
                Own::REMOVED.and(next.unwrap_or_default())
            }
            (_, [_, _, ..]) => {
                let last = old.first();
                let last = last.map(|old| self.node(items.item, Some(old), None));
                Own::ADDED.and(last.unwrap_or_default())
            }
        };
        self.end(&marks, element, own);
    }
}

/// Returns the difference of a value that is owned as a whole.
fn leaf(old: Option<&Value>, new: Option<&Value>) -> Own {
    match (old, new) {
        (Some(old), Some(new)) if !scalar::equal(old, new) => Own::MODIFIED,
        _ => container(old, new),
    }
}

/// Returns the difference of a value whose content is compared by itself.
fn container(old: Option<&Value>, new: Option<&Value>) -> Own {
    match (old, new) {
        (None, _) => Own::ADDED,
        (_, None) => Own::REMOVED,
        (Some(_), Some(_)) => Own::SAME,
    }
}
