//! The options with which all planes of a process are opened.

use polyplane_plane::{Derivation, Index, LogBounds, Memory, Summarize};
use std::sync::Arc;
use std::time::Duration;

/// The options for serving planes.
#[derive(Clone)]
pub struct PlanesOptions {
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
    /// The time for which a plane stays awake without being used.
    pub idle: Duration,
}
