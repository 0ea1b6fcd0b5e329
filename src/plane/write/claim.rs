//! A prepared write: its operations, and the claims, which are the facts that they rest on.
//!
//! The sequencer checks claims under its lock against the newest accepted state. A claim that fails
//! means "prepare again". It is a conflict for the client only if the client gave the version.

use bytes::Bytes;
use polyplane_apimachinery::Str;
use tokio::time::Instant;

use crate::key::{Key, Prefix};
use crate::state::entry::{NewObject, ObjectRef};
use crate::state::index::IndexId;
use crate::state::overlay::ContentId;
use crate::version::{Stamp, Version};

/// One change of one object, and one event.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Creates or replaces.
    Put {
        /// The object's key.
        key: Key,
        /// Its new state.
        object: NewObject,
    },
    /// Removes. Implies the claim that the object is there.
    Delete {
        /// The object's key.
        key: Key,
    },
}

impl Operation {
    /// The key it changes.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// A fact that a write rests on.
#[derive(Debug, Clone)]
pub enum Claim {
    /// There is no such object.
    Absent(Key),
    /// The object is in exactly this state.
    At(Key, Stamp),
    /// The object, a namespace say, is there and not on its way out.
    Active(Key),
    /// The scope has no objects.
    Empty(Scope),
    /// No object but `owner` holds this value.
    Free {
        /// The index.
        index: IndexId,
        /// The value.
        value: Bytes,
        /// The object that will hold it.
        owner: Key,
    },
    /// What is taken of this value and `add` stay within `max`.
    Room {
        /// The index.
        index: IndexId,
        /// The value.
        value: Bytes,
        /// What the write adds.
        add: i64,
        /// What may be taken in all.
        max: i64,
    },
    /// An object defines the resource with just this view; `None` claims that none does.
    View {
        /// The resource.
        resource: Prefix,
        /// What its readers see.
        view: Option<ContentId>,
    },
}

/// Where [`Claim::Empty`] looks.
#[derive(Debug, Clone)]
pub enum Scope {
    /// Under one prefix.
    Prefix(Prefix),
    /// In one namespace, whatever the resource.
    Namespace(Str),
}

/// Operations that are done together or not at all, in one transaction, in this order.
#[derive(Debug, Clone, Default)]
pub struct Write {
    /// What is done; no key twice, at most [`Write::OPERATIONS_MAX`].
    pub operations: Vec<Operation>,
    /// What must hold.
    pub claims: Vec<Claim>,
    /// Until when the caller waits for the answer.
    pub deadline: Option<Instant>,
}

impl Write {
    /// Operations of one write, at most: what fits one transaction beside a head record.
    pub const OPERATIONS_MAX: usize = polyplane_storage::TXN_OPS_MAX - 1;
}

/// The acknowledgement of a write: it is durable and published.
#[derive(Debug, Clone)]
pub struct Committed {
    /// One per operation: the new object, or the one that was deleted.
    pub objects: Vec<Written>,
    /// The version of the last event.
    pub version: Version,
}

impl Committed {
    /// The version of the first operation's event.
    #[must_use]
    pub fn version_of_first(&self) -> Version {
        self.objects
            .first()
            .map_or(self.version, |written| written.version)
    }
}

/// What one operation did.
#[derive(Debug, Clone)]
pub struct Written {
    /// The new object, or of a delete the one that was there.
    pub object: ObjectRef,
    /// The version of the event.
    pub version: Version,
}

/// The claim or operation of a write that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The claim with this index.
    Claim(usize),
    /// The operation with this index deletes what is not there.
    Operation(usize),
}

/// Why a write was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing was done: prepare again from the accepted state.
    #[error("a claim does not hold: {0:?}")]
    ClaimFailed(Broken),
    /// Nothing was done: the accepted state it was prepared against was withdrawn. Prepare again.
    #[error("the state it was prepared against was withdrawn")]
    Withdrawn,
    /// Nothing was done, and nothing will be.
    #[error("the store refused the write")]
    Refused(#[source] polyplane_storage::Rejection),
    /// Nothing was done: the plane takes no writes until the store does again.
    #[error("the store takes no writes: {0}")]
    ReadOnly(String),
    /// Nothing was done: larger than the store takes.
    #[error("the write has {bytes} bytes, the store takes {bytes_max}")]
    TooLarge {
        /// Bytes of the largest value, or of all.
        bytes: usize,
        /// The store's limit.
        bytes_max: usize,
    },
    /// Nothing was done: more operations than one transaction takes, or a key twice.
    #[error("malformed write: {0}")]
    Malformed(&'static str),
    /// Nothing was done here: the plane is no longer this replica's.
    #[error("this replica does not hold the control plane any more")]
    Lost,
    /// The caller's deadline passed. The write may have been done or may still be.
    #[error("the deadline passed before the outcome was known")]
    Deadline,
    /// The outcome was unknown and has been settled: nothing was done.
    #[error("the store did not answer and the write was not done: {0}")]
    Unavailable(String),
}
