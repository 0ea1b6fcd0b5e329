//! The kinds of one plane at one moment: what all planes of its sort share, and what its own
//! objects add.
//!
//! Invariant: the base wins. A kind that an object defines is not served where the base has a kind
//! of that group and plural name.

use crate::kind::{KindTable, Resource};
use std::sync::Arc;

/// The kinds of one plane at one moment. Cheap to take; never changes.
#[derive(Clone, Debug)]
pub struct Kinds {
    base: Arc<KindTable>,
}

impl Kinds {
    /// The kinds of a plane whose objects add none.
    pub fn new(base: Arc<KindTable>) -> Self {
        Self { base }
    }

    /// What it shares with other planes.
    pub fn base(&self) -> &Arc<KindTable> {
        &self.base
    }

    /// The kind of a group, version and plural name.
    pub fn resolve(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.base.resolve(group, version, resource)
    }

    /// The kind whose served form is the stored one, of a storage group and resource.
    pub fn stored(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.base.stored(group, resource)
    }

    /// All kinds in all their versions.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.base.resources().iter()
    }

    /// The kinds that own storage, each stored resource once.
    pub fn stored_resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.base.stored_resources()
    }

    /// Whether there is a kind of a group.
    pub fn has_group(&self, name: &str) -> bool {
        self.base.group(name).is_some()
    }
}
