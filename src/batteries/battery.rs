//! The form of a battery: one API group as a row that names its kinds, each with its behaviour, and
//! the indexes that their claims test.
//!
//! The other columns of a battery are generated, and found by the group's name: discovery, schemas
//! and table columns in `data/rows.json` and `data/schemas.json`, bootstrap objects in
//! `data/bootstrap.json`.

use polyplane_plane::Index;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// One API group with the behaviour of its kinds.
pub(crate) struct Battery {
    /// The name of the API group; empty for the core group.
    pub(crate) group: &'static str,
    /// The kinds of the group. The table of kinds refuses a generated row that none of them names.
    pub(crate) kinds: &'static [Kind],
    /// The indexes that claims of these kinds test.
    pub(crate) indexes: &'static [fn() -> Arc<dyn Index>],
}

/// A kind of a battery.
pub(crate) struct Kind {
    resource: &'static str,
    version: Option<&'static str>,
    strategy: fn() -> Arc<dyn Strategy>,
}

impl Kind {
    /// Creates a kind with the same behaviour in all its versions, by its plural name.
    pub(crate) const fn new(resource: &'static str, strategy: fn() -> Arc<dyn Strategy>) -> Self {
        Self {
            resource,
            version: None,
            strategy,
        }
    }

    /// Creates one version of a kind whose versions have different behaviour, because not all of
    /// them are stored. It stands before the kind's other versions.
    pub(crate) const fn in_version(
        version: &'static str,
        resource: &'static str,
        strategy: fn() -> Arc<dyn Strategy>,
    ) -> Self {
        Self {
            resource,
            version: Some(version),
            strategy,
        }
    }
}

impl Battery {
    /// Returns the behaviour of a resource of this group; `None` if no row names it.
    pub(crate) fn strategy(&self, version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
        let kind = self.kinds.iter().find(|kind| {
            kind.resource == resource && kind.version.is_none_or(|known| known == version)
        })?;
        Some((kind.strategy)())
    }
}
