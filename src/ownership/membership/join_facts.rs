//! What a newcomer reads of the store before it joins, and the reasons why it may not join. Must not
//! know how it joins: `member_driver` sends the transactions that compare these facts.

use crate::copy::record::{CopyRecordError, read_numbering};
use crate::membership::member_record::member_key;
use crate::membership::state::RingState;
use crate::records::{Damaged, FLOOR_KEY, TERMS_KEY, decode_floor, decode_terms};
use crate::transactions::revision;
use polyplane_fencing::member::JoinFacts;
use polyplane_fencing::{Incarnation, Observed};
use polyplane_storage::{Backoff, LeaseError, ReadError};

/// The reason why a replica does not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The store has been raised to a level that this program does not know.
    #[error(
        "the store is at level {floor}, but this program knows level {level} only; use a newer release"
    )]
    Floor {
        /// The store's level.
        floor: u32,
        /// This program's level.
        level: u32,
    },
    /// The store is the target of a copy that is not complete.
    #[error(
        "the store is the target of a copy from {0} that is not complete; run `polyplane store copy` again to \
         complete it, or use an empty store"
    )]
    Unfinished(String),
    /// A record of the store was not written by this program.
    #[error("a record of the store cannot be decoded")]
    Damaged(#[from] Damaged),
    /// The store grants no lease for the member key.
    #[error("the store grants no lease")]
    Lease(#[source] LeaseError),
    /// No thread could be started.
    #[error("the thread of the membership cannot be started")]
    Thread(#[source] std::io::Error),
    /// The ring was stopped before the replica had joined, or join was called twice.
    #[error("the replica was stopped before it had joined")]
    Stopped,
}

/// Waits until the store has answered, and checks whether this program may join it.
pub(crate) async fn admitted(shared: &RingState) -> Result<(), JoinError> {
    facts(shared, &mut Backoff::default()).await.map(drop)
}

/// Reads the facts that a newcomer needs before it joins. Waits while the store does not answer.
pub(crate) async fn facts(
    shared: &RingState,
    backoff: &mut Backoff,
) -> Result<JoinFacts, JoinError> {
    loop {
        match read_facts(shared).await {
            Ok(facts) => return facts,
            Err(error) => tracing::warn!(%error, "the store cannot be read; joining is retried"),
        }
        backoff.wait().await;
    }
}

/// Reads the three facts at different revisions. That is safe, because the transaction that joins
/// compares all three.
async fn read_facts(shared: &RingState) -> Result<Result<JoinFacts, JoinError>, ReadError> {
    let store = &shared.store;
    let own = member_key(&shared.options.id);
    let (_, predecessor) = store.get(&own).await?;
    let (_, floor) = store.get(FLOOR_KEY).await?;
    let (_, terms) = store.get(TERMS_KEY).await?;
    let level = shared.options.level;
    let parsed = floor.as_ref().map(|found| decode_floor(&found.value));
    match parsed.transpose() {
        Ok(Some(floor)) if floor.to_join() > level => {
            let floor = floor.to_join();
            return Ok(Err(JoinError::Floor { floor, level }));
        }
        Ok(_) => {}
        Err(damaged) => return Ok(Err(damaged.into())),
    }
    // Read after the floor, which a copy puts together with its first record: if the floor that the join
    // compares is older than a copy, the join is refused.
    match read_numbering(store).await? {
        Ok(_) => {}
        Err(CopyRecordError::Unfinished(from)) => return Ok(Err(JoinError::Unfinished(from))),
        Err(CopyRecordError::Damaged(damaged)) => return Ok(Err(damaged.into())),
    }
    let observed = terms.map(|found| {
        let value = decode_terms(&found.value)?;
        let revision = revision(found.modified);
        Ok(Observed { value, revision })
    });
    Ok(observed
        .transpose()
        .map_err(JoinError::Damaged)
        .map(|terms| JoinFacts {
            predecessor: predecessor.map(|found| Incarnation::new(found.created.0)),
            level_floor: floor.map(|found| revision(found.modified)),
            terms,
        }))
}
