//! The dependents of each owner, for each awake plane. It is filled by a search when the plane wakes
//! and by every write of an object with owners; a plane without such has no entry. An entry is a
//! hint: the stored object has to be checked before anything is done.

use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_plane::{Key, ObjectRef, Plane, Version};
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};

/// Planes with dependents from which on those that sleep are looked for.
const SWEEP_FIRST: usize = 64;

/// The index of dependents by their owners, for each plane.
#[derive(Default)]
pub(super) struct Index {
    planes: Mutex<KnownPlanes>,
}

#[derive(Default)]
struct KnownPlanes {
    by_id: HashMap<Str, PlaneDependents>,
    /// The number of planes at which those that sleep are removed: twice as many as were left then, so
    /// that a write costs the same however many planes there are.
    sweep_at: usize,
}

impl KnownPlanes {
    /// Removes planes that sleep if there are many more than after the last time.
    fn sweep(&mut self) {
        if self.by_id.len() < self.sweep_at.max(SWEEP_FIRST) {
            return;
        }
        self.by_id.retain(|_, known| known.plane.strong_count() > 0);
        self.sweep_at = 2 * self.by_id.len();
    }
}

struct PlaneDependents {
    plane: Weak<Plane>,
    by_owner: HashMap<Str, BTreeSet<Key>>,
    /// The owners under which an object stands in `by_owner`, and the version of it that named them.
    by_dependent: HashMap<Key, (Option<Version>, BTreeSet<Str>)>,
    /// The owners that are being deleted and have waited for their dependents, by uid.
    waiting: HashMap<Str, Key>,
}

impl PlaneDependents {
    fn of(plane: &Arc<Plane>) -> Self {
        Self {
            plane: Arc::downgrade(plane),
            by_owner: HashMap::new(),
            by_dependent: HashMap::new(),
            waiting: HashMap::new(),
        }
    }

    /// Lets an object stand under the owners that this version of it names, and under no others, unless a newer
    /// one was seen: a survey and several writes may come in any order.
    fn set(&mut self, key: &Key, version: Option<Version>, owners: BTreeSet<Str>) {
        let known = self.by_dependent.get(key);
        if known.is_some_and(|(newest, _)| *newest > version) {
            return;
        }
        let before = self.take(key);
        for lost in before.difference(&owners) {
            self.take_from(lost, key);
        }
        for new in owners.difference(&before) {
            let keys = self.by_owner.entry(new.clone()).or_default();
            keys.insert(key.clone());
        }
        self.by_dependent.insert(key.clone(), (version, owners));
    }

    /// Removes an object that is gone.
    fn remove(&mut self, key: &Key) {
        for owner in self.take(key) {
            self.take_from(&owner, key);
        }
    }

    fn take(&mut self, key: &Key) -> BTreeSet<Str> {
        let known = self.by_dependent.remove(key);
        known.map_or_else(BTreeSet::new, |(_, owners)| owners)
    }

    fn take_from(&mut self, owner: &Str, key: &Key) {
        if let Some(keys) = self.by_owner.get_mut(owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(owner);
            }
        }
    }
}

impl Index {
    /// Records that this version of an object names these owners and no others. One that names none any more stays
    /// under its last ones until it is gone, because most writes are of objects without owners.
    pub(super) fn remember(&self, plane: &Arc<Plane>, object: &ObjectRef, owners: BTreeSet<Str>) {
        let mut planes = self.planes.lock();
        planes.sweep();
        let known = planes
            .by_id
            .entry(plane.id().into())
            .or_insert_with(|| PlaneDependents::of(plane));
        if !std::ptr::eq(known.plane.as_ptr(), Arc::as_ptr(plane)) {
            *known = PlaneDependents::of(plane);
        }
        known.set(object.key(), object.version(), owners);
    }

    /// Returns the next objects that may name the owner with this uid, behind the key `after`: at most `most`.
    pub(super) fn some_of(
        &self,
        plane: &Plane,
        uid: &str,
        after: Option<&Key>,
        most: usize,
    ) -> Vec<Key> {
        let planes = self.planes.lock();
        let known = planes.by_id.get(plane.id());
        let Some(keys) = known.and_then(|known| known.by_owner.get(uid)) else {
            return Vec::new();
        };
        let start: Bound<&Key> = after.map_or(Bound::Unbounded, Bound::Excluded);
        let end: Bound<&Key> = Bound::Unbounded;
        let behind = keys.range::<Key, _>((start, end));
        behind.take(most).cloned().collect()
    }

    /// Records that an owner waits for its dependents until it is gone. Without any it does not wait.
    pub(super) fn wait(&self, plane: &Plane, owner: &Key, uid: &str) {
        let mut planes = self.planes.lock();
        if let Some(known) = planes.by_id.get_mut(plane.id()) {
            known.waiting.insert(uid.into(), owner.clone());
        }
    }

    /// Returns the owners that wait and that an object names or has named.
    pub(super) fn waiting_for(&self, plane: &Plane, dependent: &Key) -> Vec<Key> {
        let planes = self.planes.lock();
        let known = planes.by_id.get(plane.id());
        let Some(known) = known.filter(|known| !known.waiting.is_empty()) else {
            return Vec::new();
        };
        let named = known.by_dependent.get(dependent);
        let owners = named.into_iter().flat_map(|(_, owners)| owners);
        let waiting = owners.filter_map(|uid| known.waiting.get(uid));
        waiting.cloned().collect()
    }

    /// Returns the objects that may name the owner with this uid.
    pub(super) fn of(&self, plane: &Plane, uid: &str) -> Vec<Key> {
        self.some_of(plane, uid, None, usize::MAX)
    }

    /// Removes an object that is gone from the index. Its own dependents stay under it until they are gone too, or
    /// name other owners.
    pub(super) fn forget(&self, plane: &Plane, key: &Key) {
        let mut planes = self.planes.lock();
        let Some(known) = planes.by_id.get_mut(plane.id()) else {
            return;
        };
        known.remove(key);
        known.waiting.retain(|_, owner| owner != key);
        if known.by_owner.is_empty() {
            planes.by_id.remove(plane.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("", "configmaps", Some("ns"), name)
    }

    fn uids(list: &[&str]) -> BTreeSet<Str> {
        list.iter().copied().map(Str::from).collect()
    }

    fn version(raw: u64) -> Option<Version> {
        Some(Version::from_raw(raw))
    }

    #[test]
    fn an_object_stands_under_the_owners_of_its_newest_version_alone() {
        let mut known = PlaneDependents {
            plane: Weak::new(),
            by_owner: HashMap::new(),
            by_dependent: HashMap::new(),
            waiting: HashMap::new(),
        };
        let under = |known: &PlaneDependents, owner: &str| {
            let keys = known.by_owner.get(owner);
            keys.is_some_and(|keys| keys.contains(&key("a")))
        };
        for round in 0..1000_u64 {
            let fresh = format!("fresh-{round}");
            known.set(&key("a"), version(10 + round), uids(&["kept", &fresh]));
            assert!(under(&known, &fresh));
        }
        assert_eq!(
            known.by_owner.len(),
            2,
            "owners that are taken out leave nothing"
        );
        // A search that began before finds an older version.
        known.set(&key("a"), version(500), uids(&["earlier"]));
        assert!(!under(&known, "earlier") && under(&known, "kept"));
        known.set(&key("b"), version(1), uids(&["kept"]));
        known.remove(&key("a"));
        assert!(!under(&known, "kept") && known.by_owner.len() == 1);
        known.remove(&key("b"));
        assert!(known.by_owner.is_empty() && known.by_dependent.is_empty());
    }
}
