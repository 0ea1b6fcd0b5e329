//! A filter of the keys that may have versions in the tree, by a hash of their stems.
//!
//! A create first checks whether its key exists. In sled that is a walk down the tree, which costs
//! as much as the insert. Nearly always the key never existed, and then this filter answers without
//! the walk.
//!
//! Invariant: every version in the tree is counted, so only a key without versions can be missing
//! here. Two keys with one hash count as one, and are looked up in the tree. The filter takes about
//! 20 bytes for each key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use twox_hash::XxHash3_64;

/// The number of versions for each hash of a stem.
#[derive(Default)]
pub(super) struct Present(HashMap<u64, u32>);

/// The hash of a key's stem.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    pub(super) fn of(stem: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(stem))
    }
}

impl Present {
    /// Returns false only if the tree has no version of the stem.
    pub(super) fn may_have(&self, hash: KeyHash) -> bool {
        self.0.contains_key(&hash.0)
    }

    /// Counts a version that was added.
    pub(super) fn add(&mut self, hash: KeyHash) {
        *self.0.entry(hash.0).or_default() += 1;
    }

    /// Removes a version that was dropped from the count.
    pub(super) fn subtract(&mut self, hash: KeyHash) {
        if let Entry::Occupied(mut count) = self.0.entry(hash.0) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_is_there_until_its_last_version_is_dropped() {
        let mut present = Present::default();
        let (one, other) = (KeyHash::of(b"one"), KeyHash::of(b"other"));
        assert!(!present.may_have(one));
        present.add(one);
        present.add(one);
        present.add(other);
        present.subtract(one);
        assert!(present.may_have(one));
        present.subtract(one);
        assert!(!present.may_have(one));
        assert!(present.may_have(other));
    }
}
