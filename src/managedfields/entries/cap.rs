//! The bound on the entries of updates. Without it an object that is written under ever new names
//! would grow for ever.

use std::collections::BTreeMap;

use polyplane_apimachinery::value::Str;

use super::identity::{Identity, Operation};
use super::{Entries, seconds};
use crate::managers::VersionedSet;
use crate::set::FieldSet;

/// Entries of updates that an object keeps.
pub(super) const UPDATES_MAX: usize = 10;
/// The manager that gets the fields of the oldest ones.
const ANCIENT: &str = "ancient-changes";

/// The sets that come together in one entry, by its identity, oldest first. They are joined when all
/// are known: to copy a growing set for each entry would be slow for many entries.
type Joined = BTreeMap<Str, Vec<FieldSet>>;

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
        let mut joined = Joined::new();
        for (_, identity) in updates {
            if left <= updates_max {
                break;
            }
            let Some(owned) = self.managers.get(&identity).cloned() else {
                continue;
            };
            let Some(first) = first_of.get(&owned.version).cloned() else {
                first_of.insert(owned.version, identity);
                continue;
            };
            self.join(&first, &identity, owned, &mut joined);
            left -= 1;
        }
        for (bucket, sets) in joined {
            if let Some(owned) = self.managers.remove(&bucket) {
                let set = FieldSet::union_of(sets);
                self.managers.insert(bucket, VersionedSet { set, ..owned });
            }
        }
    }

    /// Moves an entry, and the first one of its version, to the entry for ancient changes, whose
    /// fields are those of the moved one until all are joined.
    fn join(&mut self, first: &Str, identity: &Str, owned: VersionedSet, joined: &mut Joined) {
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
        let sets = joined
            .entry(bucket.clone())
            .or_insert_with(|| known.map(|known| known.set.clone()).into_iter().collect());
        sets.push(owned.set.clone());
        let time = self.time(identity).cloned();
        self.managers.remove(identity);
        self.managers.insert(bucket.clone(), owned);
        self.set_time(&bucket, time);
    }
}
