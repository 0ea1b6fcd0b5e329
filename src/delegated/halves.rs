//! What is kept of tokens and questions, by their digests.

use std::collections::HashMap;

use polyplane_auth::Digest;

/// Two halves of at most so many entries: when the newer is full it replaces the older. What is read
/// in the older moves over.
pub(crate) struct Halves<V> {
    half_max: usize,
    newer: HashMap<Digest, V>,
    older: HashMap<Digest, V>,
}

impl<V: Clone> Halves<V> {
    pub(crate) fn new(half_max: usize) -> Self {
        Self {
            half_max,
            newer: HashMap::new(),
            older: HashMap::new(),
        }
    }

    pub(crate) fn get(&mut self, digest: &Digest) -> Option<V> {
        if let Some(found) = self.newer.get(digest) {
            return Some(found.clone());
        }
        let found = self.older.remove(digest)?;
        self.insert(*digest, found.clone());
        Some(found)
    }

    pub(crate) fn insert(&mut self, digest: Digest, value: V) {
        if self.newer.len() >= self.half_max {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(digest, value);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}
