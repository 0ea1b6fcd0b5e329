//! What is kept of tokens and questions, by their digests.

use std::collections::HashMap;

use polyplane_auth::Digest;

/// Two halves of at most `HALF_MAX` entries: when the newer is full it replaces the older. What is read
/// in the older moves over.
pub(crate) struct Halves<V, const HALF_MAX: usize> {
    newer: HashMap<Digest, V>,
    older: HashMap<Digest, V>,
}

impl<V, const HALF_MAX: usize> Default for Halves<V, HALF_MAX> {
    fn default() -> Self {
        Self {
            newer: HashMap::new(),
            older: HashMap::new(),
        }
    }
}

impl<V: Clone, const HALF_MAX: usize> Halves<V, HALF_MAX> {
    pub(crate) fn get(&mut self, digest: &Digest) -> Option<V> {
        if let Some(found) = self.newer.get(digest) {
            return Some(found.clone());
        }
        let found = self.older.remove(digest)?;
        self.insert(*digest, found.clone());
        Some(found)
    }

    pub(crate) fn insert(&mut self, digest: Digest, value: V) {
        if self.newer.len() >= HALF_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(digest, value);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}
