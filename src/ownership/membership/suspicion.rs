//! The driver of the eviction machine: feeds the results of pings and calls and the complaints of
//! others into [`Eviction`], and performs its actions. Owns pings and complaints; must not know
//! planes.
//!
//! Each member pings the next members by name, so that a dead one is noticed within a twentieth of
//! a second although each pings only two. A member that sees a complaint pings the accused itself:
//! time-outs evict only if half of the ring complains (PROTOCOL 18). A peer with which this replica
//! can agree on no connection for two seconds, because one refuses the other's certificate, or another
//! replica answers at the peer's address, counts like one that times out: no request reaches it either
//! (`contact`).

use crate::membership::contact::PingedFor;
use crate::membership::own_complaints::OwnComplaints;
use crate::membership::own_life::OwnLife;
use crate::membership::range_copy::{self, RangeCopy};
use crate::membership::state::RingState;
use crate::peers::{PeerError, PeerMessage, PeerReply, PeerRequest, Peers};
use crate::records::{COMPLAINTS, complaint_of, decode_life};
use crate::transactions::member_txn;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_fencing::eviction::{Action, Event, Eviction, Trouble};
use polyplane_fencing::{Holder, Transaction};
use polyplane_ring::{Member, ReplicaId};
use polyplane_storage::{CommitError, KeyValue, Revision, StoreEvent, WatchBatch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Pause between two pings of a neighbour. A longer one delays the eviction of a dead member.
const PING_EVERY: Duration = Duration::from_millis(50);
/// Number of turns of [`PING_TURN`] after which a ping without an answer has timed out: a second,
/// and more when this replica itself is short of CPU. A turn counts once however late it ends, so
/// that a peer is not accused of a delay on the pinger's own side.
const PING_TURNS: u32 = 20;
/// Number of turns after which a peer that has not answered a ping is silent: a quarter of a
/// second. A request sent to a silent peer would most likely get no reply, and a write among them
/// must not be repeated. A shorter silence more likely means a busy peer.
const SILENT_TURNS: u32 = 5;
/// The duration of one turn of waiting for an answer.
const PING_TURN: Duration = Duration::from_millis(50);
/// The longest time that the commit of an eviction may take. It is given up after that, because the
/// suspicion may be over by then; the machine decides again.
const COMMIT_PATIENCE: Duration = Duration::from_secs(1);
/// Number of neighbours that a member pings.
const NEIGHBOURS: usize = 2;
/// Number of pings in flight at most. Without this limit a large ring with many complaints would be
/// flooded.
const PINGS_MAX: usize = 32;

/// The suspicions of this replica about others.
#[derive(Default)]
pub(crate) struct Suspicion {
    machine: Mutex<Option<Eviction>>,
    /// This life's complaints.
    own: Mutex<Option<Arc<OwnComplaints>>>,
    /// The complaints of other members in the store: the accused life, by the complaint's key.
    complaints: Mutex<BTreeMap<Bytes, Holder>>,
    /// The members that have not answered a ping for too long. Each round of pings removes members
    /// that are no longer pinged, because no answer would remove them. Each forwarded request reads
    /// this set, which is mostly empty.
    silent: ArcSwap<BTreeSet<Holder>>,
    evictions: Arc<AtomicU64>,
}

impl Suspicion {
    /// Returns the number of peers that this replica has removed.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Returns whether a member of this name has not answered a ping for too long.
    pub(crate) fn is_silent(&self, replica: &str) -> bool {
        let silent = self.silent.load();
        silent.iter().any(|peer| peer.replica.as_str() == replica)
    }

    fn fell_silent(&self, peer: &Holder) {
        if !self.silent.load().contains(peer) {
            self.silent.rcu(|silent| {
                let mut silent = BTreeSet::clone(silent);
                silent.insert(peer.clone());
                silent
            });
        }
    }

    fn answered(&self, peer: &Holder) {
        self.keep_silent(|silent| silent != peer);
    }

    fn keep_silent(&self, keep: impl Fn(&Holder) -> bool) {
        if !self.silent.load().iter().all(&keep) {
            self.silent.rcu(|silent| {
                let kept = silent.iter().filter(|peer| keep(peer));
                kept.cloned().collect::<BTreeSet<Holder>>()
            });
        }
    }
}

/// Starts the machine for a new life, which suspects no peer.
pub(crate) fn start_life(shared: &RingState, life: &Arc<OwnLife>) {
    let own = OwnComplaints::new(&shared.store, life, &shared.stop);
    *shared.suspicion.own.lock() = Some(own);
    *shared.suspicion.machine.lock() = Some(Eviction::new(life.holder().clone()));
    let view = shared.view.load();
    let members = view.members().map(crate::peers::holder).collect();
    step(shared, Event::View(members));
}

/// Reports a new view to the machine.
pub(crate) fn view_changed(shared: &RingState, members: Vec<Holder>) {
    step(shared, Event::View(members));
}

/// Reports whether a member could be reached.
pub(crate) fn report(shared: &RingState, about: &Member, result: Result<(), &PeerError>) {
    if let Some(event) = evidence(crate::peers::holder(about), result) {
        step(shared, event);
    }
}

/// Returns what the outcome of a call proves about a peer. Only [`PeerError::Refused`] is enough to
/// evict, because no third party can cause it. The other errors could also come from a full
/// listener, a proxy or a lost packet.
fn evidence(peer: Holder, result: Result<(), &PeerError>) -> Option<Event> {
    let trouble = match result {
        Ok(()) => return Some(Event::Reached(peer)),
        Err(PeerError::Refused) => Trouble::Refused,
        Err(PeerError::TimedOut) => Trouble::TimedOut,
        // A new connection will show whether the peer answers.
        Err(PeerError::Ended(_)) => return None,
        // The certificate may be replaced just now, or the address may have changed. `ping_one` reports the
        // peer if the failure lasts.
        Err(PeerError::Untrusted(_) | PeerError::OtherReplica(_)) => return None,
        // The call reached the peer in some way.
        Err(PeerError::Failed(_)) => return None,
    };
    Some(Event::Unreachable { peer, trouble })
}

/// Sends a request. Any answer proves that the peer lives; a refused connection proves that it does
/// not. Only pings count as timed out.
pub(crate) async fn call(
    shared: &RingState,
    to: &Member,
    request: PeerRequest,
    patience: Duration,
) -> Result<PeerReply, PeerError> {
    let called = timeout(patience, shared.peers.call(to, request)).await;
    let result = called.unwrap_or(Err(PeerError::TimedOut));
    match &result {
        Ok(_) => report(shared, to, Ok(())),
        // A request other than a ping may take long, so this proves nothing.
        Err(PeerError::TimedOut) => {}
        Err(error) => report(shared, to, Err(error)),
    }
    result
}

/// Pings a member, and records whether it answered.
async fn ping_one(shared: &RingState, to: &Member, why: PingedFor) {
    let view = shared.view.load();
    let (number, peer) = (view.number().get(), crate::peers::holder(to));
    drop(view);
    let patience = async {
        wait_turns(SILENT_TURNS).await;
        shared.suspicion.fell_silent(&peer);
        wait_turns(PING_TURNS - SILENT_TURNS).await;
    };
    let result = ping_until(&*shared.peers, to, number, patience).await;
    if !matches!(result, Err(PeerError::TimedOut)) {
        // The member has answered, or it is certain that it does not receive what is sent to it.
        shared.suspicion.answered(&peer);
    }
    let outcome = result.as_ref().copied();
    report(shared, to, outcome);
    if shared.contact.pinged(shared.now(), to, why, outcome) {
        let trouble = Trouble::TimedOut;
        step(shared, Event::Unreachable { peer, trouble });
    }
}

/// Pings a member. Whenever a connection ends, pings again over a new one, until `patience`
/// completes.
async fn ping_until(
    peers: &dyn Peers,
    to: &Member,
    view: u64,
    patience: impl Future<Output = ()>,
) -> Result<(), PeerError> {
    let calls = async {
        loop {
            match peers.call(to, PeerMessage::Ping { view }.into()).await {
                Err(PeerError::Ended(_)) => sleep(PING_TURN).await,
                other => return other.map(drop),
            }
        }
    };
    tokio::select! {
        // The reply is polled first: an answer that has arrived counts even if patience ends at the
        // same time.
        biased;
        result = calls => result,
        () = patience => Err(PeerError::TimedOut),
    }
}

/// Waits for this number of turns, each of which ends when the executor has polled this task again.
async fn wait_turns(turns: u32) {
    for _ in 0..turns {
        sleep(PING_TURN).await;
    }
}

fn step(shared: &RingState, event: Event) {
    let now = shared.now();
    let mut machine = shared.suspicion.machine.lock();
    let Some(machine) = machine.as_mut() else {
        return;
    };
    // Performed under the lock, so that a complaint is not performed after its withdrawal.
    for action in machine.step(now, event) {
        perform(shared, action);
    }
}

/// Performs one action. The view, or the watch on the complaints, shows the outcome.
fn perform(shared: &RingState, action: Action) {
    let own = shared.suspicion.own.lock().clone();
    match (action, own) {
        (
            Action::Evict {
                target,
                transaction,
            },
            _,
        ) => evict(shared, target, &transaction),
        (Action::Complain(about), Some(own)) => own.complain(about),
        (Action::Withdraw(about), Some(own)) => own.withdraw(&about),
        (Action::Complain(_) | Action::Withdraw(_), None) => {}
    }
}

/// Sends an eviction on a task of its own, which has a time limit.
fn evict(shared: &RingState, target: Holder, transaction: &Transaction) {
    let txn = member_txn(transaction, None);
    let (store, evictions) = (
        Arc::clone(&shared.store),
        Arc::clone(&shared.suspicion.evictions),
    );
    tokio::spawn(async move {
        // Without a limit, a store without a leader would hold the commit until the suspicion is
        // over.
        match timeout(COMMIT_PATIENCE, store.commit(txn)).await {
            Ok(Ok(_)) => {
                evictions.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    target = %target.replica,
                    incarnation = %target.incarnation,
                    "a member with which this replica cannot speak was removed from the ring"
                );
            }
            Ok(Err(CommitError::Refused { .. })) => {
                tracing::debug!("another member was faster with an eviction");
            }
            Ok(Err(error)) => tracing::debug!(%error, "an eviction got no reply"),
            Err(_) => tracing::debug!("the store was too slow for an eviction"),
        }
    });
}

/// Pings the neighbours, and members that others complain about, until the ring ends.
pub(crate) async fn ping(shared: Arc<RingState>) {
    let mut ticks = interval(PING_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let places = Arc::new(Semaphore::new(PINGS_MAX));
    loop {
        tokio::select! {
            // The end of the ring is polled first.
            biased;
            () = shared.stop.cancelled() => {
                shared.suspicion.keep_silent(|_| false);
                return;
            }
            _ = ticks.tick() => {}
        }
        let targets = ping_targets(&shared);
        let is_target = |peer: &Holder| {
            let mut members = targets.iter().map(|(member, _)| member);
            members.any(|member| crate::peers::holder(member) == *peer)
        };
        shared.suspicion.keep_silent(is_target);
        shared.contact.keep(is_target);
        for (member, why) in targets {
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                break;
            };
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let _place = place;
                ping_one(&shared, &member, why).await;
            });
        }
        step(&shared, Event::Tick);
    }
}

/// Returns the members to ping now: the next ones by name, those that others complain about, and those
/// with which this replica could not speak before, so that it is noticed when it can.
fn ping_targets(shared: &RingState) -> Vec<(Member, PingedFor)> {
    let view = shared.view.load_full();
    let own = &shared.options.id;
    let after = view.members().filter(|member| member.id > *own);
    let before = view.members().filter(|member| member.id < *own);
    let neighbours = after.chain(before).take(NEIGHBOURS);
    let mut targets: Vec<(Member, PingedFor)> = neighbours
        .map(|member| (member.clone(), PingedFor::Contact))
        .collect();
    let is_known = |targets: &[(Member, PingedFor)], id: &ReplicaId| {
        *id == *own || targets.iter().any(|(member, _)| member.id == *id)
    };
    for about in shared.suspicion.complaints.lock().values() {
        if let Some(member) = view.member(&about.replica)
            && member.incarnation == about.incarnation
            && !is_known(&targets, &member.id)
        {
            targets.push((member.clone(), PingedFor::Complaint));
        }
    }
    let now = shared.now();
    for member in view.members() {
        if shared.contact.is_distrusted(now, &member.id) && !is_known(&targets, &member.id) {
            targets.push((member.clone(), PingedFor::Contact));
        }
    }
    targets
}

/// Follows the complaints of others until the ring ends.
pub(crate) async fn follow_complaints(state: Arc<RingState>) {
    let mut follower = ComplaintFollower(&state);
    let prefix = Bytes::from_static(COMPLAINTS);
    tokio::select! {
        // The end of the ring is polled first.
        biased;
        () = state.stop.cancelled() => {}
        () = range_copy::follow(&state.store, prefix, "the complaints", &mut follower) => {}
    }
}

struct ComplaintFollower<'a>(&'a RingState);

impl RangeCopy for ComplaintFollower<'_> {
    fn replace(&mut self, items: Vec<KeyValue>, _: Revision) {
        let fresh: BTreeMap<&Bytes, &KeyValue> =
            items.iter().map(|item| (&item.key, item)).collect();
        let known: Vec<Bytes> = self.0.suspicion.complaints.lock().keys().cloned().collect();
        for gone in known.iter().filter(|key| !fresh.contains_key(key)) {
            observe_complaint(self.0, gone, None);
        }
        for (key, item) in &fresh {
            observe_complaint(self.0, key, Some(&item.value));
        }
    }

    fn apply(&mut self, batch: WatchBatch) {
        for StoreEvent { key, value, .. } in &batch.events {
            observe_complaint(self.0, key, value.as_ref());
        }
    }
}

fn observe_complaint(shared: &RingState, key: &Bytes, value: Option<&Bytes>) {
    let Some((from, accused)) = complaint_of(key) else {
        return;
    };
    let about = value
        .and_then(|value| decode_life(value))
        .and_then(|life| Holder::try_from(&life).ok());
    if from == shared.options.id {
        if let Some(own) = shared.suspicion.own.lock().as_ref() {
            own.observe(&accused, about.as_ref());
        }
        return;
    }
    let before = {
        let mut complaints = shared.suspicion.complaints.lock();
        match &about {
            Some(about) => complaints.insert(key.clone(), about.clone()),
            None => complaints.remove(key),
        }
    };
    withdraw_complaint(
        shared,
        &from,
        before.filter(|before| Some(before) != about.as_ref()),
    );
    if let Some(about) = about {
        step(shared, Event::Complaint { from, about });
    }
}

fn withdraw_complaint(shared: &RingState, from: &ReplicaId, before: Option<Holder>) {
    if let Some(about) = before {
        let from = from.clone();
        step(shared, Event::Withdrawn { from, about });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use tokio::time::advance;

    fn holder(name: &str) -> Holder {
        Holder {
            replica: name.parse().expect("a replica id"),
            incarnation: polyplane_ring::Incarnation::new(4),
        }
    }

    #[test]
    fn only_a_refused_connection_proves_that_a_peer_is_gone() {
        let trouble = |error: PeerError| match evidence(holder("b"), Err(&error)) {
            Some(Event::Unreachable { peer, trouble }) if peer == holder("b") => Some(trouble),
            Some(other) => panic!("{other:?} after {error}"),
            None => None,
        };
        let text = || "reset".to_owned();
        assert_eq!(trouble(PeerError::Refused), Some(Trouble::Refused));
        assert_eq!(trouble(PeerError::TimedOut), Some(Trouble::TimedOut));
        assert_eq!(trouble(PeerError::Ended(text())), None);
        assert_eq!(trouble(PeerError::Untrusted(text())), None);
        assert_eq!(trouble(PeerError::OtherReplica(text())), None);
        assert_eq!(trouble(PeerError::Failed(text())), None);
        let reached = evidence(holder("b"), Ok(()));
        assert_eq!(reached, Some(Event::Reached(holder("b"))));
        // Of these two kinds of trouble, only the first evicts before others complain as well.
        for (trouble, evicts) in [(Trouble::Refused, true), (Trouble::TimedOut, false)] {
            let mut eviction = Eviction::new(holder("a"));
            let now = polyplane_fencing::Time::from_nanos(1);
            let view = ["a", "b", "c", "d", "e"].map(holder).to_vec();
            eviction.step(now, Event::View(view));
            let peer = holder("b");
            let actions = eviction.step(now, Event::Unreachable { peer, trouble });
            let is_eviction = |action: &Action| matches!(action, Action::Evict { .. });
            assert_eq!(actions.iter().any(is_eviction), evicts, "{trouble:?}");
        }
    }

    /// A peer that ends this number of calls before it replies in one way for good.
    struct Ending {
        ends: AtomicU64,
        then: Result<(), PeerError>,
    }

    #[async_trait::async_trait]
    impl Peers for Ending {
        async fn call(&self, _: &Member, _: PeerRequest) -> Result<PeerReply, PeerError> {
            let left = |left: u64| left.checked_sub(1);
            let order = Ordering::Relaxed;
            match self.ends.fetch_update(order, order, left) {
                Ok(_) => Err(PeerError::Ended("closed".to_owned())),
                Err(_) => self.then.clone().map(|()| PeerReply::Pong { view: 3 }),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_whose_connection_ends_is_sent_again_until_patience_ends() {
        let to = Member {
            id: "b".parse().expect("a replica id"),
            incarnation: polyplane_ring::Incarnation::new(4),
            address: "b:1".parse().expect("an address"),
            zone: None,
            weight: Default::default(),
            standing: polyplane_ring::Standing::Serving,
        };
        let ping = async |ends: u64, then: Result<(), PeerError>| {
            let ends = AtomicU64::new(ends);
            ping_until(&Ending { ends, then }, &to, 3, wait_turns(PING_TURNS)).await
        };
        assert_eq!(ping(3, Ok(())).await, Ok(()));
        let refused = ping(3, Err(PeerError::Refused)).await;
        assert_eq!(refused, Err(PeerError::Refused));
        assert_eq!(ping(u64::MAX, Ok(())).await, Err(PeerError::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pingers_own_pause_is_one_turn_of_patience() {
        let mut patience = pin!(wait_turns(PING_TURNS));
        let mut over = async || {
            tokio::select! {
                biased;
                () = &mut patience => true,
                () = std::future::ready(()) => false,
            }
        };
        assert!(!over().await);
        for _ in 1..PING_TURNS {
            // As after SIGCONT: a minute has passed, in which no peer could answer.
            advance(Duration::from_secs(60)).await;
            assert!(!over().await);
        }
        advance(PING_TURN).await;
        assert!(over().await);
    }
}
