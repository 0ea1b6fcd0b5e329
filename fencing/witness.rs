//! The knowledge of one replica about the others' lives. Owns the time from which a dead holder's
//! read lease is waited out. Must not know a fence's content beyond its holder.

use alloc::collections::BTreeMap;

use polyplane_ring::{Incarnation, ReplicaId, ViewNumber};

use crate::record::{Fence, FenceState, Holder, Observed, Revision};
use crate::terms::LeaseTerms;
use crate::time::Time;

/// The state of one incarnation, as far as a replica knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// The incarnation's member key is in the newest view.
    Alive,
    /// The incarnation's member key was seen to be gone.
    Gone {
        /// The time on this replica's clock at which that was first seen.
        since: Time,
    },
    /// The incarnation was created before the embedded store was opened exclusively: its process is
    /// dead.
    BeforeOpening,
    /// The incarnation is newer than the newest view: the view has to catch up first.
    Unseen,
}

/// A fence as read from the store, with what is known about its holder. Only a [`Witness`] creates
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sighting {
    fence: Option<Observed<Fence>>,
    life: Liveness,
    wait: LeaseTerms,
}

impl Sighting {
    /// Returns the fence.
    pub fn fence(&self) -> Option<&Observed<Fence>> {
        self.fence.as_ref()
    }

    /// Returns what is known about the fence's holder.
    pub fn liveness(&self) -> Liveness {
        self.life
    }

    /// Returns the lease terms that a replica which takes this fence waits out before it serves the
    /// plane.
    pub(crate) fn wait(&self) -> LeaseTerms {
        self.wait
    }
}

/// The memory of lives and deaths. Bounded by the members of the ring, and by the deaths and views
/// since the last [`Witness::forget`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Witness {
    alive: BTreeMap<ReplicaId, Incarnation>,
    gone: BTreeMap<Holder, Time>,
    /// The time at which each view was first seen. An incarnation that was never seen alive counts
    /// as gone since the first view that is new enough to include it.
    views: BTreeMap<ViewNumber, Time>,
    opened_at: Option<Revision>,
    /// The lease terms that takers wait out. Read together with what is known about a holder: terms
    /// that were read before the holder was seen to be gone could be shorter than the lease that
    /// the holder had at that time.
    wait: LeaseTerms,
}

impl Witness {
    /// Creates a witness on a store shared with other processes, before anything is known of its
    /// terms.
    pub fn shared_store(wait: LeaseTerms) -> Self {
        Self {
            alive: BTreeMap::new(),
            gone: BTreeMap::new(),
            views: BTreeMap::new(),
            opened_at: None,
            wait,
        }
    }

    /// Creates a witness on an embedded store that was opened exclusively at this revision: every
    /// incarnation created up to it is dead and nothing has to be waited for (PROTOCOL 22).
    pub fn embedded_store(opened_at: Revision, wait: LeaseTerms) -> Self {
        Self {
            opened_at: Some(opened_at),
            ..Self::shared_store(wait)
        }
    }

    /// Sets the lease terms that takers wait out from now on, as this replica's membership decides.
    pub fn wait_by(&mut self, wait: LeaseTerms) {
        self.wait = wait;
    }

    /// Applies a view, which has all member keys as they were at its number. A view older than the
    /// newest one changes nothing.
    pub fn observe(
        &mut self,
        now: Time,
        number: ViewNumber,
        members: impl IntoIterator<Item = Holder>,
    ) {
        if self
            .views
            .last_key_value()
            .is_some_and(|(newest, _)| number < *newest)
        {
            return;
        }
        let members = members
            .into_iter()
            .map(|holder| (holder.replica, holder.incarnation));
        let alive: BTreeMap<ReplicaId, Incarnation> = members.collect();
        for (replica, incarnation) in &self.alive {
            if alive.get(replica) != Some(incarnation) {
                let holder = Holder {
                    replica: replica.clone(),
                    incarnation: *incarnation,
                };
                self.gone.entry(holder).or_insert(now);
            }
        }
        self.views.entry(number).or_insert(now);
        self.alive = alive;
    }

    #[cfg(feature = "model")]
    pub(crate) fn times_mut(&mut self) -> impl Iterator<Item = &mut Time> {
        self.gone.values_mut().chain(self.views.values_mut())
    }

    /// Forgets deaths and views that were seen before `horizon`, except the last of those views:
    /// every incarnation that is forgotten was gone by then.
    pub fn forget(&mut self, horizon: Time) {
        self.gone.retain(|_, since| *since >= horizon);
        let before = self.views.iter().rev().find(|(_, at)| **at < horizon);
        if let Some((number, _)) = before {
            self.views = self.views.split_off(&number.clone());
        }
    }

    /// Returns what is known about an incarnation.
    pub fn liveness(&self, holder: &Holder) -> Liveness {
        let embedded = self
            .opened_at
            .is_some_and(|at| holder.incarnation.get() <= at.get());
        if embedded {
            return Liveness::BeforeOpening;
        }
        if self.alive.get(&holder.replica) == Some(&holder.incarnation) {
            return Liveness::Alive;
        }
        if let Some(since) = self.gone.get(holder) {
            return Liveness::Gone { since: *since };
        }
        let created = ViewNumber::new(holder.incarnation.get());
        match self.views.range(created..).next() {
            Some((_, since)) => Liveness::Gone { since: *since },
            None => Liveness::Unseen,
        }
    }

    /// Returns a fence that was read from the store, with what is known about its holder.
    pub fn sighting(&self, fence: Option<Observed<Fence>>) -> Sighting {
        let life = match &fence {
            Some(Observed {
                value:
                    Fence {
                        holder,
                        state: FenceState::Held,
                        ..
                    },
                ..
            }) => self.liveness(holder),
            Some(_) | None => Liveness::Unseen,
        };
        let wait = self.wait;
        Sighting { fence, life, wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(replica: &str, incarnation: u64) -> Holder {
        Holder {
            replica: replica.parse().expect("a replica id"),
            incarnation: Incarnation::new(incarnation),
        }
    }

    #[test]
    fn a_death_counts_from_when_it_was_first_seen() {
        let mut witness = Witness::shared_store(LeaseTerms::default());
        let at = Time::from_nanos;
        assert_eq!(witness.liveness(&holder("a", 1)), Liveness::Unseen);
        let both = [holder("a", 3), holder("b", 5)];
        witness.observe(at(10), ViewNumber::new(5), both);
        assert_eq!(witness.liveness(&holder("a", 3)), Liveness::Alive);
        assert_eq!(
            witness.liveness(&holder("a", 2)),
            Liveness::Gone { since: at(10) }
        );
        assert_eq!(
            witness.liveness(&holder("a", 8)),
            Liveness::Unseen,
            "newer than the view"
        );
        witness.observe(at(20), ViewNumber::new(9), [holder("b", 5)]);
        witness.observe(
            at(30),
            ViewNumber::new(11),
            [holder("a", 11), holder("b", 5)],
        );
        assert_eq!(
            witness.liveness(&holder("a", 3)),
            Liveness::Gone { since: at(20) }
        );
        assert_eq!(witness.liveness(&holder("a", 11)), Liveness::Alive);
        witness.observe(at(40), ViewNumber::new(9), []);
        assert_eq!(
            witness.liveness(&holder("b", 5)),
            Liveness::Alive,
            "an older view changes nothing"
        );
        witness.forget(at(25));
        assert_eq!(
            witness.liveness(&holder("a", 3)),
            Liveness::Gone { since: at(20) }
        );
        assert_eq!(
            witness.liveness(&holder("a", 2)),
            Liveness::Gone { since: at(20) }
        );
    }

    #[test]
    fn a_member_that_came_and_went_between_two_views_is_gone_since_the_second() {
        let mut witness = Witness::shared_store(LeaseTerms::default());
        witness.observe(Time::from_nanos(10), ViewNumber::new(5), []);
        witness.observe(Time::from_nanos(90), ViewNumber::new(9), []);
        let passed = holder("a", 7);
        assert_eq!(
            witness.liveness(&passed),
            Liveness::Gone {
                since: Time::from_nanos(90)
            }
        );
    }

    #[test]
    fn opening_an_embedded_store_proves_all_earlier_lives_over() {
        let mut witness = Witness::embedded_store(Revision::new(7), LeaseTerms::default());
        assert_eq!(witness.liveness(&holder("a", 7)), Liveness::BeforeOpening);
        witness.observe(Time::from_nanos(1), ViewNumber::new(8), [holder("a", 8)]);
        assert_eq!(witness.liveness(&holder("a", 8)), Liveness::Alive);
        assert_eq!(witness.liveness(&holder("a", 7)), Liveness::BeforeOpening);
    }
}
