//! The identity of the documents that describe a plane's kinds (discovery, OpenAPI).

use std::hash::{Hash, Hasher};

use aws_lc_rs::digest;

/// The identity of some content: equal identities mean equal content. Planes share documents by it,
/// so a tenant must not be able to find two contents with one identity; hence SHA-256. It is valid
/// within this process: never stored and never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DocumentId([u8; 32]);

impl DocumentId {
    /// Returns the identity of a value, from what it feeds to a hasher.
    pub fn of(content: &impl Hash) -> Self {
        let mut hasher = Sha256(digest::Context::new(&digest::SHA256));
        content.hash(&mut hasher);
        let mut id = [0; 32];
        id.copy_from_slice(hasher.0.finish().as_ref());
        Self(id)
    }
}

struct Sha256(digest::Context);

impl Hasher for Sha256 {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finish();
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_ref()[..8]);
        u64::from_be_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::DocumentId;

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_eq!(DocumentId::of(&("a", "b")), DocumentId::of(&("a", "b")));
        assert_ne!(DocumentId::of(&("a", "b")), DocumentId::of(&("ab", "")));
        assert_ne!(DocumentId::of(&vec!["a", "b"]), DocumentId::of(&vec!["a"]));
    }
}
