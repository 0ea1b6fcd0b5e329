//! The fence of a plane as it is in the store, and its counters. Owns the fields, not the encoding:
//! the driver writes them as JSON and reads them back.

use core::fmt;

use polyplane_ring::{Incarnation, ReplicaId};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Returns the counter with this number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the counter's number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

counter!(
    /// The store's commit counter. A record's revision is that of the transaction that wrote it last.
    Revision
);

counter!(
    /// A fence's counter: one more each time the fence is acquired. It never falls (F2).
    Epoch
);

impl Epoch {
    /// Returns the epoch of the next acquire.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One life of one replica. A fence is held by a life, never by a replica as such.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The replica's name.
    pub replica: ReplicaId,
    /// The revision that created the replica's member key.
    pub incarnation: Incarnation,
}

/// The record that says which life may write to a plane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The life that wrote the record last: the holder, or the one that released or deleted the
    /// plane.
    pub holder: Holder,
    /// The number of times that the fence was acquired.
    pub epoch: Epoch,
    /// The state that the last writer put.
    pub state: FenceState,
}

/// The state of a fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FenceState {
    /// The holder owns the plane as long as its incarnation lives.
    Held,
    /// No replica owns the plane; the designated one may take it.
    Released {
        /// The revision of the plane's last commit: state streamed at exactly this head is current.
        head: Revision,
        /// The replica that should take it. A hint: any designated replica may.
        successor: Option<ReplicaId>,
    },
    /// The plane is being removed. Final: no fence follows this one.
    Deleted,
}

/// A record together with the revision that wrote it. Two reads found the record unchanged if and
/// only if these revisions are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observed<T> {
    /// The record.
    pub value: T,
    /// The revision of the store that wrote it.
    pub revision: Revision,
}
