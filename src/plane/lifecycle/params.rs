//! What a plane is opened with, and its record in the directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_storage::Revision;

use crate::guard::CommitGuard;
use crate::history::log::LogBounds;
use crate::key::Prefix;
use crate::layers::Layers;
use crate::layers::layer::LayerHash;
use crate::lifecycle::import::Import;
use crate::state::index::Index;
use crate::state::overlay::Derivation;
use crate::version::Version;
use crate::write::committer::Committer;

/// A plane's record in the directory, fixed at birth.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaneRecord {
    /// Its id, never used again.
    pub id: String,
    /// What is added to the store's revisions.
    #[serde(default)]
    pub base: u64,
    /// The version of its birth where it is not that of the record's first put: after a move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<Version>,
    /// The layer it was born with. The steps since are recorded in the plane's own range.
    pub layer: LayerHash,
    /// The values of the placeholders of the layer: serving CA, client CA certificate, addresses.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
}

/// What a plane is opened with.
pub struct PlaneParams {
    /// Its directory record.
    pub record: PlaneRecord,
    /// The version of the record's first put, in the plane's own base.
    pub born: Version,
    /// The time of the record's first put, RFC 3339.
    pub born_at: String,
    /// The layer that the record names, and those of the steps since.
    pub layers: Arc<Layers>,
    /// Seed of the uids of layer objects, see [`crate::uid_seed`].
    pub uid_seed: [u8; 32],
    /// Indexes that claims test, by [`crate::IndexId`].
    pub indexes: Vec<Arc<dyn Index>>,
    /// Derives what objects define; `None` if they define nothing.
    pub derivation: Option<Arc<dyn Derivation>>,
    /// The committer of the plane's store.
    pub committer: Arc<Committer>,
    /// The fence's holder.
    pub guard: Arc<dyn CommitGuard>,
    /// The revision at which the fence was acquired.
    pub acquired: Revision,
    /// How much of the log is kept.
    pub log: LogBounds,
    /// Objects that other replicas write past the sequencer, see [`crate::external`]: one namespace of one
    /// resource. No operation of a [`crate::Write`] may name a key of it.
    pub external: Option<Prefix>,
    /// The export of the former owner, if the fence was taken from its Released.
    pub import: Option<Import>,
}
