//! The lease terms: the record in the store, the adoptions, which are records that say which terms
//! each member follows, and the change of both on a store in use (PROTOCOL 8). Owns following these
//! records and sending the transactions about them; the member machine decides which step follows
//! which.
//!
//! The record and the adoptions have one prefix, so that one watch covers both.

use crate::membership::range_copy::{self, RangeCopy};
use crate::membership::ring::Ring;
use crate::membership::state::{READ_EVERY, RingState};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use polyplane_fencing::member::{Action, Adopter};
use polyplane_fencing::{Duration, Incarnation, LeaseTerms, Observed, Revision, Terms};
use polyplane_ring::{ReplicaId, ViewNumber};
use polyplane_storage::{
    self as storage, CommitError, Compare, KeyValue, Op, ReadError, Txn, WatchBatch,
};

use crate::membership::own_life::OwnLife;
use crate::peers::holder;
use crate::records::{
    Adoption, Damaged, FLOOR_KEY, TERMS_KEY, adoption_of, decode_adoption, decode_floor,
    decode_terms, encode_terms,
};
use crate::transactions::{member_outcome, member_txn, revision};

/// The first level whose programs know that lease terms can change. The store's floor must have
/// reached it: an older program would follow the current terms alone.
pub(crate) const CHANGE_LEVEL: u32 = 2;
/// Number of member reads that one read lease must outlast. With fewer, one slow read would stop
/// all answers.
const READS_MIN: u64 = 2;
/// The longest read lease. A longer one would keep the planes of a dead replica unavailable for
/// longer than any store's lease does.
const LENGTH_MAX: Duration = Duration::from_millis(60_000);
/// The read lease is at most this many times the margin. A smaller margin would not cover how far
/// the rates of two clocks may drift apart.
const MARGIN_SHARE: u64 = 10;

/// The lease terms and adoptions as this replica has last seen them.
#[derive(Debug, Default)]
pub(crate) struct TermsSeen {
    record: Option<Observed<Terms>>,
    adopted: BTreeMap<ReplicaId, Adoption>,
}

/// The reason why the lease terms are not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The requested read lease is too short or too long.
    #[error("the read lease must be between 200 ms and 60 s, not {given}")]
    ReadLease {
        /// The requested read lease.
        given: Millis,
    },
    /// The requested margin is too short for the read lease, or too long.
    #[error("the margin must be between {least}, a tenth of the read lease, and 60 s, not {given}")]
    Margin {
        /// The shortest margin for this read lease.
        least: Millis,
        /// The requested margin.
        given: Millis,
    },
    /// The store's level floor still lets programs join that do not know that lease terms can
    /// change.
    #[error(
        "the store's level floor is {floor}, and lease terms change from level {CHANGE_LEVEL} on: \
         raise the floor once every replica has that level"
    )]
    Floor {
        /// The store's level floor.
        floor: u32,
    },
    /// A change to other lease terms is under way.
    #[error("the lease terms are changing to {next}: wait until they have")]
    UnderWay {
        /// The terms that this change leads to.
        next: LeaseTerms,
    },
    /// No replica has joined this store yet, so it has no terms.
    #[error("the store has no lease terms yet")]
    None,
    /// The store did not answer.
    #[error("the store's lease terms cannot be read")]
    Read(#[from] ReadError),
    /// The store refused the change, its outcome is unknown, or another change was faster.
    #[error("the store's lease terms cannot be written")]
    Commit(#[from] CommitError),
    /// A record of the lease terms was not written by this program.
    #[error("the store's lease terms cannot be decoded")]
    Damaged(#[from] Damaged),
}

/// A duration that messages show in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Millis(Duration);

impl fmt::Display for Millis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ms", self.0.as_nanos().div_ceil(1_000_000))
    }
}

impl TermsSeen {
    fn observe(&mut self, key: &[u8], value: Option<&Bytes>, at: storage::Revision) {
        if let Some(replica) = adoption_of(key) {
            match value.and_then(|value| decode_adoption(value)) {
                Some(adoption) => self.adopted.insert(replica, adoption),
                None => self.adopted.remove(&replica),
            };
        } else if let (TERMS_KEY, Some(value)) = (key, value) {
            match decode_terms(value) {
                Ok(value) => {
                    let revision = revision(at);
                    self.record = Some(Observed { value, revision });
                }
                Err(error) => {
                    tracing::error!(%error, "the store's lease terms cannot be decoded");
                }
            }
        }
    }

    /// Returns whether a change of the lease terms is under way.
    pub(crate) fn changes(&self) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.value.next.is_some())
    }

    fn adopted(&self, replica: &ReplicaId, incarnation: Incarnation) -> Option<Revision> {
        self.adopted.get(replica)?.by(incarnation)
    }
}

/// Follows the lease terms in the store for ever.
pub(crate) async fn follow(state: &Arc<RingState>) {
    let prefix = Bytes::from_static(TERMS_KEY);
    let mut follower = TermsFollower(state);
    range_copy::follow(&state.store, prefix, "the lease terms", &mut follower).await;
}

/// Publishes the lease terms that the store has.
struct TermsFollower<'a>(&'a RingState);

impl RangeCopy for TermsFollower<'_> {
    fn replace(&mut self, items: Vec<KeyValue>, _: storage::Revision) {
        let mut found = TermsSeen::default();
        for item in &items {
            found.observe(&item.key, Some(&item.value), item.modified);
        }
        self.0.terms.send_replace(found);
    }

    fn apply(&mut self, batch: WatchBatch) {
        if batch.events.is_empty() {
            return;
        }
        self.0.terms.send_modify(|seen| {
            for event in &batch.events {
                seen.observe(&event.key, event.value.as_ref(), event.revision);
            }
        });
    }
}

/// Makes a life follow the lease terms in the store. Called at each change of these, and repeatedly
/// while a change is under way.
pub(crate) fn apply(shared: &Arc<RingState>, life: &Arc<OwnLife>) {
    let record = shared.terms.borrow().record.clone();
    let Some(record) = record else {
        return;
    };
    let (changes, since) = (record.value.next.is_some(), record.revision);
    for action in life.see_terms(record) {
        perform(shared, life, action);
    }
    if changes {
        let (at, members) = adopters(shared);
        if at.get() < since.get() {
            // While no member joins or leaves the watch delivers nothing, so this requests its
            // progress from the store.
            let store = Arc::clone(&shared.store);
            tokio::spawn(async move {
                if let Err(error) = store.request_progress().await {
                    tracing::debug!(%error, "progress could not be requested from the store");
                }
            });
        }
        for action in life.see_adopters(at, members) {
            perform(shared, life, action);
        }
    }
}

/// Returns the members of the view, each with the record of the terms that it has adopted.
fn adopters(shared: &RingState) -> (ViewNumber, Vec<Adopter>) {
    // The revision is read before the view, so the view is at least as new.
    let seen_to = *shared.members_seen_to.borrow();
    let view = shared.view.load_full();
    let seen = shared.terms.borrow();
    let members = view.members().map(|member| Adopter {
        holder: holder(member),
        adopted: seen.adopted(&member.id, member.incarnation),
    });
    (ViewNumber::new(seen_to.0), members.collect())
}

/// Returns the members that are not known to follow the record of a change that is under way.
pub(crate) fn awaited(shared: &RingState) -> Vec<ReplicaId> {
    let record = shared.terms.borrow().record.clone();
    let Some(record) = record.filter(|record| record.value.next.is_some()) else {
        return Vec::new();
    };
    let (_, mut members) = adopters(shared);
    members.retain(|member| !member.goes_by(record.revision));
    let names = members.into_iter().map(|member| member.holder.replica);
    names.collect()
}

/// Performs an action of the member machine about the lease terms.
pub(crate) fn perform(shared: &Arc<RingState>, life: &Arc<OwnLife>, action: Action) {
    match action {
        Action::WaitBy(wait) => shared.witness.lock().wait_by(wait),
        Action::Transact {
            attempt,
            transaction,
        } => {
            let (store, life) = (Arc::clone(&shared.store), Arc::clone(life));
            // Not retried here: if the reply is lost, the machine sends the needed transaction
            // again at a later tick.
            tokio::spawn(async move {
                let txn = member_txn(&transaction, Some(&life.put()));
                let outcome = member_outcome(store.commit(txn).await);
                life.done(attempt, outcome);
            });
        }
        Action::ReadJoinFacts
        | Action::Joined(_)
        | Action::ReadMember
        | Action::Renew
        | Action::DrainAnnounced
        | Action::CloseAllPlanes => {}
    }
}

impl Ring {
    /// Begins the change to other lease terms, unless that change is under way or done. The
    /// replicas finish it by themselves; [`Ring::terms`](crate::Ring::terms) then shows the new
    /// terms.
    ///
    /// # Errors
    /// See [`ChangeError`]. The terms are not changed.
    pub async fn change_terms(&self, wanted: LeaseTerms) -> Result<Terms, ChangeError> {
        check(wanted)?;
        let (_, floor) = self.store().get(FLOOR_KEY).await?;
        let floor = floor.map_or(Ok(0), |found| decode_floor(&found.value).map(|f| f.level))?;
        if floor < CHANGE_LEVEL {
            return Err(ChangeError::Floor { floor });
        }
        let (_, found) = self.store().get(TERMS_KEY).await?;
        let found = found.ok_or(ChangeError::None)?;
        let terms = decode_terms(&found.value)?;
        match terms.next {
            Some(next) if next == wanted => return Ok(terms),
            Some(next) => return Err(ChangeError::UnderWay { next }),
            None if terms.current == wanted => return Ok(terms),
            None => {}
        }
        let changing = Terms {
            next: Some(wanted),
            ..terms
        };
        let key = Bytes::from_static(TERMS_KEY);
        let unchanged = Compare::Unchanged {
            key: key.clone(),
            revision: found.modified,
        };
        let put = Op::Put {
            key,
            value: encode_terms(&changing),
            lease: None,
        };
        // The transaction need not compare the floor, because it never falls.
        let txn = Txn {
            compares: vec![unchanged],
            ops: vec![put],
        };
        self.store().commit(txn).await?;
        tracing::info!(terms = %wanted, "the lease terms begin to change");
        Ok(changing)
    }
}

/// Checks whether replicas can work with these terms.
fn check(terms: LeaseTerms) -> Result<(), ChangeError> {
    let reads = u64::try_from(READ_EVERY.as_millis()).unwrap_or(u64::MAX);
    let read_lease_min = Duration::from_millis(READS_MIN * reads);
    let (read_lease, margin) = (terms.read_lease(), terms.margin());
    if read_lease < read_lease_min || read_lease > LENGTH_MAX {
        let given = Millis(read_lease);
        return Err(ChangeError::ReadLease { given });
    }
    let least = Duration::from_nanos(read_lease.as_nanos() / MARGIN_SHARE);
    if margin < least || margin > LENGTH_MAX {
        let (least, given) = (Millis(least), Millis(margin));
        return Err(ChangeError::Margin { least, given });
    }
    Ok(())
}
