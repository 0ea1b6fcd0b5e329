//! The transactions that the machines request of the store, and the store's replies. Owns the
//! vocabulary between this crate and its driver; must not know keys, bytes or the store's client.

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
    /// Put this replica's member key. Every put names the replica's store lease: without the lease
    /// the key would outlive the replica.
    PutMember {
        /// The replica whose key is put.
        replica: ReplicaId,
        /// The replica's standing: whether it accepts planes.
        standing: Standing,
    },
    /// Delete a member key.
    DeleteMember(ReplicaId),
    /// Put the store's lease terms.
    PutTerms(Terms),
    /// Confirm that this life follows the record of the lease terms that was written at this
    /// revision. The store removes the confirmation with the life.
    PutAdoption {
        /// The life that follows the record.
        holder: Holder,
        /// The revision of that record.
        terms: Revision,
    },
}

/// A transaction: if all compares hold, all writes are applied, else nothing is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// The conditions under which it is applied.
    pub compares: Vec<Compare>,
    /// The operations that it applies.
    pub writes: Vec<Write>,
}

/// The number of one sending of one transaction. The driver reports its outcome once, with this
/// number; outcomes that arrive after [`Outcome::Unknown`] was reported are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub(crate) u32);

/// The outcome of one sending.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Applied at this revision.
    Applied(Revision),
    /// A compare failed. The reply is final: nothing was applied, and no late copy can be.
    Refused(Refusal),
    /// The store refused to evaluate the transaction (no space, too large). The reply is final:
    /// nothing was applied.
    Rejected,
    /// Any other result, such as a time-out or a broken connection. The transaction may still be
    /// applied, much later.
    Unknown,
}

/// The values that a refused transaction read at the same revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The store's revision when the transaction was refused.
    pub at: Revision,
    /// The plane's fence at that revision.
    pub fence: Option<Observed<Fence>>,
    /// The revision that created this replica's member key, if the key exists.
    pub own_incarnation: Option<Incarnation>,
    /// The answer to whether the plane's directory record exists.
    pub directory: Directory,
}

/// The answer to whether a plane has a record in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Directory {
    /// The plane has a directory record.
    Present,
    /// The plane has no directory record: it was deleted.
    Absent,
}
