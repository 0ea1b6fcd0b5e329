//! What one replica has seen of the others' lives. Owns the time from which a dead holder's read
//! lease is waited out. Must not know a fence's content beyond its holder.

use alloc::collections::BTreeMap;

use polyplane_ring::{Incarnation, ReplicaId, ViewNumber};

use crate::record::{Fence, FenceState, Holder, Observed, Revision};
use crate::terms::LeaseTerms;
use crate::time::Time;

/// What a replica knows about one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
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
    life: Life,
    wait: LeaseTerms,
}

impl Sighting {
    /// Returns the fence.
    pub fn fence(&self) -> Option<&Observed<Fence>> {
        self.fence.as_ref()
    }

    /// Returns what is known about the fence's holder.
    pub fn life(&self) -> Life {
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
    pub fn life(&self, holder: &Holder) -> Life {
        let embedded = self
            .opened_at
            .is_some_and(|at| holder.incarnation.get() <= at.get());
        if embedded {
            return Life::BeforeOpening;
        }
        if self.alive.get(&holder.replica) == Some(&holder.incarnation) {
            return Life::Alive;
        }
        if let Some(since) = self.gone.get(holder) {
            return Life::Gone { since: *since };
        }
        let created = ViewNumber::new(holder.incarnation.get());
        match self.views.range(created..).next() {
            Some((_, since)) => Life::Gone { since: *since },
            None => Life::Unseen,
        }
    }

    /// Returns a fence that was read from the store, with what is known about its holder.
    pub fn judge(&self, fence: Option<Observed<Fence>>) -> Sighting {
        let life = match &fence {
            Some(Observed {
                value:
                    Fence {
                        holder,
                        state: FenceState::Held,
                        ..
                    },
                ..
            }) => self.life(holder),
            Some(_) | None => Life::Unseen,
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
        assert_eq!(witness.life(&holder("a", 1)), Life::Unseen);
        let both = [holder("a", 3), holder("b", 5)];
        witness.observe(at(10), ViewNumber::new(5), both);
        assert_eq!(witness.life(&holder("a", 3)), Life::Alive);
        assert_eq!(witness.life(&holder("a", 2)), Life::Gone { since: at(10) });
        assert_eq!(
            witness.life(&holder("a", 8)),
            Life::Unseen,
            "newer than the view"
        );
        witness.observe(at(20), ViewNumber::new(9), [holder("b", 5)]);
        witness.observe(
            at(30),
            ViewNumber::new(11),
            [holder("a", 11), holder("b", 5)],
        );
        assert_eq!(witness.life(&holder("a", 3)), Life::Gone { since: at(20) });
        assert_eq!(witness.life(&holder("a", 11)), Life::Alive);
        witness.observe(at(40), ViewNumber::new(9), []);
        assert_eq!(
            witness.life(&holder("b", 5)),
            Life::Alive,
            "an older view changes nothing"
        );
        witness.forget(at(25));
        assert_eq!(witness.life(&holder("a", 3)), Life::Gone { since: at(20) });
        assert_eq!(witness.life(&holder("a", 2)), Life::Gone { since: at(20) });
    }

    #[test]
    fn who_came_and_went_between_two_views_is_gone_since_the_second() {
        let mut witness = Witness::shared_store(LeaseTerms::default());
        witness.observe(Time::from_nanos(10), ViewNumber::new(5), []);
        witness.observe(Time::from_nanos(90), ViewNumber::new(9), []);
        let passed = holder("a", 7);
        assert_eq!(
            witness.life(&passed),
            Life::Gone {
                since: Time::from_nanos(90)
            }
        );
    }

    #[test]
    fn opening_an_embedded_store_proves_all_earlier_lives_over() {
        let mut witness = Witness::embedded_store(Revision::new(7), LeaseTerms::default());
        assert_eq!(witness.life(&holder("a", 7)), Life::BeforeOpening);
        witness.observe(Time::from_nanos(1), ViewNumber::new(8), [holder("a", 8)]);
        assert_eq!(witness.life(&holder("a", 8)), Life::Alive);
        assert_eq!(witness.life(&holder("a", 7)), Life::BeforeOpening);
    }
}
