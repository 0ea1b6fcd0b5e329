//! The owners of a number of replicas, between an object and its scale.

use std::collections::BTreeMap;

use polyplane_apimachinery::value::Str;

use super::Entries;
use super::identity::{self, Identity, Operation};
use crate::element::{Path, PathElement};
use crate::managers::VersionedSet;
use crate::set::FieldSet;

/// The API version of scales.
pub const SCALE_VERSION: &str = "autoscaling/v1";

/// Where an object has its number of replicas, by API version; `None` for a version without scale.
pub type ReplicasPaths = BTreeMap<Str, Option<Path>>;

fn replicas() -> Path {
    Path(vec![
        PathElement::field("spec"),
        PathElement::field("replicas"),
    ])
}

fn set_of(path: &Path) -> FieldSet {
    [path.0.as_slice()].into_iter().collect()
}

impl Entries {
    /// Returns the entries of the object's scale.
    pub fn to_scale(&self, paths: &ReplicasPaths) -> Self {
        let mut scale = Self::default();
        for (text, owned) in self.managers.iter() {
            let Some(Some(path)) = paths.get(&owned.version) else {
                continue;
            };
            if owned.set.has(&path.0) {
                let owned = VersionedSet {
                    set: set_of(&replicas()),
                    version: SCALE_VERSION.into(),
                    is_applied: owned.is_applied,
                };
                scale.add(text, owned, self.time(text).cloned());
            }
        }
        scale
    }

    /// Returns the entries of the object after its scale has been written. `version` is the API
    /// version in which the object was scaled.
    pub fn with_scale(&self, mut scale: Self, paths: &ReplicasPaths, version: &str) -> Self {
        let mut all = Self::default();
        for (text, owned) in self.managers.iter() {
            let Some(path) = paths.get(&owned.version) else {
                continue;
            };
            let path = path.as_ref().filter(|path| owned.set.has(&path.0));
            let is_kept = path.is_none_or(|_| scale.managers.remove(text).is_some());
            let mut owned = owned.clone();
            if let (false, Some(path)) = (is_kept, path) {
                owned.set = owned.set.difference(&set_of(path));
            }
            all.keep(text, owned, self);
        }
        for (text, owned) in scale.managers.iter() {
            let Some(Some(path)) = paths.get(version) else {
                continue;
            };
            if owned.set.has(&replicas().0) {
                let owned = VersionedSet {
                    set: set_of(path),
                    version: version.into(),
                    is_applied: owned.is_applied,
                };
                all.keep(text, owned, self);
            }
        }
        all
    }

    /// Adds an entry under the identity that it has in its version.
    fn add(&mut self, text: &str, owned: VersionedSet, time: Option<Str>) {
        let known = identity::parse(text);
        let identity = Identity {
            manager: &known.manager,
            operation: match owned.is_applied {
                true => Operation::Apply,
                false => known.operation,
            },
            version: &owned.version,
            subresource: &known.subresource,
        };
        let identity = identity.to_text();
        self.set_time(&identity, time);
        self.managers.insert(identity, owned);
    }

    /// Adds an entry as it is, with the time that the object knows of it.
    fn keep(&mut self, text: &str, owned: VersionedSet, object: &Self) {
        let head = object.heads.get(text).cloned().unwrap_or_default();
        self.heads.insert(text.into(), head);
        self.managers.insert(text, owned);
    }
}
