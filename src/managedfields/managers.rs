//! Who owns what, and who is in whose way.

use std::collections::BTreeMap;
use std::fmt;

use polyplane_apimachinery::value::Str;

use crate::element::Path;
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

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager.
    pub manager: Str,
    /// The field.
    pub path: Path,
}

impl fmt::Display for Conflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manager = polyplane_apimachinery::quote::quote(&self.manager);
        write!(out, "conflict with {manager}: {}", self.path)
    }
}

/// Conflicts in order of managers and fields; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl std::error::Error for Conflicts {}

impl fmt::Display for Conflicts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(out);
        }
        let mut is_first = true;
        for group in self.0.chunk_by(|a, b| a.manager == b.manager) {
            if !std::mem::take(&mut is_first) {
                out.write_str("\n")?;
            }
            let manager = polyplane_apimachinery::quote::quote(&group[0].manager);
            write!(out, "conflicts with {manager}:")?;
            group
                .iter()
                .try_for_each(|conflict| write!(out, "\n- {}", conflict.path))?;
        }
        Ok(())
    }
}
