//! Whether a replica may join the ring, as far as other members and it can speak with each other.
//!
//! * *Before it joins*, a replica pings a few members ([`welcome`]). While none of them answers and
//!   one does not trust its certificate, or shows one that it does not trust, it does not join. If none
//!   answers at all, it compares the CAs that the member keys name with its own: while they fit those of
//!   no member, it does not join either. A key that names none decides nothing, so the first replica
//!   joins, and so do two that start at once: the ring then evicts one of them (`suspicion`). Nor does it
//!   join while no member answers and its own certificate is not valid by its own clock, nor while another
//!   replica answers at its advertised address and there are members, which could not reach it. While it
//!   does not join, a record in the store says so to the members (`candidates`).
//! * *Between two lives* it waits while another process has its name: each would remove the other's key
//!   in turn, and planes would move each time. And it pauses if no peer has reached it in the life that
//!   ended: whoever joins again at once is evicted again at once, and moves planes each time.
//!
//! Must not decide who is a member, and must not know planes.

use crate::log_limit::LogLimit;
use crate::membership::candidates::Candidacy;
use crate::membership::contact::{SAME_CA, advice, has_peers};
use crate::membership::member_record::decode_member;
use crate::membership::state::RingState;
use crate::peer_trust::Mistrust;
use crate::peers::{PeerError, PeerMessage};
use polyplane_fencing::{Duration as Length, Holder, Time};
use polyplane_ring::{Incarnation, Member, ReplicaId, Standing};
use polyplane_storage::{Backoff, KeyValue};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Number of members that are pinged in one round before joining, so that a large ring is not
/// flooded.
const PROBED_MAX: usize = 3;
/// The longest time that such a ping may take. A longer one would delay joining a ring whose members
/// are dead.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// The longest time that a ping of the own address may take before joining. A longer one would delay each
/// join in a network that does not let a process reach its own address.
const OWN_PATIENCE: Duration = Duration::from_millis(250);
/// How long it counts that another replica has answered at the own address, if pings get no answer since. A
/// shorter time would let a replica with a wrong address join after a slow ping, and a longer one delays a
/// replica whose address has become right in a network that does not let a process reach its own address.
const MISPLACED_KEPT: Length = Length::from_millis(5_000);
/// The pause after one life in which no peer reached this replica. Each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest pause, and so the longest time until a replica joins that can be reached again.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Waits until this replica may join. `planes` is the runtime on which peers are called: connections
/// live on the runtime that opens them, and later calls share them.
pub(crate) async fn welcome(shared: Arc<RingState>, planes: Handle) {
    // First, because nothing is wrong with the address of a replica whose name was taken.
    until_name_is_free(&shared).await;
    pause_if_unreached(&shared, &planes).await;
    // Again, because another process may have joined during the pause. The driver looks once more as it joins.
    until_name_is_free(&shared).await;
    if shared.options.is_alone {
        return;
    }
    let mut known = shared.members_known.subscribe();
    // An error is impossible, because `shared` has the sender.
    drop(known.wait_for(|known| *known).await);
    let mut candidacy = Candidacy::new(&shared.options.id, shared.now());
    until_address_is_own(&shared, &planes, &mut candidacy).await;
    let (mut wait, mut turn) = (Wait::new(&shared, &mut candidacy), 0);
    loop {
        let probe = planes.spawn(probe(Arc::clone(&shared), turn));
        // A probe that panicked proves nothing.
        let probed = probe.await.unwrap_or(Probed::Silent);
        let Some(obstacle) = why_not_welcome(&shared, &probed) else {
            break;
        };
        turn = turn.wrapping_add(PROBED_MAX);
        wait.pause(obstacle).await;
    }
    shared.contact.hold_back(None);
    candidacy.withdraw(&shared.store);
}

/// Why a replica does not join, as the end of a sentence.
enum Obstacle {
    /// Its own certificate or address is wrong. Members cannot find that out, so its record says it.
    Own(String),
    /// Members and it do not trust each other. Each member finds out by the CAs in the record why.
    Distrust(String),
}

/// The wait of a replica before it joins.
struct Wait<'a> {
    shared: &'a RingState,
    candidacy: &'a mut Candidacy,
    backoff: Backoff,
    limit: LogLimit,
}

impl<'a> Wait<'a> {
    fn new(shared: &'a RingState, candidacy: &'a mut Candidacy) -> Self {
        Self {
            shared,
            candidacy,
            backoff: Backoff::default(),
            limit: LogLimit::default(),
        }
    }

    /// Says why the replica does not join, in the log, to its clients and to the members, and pauses.
    async fn pause(&mut self, obstacle: Obstacle) {
        let (cause, for_members) = match obstacle {
            Obstacle::Own(cause) => (cause.clone(), Some(cause)),
            Obstacle::Distrust(cause) => (cause, None),
        };
        let shared = self.shared;
        let why = format!("this replica does not join the ring, because {cause}");
        if self.limit.is_due(shared.now()) {
            tracing::warn!("{why}");
        }
        shared.contact.hold_back(Some(why));
        let says = (shared.peers.trust(), for_members);
        let kept = self.candidacy.keep(&*shared.store, says, shared.now());
        // Side by side, so that a slow store delays the next pings by no more than it must.
        tokio::join!(self.backoff.wait(), kept);
    }
}

/// The outcome of pinging a few members.
enum Probed {
    /// One has answered.
    Answered,
    /// None has answered, and one does not trust this replica, or the reverse.
    Untrusted(Member, PeerError),
    /// None has answered, or there is none.
    Silent,
}

/// Returns why this replica does not join; `None` if it does.
fn why_not_welcome(shared: &RingState, probed: &Probed) -> Option<Obstacle> {
    // A member that answers has accepted the certificate, so it is the own clock that is wrong. The first
    // replica of a ring needs nobody to accept it.
    if !matches!(probed, Probed::Answered)
        && has_peers(&shared.view.load_full(), &shared.options.id)
        && let Some(why) = shared.peers.own_invalidity()
    {
        return Some(Obstacle::Own(format!(
            "its own peer certificate is not valid: {why}; replace it, or correct the clock of its machine"
        )));
    }
    match probed {
        Probed::Answered => None,
        Probed::Untrusted(peer, error) => {
            let (id, address) = (&peer.id, &peer.address);
            let named = shared.trusts.lock().get(id).cloned();
            let own = shared.peers.trust();
            let mistrust = own.zip(named).and_then(|(own, named)| own.mistrust(&named));
            let cause = mistrust.map_or_else(String::new, |cause| format!(" ({cause})"));
            Some(Obstacle::Distrust(format!(
                "it cannot speak with member {id} at {address}: {}{cause}",
                advice(error)
            )))
        }
        Probed::Silent => {
            let (id, mistrust) = mistrust_of_all(shared)?;
            Some(Obstacle::Distrust(format!(
                "it and member {id} do not accept each other's certificates: {mistrust}; {SAME_CA}"
            )))
        }
    }
}

/// Returns a member that accepts no certificate of this replica, or the reverse, and why, if that is so of
/// every member and every one names its CAs.
fn mistrust_of_all(shared: &RingState) -> Option<(ReplicaId, Mistrust)> {
    let own = shared.peers.trust()?;
    let view = shared.view.load_full();
    let trusts = shared.trusts.lock();
    let mut first = None;
    for member in view.members() {
        if member.id != shared.options.id {
            // A member that names no CAs, as one of an older release, or that trusts this replica.
            let mistrust = own.mistrust(trusts.get(&member.id)?)?;
            first.get_or_insert((member.id.clone(), mistrust));
        }
    }
    first
}

/// Pings a few members.
async fn probe(shared: Arc<RingState>, turn: usize) -> Probed {
    let view = shared.view.load_full();
    let own = &shared.options.id;
    let peers: Vec<&Member> = view.members().filter(|member| member.id != *own).collect();
    let mut pings = JoinSet::new();
    for at in 0..PROBED_MAX.min(peers.len()) {
        let peer = peers[turn.wrapping_add(at) % peers.len()].clone();
        let shared = Arc::clone(&shared);
        pings.spawn(async move {
            let result = ping(&shared, &peer).await;
            (peer, result)
        });
    }
    let mut probed = Probed::Silent;
    while let Some(pinged) = pings.join_next().await {
        match pinged {
            Ok((_, Ok(()))) => return Probed::Answered,
            Ok((peer, Err(error @ PeerError::Untrusted(_)))) => {
                probed = Probed::Untrusted(peer, error);
            }
            Ok((
                _,
                Err(
                    PeerError::Refused
                    | PeerError::TimedOut
                    | PeerError::Ended(_)
                    // The member has this address no longer, or never had it.
                    | PeerError::OtherReplica(_)
                    | PeerError::Failed(_),
                ),
            ))
            | Err(_) => {}
        }
    }
    probed
}

async fn ping(shared: &RingState, to: &Member) -> Result<(), PeerError> {
    let view = shared.view.load().number().get();
    let call = shared.peers.call(to, PeerMessage::Ping { view }.into());
    let reply = timeout(PROBE_PATIENCE, call).await;
    reply.unwrap_or(Err(PeerError::TimedOut)).map(drop)
}

/// Waits, after a life, while another process has joined under this replica's name (PROTOCOL 5). Before
/// its first life a replica waits for nobody: it replaces a process that has ended.
async fn until_name_is_free(shared: &RingState) {
    let Some(ended) = shared.current() else {
        return;
    };
    let (mut backoff, mut limit) = (Backoff::default(), LogLimit::default());
    loop {
        match shared.store.get(ended.member_key()).await {
            Ok((_, found)) => {
                let taken = found.and_then(|found| why_name_is_taken(ended.holder(), &found));
                let Some(why) = taken else {
                    break;
                };
                if limit.is_due(shared.now()) {
                    tracing::warn!("{why}");
                }
                shared.contact.hold_back(Some(why));
            }
            Err(error) if limit.is_due(shared.now()) => {
                tracing::warn!(%error, "the store cannot be read; joining is retried");
            }
            Err(_) => {}
        }
        backoff.wait().await;
    }
    shared.contact.hold_back(None);
}

/// Returns whether a key under this replica's name is newer than its last life. [`until_name_is_free`]
/// waits for the end of such a key, and a join must not delete it (PROTOCOL 5).
pub(crate) fn is_name_taken(shared: &RingState, found: Incarnation) -> bool {
    let ended = shared.current();
    ended.is_some_and(|ended| is_newer(ended.holder(), found))
}

/// Returns whether a key is newer than a life of this replica that has ended.
fn is_newer(ended: &Holder, found: Incarnation) -> bool {
    found > ended.incarnation
}

/// Returns why this replica does not join after its life `ended`, given the key under its name; `None` if
/// the key is not newer than that life. A newer one can only be another process's, or was put by a join of
/// this one that was given up: then it ends with its store lease, which nobody renews.
fn why_name_is_taken(ended: &Holder, found: &KeyValue) -> Option<String> {
    let incarnation = Incarnation::new(found.created.0);
    if !is_newer(ended, incarnation) {
        return None;
    }
    let seen = decode_member(&found.value, incarnation);
    let at = seen.map_or_else(String::new, |seen| format!(" at {}", seen.member.address));
    let name = &ended.replica;
    Some(format!(
        "this replica does not join the ring, because another process{at} has joined under its name {name}: \
         no two replicas that run at once may have one --replica-id; this one joins again once that one has \
         left"
    ))
}

/// Waits while another replica answers at this one's advertised address and there are members, which would
/// evict this one.
async fn until_address_is_own(shared: &Arc<RingState>, planes: &Handle, candidacy: &mut Candidacy) {
    let (mut wait, mut address) = (Wait::new(shared, candidacy), OwnAddress::default());
    while has_peers(&shared.view.load_full(), &shared.options.id) {
        let pinged = timeout(OWN_PATIENCE, ping_own(shared, planes)).await;
        let pinged = pinged.unwrap_or(Err(PeerError::TimedOut));
        let Some(obstacle) = address.pinged(shared.now(), pinged) else {
            break;
        };
        wait.pause(obstacle).await;
    }
    shared.contact.hold_back(None);
}

/// What pings of the own address have found. Only an answer of another replica keeps this one from joining:
/// some networks do not let a process reach its own address.
#[derive(Default)]
struct OwnAddress {
    /// The newest answer of another replica, and its time.
    other: Option<(Time, String)>,
}

impl OwnAddress {
    /// Records the outcome of a ping. Returns why this replica must not join; `None` if it may.
    fn pinged(&mut self, now: Time, result: Result<(), PeerError>) -> Option<Obstacle> {
        match result {
            Ok(()) => self.other = None,
            Err(PeerError::OtherReplica(other)) => self.other = Some((now, other)),
            // One slow or lost ping does not make a wrong address right.
            Err(
                PeerError::Refused
                | PeerError::TimedOut
                | PeerError::Ended(_)
                | PeerError::Untrusted(_)
                | PeerError::Failed(_),
            ) => {}
        }
        let (at, other) = self.other.as_ref()?;
        let is_new = now.since(*at) < MISPLACED_KEPT;
        is_new.then(|| {
            Obstacle::Own(format!(
                "another replica answers at its --advertise address: {other}; check --advertise and \
                 --replica-id"
            ))
        })
    }
}

/// Pings the advertised address of this replica.
async fn ping_own(shared: &Arc<RingState>, planes: &Handle) -> Result<(), PeerError> {
    let calling = Arc::clone(shared);
    let called = planes.spawn(async move { ping(&calling, &own_member(&calling)).await });
    // A ping that panicked proves nothing.
    called
        .await
        .unwrap_or_else(|error| Err(PeerError::Failed(error.to_string())))
}

/// Pauses before the next life if no peer has reached this replica in the last ones.
async fn pause_if_unreached(shared: &Arc<RingState>, planes: &Handle) {
    let lives = shared.contact.unreached_lives();
    let Some(pause) = pause_after(lives) else {
        return;
    };
    // Whether this replica itself reaches the address helps to find the fault, and decides nothing:
    // some networks do not let a process reach its own address.
    let own = match ping_own(shared, planes).await {
        Err(error) => format!(" (this replica itself: {error})"),
        Ok(()) => String::new(),
    };
    let address = &shared.options.address;
    let why = format!(
        "the ring has removed this replica, and no other member reached it before at its address \
         {address}{own}: check --advertise, --peer-listen and the network between the replicas"
    );
    tracing::warn!(times = lives, pause = ?pause, "{why}; it joins again after a pause");
    shared.contact.note_unreached(why);
    sleep(pause).await;
}

/// Returns the pause after this number of lives in a row without any peer; `None` for no pause.
fn pause_after(lives: u32) -> Option<Duration> {
    let doublings = lives.checked_sub(1)?;
    let factor = 2_u32.saturating_pow(doublings);
    Some(PAUSE_FIRST.saturating_mul(factor).min(PAUSE_MAX))
}

/// Returns this replica as a member, to call it by its advertised address.
fn own_member(shared: &RingState) -> Member {
    Member {
        id: shared.options.id.clone(),
        incarnation: Incarnation::new(0),
        address: shared.options.address.clone(),
        zone: None,
        weight: shared.options.weight,
        standing: Standing::Serving,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use polyplane_storage::Revision;

    #[test]
    fn only_a_key_that_is_newer_than_the_ended_life_belongs_to_another_process() {
        let ended = Holder {
            replica: "a".parse().expect("a replica id"),
            incarnation: Incarnation::new(7),
        };
        let taken = |created: u64| {
            let found = KeyValue {
                key: Bytes::new(),
                value: Bytes::new(),
                created: Revision(created),
                modified: Revision(9),
                lease: None,
            };
            why_name_is_taken(&ended, &found).is_some()
        };
        assert_eq!([6, 7, 8].map(taken), [false, false, true]);
    }

    #[test]
    fn a_slow_ping_does_not_make_a_wrong_address_right() {
        let mut address = OwnAddress::default();
        let mut joins = |millis: u64, result: Result<(), PeerError>| {
            let now = Time::from_nanos(millis * 1_000_000);
            address.pinged(now, result).is_none()
        };
        let other = || Err(PeerError::OtherReplica("h:1: this is replica x".to_owned()));
        assert!(
            joins(0, Err(PeerError::TimedOut)),
            "some never reach themselves"
        );
        assert!(!joins(300, other()));
        assert!(!joins(600, Err(PeerError::TimedOut)));
        assert!(!joins(900, other()));
        assert!(!joins(5_899, Err(PeerError::Ended("reset".to_owned()))));
        assert!(
            joins(5_900, Err(PeerError::TimedOut)),
            "nobody is there now"
        );
        assert!(!joins(6_000, other()));
        assert!(joins(6_050, Ok(())), "its address is right now");
        assert!(joins(6_100, Err(PeerError::TimedOut)));
    }

    #[test]
    fn pauses_between_lives_double_up_to_a_limit() {
        assert_eq!(pause_after(0), None);
        let millis = |lives| pause_after(lives).map(|pause| pause.as_millis());
        let pauses: Vec<_> = [1, 2, 3, 6, 7, 8, u32::MAX].map(millis).to_vec();
        let wanted = [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000].map(Some);
        assert_eq!(pauses, wanted);
    }
}
