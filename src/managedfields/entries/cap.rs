//! The bound on the entries of updates. Without it an object that is written under ever new names
//! would grow for ever.

use std::collections::BTreeMap;

use polyplane_apimachinery::value::Str;

use super::identity::{Identity, Operation};
use super::{Entries, seconds};
use crate::managers::VersionedSet;

/// Entries of updates that an object keeps.
pub(super) const UPDATES_MAX: usize = 10;
/// The manager that gets the fields of the oldest ones.
const ANCIENT: &str = "ancient-changes";

impl Entries {
    /// Joins the oldest entries of updates, those of one version with each other, until at most
    /// `updates_max` are left, if there are enough of one version.
    pub fn cap(&mut self, updates_max: usize) {
        let updates = self.managers.iter().filter(|(_, owned)| !owned.is_applied);
        let mut updates: Vec<(i64, Str)> = updates
            .map(|(identity, _)| {
                let time = self.time(identity).map(Str::as_str);
                (seconds(time), identity.into())
            })
            .collect();
        if updates.len() <= updates_max {
            return;
        }
        updates.sort();
        let mut left = updates.len();
        let mut first_of: BTreeMap<Str, Str> = BTreeMap::new();
        for (_, identity) in updates {
            if left <= updates_max {
                return;
            }
            let Some(owned) = self.managers.get(&identity).cloned() else {
                continue;
            };
            let Some(first) = first_of.get(&owned.version).cloned() else {
                first_of.insert(owned.version, identity);
                continue;
            };
            self.join(&first, &identity, owned);
            left -= 1;
        }
    }

    /// Moves the fields of an entry, and those of the first one of its version, to the entry for
    /// ancient changes.
    fn join(&mut self, first: &Str, identity: &Str, owned: VersionedSet) {
        let bucket = Identity {
            manager: ANCIENT,
            operation: Operation::Update,
            version: &owned.version,
            subresource: "",
        };
        let bucket = bucket.to_text();
        if self.managers.get(&bucket).is_none()
            && let Some(first) = self.managers.remove(first)
        {
            self.managers.insert(bucket.clone(), first);
        }
        let known = self.managers.get(&bucket);
        let known = known.map(|known| known.set.clone()).unwrap_or_default();
        let set = owned.set.union(&known);
        let time = self.time(identity).cloned();
        self.managers.remove(identity);
        self.managers
            .insert(bucket.clone(), VersionedSet { set, ..owned });
        self.set_time(&bucket, time);
    }
}
