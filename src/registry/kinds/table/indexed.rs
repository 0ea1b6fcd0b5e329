//! The order and the indexes of a table whose rows are all there.

use super::KindTable;
use std::cmp::Reverse;
use std::sync::Arc;

impl KindTable {
    /// Brings groups and versions into the order of discovery. Those of one priority stay as they came.
    pub(super) fn order(&mut self) {
        self.groups.sort_by_key(|group| Reverse(group.priority));
        for group in &mut self.groups {
            let versions = &mut group.versions;
            versions.sort_by_key(|version| Reverse(version.priority));
        }
    }

    /// Makes the indexes of the rows, and tells each row the schema of its stored form.
    pub(super) fn index(&mut self) {
        for (at, row) in self.resources.iter().enumerate() {
            self.by_name.insert(
                (row.group.clone(), row.version.clone(), row.name.clone()),
                at,
            );
            if row.group == row.storage.group && row.version == row.storage.version {
                self.by_storage.insert(
                    (row.storage.group.clone(), row.storage.resource.clone()),
                    at,
                );
            }
        }
        // Upstream may store a kind in a version that is off: then the first version that is there is the
        // form in which objects are kept.
        for (at, row) in self.resources.iter().enumerate() {
            let key = (row.storage.group.clone(), row.storage.resource.clone());
            self.by_storage.entry(key).or_insert(at);
        }
        for at in 0..self.resources.len() {
            let storage = &self.resources[at].storage;
            let key = (storage.group.clone(), storage.resource.clone());
            if let Some(stored) = self.by_storage.get(&key) {
                let definition = self.resources[*stored].definition;
                let row = Arc::get_mut(&mut self.resources[at]);
                row.expect("nobody holds a kind of a table in the making")
                    .stored_definition = definition;
            }
        }
    }
}
