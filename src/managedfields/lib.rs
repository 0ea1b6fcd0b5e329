//! Who owns which fields of an object, as pure functions.
//!
//! Owns sets of fields, the walks over an object along its schema that make and use them, and the
//! two steps of a write: [`update`] says who owns what after a create, an update or a patch, and
//! [`apply`] is server-side apply. [`Entries`] does both on `metadata.managedFields`. It must not
//! know kinds, stored forms, clocks or webhooks: schemas come as [`Shape`]s, and objects in other
//! versions are asked for ([`Step::Need`]).
//!
//! [`Shape`]: polyplane_apimachinery::shape::Shape

mod apply;
mod conversion;
mod element;
mod entries;
mod fault;
mod filter;
mod managers;
mod position;
mod scalar;
mod set;
mod update;
mod walk;

pub use apply::{Applied, ApplyError, Force, apply};
pub use conversion::{Answers, Conversion, Need, Step, Subject, Versions};
pub use element::{Path, PathElement};
pub use entries::{
    Apply, ConflictText, Entries, EntryError, ReplicasPaths, SCALE_VERSION, Writer,
    differ_in_times_only, first_entry, repeats, resets, update_values,
};
pub use fault::{Fault, Faults};
pub use filter::{Filter, Pattern, PatternStep};
pub use managers::{Conflict, Conflicts, Managers, VersionedSet};
pub use position::Position;
pub use scalar::equal;
pub use set::{FieldSet, ReadError};
pub use update::{UnknownVersion, UpdateError, Write, update};
pub use walk::compare::{Comparison, compare};
pub use walk::extract::extract;
pub use walk::field_set::field_set;
pub use walk::merge::merge;
pub use walk::named::with_named_fields;
pub use walk::reconcile::reconcile;
pub use walk::remove::remove;
pub use walk::validate::{Duplicates, validate};
