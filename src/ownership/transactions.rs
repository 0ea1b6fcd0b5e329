//! Translates the transactions of the fence protocol into those of the store, and their outcomes
//! back. Owns no decision: the machines decide what a refusal means.

use crate::directory::birth::DirectoryKey;
use crate::membership::member_record::{MemberRecord, member_key};
use crate::records::{
    Adoption, FLOOR_KEY, TERMS_KEY, adoption_key, decode_fence, encode_adoption, encode_fence,
    encode_terms,
};
use bytes::Bytes;
use polyplane_fencing::{
    self as fencing, Directory, Holder, Incarnation, Observed, Outcome, Refusal, Transaction, Write,
};
use polyplane_storage::{CommitError, Committed, Compare, KeyValue, LeaseId, Op, Revision, Txn};

/// The store keys that the transactions of one plane name, during one life.
#[derive(Debug, Clone)]
pub(crate) struct PlaneKeys {
    /// The key of the plane's fence.
    pub(crate) fence: Bytes,
    /// The key of the plane's directory record; `None` for the root.
    pub(crate) directory: Option<DirectoryKey>,
    /// This replica's own life.
    pub(crate) me: Holder,
}

/// The value and lease for a put of this replica's member key.
#[derive(Debug, Clone)]
pub(crate) struct MemberPut {
    /// The value of the member key, apart from the standing (Serving or Draining).
    pub(crate) record: MemberRecord,
    /// The store lease that the key is attached to. A put without it would detach the key, which
    /// would then never expire (PROTOCOL 5).
    pub(crate) lease: LeaseId,
}

/// Returns the store's revision as the protocol's type.
pub(crate) fn revision(revision: Revision) -> fencing::Revision {
    fencing::Revision::new(revision.0)
}

/// Returns the protocol's revision as the store's type.
pub(crate) fn stored(revision: fencing::Revision) -> Revision {
    Revision(revision.get())
}

/// Returns a compare in the store's form. `plane` is `None` for the transactions of a member.
fn compare(compare: &fencing::Compare, plane: Option<&PlaneKeys>) -> Compare {
    let fence = || {
        plane
            .expect("only a plane's machine compares a fence")
            .fence
            .clone()
    };
    let member = |replica| member_key(replica);
    let at = |key: &'static [u8], revision: &Option<fencing::Revision>| {
        let key = Bytes::from_static(key);
        match revision {
            Some(revision) => Compare::Unchanged {
                key,
                revision: stored(*revision),
            },
            None => Compare::Absent { key },
        }
    };
    match compare {
        fencing::Compare::FenceAbsent => Compare::Absent { key: fence() },
        fencing::Compare::FenceAt(revision) => Compare::Unchanged {
            key: fence(),
            revision: stored(*revision),
        },
        fencing::Compare::DirectoryPresent => {
            let directory = plane.and_then(|plane| plane.directory.clone());
            let DirectoryKey { key, created } =
                directory.expect("only a tenant's acquire compares the directory");
            Compare::CreatedAt {
                key,
                revision: created,
            }
        }
        fencing::Compare::MemberIs(holder) => Compare::CreatedAt {
            key: member(&holder.replica),
            revision: Revision(holder.incarnation.get()),
        },
        fencing::Compare::MemberIsNot(holder) => Compare::NotCreatedAt {
            key: member(&holder.replica),
            revision: Revision(holder.incarnation.get()),
        },
        fencing::Compare::MemberAbsent(replica) => Compare::Absent {
            key: member(replica),
        },
        fencing::Compare::LevelFloorAt(revision) => at(FLOOR_KEY, revision),
        fencing::Compare::LeaseTermsAt(revision) => at(TERMS_KEY, revision),
    }
}

fn op(write: &Write, plane: Option<&PlaneKeys>, member: Option<&MemberPut>) -> Op {
    let put = |key: Bytes, value: Bytes, lease| Op::Put { key, value, lease };
    match write {
        Write::PutFence(fence) => {
            let plane = plane.expect("only a plane's machine puts a fence");
            put(plane.fence.clone(), encode_fence(fence), None)
        }
        Write::PutMember { replica, standing } => {
            let member = member.expect("only a member's machine puts a member key");
            let value = member.record.encode(*standing);
            put(member_key(replica), value, Some(member.lease))
        }
        Write::DeleteMember(replica) => Op::Delete {
            key: member_key(replica),
        },
        Write::PutTerms(terms) => put(Bytes::from_static(TERMS_KEY), encode_terms(terms), None),
        // Attached to the store lease of the member key, so that the adoption ends with this life and
        // is not counted later (PROTOCOL 15).
        Write::PutAdoption { holder, terms } => {
            let member = member.expect("only a member says what it goes by");
            let adoption = Adoption::new(holder.incarnation, *terms);
            let key = adoption_key(&holder.replica);
            put(key, encode_adoption(adoption), Some(member.lease))
        }
    }
}

/// Returns a plane's transaction in the store's form.
pub(crate) fn plane_txn(transaction: &Transaction, plane: &PlaneKeys) -> Txn {
    txn(transaction, Some(plane), None)
}

/// Returns a member's transaction in the store's form.
pub(crate) fn member_txn(transaction: &Transaction, member: Option<&MemberPut>) -> Txn {
    txn(transaction, None, member)
}

fn txn(transaction: &Transaction, plane: Option<&PlaneKeys>, member: Option<&MemberPut>) -> Txn {
    let compares = transaction.compares.iter();
    let writes = transaction.writes.iter();
    Txn {
        compares: compares.map(|c| compare(c, plane)).collect(),
        ops: writes.map(|write| op(write, plane, member)).collect(),
    }
}

/// Returns the compares that a commit must contain, in the store's form.
pub(crate) fn guard_compares(guard: &fencing::Guard, plane: &PlaneKeys) -> Vec<Compare> {
    let compares = guard.fence().into_iter().chain(guard.member());
    compares.map(|c| compare(&c, Some(plane))).collect()
}

/// Returns the outcome of a plane's own transaction.
pub(crate) fn plane_outcome(
    sent: &[Compare],
    result: Result<Committed, CommitError>,
    plane: &PlaneKeys,
) -> Outcome {
    match result {
        Ok(committed) => Outcome::Applied(revision(committed.revision)),
        Err(CommitError::Refused { at, found, .. }) => {
            let keys = sent.iter().map(|compare| compare.key().clone());
            let found: Vec<(Bytes, Option<KeyValue>)> = keys.zip(found).collect();
            Outcome::Refused(refusal(at, &found, plane))
        }
        Err(CommitError::Rejected(_)) => Outcome::Rejected,
        // A driver that cannot settle it by a read leaves it to the machine, as one without a reply.
        Err(CommitError::Undisclosed(rejection, _)) => {
            tracing::debug!(%rejection, "the outcome of a fence transaction is not disclosed");
            Outcome::Unknown
        }
        Err(CommitError::Unknown(reason)) => {
            tracing::debug!(reason, "the outcome of a fence transaction is unknown");
            Outcome::Unknown
        }
    }
}

/// Returns what a refused transaction found about one plane. A fence that cannot be decoded is
/// reported as absent: whichever life holds it, it is not this one.
pub(crate) fn refusal(
    at: Revision,
    found: &[(Bytes, Option<KeyValue>)],
    plane: &PlaneKeys,
) -> Refusal {
    let at_key = |key: &Bytes| {
        let hit = found.iter().find(|(known, _)| known == key);
        hit.and_then(|(_, value)| value.as_ref())
    };
    let fence = at_key(&plane.fence).and_then(|found| observed_fence(found).ok());
    let own = at_key(&member_key(&plane.me.replica));
    let directory = match &plane.directory {
        Some(directory) => {
            let compared = found.iter().any(|(key, _)| *key == directory.key);
            let there = at_key(&directory.key);
            let same = there.is_some_and(|found| found.created == directory.created);
            match same || !compared {
                true => Directory::Present,
                false => Directory::Absent,
            }
        }
        None => Directory::Present,
    };
    Refusal {
        at: revision(at),
        fence,
        own_incarnation: own.map(|found| Incarnation::new(found.created.0)),
        directory,
    }
}

/// Returns a fence with the revision that wrote it.
pub(crate) fn observed_fence(
    found: &KeyValue,
) -> Result<Observed<fencing::Fence>, crate::records::Damaged> {
    Ok(Observed {
        value: decode_fence(&found.key, &found.value)?,
        revision: revision(found.modified),
    })
}

/// Returns the outcome of a member's own transaction. The machine needs no details of a refusal.
pub(crate) fn member_outcome(result: Result<Committed, CommitError>) -> Outcome {
    match result {
        Ok(committed) => Outcome::Applied(revision(committed.revision)),
        Err(CommitError::Refused { at, .. }) => Outcome::Refused(Refusal {
            at: revision(at),
            fence: None,
            own_incarnation: None,
            directory: Directory::Present,
        }),
        Err(CommitError::Rejected(rejection)) => {
            tracing::warn!(%rejection, "the store rejected a membership transaction");
            Outcome::Rejected
        }
        Err(CommitError::Undisclosed(rejection, _)) => {
            tracing::debug!(%rejection, "the outcome of a membership transaction is not disclosed");
            Outcome::Unknown
        }
        Err(CommitError::Unknown(reason)) => {
            tracing::debug!(reason, "the outcome of a membership transaction is unknown");
            Outcome::Unknown
        }
    }
}
