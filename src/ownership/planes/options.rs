//! The options with which all planes of a process are opened.

use polyplane_plane::{Derivation, Index, LogBounds, Memory, Sealing, Summarize};
use std::sync::Arc;
use std::time::Duration;

/// Computes values of the layer's placeholders for the plane with an id.
pub type DeriveParams = Arc<dyn Fn(&str) -> Vec<(String, String)> + Send + Sync>;

/// The options for serving planes.
#[derive(Clone)]
pub struct PlanesOptions {
    /// Returns values of the layer's placeholders that each replica computes itself, by the plane's
    /// id. They are used when a plane is opened, and are in no message.
    pub derived_params: Option<DeriveParams>,
    /// The indexes that planes are opened with.
    pub indexes: Vec<Arc<dyn Index>>,
    /// Derives what the objects of planes define beside themselves; `None` if they define nothing.
    pub derivation: Option<Arc<dyn Derivation>>,
    /// Summarizes objects of planes by their bodies; `None` if nothing does.
    pub summarize: Option<Arc<dyn Summarize>>,
    /// The bounds of each plane's log.
    pub log: LogBounds,
    /// The memory budget of all planes.
    pub memory: Arc<Memory>,
    /// What seals the records of planes; `None` if encryption at rest is off.
    pub sealing: Option<Arc<Sealing>>,
    /// The time for which a plane stays awake without being used.
    pub idle: Duration,
}
