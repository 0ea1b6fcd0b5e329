//! Who owns what, and who is in whose way.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use polyplane_apimachinery::complaints::Room;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::value::Str;

use crate::element::{self, PathElement};
use crate::set::FieldSet;

/// The fields that a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedSet {
    /// The fields.
    pub set: FieldSet,
    /// The API version whose schema the fields follow.
    pub version: Str,
    /// Whether the manager applied them; it updated them otherwise.
    pub is_applied: bool,
}

/// The managers of an object by identity. No set is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(BTreeMap<Str, VersionedSet>);

impl Managers {
    /// Returns true if nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of managers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns what a manager owns.
    pub fn get(&self, manager: &str) -> Option<&VersionedSet> {
        self.0.get(manager)
    }

    /// Replaces what a manager owns; with an empty set the manager is removed.
    pub fn insert(&mut self, manager: impl Into<Str>, owned: VersionedSet) {
        let manager = manager.into();
        if owned.set.is_empty() {
            self.0.remove(&manager);
        } else {
            self.0.insert(manager, owned);
        }
    }

    /// Removes a manager and returns what it owned.
    pub fn remove(&mut self, manager: &str) -> Option<VersionedSet> {
        self.0.remove(manager)
    }

    /// Keeps the managers for which `keep` returns true and that own something then.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str, &mut VersionedSet) -> bool) {
        self.0
            .retain(|manager, owned| keep(manager, owned) && !owned.set.is_empty());
    }

    /// Returns the managers in order of their identities.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &VersionedSet)> {
        self.0
            .iter()
            .map(|(manager, owned)| (manager.as_str(), owned))
    }

    /// Returns what each manager owns in only one of the two, with the version of `other`; all of it
    /// if the versions differ.
    pub fn symmetric_difference(&self, other: &Self) -> Self {
        let mut differences = Self::default();
        for (manager, left) in self.iter() {
            let difference = match other.get(manager) {
                None => left.clone(),
                Some(right) if right.version != left.version => right.clone(),
                Some(right) => VersionedSet {
                    set: left
                        .set
                        .difference(&right.set)
                        .union(&right.set.difference(&left.set)),
                    version: right.version.clone(),
                    is_applied: false,
                },
            };
            differences.insert(manager, difference);
        }
        for (manager, right) in other
            .iter()
            .filter(|(manager, _)| self.get(manager).is_none())
        {
            differences.insert(manager, right.clone());
        }
        differences
    }
}

impl<M: Into<Str>> FromIterator<(M, VersionedSet)> for Managers {
    fn from_iter<I: IntoIterator<Item = (M, VersionedSet)>>(managers: I) -> Self {
        let mut all = Self::default();
        for (manager, owned) in managers {
            all.insert(manager, owned);
        }
        all
    }
}

/// Fields that another manager owns with other values; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager.
    pub manager: Str,
    /// The fields. As a set they share what is long in their paths.
    pub fields: FieldSet,
}

/// Conflicts in order of managers and fields; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    /// Returns the number of fields.
    pub fn fields(&self) -> usize {
        self.0.iter().map(|conflict| conflict.fields.len()).sum()
    }

    /// Returns each manager with the texts of the paths of the fields, as far as one answer has room for them.
    /// `beside` are the bytes that stand beside each path.
    pub(crate) fn shown(&self, beside: usize) -> Vec<(&str, Vec<String>)> {
        let mut room = Room::default();
        let mut groups = Vec::new();
        for group in self.0.chunk_by(|a, b| a.manager == b.manager) {
            let mut paths = Vec::new();
            for conflict in group {
                // The walk ends early only if there is no room, which the next one finds out, too.
                let _ = conflict.fields.each_path(&mut |path: &[&PathElement]| {
                    if room.is_full() {
                        return ControlFlow::Break(());
                    }
                    let path = element::shown(path.iter().copied());
                    room.take(path.len() + beside);
                    paths.push(path);
                    ControlFlow::Continue(())
                });
            }
            if !paths.is_empty() {
                groups.push((group[0].manager.as_str(), paths));
            }
        }
        groups
    }
}

impl std::error::Error for Conflicts {}

impl fmt::Display for Conflicts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.shown(0);
        if let ([(manager, paths)], 1) = (groups.as_slice(), self.fields()) {
            return write!(out, "conflict with {}: {}", quote(manager), paths.concat());
        }
        for (at, (manager, paths)) in groups.iter().enumerate() {
            if at > 0 {
                out.write_str("\n")?;
            }
            write!(out, "conflicts with {}:", quote(manager))?;
            paths
                .iter()
                .try_for_each(|path| write!(out, "\n- {path}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::complaints::{BYTES_MAX, COUNT_MAX, STEP_BYTES_MAX};

    use super::*;
    use crate::set::Node;

    /// Conflicts over so many members of one member.
    fn conflicts(name: &str, fields: usize) -> Conflicts {
        let node = |element, member, children| Node {
            element,
            member,
            children,
        };
        let below = (0..fields).map(|at| {
            let element = PathElement::field(format!("{at:09}"));
            node(element, true, FieldSet::EMPTY)
        });
        let parent = node(
            PathElement::field(name),
            false,
            FieldSet::of(below.collect()),
        );
        Conflicts(vec![Conflict {
            manager: "other".into(),
            fields: FieldSet::of(vec![parent]),
        }])
    }

    /// A member name of 1 MB stood in the text of each conflict, and in its path before that.
    #[test]
    fn the_texts_of_conflicts_are_bounded_in_number_and_bytes() {
        let name = "n".repeat(1 << 20);
        for (name, count) in [
            ("a", COUNT_MAX),
            (name.as_str(), BYTES_MAX / STEP_BYTES_MAX),
        ] {
            let conflicts = conflicts(name, 2 * COUNT_MAX);
            assert_eq!(conflicts.fields(), 2 * COUNT_MAX);
            for text in [conflicts.to_string(), conflicts.message()] {
                let lines = text.matches("\n- ").count();
                assert!(lines > count / 2 && lines <= count, "{lines} lines");
                assert!(text.len() < 2 * BYTES_MAX);
            }
            let message = conflicts.message();
            assert!(message.starts_with("Apply failed with 20000 conflicts: "));
            let texts = conflicts.texts();
            let bytes: usize = texts
                .iter()
                .map(|text| text.message.len() + text.field.len())
                .sum();
            assert!(!texts.is_empty() && texts.len() <= count && bytes < 2 * BYTES_MAX);
        }
    }

    #[test]
    fn a_single_conflict_is_named_in_one_line() {
        assert_eq!(
            conflicts("a", 1).to_string(),
            "conflict with \"other\": .a.000000000"
        );
    }
}
