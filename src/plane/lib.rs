//! One control plane in memory: a sorted map over a layer, a sequencer, a log with its watchers,
//! and the committer that all planes of a store share.
//!
//! A reader takes a [`Snapshot`] and reads a consistent cut without locks. A writer prepares
//! against [`Plane::accepted`] and hands a [`Write`] to [`Plane::submit`]: operations, and the
//! claims they rest on. Every answer that is not the acknowledgement of a write of its own needs
//! [`Plane::answerable`] and, if it was computed from an accepted cut, [`Plane::settled`].
//!
//! A plane is born as the root of its layer and comes to newer ones by steps: [`Plane::ahead`] shows
//! what lies between, [`Plane::step`] takes the next commit of it. The chain of layers and commits
//! stands in one record; versions and history of what a layer has follow from it.
//!
//! What objects define beside themselves, such as the kinds of custom resources, stands in an
//! [`Overlay`] that each root carries, derived from the objects by a [`Derivation`] of the embedder.
//!
//! `DESIGN.md` beside this file has the case behind each choice.
//!
//! Invariant: this crate knows keys, bytes, versions and claims. It knows no kinds and no HTTP.
//! What is published is durable; what is told to anybody is published.

mod guard;
mod history;
mod key;
mod layers;
mod lifecycle;
mod memory;
mod metrics;
mod observer;
mod plane;
mod record;
mod sole_holder;
mod state;
mod version;
mod write;
mod yielding;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use guard::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, SendPermit, first_change,
};
pub use history::event::Event;
pub use history::expired_cause::ExpiredCause;
pub use history::log::LogBounds;
pub use history::watch::{AtError, Ended, Next, WatchError, WatchFrom, WatchScope, Watcher};
pub use key::{Key, Prefix};
pub use layers::Layers;
pub use layers::layer::{Layer, LayerError, LayerHash, LayerObject};
pub use layers::layer_store::{LayerStoreError, load_layer, save_layer};
pub use layers::step::{Ahead, Shadowed, Stepped};
pub use layers::template_values::{TemplateValues, uid_seed};
pub use lifecycle::export::{Export, ExportError};
pub use lifecycle::import::{Import, ImportError};
pub use lifecycle::load::OpenError;
pub use lifecycle::params::{PlaneParams, PlaneRecord};
pub use lifecycle::tenure::PauseError;
pub use memory::{Memory, ReplacedMark, Reservation, Share};
pub use observer::Observer;
pub use plane::{Plane, PlaneStats, Settled};
pub use record::RecordError;
pub use sole_holder::SoleHolder;
pub use state::entry::{Entry, Flags, NewObject, ObjectRef};
pub use state::index::{Index, IndexId, IndexRow};
pub use state::overlay::{ByContent, ContentId, Derivation, Overlay, Row, Source};
pub use state::{Snapshot, Start};
pub use version::{Base, Stamp, Version};
pub use write::claim::{Broken, Claim, Committed, Operation, Scope, SubmitError, Write, Written};
pub use write::committer::{Committer, DeleteError, delete_range};
pub use write::external;
pub use write::key_queue::KeyQueueGuard;
pub use yielding::YieldBudget;
