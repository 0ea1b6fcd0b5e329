//! The decision when a replica removes another one from the ring. Owns suspicion and its brakes.
//! Must not know why a connection failed beyond what the driver reports. A wrong decision costs a
//! restart of planes, never a stale read or a lost write: the evicted replica learns of it by its
//! next compare.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::ReplicaId;

use crate::record::Holder;
use crate::time::{Duration, Time};
use crate::transaction::{Compare, Transaction, Write};

/// Time between two evictions by one replica, at least (PROTOCOL 18). Without it, a replica with a
/// broken network could evict the whole ring at once.
pub const EVICTION_SPACING: Duration = Duration::from_millis(1000);

/// The way in which a peer cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// The peer's operating system refused a new connection: no process listens at the address.
    Refused,
    /// All attempts time out, or end before an answer: the peer, or the network on the way to it,
    /// is stuck.
    TimedOut,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The members of the newest view, this replica included.
    View(Vec<Holder>),
    /// A peer could not be reached.
    Unreachable {
        /// The life of the peer.
        peer: Holder,
        /// The way in which it could not be reached.
        trouble: Trouble,
    },
    /// A peer answered.
    Reached(Holder),
    /// The store has another replica's complaint about a peer.
    Complaint {
        /// The replica that complains.
        from: ReplicaId,
        /// The accused life.
        about: Holder,
    },
    /// Another replica has withdrawn its complaint.
    Withdrawn {
        /// The replica that had complained.
        from: ReplicaId,
        /// The life that it had accused.
        about: Holder,
    },
    /// Time has passed.
    Tick,
}

/// An output of the machine, which the driver performs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this transaction once. Its outcome need not be reported: the next view shows it.
    Evict {
        /// The life to evict.
        target: Holder,
        /// The transaction that evicts it.
        transaction: Transaction,
    },
    /// Put this replica's complaint about this life, attached to this replica's store lease.
    Complain(Holder),
    /// Delete this replica's complaint about this life.
    Withdraw(Holder),
}

/// One replica's suspicions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Eviction {
    me: Holder,
    members: BTreeSet<Holder>,
    troubles: BTreeMap<Holder, Trouble>,
    complaints: BTreeMap<Holder, BTreeSet<ReplicaId>>,
    last: Option<Time>,
}

impl Eviction {
    /// Creates the machine of a life, with no suspicions.
    pub fn new(me: Holder) -> Self {
        Self {
            me,
            members: BTreeSet::new(),
            troubles: BTreeMap::new(),
            complaints: BTreeMap::new(),
            last: None,
        }
    }

    /// Applies one event and returns the actions to perform, in order.
    pub fn step(&mut self, now: Time, event: Event) -> Vec<Action> {
        let mut actions = match event {
            Event::View(members) => self.view(members),
            Event::Unreachable { peer, trouble } => self.unreachable(peer, trouble),
            Event::Reached(peer) => self.reached(peer),
            Event::Complaint { from, about } => {
                if from != self.me.replica && self.members.contains(&about) {
                    self.complaints.entry(about).or_default().insert(from);
                }
                Vec::new()
            }
            Event::Withdrawn { from, about } => {
                if let Some(complaints) = self.complaints.get_mut(&about) {
                    complaints.remove(&from);
                }
                Vec::new()
            }
            Event::Tick => Vec::new(),
        };
        actions.extend(self.evict(now));
        actions
    }

    fn view(&mut self, members: Vec<Holder>) -> Vec<Action> {
        self.members = members.into_iter().collect();
        let members = &self.members;
        let left = self
            .troubles
            .iter()
            .filter(|(peer, _)| !members.contains(*peer));
        let complained = left.filter(|(_, trouble)| **trouble == Trouble::TimedOut);
        let actions = complained
            .map(|(peer, _)| Action::Withdraw(peer.clone()))
            .collect();
        self.troubles.retain(|peer, _| members.contains(peer));
        self.complaints.retain(|peer, _| members.contains(peer));
        actions
    }

    fn unreachable(&mut self, peer: Holder, trouble: Trouble) -> Vec<Action> {
        if peer == self.me || !self.members.contains(&peer) {
            return Vec::new();
        }
        let known = self.troubles.insert(peer.clone(), trouble);
        match (known, trouble) {
            (Some(Trouble::TimedOut), Trouble::TimedOut) => Vec::new(),
            (None | Some(Trouble::Refused), Trouble::TimedOut) => {
                vec![Action::Complain(peer)]
            }
            (Some(Trouble::TimedOut), Trouble::Refused) => vec![Action::Withdraw(peer)],
            (None | Some(Trouble::Refused), Trouble::Refused) => Vec::new(),
        }
    }

    fn reached(&mut self, peer: Holder) -> Vec<Action> {
        match self.troubles.remove(&peer) {
            Some(Trouble::TimedOut) => vec![Action::Withdraw(peer)],
            Some(Trouble::Refused) | None => Vec::new(),
        }
    }

    fn evict(&mut self, now: Time) -> Option<Action> {
        if self
            .last
            .is_some_and(|last| now.since(last) < EVICTION_SPACING)
        {
            return None;
        }
        let target = self
            .troubles
            .keys()
            .find(|peer| self.convicted(peer))?
            .clone();
        self.last = Some(now);
        // Of two that evict each other only one succeeds, because the other's key is deleted by
        // then.
        let compares = vec![
            Compare::MemberIs(target.clone()),
            Compare::MemberIs(self.me.clone()),
        ];
        let writes = vec![Write::DeleteMember(target.replica.clone())];
        Some(Action::Evict {
            target,
            transaction: Transaction { compares, writes },
        })
    }

    fn convicted(&self, peer: &Holder) -> bool {
        match self.troubles.get(peer) {
            Some(Trouble::Refused) => true,
            Some(Trouble::TimedOut) => {
                let from_living = |from: &&ReplicaId| {
                    **from != peer.replica && self.members.iter().any(|m| m.replica == **from)
                };
                let complaints = self.complaints.get(peer);
                let of_others = complaints.map_or(0, |all| all.iter().filter(from_living).count());
                // This replica's own complaint counts too. Half of the whole ring must complain,
                // and not half of the accused's peers: of three members, one that is cut off from
                // both others must not evict them.
                (of_others + 1) * 2 >= self.members.len()
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_ring::Incarnation;

    fn holder(replica: &str) -> Holder {
        let incarnation = Incarnation::new(1);
        Holder {
            replica: replica.parse().expect("a replica id"),
            incarnation,
        }
    }

    fn ring(names: &[&str]) -> Eviction {
        let mut eviction = Eviction::new(holder(names[0]));
        let members = names.iter().map(|name| holder(name)).collect();
        assert!(
            eviction
                .step(Time::from_nanos(0), Event::View(members))
                .is_empty()
        );
        eviction
    }

    fn evicted(actions: &[Action]) -> Vec<&Holder> {
        let target = |action: &'_ Action| matches!(action, Action::Evict { .. });
        let evicts = actions.iter().filter(|action| target(action));
        evicts
            .map(|action| match action {
                Action::Evict { target, .. } => target,
                Action::Complain(peer) | Action::Withdraw(peer) => peer,
            })
            .collect()
    }

    fn refused(peer: &str) -> Event {
        Event::Unreachable {
            peer: holder(peer),
            trouble: Trouble::Refused,
        }
    }

    fn timed_out(peer: &str) -> Event {
        Event::Unreachable {
            peer: holder(peer),
            trouble: Trouble::TimedOut,
        }
    }

    #[test]
    fn refusals_evict_at_once_but_one_per_second() {
        let mut eviction = ring(&["a", "b", "c"]);
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let actions = eviction.step(at(10), refused("b"));
        assert_eq!(evicted(&actions), [&holder("b")]);
        let [Action::Evict { transaction, .. }] = actions.as_slice() else {
            panic!("one eviction expected, got {actions:?}");
        };
        let compares = [
            Compare::MemberIs(holder("b")),
            Compare::MemberIs(holder("a")),
        ];
        assert_eq!(transaction.compares, compares);
        assert!(eviction.step(at(20), refused("c")).is_empty());
        let view = Event::View(vec![holder("a"), holder("c")]);
        assert!(eviction.step(at(30), view).is_empty());
        assert!(eviction.step(at(1009), Event::Tick).is_empty());
        assert_eq!(
            evicted(&eviction.step(at(1010), Event::Tick)),
            [&holder("c")]
        );
    }

    #[test]
    fn time_outs_need_half_of_the_ring() {
        let mut eviction = ring(&["a", "b", "c", "d", "e", "f"]);
        let now = Time::from_nanos(5);
        assert_eq!(
            eviction.step(now, timed_out("b")),
            [Action::Complain(holder("b"))]
        );
        let complaint = |from: &str| Event::Complaint {
            from: from.parse().expect("a replica id"),
            about: holder("b"),
        };
        assert!(
            eviction.step(now, complaint("c")).is_empty(),
            "two of six are not half"
        );
        assert!(
            eviction.step(now, complaint("b")).is_empty(),
            "the accused has no voice"
        );
        assert!(
            eviction.step(now, complaint("x")).is_empty(),
            "nor has a stranger"
        );
        assert_eq!(evicted(&eviction.step(now, complaint("d"))), [&holder("b")]);
    }

    #[test]
    fn a_replica_cut_off_from_all_peers_evicts_nobody() {
        for size in 3..=6 {
            cut_off(&["a", "b", "c", "d", "e", "f"][..size]);
        }
    }

    fn cut_off(names: &[&str]) {
        let mut eviction = ring(names);
        for peer in &names[1..] {
            let actions = eviction.step(Time::from_nanos(5), timed_out(peer));
            assert_eq!(actions, [Action::Complain(holder(peer))]);
        }
        let actions = eviction.step(Time::from_nanos(6), Event::Reached(holder("b")));
        assert_eq!(actions, [Action::Withdraw(holder("b"))]);
    }

    #[test]
    fn of_a_pair_one_complaint_is_half() {
        let mut eviction = ring(&["a", "b"]);
        let actions = eviction.step(Time::from_nanos(5), timed_out("b"));
        assert_eq!(evicted(&actions), [&holder("b")]);
        assert!(
            ring(&["a", "b"])
                .step(Time::from_nanos(5), timed_out("a"))
                .is_empty()
        );
    }
}
