//! The kinds of one plane at one moment: those of the base, which planes share, and those that the
//! plane's own objects define.
//!
//! The base is a table that never changes while the process runs. The kinds that objects define are
//! in the [`Overlay`] of the plane's root, as rows whose content is a [`Defined`]. A
//! [`polyplane_plane::Derivation`], with which the plane is opened, derives them.
//!
//! Invariant: the base wins. A kind that an object defines is not served where the base has a kind
//! of that group and plural name, in whatever versions, and not in a version of a group that the base
//! has.

pub mod api_version;
pub mod conversion;
pub mod custom;
pub mod document_id;
pub mod feature_gates;
pub mod generated_rows;
pub mod owned_fields;
pub mod served;
pub mod table;

use polyplane_plane::{ContentId, Key, Overlay, Prefix};
use std::sync::Arc;
use table::{KindTable, Resource};

/// The kind that an object of a plane defines: the content of a row of an overlay.
#[derive(Debug, Default)]
pub struct Defined {
    /// The kind in each version that is served, most preferred first.
    pub versions: Vec<Arc<Resource>>,
    /// The kind in the version that objects are stored in, if no version is served. Clients do not see it.
    pub unserved: Option<Arc<Resource>>,
}

/// Who a kind is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A client, which sees the versions that are served.
    Client,
    /// The server itself, which also deletes the objects of a kind that no version serves.
    Server,
}

/// The kinds of one plane at one moment. Cheap to create; never changes.
#[derive(Clone, Debug)]
pub struct Kinds {
    base: Arc<KindTable>,
    overlay: Option<Arc<Overlay>>,
}

/// The identity of a set of kinds, by content, within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KindsId {
    /// The generation of the base.
    pub base: u64,
    /// The id of the kinds that objects define; `None` if they define none.
    pub added: Option<ContentId>,
}

impl Kinds {
    /// Returns the kinds of a base together with those that objects define.
    pub fn new(base: Arc<KindTable>, overlay: Option<Arc<Overlay>>) -> Self {
        Self { base, overlay }
    }

    /// Returns the kinds that the plane shares with others.
    pub fn base(&self) -> &Arc<KindTable> {
        &self.base
    }

    /// Returns the identity of the whole set: documents about equal sets are equal.
    pub fn content_id(&self) -> KindsId {
        KindsId {
            base: self.base.generation(),
            added: self.overlay.as_ref().map(|overlay| overlay.id()),
        }
    }

    /// Returns the identity of the kinds of one version of a group.
    pub fn version_id(&self, group: &str, version: &str) -> KindsId {
        let rows = self.rows().filter(|(_, defined)| {
            let mut versions = defined.versions.iter();
            versions.any(|row| row.group == group && row.version == version)
        });
        let ids: Vec<&[u8]> = rows.map(|(row, _)| row.id.as_bytes()).collect();
        KindsId {
            base: self.base.generation(),
            added: (!ids.is_empty()).then(|| ContentId::of(ids)),
        }
    }

    /// Returns the kind of a group, version and plural name.
    pub fn resolve(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        let known = self.base.resolve(group, version, resource);
        known.or_else(|| {
            let mut versions = self.defined(group, resource)?.versions.iter();
            versions.find(|row| row.version == version && !self.is_hidden(row))
        })
    }

    /// Returns the kind of a group, version and plural name as `requester` sees it. A client sees what
    /// [`Self::resolve`] returns.
    pub(crate) fn resolve_for(
        &self,
        requester: Requester,
        (group, version, resource): (&str, &str, &str),
    ) -> Option<&Arc<Resource>> {
        let served = self.resolve(group, version, resource);
        match requester {
            Requester::Client => served,
            Requester::Server => served.or_else(|| {
                let unserved = self.defined(group, resource)?.unserved.as_ref();
                unserved.filter(|row| row.version == version)
            }),
        }
    }

    /// Returns the kind that an object of the plane defines, also if no version of it is served. `group` and
    /// `resource` are those of the kind.
    pub fn defined_by(
        &self,
        definition: &Key,
        (group, resource): (&str, &str),
    ) -> Option<&Arc<Resource>> {
        let defined = self.defined(group, resource)?;
        let row = defined.stored().or(defined.unserved.as_ref());
        row.filter(|row| {
            let custom = row.custom.as_ref();
            custom.is_some_and(|custom| custom.definition == *definition)
        })
    }

    /// Returns the kind whose served form is the stored one, of a storage group and resource.
    pub fn stored(&self, group: &str, resource: &str) -> Option<&Arc<Resource>> {
        let known = self.base.stored(group, resource);
        known.or_else(|| self.defined(group, resource).and_then(Defined::stored))
    }

    /// Returns all kinds in all their versions.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let added = self.rows().flat_map(|(_, defined)| &defined.versions);
        let added = added.filter(|row| !self.is_hidden(row));
        self.base.resources().iter().chain(added)
    }

    /// Returns the kinds that own storage, each stored resource once.
    pub fn stored_resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let added = self.rows().filter_map(|(_, defined)| defined.stored());
        self.base.stored_resources().chain(added)
    }

    /// Returns whether there is a kind of a group.
    pub fn has_group(&self, name: &str) -> bool {
        let of_group = |row: &Arc<Resource>| row.group == name;
        let mut added = self.rows().flat_map(|(_, defined)| &defined.versions);
        self.base.group(name).is_some() || added.any(of_group)
    }

    /// Returns whether a kind that an object defines is in a version of a group of the base.
    fn is_hidden(&self, row: &Resource) -> bool {
        self.base.has_version(&row.group, &row.version)
    }

    fn defined(&self, group: &str, resource: &str) -> Option<&Defined> {
        let row = self
            .overlay
            .as_ref()?
            .row(&Prefix::resource(group, resource))?;
        let defined: &Defined = row.content.downcast_ref()?;
        (!self.base.serves(group, resource)).then_some(defined)
    }

    /// Returns the rows that are served.
    fn rows(&self) -> impl Iterator<Item = (&polyplane_plane::Row, &Defined)> {
        let rows = self.overlay.iter().flat_map(|overlay| overlay.rows());
        rows.filter_map(|row| {
            let defined: &Defined = row.content.downcast_ref()?;
            let first = defined.versions.first()?;
            (!self.base.serves(&first.group, &first.name)).then_some((row, defined))
        })
    }
}

impl Defined {
    /// Returns the version whose form is the stored one; the most preferred one if that is not
    /// served.
    fn stored(&self) -> Option<&Arc<Resource>> {
        let mut versions = self.versions.iter();
        let stored = versions.find(|row| row.version == row.storage.version);
        stored.or(self.versions.first())
    }
}
