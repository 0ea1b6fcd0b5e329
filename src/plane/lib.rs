//! One control plane in memory: a sorted map over a layer, a sequencer, a log with its watchers,
//! and the committer that all planes of a store share.
//!
//! A reader takes a [`Snapshot`] and reads a consistent cut without locks. A writer prepares
//! against [`Plane::accepted`] and hands a [`Write`] to [`Plane::submit`]: operations, and the
//! claims they rest on. Every answer except the acknowledgement of the caller's own write needs
//! [`Plane::answerable`] and, if it was computed from an accepted cut, [`Plane::settled`].
//!
//! A plane is born as the root of its layer and moves to newer layers by steps: [`Plane::ahead`]
//! returns the difference, [`Plane::step`] commits the next part of it. One record per plane lists
//! the layers and the commits of the steps; versions and history of layer objects follow from it.
//!
//! Some objects define something beside themselves, as a custom resource definition defines a kind.
//! A [`Derivation`] turns them into an [`Overlay`], which each root carries.
//!
//! | question | folder |
//! |---|---|
//! | What does a plane hold at one moment? | `state` |
//! | Why is a write refused, slow, or not acknowledged? | `write` |
//! | Why does a watch miss an event, or a version expire (410)? | `history` |
//! | Why is a plane slow to open, or a hand-off refused? | `lifecycle` |
//! | What are the objects that every plane has from birth? | `layers` |
//! | What is encrypted in the store, and under which key? | `sealing` |
//!
//! `record` is the form of everything in the store, `guard` what a plane needs of its fence, `memory`
//! the budget of the process. [`Plane`] itself is in `plane`; each folder adds the methods of its
//! subject to it, which is why `plane` and the files that add them use each other in circles. Three
//! smaller circles have one reason each: an entry may come from a layer, and a layer is made of entries
//! (`state`, `layers::layer`); the codec `record` knows the records of layers, which use its parts; an
//! event keeps the frames that are made of it (`history::{event, frames}`).
//!
//! `DESIGN.md` beside this file has the case behind each choice.
//!
//! Invariant: this crate knows keys, bytes, versions and claims. It knows no kinds and no HTTP.
//! What is published is durable, and nothing is sent to a client before it is published.

mod copied;
mod end_with_panic;
mod guard;
mod history;
mod key;
mod layers;
mod lifecycle;
mod memory;
mod metrics;
mod observer;
mod packed;
mod plane;
mod record;
mod sealing;
mod state;
mod version;
mod write;
mod yielding;

#[cfg(any(test, feature = "testing"))]
mod sole_holder;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use copied::{Copied, Numbering, copied_value};
pub use end_with_panic::EndWithPanic;
pub use guard::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, SendPermit, first_change,
};
pub use history::event::Event;
pub use history::expired_cause::ExpiredCause;
pub use history::log::LogBounds;
pub use history::replaced::ReplacedMark;
pub use history::watch::{AtError, Ended, Next, WatchError, WatchFrom, WatchScope, Watcher};
pub use key::{Key, Prefix};
pub use layers::Layers;
pub use layers::layer::{Layer, LayerError, LayerHash, LayerObject};
pub use layers::layer_store::{LayerStoreError, load_layer, save_layer};
pub use layers::step::{Ahead, MissingParameter, Shadowed, Stepped};
pub use layers::template_values::{TemplateValues, uid_seed};
pub use lifecycle::export::{Export, ExportError};
pub use lifecycle::import::{Import, ImportError};
pub use lifecycle::load::OpenError;
pub use lifecycle::params::{PlaneParams, PlaneRecord};
pub use lifecycle::tenure::PauseError;
pub use memory::{Memory, Reservation, Share};
pub use observer::Observer;
pub use packed::{BODY_BYTES_MAX, PACKED_LEVEL};
pub use plane::{Plane, PlaneStats, Settled};
pub use record::RecordError;
pub use sealing::keys_record::{KeyVersionRecord, KeysRecord};
pub use sealing::reseal::Resealed;
pub use sealing::{SEALED_LEVEL, SealedError, Sealing, data_keys_key, read_data_keys};
#[cfg(any(test, feature = "testing"))]
pub use sole_holder::SoleHolder;
pub use state::claim::{Claim, Scope};
pub use state::entry::{Entry, Flags, NewObject, ObjectRef};
pub use state::index::{Index, IndexId, IndexRow, IndexValues};
pub use state::overlay::{ByContent, ContentId, Derivation, Overlay, Row, Source, SourceBody};
pub use state::room::{Full, Growth, Room};
pub use state::summary::{Summarize, Summary};
pub use state::{Snapshot, Start};
pub use version::{Base, Point, Stamp, Version};
pub use write::committer::Committer;
pub use write::delete_range::{DeleteError, delete_range};
pub use write::external;
pub use write::key_queue::KeyQueueGuard;
pub use write::prepared_write::{Broken, Committed, Operation, SubmitError, Write, Written};
pub use yielding::YieldBudget;
