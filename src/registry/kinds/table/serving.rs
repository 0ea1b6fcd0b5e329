//! A table that serves less than another: group-versions and resources that whoever runs the server has
//! switched off.

use super::{Group, GroupVersion, KindTable, Resource, content};
use crate::kinds::document_id::DocumentId;
use std::sync::{Arc, OnceLock};

impl KindTable {
    /// Returns a table that serves the rows that `serves` accepts. The others are nowhere to be found by
    /// their group and version, and stay known as the form in which objects are stored.
    #[must_use]
    pub fn serving(&self, serves: &dyn Fn(&Resource) -> bool, generation: u64) -> Self {
        let serves = |at: &usize| serves(&self.resources[*at]);
        let groups = self.groups.iter().map(|group| {
            let versions = group.versions.iter().filter_map(|version| {
                let resources: Vec<usize> =
                    version.resources.iter().copied().filter(serves).collect();
                (!resources.is_empty()).then(|| GroupVersion {
                    version: version.version.clone(),
                    priority: version.priority,
                    content: DocumentId::of(&(version.content, &resources)),
                    resources,
                })
            });
            Group {
                name: group.name.clone(),
                priority: group.priority,
                versions: versions.collect(),
            }
        });
        let groups: Vec<Group> = groups.filter(|group| !group.versions.is_empty()).collect();
        let by_name = self.by_name.iter().filter(|(_, at)| serves(at));
        Self {
            content: content(&groups),
            groups,
            resources: self.resources.clone(),
            schemas: Arc::clone(&self.schemas),
            features: Arc::clone(&self.features),
            generation,
            by_name: by_name.map(|(name, at)| (name.clone(), *at)).collect(),
            by_storage: self.by_storage.clone(),
            served: OnceLock::new(),
        }
    }
}
