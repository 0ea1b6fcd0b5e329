//! How much a plane may have of its own, and what a write adds to it.
//!
//! Objects of layers count nothing until the plane changes them. One that it deleted and that was created
//! again is an object of its own, with a uid and a record of its own, and counts. The write that begins a deletion is
//! free, although it adds a time to the object, so that a full plane can always be emptied. What is
//! being deleted counts as before: its finalizers may keep it for ever.

use polyplane_fairness::PlaneLimits;

use crate::key::{Key, Prefix};
use crate::state::entry::{ENTRY_BYTES, Flags};
use crate::state::tree::{Item as _, Weight};
use crate::state::{Root, Snapshot};
use crate::write::prepared_write::Operation;

/// The objects and bytes that a plane may have of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Objects, at most.
    pub objects: u64,
    /// Bytes of their bodies and keys, at most.
    pub bytes: u64,
}

impl Room {
    /// Returns the room that limits leave; `None` if they limit neither objects nor bytes.
    #[must_use]
    pub fn of(limits: &PlaneLimits) -> Option<Self> {
        let is_limited = limits.objects.is_some() || limits.bytes.is_some();
        is_limited.then(|| Self {
            objects: limits.objects.unwrap_or(u64::MAX),
            bytes: limits.bytes.unwrap_or(u64::MAX),
        })
    }
}

/// What a write adds to the plane's own objects and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// Objects.
    pub objects: i64,
    /// Bytes.
    pub bytes: i64,
}

/// The room that a write would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The plane has as many objects as it may have.
    Objects {
        /// The objects that it has.
        has: u64,
    },
    /// The plane has nearly as many bytes as it may have.
    Bytes {
        /// The bytes that it has.
        has: u64,
    },
}

/// Returns the bytes that an object of the plane itself counts with. Whether parts of it are shared
/// with other objects, or compressed in the store, makes no difference: the number must not tell a
/// plane's user what other planes have.
pub(crate) fn own_bytes(key: &Key, body_len: usize) -> u64 {
    (body_len + key.as_bytes().len() + ENTRY_BYTES) as u64
}

impl Root {
    /// Returns whether the plane has room for what a write adds. What adds nothing always fits, also
    /// in a plane whose limit was lowered.
    pub(crate) fn has_room(&self, growth: Growth, room: Room) -> Result<(), Full> {
        let Weight { own, bytes, .. } = self.resources.weight();
        let exceeds = |has: u64, add: i64, max: u64| {
            u64::try_from(add).is_ok_and(|add| add > 0 && has.saturating_add(add) > max)
        };
        if exceeds(own, growth.objects, room.objects) {
            return Err(Full::Objects { has: own });
        }
        if exceeds(bytes, growth.bytes, room.bytes) {
            return Err(Full::Bytes { has: bytes });
        }
        Ok(())
    }
}

impl Snapshot {
    /// Returns the number of the plane's own objects.
    #[must_use]
    pub fn own_objects(&self) -> u64 {
        self.root.resources.weight().own
    }

    /// Returns the number of the plane's own objects under a prefix.
    #[must_use]
    pub fn own_objects_under(&self, prefix: &Prefix) -> u64 {
        self.root.resources.weight_of(prefix).own
    }

    /// Returns what operations add to the plane's own objects and bytes. A put that begins a deletion
    /// counts nothing.
    #[must_use]
    pub fn growth(&self, operations: &[Operation]) -> Growth {
        let mut growth = Growth::default();
        for operation in operations {
            let old = self.root.resources.get(operation.key());
            let is_deleting = old.is_some_and(|entry| entry.flags().has(Flags::DELETING));
            let (own, bytes) = match operation {
                Operation::Put { object, .. }
                    if object.flags.has(Flags::DELETING) && !is_deleting =>
                {
                    continue;
                }
                Operation::Put { key, object } => (1, own_bytes(key, object.body.len())),
                Operation::Delete { .. } => (0, 0),
            };
            let old = old.map_or(Weight::default(), |entry| entry.weight());
            let difference = |new: u64, old: u64| new.cast_signed().wrapping_sub(old.cast_signed());
            growth.objects += difference(own, old.own);
            growth.bytes += difference(bytes, old.bytes);
        }
        growth
    }

    /// Returns whether the plane has room for what a write adds.
    ///
    /// # Errors
    /// Returns what is full.
    pub fn has_room(&self, growth: Growth, room: Room) -> Result<(), Full> {
        self.root.has_room(growth, room)
    }
}
