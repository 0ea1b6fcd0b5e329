//! The requests of the machines to the store, and the store's answers. Owns the vocabulary between this
//! crate and its driver; must not know keys, bytes or the store's client.

use alloc::vec::Vec;

use polyplane_ring::{Incarnation, ReplicaId, Standing};

use crate::record::{Fence, Holder, Observed, Revision};
use crate::terms::Terms;

/// One condition of a transaction. Fence and directory are those of the machine's plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Compare {
    /// The plane has no fence record.
    FenceAbsent,
    /// The plane's fence record was last written at this revision.
    FenceAt(Revision),
    /// The plane's directory record exists.
    DirectoryPresent,
    /// The member key of this replica was created at this incarnation: the replica still lives.
    MemberIs(Holder),
    /// The member key of this replica is absent or was created at another revision.
    MemberIsNot(Holder),
    /// The replica has no member key.
    MemberAbsent(ReplicaId),
    /// The store's level floor was last written at this revision, or is absent.
    LevelFloorAt(Option<Revision>),
    /// The store's lease terms were last written at this revision, or are absent.
    LeaseTermsAt(Option<Revision>),
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// Put the plane's fence.
    PutFence(Fence),
    /// Put this replica's member key. Every put names the replica's store lease: without it the key
    /// would outlive the replica.
    PutMember {
        /// Whose key.
        replica: ReplicaId,
        /// What it says of wanting planes.
        standing: Standing,
    },
    /// Delete a member key.
    DeleteMember(ReplicaId),
    /// Put the store's lease terms.
    PutTerms(Terms),
    /// Say that this life goes by the record of the lease terms that was written at this revision.
    /// The record goes with the life.
    PutAdoption {
        /// The life that goes by the record.
        holder: Holder,
        /// The revision of that record.
        terms: Revision,
    },
}

/// All compares hold and all writes are done, or nothing is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// The operations.
    pub writes: Vec<Write>,
}

/// Names one sending of one transaction. Its outcome is fed back once, under this name; what comes
/// after an [`Outcome::Unknown`] was reported is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub(crate) u32);

/// What became of one sending.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done at this revision.
    Applied(Revision),
    /// A compare failed: final, nothing was done, and no late copy can do it.
    Refused(Refusal),
    /// The store refused to consider it (no space, too large): final, nothing was done.
    Rejected,
    /// Anything else: a time-out, a broken connection. It may still be applied, much later.
    Unknown,
}

/// What the else branch of a refused transaction read, in the same instant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The store's revision then.
    pub at: Revision,
    /// The plane's fence.
    pub fence: Option<Observed<Fence>>,
    /// The revision that created the own member key, if there is one.
    pub own_incarnation: Option<Incarnation>,
    /// Whether the plane's directory record exists.
    pub directory: Directory,
}

/// Whether a plane has a record in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directory {
    /// The plane has a directory record.
    Present,
    /// The plane has none: it was deleted.
    Absent,
}
