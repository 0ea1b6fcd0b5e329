//! Whether this replica and the other members can speak with each other. The ring designates every
//! member for planes, so a member that no other one can speak with makes planes unavailable.
//!
//! A member logs which peers do not answer its pings, and why. A peer that does not trust it, or at whose
//! address another replica answers, counts as one that does not answer, and is evicted. If a replica that is
//! not trusted joins again and again, as one of an older release does, each further life is given more time:
//! evictions move planes and do not help. A replica with a wrong address pauses by itself before it joins
//! again, so it is given no more time. Until they answer, this replica designates neither members that do not
//! trust it nor members with a wrong address for a plane while there is another member: requests for the plane
//! could not be forwarded. `welcome` has what a replica does before it joins.
//!
//! Must not decide who is a member, and must not know planes.

use crate::log_limit::LogLimit;
use crate::peers::{PeerError, holder};
use parking_lot::Mutex;
use polyplane_fencing::{Duration as Length, Holder, Time};
use polyplane_ring::{Member, ReplicaId, View};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// How long pings of a peer fail before that is logged. A dead peer has left the ring by then.
const LOG_AFTER: Length = Length::from_millis(5_000);
/// How long a peer's certificate is refused, or this replica's by the peer, or another replica answers at
/// the peer's address, before that counts like a peer that does not answer. Less would count certificates
/// that are being replaced, and addresses that change.
const DISTRUST_AFTER: Length = Length::from_millis(2_000);
/// The longest such time, which doubles with each life of a replica that has counted so. A longer one
/// would keep a replica in the ring that most members cannot speak with.
const DISTRUST_AFTER_MAX: Length = Length::from_millis(60_000);
/// How long it is remembered that a life has counted so. Replicas that never come back would
/// otherwise fill the memory.
const DISTRUST_KEPT: Length = Length::from_millis(600_000);

/// What to do about replicas that do not trust each other.
pub(crate) const SAME_CA: &str = "give all replicas the same peer CA (peer-ca.crt in the folder of --certs) and \
     certificates that it has signed";

/// What is known about speaking with other members.
#[derive(Default)]
pub(crate) struct Contact {
    /// The peers that do not answer pings.
    failing: Mutex<BTreeMap<Holder, Failing>>,
    /// The replicas whose lives have counted as peers that do not answer, for lack of trust or because
    /// of a wrong address, and that have not answered since.
    distrusted: Mutex<BTreeMap<ReplicaId, Distrusted>>,
    /// True if there are any. Each request reads this, and there are mostly none.
    has_distrusted: AtomicBool,
    /// The reason why this replica does not join; `None` while nothing keeps it from joining.
    held_back: watch::Sender<Option<String>>,
    unreached: Mutex<Unreached>,
    /// True once a peer has reached this replica in its current life.
    is_reached: AtomicBool,
}

/// A peer that does not answer pings.
struct Failing {
    since: Time,
    /// The cause for which every ping has failed, and since when; `None` if the last one failed otherwise.
    shut_out: Option<(ShutOut, Time)>,
    /// True once that has lasted for so long that the peer counts as one that does not answer.
    is_counted: bool,
    limit: LogLimit,
    is_logged: bool,
}

/// Why no request reaches a peer although something answers at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutOut {
    /// One of the two replicas does not trust the other.
    Untrusted,
    /// Another replica answers.
    OtherReplica,
}

impl ShutOut {
    /// Returns the cause that an error of a ping shows; `None` if it shows another one.
    fn of(error: &PeerError) -> Option<Self> {
        match error {
            PeerError::Untrusted(_) => Some(Self::Untrusted),
            PeerError::OtherReplica(_) => Some(Self::OtherReplica),
            PeerError::Refused
            | PeerError::TimedOut
            | PeerError::Ended(_)
            | PeerError::Failed(_) => None,
        }
    }
}

/// Why a peer is pinged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingedFor {
    /// It is a neighbour, or this replica could not speak with it before.
    Contact,
    /// Only because others complain about it. They have given it the longer time of a further life
    /// already.
    Complaint,
}

/// The lives in a row of one peer that have counted as ones that do not answer, for lack of trust or
/// because of a wrong address.
struct Distrusted {
    lives: u32,
    /// The time at which the last of them counted so.
    last: Time,
}

/// The lives in a row that ended without any peer having reached this replica.
#[derive(Default)]
struct Unreached {
    lives: u32,
    /// The text for people; `None` before the first such life has ended.
    why: Option<String>,
}

impl Contact {
    /// Records the outcome of a ping, and logs if pings of this peer fail for long or it begins to count as
    /// one that does not answer: it may be evicted and forgotten at once. Returns true if
    /// the two replicas have not trusted each other, or another one has answered at the peer's address, for
    /// so long that the peer counts as one that does not answer.
    pub(crate) fn pinged(
        &self,
        now: Time,
        peer: &Member,
        why: PingedFor,
        result: Result<(), &PeerError>,
    ) -> bool {
        let mut failing = self.failing.lock();
        let Err(error) = result else {
            self.trusted(&peer.id);
            let known = failing.remove(&holder(peer));
            if known.is_some_and(|known| known.is_logged) {
                tracing::info!(peer = %peer.id, "a member answers again");
            }
            return false;
        };
        let known = failing.entry(holder(peer)).or_insert(Failing {
            since: now,
            shut_out: None,
            is_counted: false,
            limit: LogLimit::default(),
            is_logged: false,
        });
        let was_counted = known.is_counted;
        known.shut_out = ShutOut::of(error).map(|cause| match known.shut_out {
            Some((before, since)) if before == cause => (cause, since),
            // Each cause must last by itself: a new one may soon be over.
            Some(_) | None => (cause, now),
        });
        known.is_counted = known.shut_out.is_some_and(|(cause, since)| {
            let after = match (cause, why) {
                (ShutOut::Untrusted, PingedFor::Contact) => self.distrust_after(now, &peer.id),
                (ShutOut::Untrusted, PingedFor::Complaint) | (ShutOut::OtherReplica, _) => {
                    DISTRUST_AFTER
                }
            };
            was_counted || now.since(since) >= after
        });
        let counts_now = known.is_counted && !was_counted;
        if counts_now {
            self.count_distrust(now, &peer.id);
        }
        let lasted = now.since(known.since);
        let is_due = (counts_now || lasted >= LOG_AFTER) && known.limit.is_due(now);
        if counts_now || is_due {
            known.is_logged = true;
            tracing::warn!(
                peer = %peer.id,
                address = %peer.address,
                seconds = lasted.as_nanos() / 1_000_000_000,
                "this replica cannot speak with a member of the ring: {}",
                advice(error)
            );
        }
        known.is_counted
    }

    /// Returns how long distrust must last until this life of a peer counts as one that does not
    /// answer.
    fn distrust_after(&self, now: Time, peer: &ReplicaId) -> Length {
        let distrusted = self.distrusted.lock();
        let known = distrusted.get(peer);
        let known = known.filter(|known| now.since(known.last) < DISTRUST_KEPT);
        distrust_after(known.map_or(0, |known| known.lives))
    }

    /// Records that a life of a peer counts as one that does not answer, for lack of trust or because of a
    /// wrong address.
    fn count_distrust(&self, now: Time, peer: &ReplicaId) {
        let mut distrusted = self.distrusted.lock();
        distrusted.retain(|_, known| now.since(known.last) < DISTRUST_KEPT);
        let never = Distrusted {
            lives: 0,
            last: now,
        };
        let known = distrusted.entry(peer.clone()).or_insert(never);
        known.lives = known.lives.saturating_add(1);
        known.last = now;
        self.has_distrusted.store(true, Ordering::Release);
    }

    /// Records that a peer has answered a ping.
    fn trusted(&self, peer: &ReplicaId) {
        let mut distrusted = self.distrusted.lock();
        distrusted.remove(peer);
        self.has_distrusted
            .store(!distrusted.is_empty(), Ordering::Release);
    }

    /// Returns whether a replica has counted as one that does not answer, for lack of trust or because of
    /// a wrong address, and has not answered since. It may be in a further life, which does not count yet.
    pub(crate) fn is_distrusted(&self, now: Time, peer: &ReplicaId) -> bool {
        if !self.has_distrusted.load(Ordering::Acquire) {
            return false;
        }
        let distrusted = self.distrusted.lock();
        let known = distrusted.get(peer);
        known.is_some_and(|known| now.since(known.last) < DISTRUST_KEPT)
    }

    /// Forgets the peers that are pinged no longer.
    pub(crate) fn keep(&self, is_pinged: impl Fn(&Holder) -> bool) {
        self.failing.lock().retain(|peer, _| is_pinged(peer));
    }

    /// Returns the number of peers that do not answer pings.
    pub(crate) fn failing(&self) -> usize {
        self.failing.lock().len()
    }

    /// Records that a peer has sent a message here, which proves that the advertised address is
    /// right.
    pub(crate) fn reached(&self) {
        if !self.is_reached.swap(true, Ordering::AcqRel) {
            let unreached = std::mem::take(&mut *self.unreached.lock());
            if unreached.lives > 0 {
                tracing::info!("other members reach this replica again");
            }
        }
    }

    /// Records that a life begins, in which no peer has reached this replica yet.
    pub(crate) fn life_began(&self) {
        self.is_reached.store(false, Ordering::Release);
    }

    /// Records that a life ended because the member key was lost.
    pub(crate) fn life_ended(&self, view: &View, own: &ReplicaId) {
        let mut unreached = self.unreached.lock();
        match has_peers(view, own) && !self.is_reached.load(Ordering::Acquire) {
            true => unreached.lives = unreached.lives.saturating_add(1),
            false => *unreached = Unreached::default(),
        }
    }

    /// Returns a receiver of the reason why this replica does not join.
    pub(crate) fn held_back(&self) -> watch::Receiver<Option<String>> {
        self.held_back.subscribe()
    }

    /// Records why this replica does not join, or that nothing keeps it from joining.
    pub(crate) fn hold_back(&self, why: Option<String>) {
        self.held_back.send_replace(why);
    }

    /// Returns the number of lives in a row that ended without any peer having reached this replica.
    pub(crate) fn unreached_lives(&self) -> u32 {
        self.unreached.lock().lives
    }

    /// Records why other members did not reach this replica in its last lives.
    pub(crate) fn note_unreached(&self, why: String) {
        self.unreached.lock().why = Some(why);
    }

    /// Returns why other members did not reach this replica in its last lives.
    pub(crate) fn why_unreached(&self) -> Option<String> {
        self.unreached.lock().why.clone()
    }
}

/// Returns whether a view has a member beside this replica.
pub(crate) fn has_peers(view: &View, own: &ReplicaId) -> bool {
    view.members().any(|member| member.id != *own)
}

/// Returns how long distrust must last after this number of lives in a row that counted as ones that
/// do not answer.
fn distrust_after(lives: u32) -> Length {
    let factor = 2_u64.saturating_pow(lives);
    let nanos = DISTRUST_AFTER.as_nanos().saturating_mul(factor);
    Length::from_nanos(nanos.min(DISTRUST_AFTER_MAX.as_nanos()))
}

/// Returns an error of a call with what to do about it.
pub(crate) fn advice(error: &PeerError) -> String {
    let advice = match error {
        PeerError::Untrusted(_) => SAME_CA,
        PeerError::OtherReplica(_) => "check its --advertise, --replica-id and peer certificate",
        PeerError::Refused | PeerError::TimedOut | PeerError::Ended(_) | PeerError::Failed(_) => {
            "check its address and the network on the way to it"
        }
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_ring::{Incarnation, Standing, ViewNumber};

    fn member(name: &str) -> Member {
        Member {
            id: name.parse().expect("a replica id"),
            incarnation: Incarnation::new(4),
            address: "h:1".parse().expect("an address"),
            zone: None,
            weight: Default::default(),
            standing: Standing::Serving,
        }
    }

    #[test]
    fn only_a_life_among_peers_that_no_peer_reached_counts() {
        let contact = Contact::default();
        let own = member("a").id;
        let alone = View::new(ViewNumber::new(1), [member("a")]);
        let ring = View::new(ViewNumber::new(2), [member("a"), member("b")]);
        let lives = || contact.unreached.lock().lives;
        for (view, is_reached, counted) in [
            (&alone, false, 0),
            (&ring, false, 1),
            (&ring, false, 2),
            (&ring, true, 0),
            (&ring, false, 1),
            (&alone, false, 0),
        ] {
            contact.life_began();
            if is_reached {
                contact.reached();
            }
            contact.life_ended(view, &own);
            assert_eq!(lives(), counted);
        }
    }

    #[test]
    fn distrust_counts_once_it_lasts_and_until_the_peer_answers() {
        let contact = Contact::default();
        let peer = member("b");
        let untrusted = PeerError::Untrusted("unknown CA".to_owned());
        let pinged = |millis: u64, result: Result<(), &PeerError>| {
            let now = Time::from_nanos(millis * 1_000_000);
            contact.pinged(now, &peer, PingedFor::Contact, result)
        };
        assert!(!pinged(0, Err(&untrusted)));
        assert!(!pinged(1999, Err(&untrusted)));
        assert!(pinged(2000, Err(&untrusted)));
        assert!(!pinged(2050, Err(&PeerError::TimedOut)));
        assert!(!pinged(2060, Err(&untrusted)), "another failure ends it");
        assert!(!pinged(2100, Ok(())));
        assert!(!pinged(2150, Err(&untrusted)), "it begins anew");
        assert_eq!(contact.failing(), 1);
        contact.keep(|_| false);
        assert_eq!(contact.failing(), 0);
    }

    #[test]
    fn a_peer_at_whose_address_another_replica_answers_counts_soon_in_each_life() {
        let contact = Contact::default();
        let other = PeerError::OtherReplica("h:1 is the address of replica c".to_owned());
        let pinged = |millis: u64, incarnation: u64, result: Result<(), &PeerError>| {
            let peer = Member {
                incarnation: Incarnation::new(incarnation),
                ..member("b")
            };
            let now = Time::from_nanos(millis * 1_000_000);
            contact.pinged(now, &peer, PingedFor::Contact, result)
        };
        let distrusted = |name: &str, millis: u64| {
            contact.is_distrusted(Time::from_nanos(millis * 1_000_000), &member(name).id)
        };
        assert!(!pinged(0, 4, Err(&other)));
        assert_eq!(contact.failing(), 1);
        assert!(!pinged(1_999, 4, Err(&other)), "an address may change");
        assert!(pinged(2_000, 4, Err(&other)));
        assert!(distrusted("b", 2_000) && !distrusted("c", 2_000));
        // It was evicted, and joins again.
        assert!(!pinged(10_000, 9, Err(&other)));
        assert!(pinged(12_000, 9, Err(&other)));
        assert!(pinged(12_050, 4, Err(&other)), "the old life is still gone");
        assert!(!pinged(12_100, 9, Ok(())), "the address is right by now");
        assert!(!distrusted("b", 12_100));
        assert!(!pinged(12_150, 9, Err(&other)), "it begins anew");
    }

    #[test]
    fn the_cause_for_which_a_peer_counts_has_lasted_itself_and_is_logged() {
        let contact = Contact::default();
        let untrusted = PeerError::Untrusted("unknown CA".to_owned());
        let other = PeerError::OtherReplica("h:1 is the address of replica c".to_owned());
        let pinged = |millis: u64, error: &PeerError| {
            let now = Time::from_nanos(millis * 1_000_000);
            let is_counted = contact.pinged(now, &member("b"), PingedFor::Contact, Err(error));
            let failing = contact.failing.lock();
            let is_logged = failing.values().all(|known| known.is_logged);
            (is_counted, is_logged)
        };
        assert_eq!(pinged(0, &untrusted), (false, false));
        assert_eq!(pinged(1_900, &untrusted), (false, false));
        assert_eq!(pinged(2_000, &other), (false, false), "it is new");
        assert_eq!(pinged(3_950, &other), (false, false));
        assert_eq!(pinged(4_000, &other), (true, true), "before it is evicted");
        assert_eq!(pinged(4_050, &untrusted), (true, true), "it still counts");
    }

    #[test]
    fn each_further_life_that_is_not_trusted_is_given_twice_the_time_up_to_a_limit() {
        let contact = Contact::default();
        let untrusted = PeerError::Untrusted("unknown CA".to_owned());
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        // A life that begins at a time, and how long it takes until it counts.
        let counts_after = |name: &str, from: u64| {
            let peer = Member {
                incarnation: Incarnation::new(from + 1),
                ..member(name)
            };
            let why = PingedFor::Contact;
            let counts =
                |after: &u64| contact.pinged(at(from + *after), &peer, why, Err(&untrusted));
            let after = (0..=100_000).step_by(500).find(counts);
            let next = from + after.unwrap_or_default() + 500;
            let still = contact.pinged(at(next), &peer, why, Err(&untrusted));
            assert!(still, "it counts until it leaves");
            contact.keep(|_| false);
            after
        };
        let begins = [0, 1, 2, 3, 4, 5, 6].map(|life| life * 100_000);
        let wanted = [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000].map(Some);
        assert_eq!(begins.map(|from| counts_after("b", from)), wanted);
        assert_eq!(counts_after("c", 700_000), Some(2_000), "another replica");
        assert!(!contact.pinged(at(800_000), &member("b"), PingedFor::Contact, Ok(())));
        assert_eq!(counts_after("b", 800_500), Some(2_000), "it was trusted");
        assert_eq!(counts_after("b", 900_000), Some(4_000));
        assert_eq!(counts_after("b", 1_600_000), Some(2_000), "long ago");
    }

    #[test]
    fn a_further_life_that_others_complain_about_is_given_no_more_time_than_the_first() {
        let contact = Contact::default();
        let untrusted = PeerError::Untrusted("unknown CA".to_owned());
        let pinged = |millis: u64, why: PingedFor| {
            let now = Time::from_nanos(millis * 1_000_000);
            let is_counted = contact.pinged(now, &member("b"), why, Err(&untrusted));
            if is_counted {
                contact.keep(|_| false);
            }
            is_counted
        };
        assert!(!pinged(0, PingedFor::Contact));
        assert!(pinged(2_000, PingedFor::Contact));
        assert!(!pinged(10_000, PingedFor::Contact));
        assert!(!pinged(12_000, PingedFor::Contact), "a further life");
        assert!(pinged(12_001, PingedFor::Complaint));
    }

    #[test]
    fn a_replica_is_distrusted_over_its_lives_until_it_answers() {
        let contact = Contact::default();
        let peer = member("b");
        let untrusted = PeerError::Untrusted("unknown CA".to_owned());
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let pinged = |millis: u64, result: Result<(), &PeerError>| {
            contact.pinged(at(millis), &peer, PingedFor::Contact, result)
        };
        let distrusted = |millis: u64| contact.is_distrusted(at(millis), &peer.id);
        pinged(0, Err(&untrusted));
        assert!(!distrusted(1_999), "certificates may be replaced just now");
        pinged(2_000, Err(&untrusted));
        assert!(distrusted(2_000));
        // It was evicted, and joins again.
        contact.keep(|_| false);
        pinged(10_000, Err(&untrusted));
        assert!(distrusted(10_000));
        assert!(!contact.is_distrusted(at(10_000), &member("c").id));
        pinged(10_050, Ok(()));
        assert!(!distrusted(10_050));
        pinged(20_000, Err(&untrusted));
        pinged(22_000, Err(&untrusted));
        assert!(
            distrusted(22_000) && !distrusted(622_000),
            "it never came back"
        );
    }
}
