//! The replicas that wait outside the ring because of certificates, or because another replica answers at
//! their address (PROTOCOL 23). Owns the record with which such a replica says so, and what members
//! make of these records: lines of the log, a metric, the report of the ring.
//!
//! Must not decide who joins: `welcome` does. A record that is missing or late hides a candidate from
//! the members and changes nothing else.

use crate::membership::contact::SAME_CA;
use crate::membership::range_copy::{self, RangeCopy};
use crate::membership::state::RingState;
use crate::peer_trust::PeerTrust;
use crate::records::{
    CANDIDATES, CandidateRecord, candidate_key, candidate_of, decode_candidate, encode_candidate,
};
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_apimachinery::time::Timestamp;
use polyplane_fencing::{Duration as Length, Time};
use polyplane_ring::ReplicaId;
use polyplane_storage::{
    KeyValue, LeaseError, LeaseId, Op, Revision, Store, StoreEvent, Txn, WatchBatch,
};
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// How long the record outlives its last renewal. With a longer one members would name a replica that
/// has ended.
const TTL: Duration = Duration::from_secs(5);
/// Pause between two renewals of the record, a third of the TTL. Before the next renewal come a round of
/// pings, a pause and perhaps a slow store, a second each: with a longer pause the record would end.
const RENEW_EVERY: Length = Length::from_millis(1_600);
/// The longest time that the store may take for the record. A longer one would delay the next pings, and
/// so the join.
const PATIENCE: Duration = Duration::from_secs(1);

/// A replica that waits outside the ring because of certificates, or because another replica answers at its
/// address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The replica's name.
    pub id: ReplicaId,
    /// The CAs of its peer certificates; `None` if it does not know them.
    pub trust: Option<PeerTrust>,
    /// The time at which its wait began, RFC 3339.
    pub since: String,
    /// Why it waits, as it says itself, or why it and this member do not accept each other's certificates;
    /// `None` if neither is known.
    pub why: Option<String>,
}

/// The record of this replica while it waits outside the ring. If it is dropped, the record ends with
/// its lease.
pub(crate) struct Candidacy {
    key: Bytes,
    since: String,
    lease: Option<LeaseId>,
    /// When the lease was granted or last renewed.
    renewed: Time,
    /// The record that the store has under the lease; `None` if that is not known.
    put: Option<CandidateRecord>,
}

impl Candidacy {
    /// Returns the record of a replica whose wait begins now. It is not in the store yet.
    pub(crate) fn new(id: &ReplicaId, now: Time) -> Self {
        Self {
            key: candidate_key(id),
            since: Timestamp::from(SystemTime::now()).to_rfc3339(),
            lease: None,
            renewed: now,
            put: None,
        }
    }

    /// Puts the record unless the store has it, and renews it if that is due. A store that does not
    /// take it is tried again at the next call. `why` is the reason of the wait, if members cannot find it
    /// out by the CAs.
    pub(crate) async fn keep(
        &mut self,
        store: &dyn Store,
        (trust, why): (Option<PeerTrust>, Option<String>),
        now: Time,
    ) {
        let record = CandidateRecord::new(trust, self.since.clone(), why);
        let kept = async {
            self.renew(store, now).await;
            self.put(store, record, now).await;
        };
        if timeout(PATIENCE, kept).await.is_err() {
            tracing::debug!("the store was too slow for this candidate's record");
        }
    }

    async fn renew(&mut self, store: &dyn Store, now: Time) {
        let Some(lease) = self.lease else {
            return;
        };
        if now.since(self.renewed) < RENEW_EVERY {
            return;
        }
        match store.lease_keep_alive(lease).await {
            Ok(()) => self.renewed = now,
            // The record has ended with it.
            Err(LeaseError::NotFound) => (self.lease, self.put) = (None, None),
            Err(error) => tracing::debug!(%error, "this candidate's record was not renewed"),
        }
    }

    async fn put(&mut self, store: &dyn Store, record: CandidateRecord, now: Time) {
        if self.put.as_ref() == Some(&record) {
            return;
        }
        // Forgotten before the new record is sent: the reply may be lost.
        self.put = None;
        let lease = match self.lease {
            Some(lease) => lease,
            None => match store.lease_grant(TTL).await {
                Ok(lease) => {
                    (self.lease, self.renewed) = (Some(lease), now);
                    lease
                }
                Err(error) => {
                    tracing::debug!(%error, "the store grants no lease for this candidate's record");
                    return;
                }
            },
        };
        let put = Op::Put {
            key: self.key.clone(),
            value: encode_candidate(&record),
            lease: Some(lease),
        };
        // Nothing is compared: nobody decides by the record (PROTOCOL 23).
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        match store.commit(txn).await {
            Ok(_) => self.put = Some(record),
            Err(error) => tracing::debug!(%error, "this candidate's record was not put"),
        }
    }

    /// Removes the record, as the replica may join. Does not wait for the store, which must not delay the
    /// join: the record ends by itself if the store does not answer.
    pub(crate) fn withdraw(self, store: &Arc<dyn Store>) {
        let Some(lease) = self.lease else {
            return;
        };
        let store = Arc::clone(store);
        tokio::spawn(async move {
            match timeout(PATIENCE, store.lease_revoke(lease)).await {
                Ok(Ok(()) | Err(LeaseError::NotFound)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a candidate's record ends by itself"),
                Err(_) => tracing::debug!("a candidate's record ends by itself"),
            }
        });
    }
}

type Records = BTreeMap<ReplicaId, CandidateRecord>;

/// The other replicas that wait outside the ring, as their records say: at most one for each replica that
/// was started on the store.
#[derive(Default)]
pub(crate) struct Candidates {
    records: Mutex<Records>,
    /// True while this member has said that it is outvoted. Held while that is found out, as two tasks ask.
    is_outvoted: Mutex<bool>,
}

impl Candidates {
    /// Returns the number of replicas that wait outside.
    pub(crate) fn count(&self) -> usize {
        self.records.lock().len()
    }
}

/// Returns the replicas that wait outside the ring.
pub(crate) fn list(shared: &RingState) -> Vec<Candidate> {
    let own = shared.peers.trust();
    let records = shared.candidates.records.lock();
    let candidate = |(id, record): (&ReplicaId, &CandidateRecord)| Candidate {
        id: id.clone(),
        trust: record.trust(),
        why: cause(own.as_ref(), record),
        since: record.since.clone(),
    };
    records.iter().map(candidate).collect()
}

/// Returns why a replica waits: what it says itself, or else what this member finds out by the CAs.
fn cause(own: Option<&PeerTrust>, record: &CandidateRecord) -> Option<String> {
    let mistrust = || Some(own?.mistrust(&record.trust()?)?.to_string());
    record.why.clone().or_else(mistrust)
}

/// Returns the line of the log about a replica that waits.
fn notice(own: Option<&PeerTrust>, record: &CandidateRecord) -> String {
    let (since, cause) = (&record.since, cause(own, record));
    let waits = format!("a replica waits outside the ring since {since}, because");
    if record.why.is_some() {
        return format!("{waits} {}", cause.unwrap_or_default());
    }
    let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
    format!("{waits} a member and it do not accept each other's certificates{cause}; {SAME_CA}")
}

/// Returns why the peer certificates of this member are probably the wrong ones: the replicas outside that do not fit
/// this member are more than the ring has members, and they all fit each other.
pub(crate) fn outvoted(shared: &RingState) -> Option<String> {
    let trusts: Vec<PeerTrust> = {
        let records = shared.candidates.records.lock();
        records
            .values()
            .filter_map(CandidateRecord::trust)
            .collect()
    };
    if trusts.is_empty() {
        return None;
    }
    let view = shared.view.load_full();
    let id = view.member(&shared.options.id).map(|own| &own.id)?;
    let members = view.members().len();
    let waiting = strangers(&shared.peers.trust()?, members, &trusts)?;
    Some(format!(
        "the files of member {id} are probably the wrong ones: {waiting} replicas wait outside the ring, which \
         has {members}, because {id} and they do not accept each other's certificates, and they accept each \
         other's; compare peer-ca.crt and the peer certificate of {id} with theirs and replace them, which takes no \
         restart"
    ))
}

/// Returns the number of replicas outside that accept each other and not this member, if they are more
/// than the members.
fn strangers(own: &PeerTrust, members: usize, waiting: &[PeerTrust]) -> Option<usize> {
    let others = waiting.iter();
    let others: Vec<&PeerTrust> = others
        .filter(|other| own.mistrust(other).is_some())
        .collect();
    let agree = others.iter().enumerate().all(|(at, one)| {
        let mut later = others[at + 1..].iter();
        later.all(|other| one.mistrust(other).is_none())
    });
    (agree && others.len() > members).then_some(others.len())
}

/// Logs whether this member is outvoted, once for each change. Called whenever the members or the
/// candidates change.
pub(crate) fn judge(shared: &RingState) {
    let mut is_outvoted = shared.candidates.is_outvoted.lock();
    let why = outvoted(shared);
    match (mem::replace(&mut *is_outvoted, why.is_some()), why) {
        (false, Some(why)) => tracing::warn!("{why}"),
        (true, None) => {
            tracing::info!("the peer certificates of this member are no longer in question");
        }
        (true, Some(_)) | (false, None) => {}
    }
}

/// Follows the records of candidates until the ring ends.
pub(crate) async fn follow(state: Arc<RingState>) {
    if state.options.is_alone {
        return;
    }
    let mut follower = CandidateFollower(&state);
    let prefix = Bytes::from_static(CANDIDATES);
    tokio::select! {
        // The end of the ring is polled first.
        biased;
        () = state.stop.cancelled() => {}
        () = range_copy::follow(&state.store, prefix, "the candidates", &mut follower) => {}
    }
}

struct CandidateFollower<'a>(&'a RingState);

impl RangeCopy for CandidateFollower<'_> {
    fn replace(&mut self, items: Vec<KeyValue>, _: Revision) {
        let mut records = Records::new();
        for item in &items {
            observe(&mut records, &item.key, Some(&item.value));
        }
        update(self.0, records);
    }

    fn apply(&mut self, batch: WatchBatch) {
        if batch.events.is_empty() {
            return;
        }
        let mut records = self.0.candidates.records.lock().clone();
        for StoreEvent { key, value, .. } in &batch.events {
            observe(&mut records, key, value.as_ref());
        }
        update(self.0, records);
    }
}

fn observe(records: &mut Records, key: &[u8], value: Option<&Bytes>) {
    let Some(id) = candidate_of(key) else {
        return;
    };
    match value.and_then(|value| decode_candidate(value)) {
        Some(record) => records.insert(id, record),
        None => records.remove(&id),
    };
}

/// Takes over what the store has, and logs each change.
fn update(shared: &RingState, mut fresh: Records) {
    // Its own is left from before it joined.
    fresh.remove(&shared.options.id);
    let own = shared.peers.trust();
    let before = {
        let mut records = shared.candidates.records.lock();
        std::mem::replace(&mut *records, fresh.clone())
    };
    let (arrived, left) = changes(&before, &fresh);
    for (id, record) in arrived {
        tracing::warn!(replica = %id, "{}", notice(own.as_ref(), record));
    }
    for id in left {
        tracing::info!(replica = %id, "a replica no longer waits outside the ring");
    }
    judge(shared);
}

/// Returns the records that are new or have changed, and the replicas that wait no longer.
fn changes<'a>(
    before: &'a Records,
    fresh: &'a Records,
) -> (
    Vec<(&'a ReplicaId, &'a CandidateRecord)>,
    Vec<&'a ReplicaId>,
) {
    let is_new = |(id, record): &(&ReplicaId, &CandidateRecord)| before.get(*id) != Some(*record);
    let is_gone = |id: &&ReplicaId| !fresh.contains_key(*id);
    (
        fresh.iter().filter(is_new).collect(),
        before.keys().filter(is_gone).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_storage::{Clock, FaultyStore, ManualClock, MemoryOptions, MemoryStore};

    fn id(name: &str) -> ReplicaId {
        name.parse().expect("a replica id")
    }

    fn trust(issuer: &str, trusted: &[&str]) -> PeerTrust {
        PeerTrust {
            issuer: Some(issuer.to_owned()),
            trusted: trusted.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn record(trust: PeerTrust) -> CandidateRecord {
        CandidateRecord::new(Some(trust), "2026-01-01T00:00:00Z".to_owned(), None)
    }

    #[test]
    fn only_more_replicas_than_members_that_agree_outvote_a_member() {
        let own = trust("wrong", &["wrong"]);
        let right = || trust("right", &["right"]);
        assert_eq!(strangers(&own, 1, &[]), None);
        assert_eq!(strangers(&own, 1, &[right()]), None, "one against one");
        assert_eq!(strangers(&own, 1, &[right(), right()]), Some(2));
        assert_eq!(strangers(&own, 2, &[right(), right()]), None);
        let other = trust("other", &["other"]);
        let split = [right(), right(), other];
        assert_eq!(strangers(&own, 1, &split), None, "they do not agree");
        let hub = trust("hub", &["hub", "left", "right"]);
        let left = trust("left", &["left", "hub"]);
        let right_only = trust("right", &["right", "hub"]);
        let star = [hub, left, right_only];
        assert_eq!(strangers(&own, 1, &star), None, "two fit the first only");
        let wider = trust("right", &["right", "older"]);
        assert_eq!(strangers(&own, 1, &[right(), wider]), Some(2));
        let fits = trust("wrong", &["wrong", "right"]);
        let friends = [right(), fits.clone(), fits];
        assert_eq!(strangers(&own, 1, &friends), None, "two trust this member");
    }

    #[test]
    fn a_candidate_is_reported_when_it_comes_when_its_cas_change_and_when_it_goes() {
        let old = Records::from([
            (id("a"), record(trust("x", &["x"]))),
            (id("b"), record(trust("x", &["x"]))),
            (id("c"), record(trust("x", &["x"]))),
        ]);
        let fresh = Records::from([
            (id("b"), record(trust("x", &["x"]))),
            (id("c"), record(trust("y", &["y"]))),
            (id("d"), record(trust("y", &["y"]))),
        ]);
        let (arrived, left) = changes(&old, &fresh);
        let arrived: Vec<&str> = arrived.iter().map(|(id, _)| id.as_str()).collect();
        let left: Vec<&str> = left.iter().map(|id| id.as_str()).collect();
        assert_eq!((arrived, left), (vec!["c", "d"], vec!["a"]));
        assert_eq!(changes(&fresh, &fresh), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_line_about_a_candidate_names_the_reason_that_it_has_itself_and_no_other() {
        let own = trust("x", &["x"]);
        let of_cas = record(trust("y", &["y"]));
        let line = notice(Some(&own), &of_cas);
        assert!(
            line.contains("the CA y") && line.ends_with(SAME_CA),
            "{line}"
        );
        let mut expired = of_cas;
        expired.why = Some("its own peer certificate expired".to_owned());
        let line = notice(Some(&own), &expired);
        assert!(
            line.ends_with("because its own peer certificate expired"),
            "{line}"
        );
    }

    #[test]
    fn what_is_no_record_of_a_candidate_removes_it() {
        let mut records = Records::new();
        let (key, kept) = (candidate_key(&id("a")), record(trust("x", &["x"])));
        let value = encode_candidate(&kept);
        observe(&mut records, b"candidate/", Some(&value));
        assert_eq!(records, Records::new(), "it names no replica");
        observe(&mut records, &key, Some(&value));
        assert_eq!(records, Records::from([(id("a"), kept)]));
        observe(&mut records, &key, Some(&Bytes::from_static(b"[]")));
        assert_eq!(records, Records::new());
    }

    /// A store whose leases go by a clock of the test, and that clock.
    fn store() -> (Arc<FaultyStore>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        let options = MemoryOptions {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            ..MemoryOptions::default()
        };
        let memory = Arc::new(MemoryStore::new(options));
        (Arc::new(FaultyStore::new(memory)), clock)
    }

    fn now(clock: &ManualClock) -> Time {
        let nanos = u64::try_from(clock.now().as_nanos());
        Time::from_nanos(nanos.expect("a small number"))
    }

    async fn found(store: &dyn Store) -> Option<(CandidateRecord, KeyValue)> {
        let (_, found) = store
            .get(&candidate_key(&id("a")))
            .await
            .expect("it answers");
        let found = found?;
        let record = decode_candidate(&found.value).expect("a record");
        Some((record, found))
    }

    #[tokio::test]
    async fn a_candidates_record_is_put_once_lasts_while_it_waits_and_ends_with_it() {
        let (store, clock) = store();
        let mut candidacy = Candidacy::new(&id("a"), now(&clock));
        let waiting = trust("new", &["new"]);
        for _ in 0..30 {
            candidacy
                .keep(&*store, (Some(waiting.clone()), None), now(&clock))
                .await;
            let (record, item) = found(&*store).await.expect("it is there");
            assert_eq!(record.trust(), Some(waiting.clone()));
            assert_eq!(item.created, item.modified, "it is not put again");
            clock.advance(Duration::from_secs(1));
        }
        let replaced = trust("new", &["new", "old"]);
        candidacy
            .keep(&*store, (Some(replaced.clone()), None), now(&clock))
            .await;
        let (record, item) = found(&*store).await.expect("it is there");
        assert_eq!(record.trust(), Some(replaced));
        assert!(item.created < item.modified, "the same key, put again");
        drop(candidacy);
        clock.advance(TTL);
        assert_eq!(found(&*store).await, None);
    }

    #[tokio::test]
    async fn a_candidate_whose_lease_has_ended_puts_its_record_again() {
        let (store, clock) = store();
        let mut candidacy = Candidacy::new(&id("a"), now(&clock));
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        clock.advance(TTL);
        assert_eq!(found(&*store).await, None, "as after a long pause");
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        let (record, _) = found(&*store).await.expect("it is there again");
        assert_eq!(record.trust(), None);
    }

    #[tokio::test]
    async fn a_candidate_whose_store_takes_no_puts_tries_again() {
        let (store, clock) = store();
        let mut candidacy = Candidacy::new(&id("a"), now(&clock));
        store.plan().raise_alarm();
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        assert_eq!(found(&*store).await, None);
        store.plan().free();
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        assert!(found(&*store).await.is_some());
    }

    #[tokio::test]
    async fn a_record_whose_put_got_no_reply_is_put_again_under_the_same_lease() {
        let (store, clock) = store();
        let mut candidacy = Candidacy::new(&id("a"), now(&clock));
        let lost = polyplane_storage::CommitFault::UnknownApplied;
        store.plan().next_commit(lost);
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        let (_, first) = found(&*store).await.expect("it was applied");
        candidacy.keep(&*store, (None, None), now(&clock)).await;
        let (_, second) = found(&*store).await.expect("it is there");
        assert_eq!(first.lease, second.lease);
        assert!(second.modified > first.modified);
    }
}
