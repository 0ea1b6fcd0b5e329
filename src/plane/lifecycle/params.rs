//! The parameters that a plane is opened with, and its record in the directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_storage::Revision;

use crate::copied::{Copied, Numbering};
use crate::guard::CommitGuard;
use crate::history::log::LogBounds;
use crate::key::Prefix;
use crate::layers::Layers;
use crate::layers::layer::LayerHash;
use crate::lifecycle::import::Import;
use crate::state::index::Index;
use crate::state::overlay::Derivation;
use crate::state::summary::Summarize;
use crate::version::{Base, Version};
use crate::write::committer::Committer;

/// A plane's record in the directory, fixed at birth.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaneRecord {
    /// The plane's id, never used again.
    pub id: String,
    /// The number that is added to the store's revisions to make versions.
    #[serde(default)]
    pub base: u64,
    /// The version of the plane's birth, where it differs from that of the record's first put:
    /// after a move to another store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<Version>,
    /// The hash of the layer that the plane was born with. Later steps are recorded in the plane's
    /// own range.
    pub layer: LayerHash,
    /// The values of the placeholders of the layer: serving CA, client CA certificate, addresses.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
}

/// The parameters that a plane is opened with.
pub struct PlaneParams {
    /// The plane's directory record.
    pub record: PlaneRecord,
    /// The copy that filled the store, if it is one. It is the same for all planes of a store.
    pub copied: Option<Copied>,
    /// The version of the record's first put, in the plane's own base.
    pub born: Version,
    /// The time of the record's first put, RFC 3339.
    pub born_at: String,
    /// The cache of layers, which has or loads the layer that the record names and those of later
    /// steps.
    pub layers: Arc<Layers>,
    /// Seed of the uids of layer objects, see [`crate::uid_seed`].
    pub uid_seed: [u8; 32],
    /// The indexes that a claim can test, in the order of [`crate::IndexId`].
    pub indexes: Vec<Arc<dyn Index>>,
    /// Derives what the plane's objects define; `None` if objects define nothing.
    pub derivation: Option<Arc<dyn Derivation>>,
    /// Summarizes objects of the plane by their bodies; `None` if nothing does.
    pub summarize: Option<Arc<dyn Summarize>>,
    /// The committer of the plane's store.
    pub committer: Arc<Committer>,
    /// The holder of the plane's fence.
    pub guard: Arc<dyn CommitGuard>,
    /// The revision at which the fence was acquired.
    pub acquired: Revision,
    /// The bounds of the log.
    pub log: LogBounds,
    /// Objects that other replicas write past the sequencer, see [`crate::external`]: one namespace of one
    /// resource. No operation of a [`crate::Write`] may name a key of it.
    pub external: Option<Prefix>,
    /// The export of the former owner, if the fence was taken from a Released record.
    pub import: Option<Import>,
}

impl PlaneParams {
    /// Returns how the store numbers the plane's history.
    pub(crate) fn numbering(&self) -> Numbering {
        Numbering {
            base: Base(self.record.base),
            copied: self.copied,
        }
    }
}
