//! Claims: the facts that a write rests on. A state tests them (`holds` in `state.rs`), and the sequencer
//! calls that under its lock.

use bytes::Bytes;
use polyplane_apimachinery::Str;

use crate::key::{Key, Prefix};
use crate::state::index::{IndexId, IndexValues};
use crate::state::overlay::ContentId;
use crate::state::room::{Growth, Room};
use crate::state::summary::Summary;
use crate::version::Stamp;

/// A fact that a write rests on.
#[derive(Debug, Clone)]
pub enum Claim {
    /// No object has this key.
    Absent(Key),
    /// The object is in exactly this state.
    At(Key, Stamp),
    /// The object, for example a namespace, exists and is not being deleted.
    Active(Key),
    /// The scope has no objects.
    Empty(Scope),
    /// Exactly this many objects have keys under the prefix.
    Count {
        /// The prefix of the keys.
        prefix: Prefix,
        /// The number of objects.
        count: usize,
    },
    /// No object but `owner` holds this value.
    Free {
        /// The index that is tested.
        index: IndexId,
        /// The value that must be free.
        value: Bytes,
        /// The object that will hold the value.
        owner: Key,
    },
    /// The amount that objects take of these values, and `add`, are together at most `max`.
    Room {
        /// The index that is tested.
        index: IndexId,
        /// The values whose amounts are tested.
        values: IndexValues,
        /// The amount that the write adds.
        add: i128,
        /// The amount that all objects together may take.
        max: i128,
    },
    /// An object takes one of these values.
    Taken {
        /// The index that is tested.
        index: IndexId,
        /// The values of which one is taken.
        values: IndexValues,
    },
    /// What the plane has of its own, and what the write adds, fit into its room.
    Within {
        /// What the write adds.
        growth: Growth,
        /// What the plane may have.
        room: Room,
    },
    /// Fewer objects than this have keys under the prefix.
    Below {
        /// The prefix of the keys.
        prefix: Prefix,
        /// The number that is not reached.
        count: u64,
    },
    /// An object defines the resource with just this view; `None` claims that none does.
    View {
        /// The resource that is defined.
        resource: Prefix,
        /// The id of what readers of the resource see.
        view: Option<ContentId>,
    },
    /// No summarized object has changed since this summary.
    Summary(Summary),
}

/// The keys that [`Claim::Empty`] tests.
#[derive(Debug, Clone)]
pub enum Scope {
    /// The keys under one prefix.
    Prefix(Prefix),
    /// The keys in one namespace, of all resources.
    Namespace(Str),
}
