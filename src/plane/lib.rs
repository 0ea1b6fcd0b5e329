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

mod chain;
mod claim;
mod committer;
mod entry;
mod event;
mod export;
mod fills;
mod follow;
pub mod foreign;
mod forgotten;
mod frames;
mod guard;
mod held;
mod history;
mod hub;
mod import;
mod index;
mod intern;
mod key;
mod layer;
mod layers;
mod load;
mod log;
mod measures;
mod memory;
mod observer;
mod overlay;
mod params;
mod plane;
mod prober;
mod record;
mod selectable;
mod sequencer;
mod settle;
mod shelf;
mod slices;
mod sole_holder;
mod state;
mod step;
mod tenure;
mod tree;
mod turn;
mod version;
mod watch;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use claim::{Broken, Claim, Committed, Operation, Scope, SubmitError, Write, Written};
pub use committer::{Committer, DeleteError, delete_range};
pub use entry::{Entry, Flags, NewObject, ObjectRef};
pub use event::Event;
pub use export::{Export, ExportError};
pub use fills::{Fills, uid_seed};
pub use forgotten::Forgotten;
pub use guard::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, Permit, first_change,
};
pub use import::{Import, ImportError};
pub use index::{Index, IndexId, IndexRow};
pub use key::{Key, Prefix};
pub use layer::{Layer, LayerError, LayerHash, LayerObject};
pub use layers::Layers;
pub use load::OpenError;
pub use log::LogBounds;
pub use memory::{Hold, Memory, ReplacedMark, Share};
pub use observer::Observer;
pub use overlay::{ByContent, ContentId, Derivation, Overlay, Row, Source};
pub use params::{PlaneParams, PlaneRecord};
pub use plane::{Plane, PlaneStats, Settled};
pub use record::RecordError;
pub use shelf::{ShelfError, load_layer, save_layer};
pub use slices::Slices;
pub use sole_holder::SoleHolder;
pub use state::{Snapshot, Start};
pub use step::{Ahead, Shadowed, Stepped};
pub use tenure::PauseError;
pub use turn::TurnGuard;
pub use version::{Base, Stamp, Version};
pub use watch::{AtError, Ended, Next, WatchError, WatchFrom, WatchScope, Watcher};
