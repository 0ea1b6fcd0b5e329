//! A prepared write, and what becomes of it: its operations and claims, its result or refusal.
//!
//! The sequencer checks claims under its lock against the newest accepted state. A claim that fails
//! means "prepare again". It is a conflict for the client only if the client gave the version.

use tokio::time::Instant;

use crate::key::Key;
use crate::state::claim::Claim;
use crate::state::entry::{NewObject, ObjectRef};
use crate::version::Version;

/// One change of one object, which makes one event.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Creates or replaces an object.
    Put {
        /// The object's key.
        key: Key,
        /// Its new state.
        object: NewObject,
    },
    /// Removes an object. Implies the claim that the object exists.
    Delete {
        /// The object's key.
        key: Key,
    },
}

impl Operation {
    /// Returns the key that the operation changes.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Operations that are applied together or not at all, in one transaction, in this order.
#[derive(Debug, Clone, Default)]
pub struct Write {
    /// The operations: no key twice, and at most [`Write::OPERATIONS_MAX`].
    pub operations: Vec<Operation>,
    /// The facts that must hold when the operations are applied.
    pub claims: Vec<Claim>,
    /// The time until which the caller waits for the answer.
    pub deadline: Option<Instant>,
}

impl Write {
    /// Number of operations in one write at most: as many as fit into one transaction beside a head
    /// record.
    pub const OPERATIONS_MAX: usize = polyplane_storage::TXN_OPS_MAX - 1;
}

/// The acknowledgement of a write: it is durable and published.
#[derive(Debug, Clone)]
pub struct Committed {
    /// For each operation, the new object, or the one that was deleted.
    pub objects: Vec<Written>,
    /// The version of the last event.
    pub version: Version,
}

impl Committed {
    /// Returns the version of the first operation's event.
    #[must_use]
    pub fn version_of_first(&self) -> Version {
        self.objects
            .first()
            .map_or(self.version, |written| written.version)
    }
}

/// The result of one operation.
#[derive(Debug, Clone)]
pub struct Written {
    /// The new object; for a delete, the object that was removed.
    pub object: ObjectRef,
    /// The version of the event.
    pub version: Version,
}

/// The claim or operation of a write that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The claim with this index.
    Claim(usize),
    /// The operation with this index deletes an object that does not exist.
    Operation(usize),
}

/// The reason why a write was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing was applied: prepare again from the accepted state.
    #[error("a claim does not hold: {0:?}")]
    ClaimFailed(Broken),
    /// Nothing was applied: the accepted state that the write was prepared against was withdrawn.
    /// Prepare again.
    #[error("the state it was prepared against was withdrawn")]
    Withdrawn,
    /// Nothing was applied, and nothing will be: the store refused the write.
    #[error("the store refused the write")]
    Refused(#[source] polyplane_storage::Rejection),
    /// Nothing was applied: the plane accepts no writes until the store does again.
    #[error("the store accepts no writes: {0}")]
    ReadOnly(String),
    /// Nothing was applied: the write, or a part of it, is larger than the store accepts.
    #[error("the write has {bytes} bytes, the store accepts at most {bytes_max}")]
    TooLarge {
        /// Bytes of the first thing that is too large: a key or value as it is stored, an object's body
        /// before it is packed, or the keys and values of the whole write.
        bytes: usize,
        /// The limit of that thing in bytes.
        bytes_max: usize,
    },
    /// Nothing was applied: there are more operations than one transaction accepts, or a key occurs
    /// twice.
    #[error("malformed write: {0}")]
    Malformed(&'static str),
    /// Nothing was applied here: this replica no longer holds the plane.
    #[error("this replica does not hold the control plane any more")]
    Lost,
    /// The caller's deadline passed. The write may have been applied, or may still be.
    #[error("the deadline passed before the outcome was known")]
    Deadline,
    /// The store gave no final reply, and it has since been proven that nothing was applied.
    #[error("the store did not answer and the write was not applied: {0}")]
    Unavailable(String),
}
