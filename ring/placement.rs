//! Weighted rendezvous placement. Owns the score and the choice; must not know fences or load.
//!
//! Each member draws u in (0, 1) for a plane: XXH3-64 of the plane's id, seeded with XXH3-64 of the
//! replica's id. Its score is −ln(u) / weight, and the lowest score wins. Scores are exponentially
//! distributed with the weight as the rate, so each member wins a share of the planes in proportion
//! to its weight. Scores are compared as exact fractions: nothing is rounded after the logarithm.
//! Of two equal scores, that of the lower replica id wins.

use alloc::vec::Vec;
use core::cmp::Ordering;

use twox_hash::XxHash3_64;

use crate::log2::neg_log2;
use crate::name::{PlaneId, ReplicaId, Zone};
use crate::view::{Member, Standing, View, Weight};

/// A user's preference for a plane's replica. A pin that no replica satisfies is ignored, so it
/// never causes an outage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Pin {
    /// No preference.
    #[default]
    Anywhere,
    /// This replica while it is Serving.
    Replica(ReplicaId),
    /// Some Serving replica of this zone while there is one.
    Zone(Zone),
}

/// The score of a member for a plane: −log2(u) / weight as an exact fraction, where u is the number
/// that the member draws for the plane. The lowest score wins.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    /// −log2(u) with 56 bits behind the point.
    neg_log2: u64,
    weight: Weight,
}

impl Score {
    /// Returns the score of a replica of this weight for this plane.
    pub fn of(plane: &PlaneId, replica: &ReplicaId, weight: Weight) -> Self {
        Self::seeded(plane, replica_seed(replica), weight)
    }

    /// Returns −log2(u) with 56 bits behind the point, before the division by the weight.
    pub fn neg_log2(self) -> u64 {
        self.neg_log2
    }

    fn seeded(plane: &PlaneId, seed: u64, weight: Weight) -> Self {
        let hash = XxHash3_64::oneshot_with_seed(seed, plane.as_str().as_bytes());
        Self {
            neg_log2: neg_log2(hash),
            weight,
        }
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.neg_log2) * u128::from(other.weight.get());
        let right = u128::from(other.neg_log2) * u128::from(self.weight.get());
        left.cmp(&right)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl View {
    /// Returns the replica that should own the plane; `None` only in an empty view.
    ///
    /// A pin that can be met wins, then Serving members by score, then, when none of those is left,
    /// Draining ones by score.
    pub fn designated(&self, plane: &PlaneId, pin: &Pin) -> Option<&Member> {
        let ranked = self
            .hashed()
            .iter()
            .map(|hashed| (hashed.rank(plane, pin), hashed));
        ranked
            .min_by(|a, b| a.0.cmp(&b.0))
            .map(|(_, hashed)| &hashed.member)
    }

    /// Returns up to `count` replicas that come after the designated one, in order. Each is the
    /// best of a zone not yet used, while there is such a zone. Draining members are standbys only
    /// if no Serving one is left.
    pub fn standbys(&self, plane: &PlaneId, pin: &Pin, count: usize) -> Vec<&Member> {
        let mut ranked = self.ranked(plane, pin);
        if ranked.is_empty() {
            return ranked;
        }
        let first = ranked.remove(0);
        if ranked
            .iter()
            .any(|member| member.standing == Standing::Serving)
        {
            ranked.retain(|member| member.standing == Standing::Serving);
        }
        let mut zones: Vec<&Option<Zone>> = Vec::from([&first.zone]);
        let mut chosen = Vec::new();
        while chosen.len() < count && !ranked.is_empty() {
            let elsewhere = ranked
                .iter()
                .position(|member| !zones.contains(&&member.zone));
            let member = ranked.remove(elsewhere.unwrap_or(0));
            zones.push(&member.zone);
            chosen.push(member);
        }
        chosen
    }

    /// Returns all members, best first, in the order of [`View::designated`].
    pub fn ranked(&self, plane: &PlaneId, pin: &Pin) -> Vec<&Member> {
        let ranked = self
            .hashed()
            .iter()
            .map(|hashed| (hashed.rank(plane, pin), hashed));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by(|a, b| a.0.cmp(&b.0));
        ranked
            .into_iter()
            .map(|(_, hashed)| &hashed.member)
            .collect()
    }
}

/// A member with the hash of its name, computed once per view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HashedMember {
    pub(crate) seed: u64,
    pub(crate) member: Member,
}

impl HashedMember {
    fn rank<'a>(&'a self, plane: &PlaneId, pin: &Pin) -> Rank<'a> {
        let member = &self.member;
        let pinned = match pin {
            Pin::Anywhere => false,
            Pin::Replica(id) => *id == member.id,
            Pin::Zone(zone) => member.zone.as_ref() == Some(zone),
        };
        let tier = match (member.standing, pinned) {
            (Standing::Serving, true) => Tier::Pinned,
            (Standing::Serving, false) => Tier::Serving,
            (Standing::Draining, _) => Tier::Draining,
        };
        let score = Score::seeded(plane, self.seed, member.weight);
        Rank {
            tier,
            score,
            id: &member.id,
        }
    }
}

/// Returns the seed of a replica: the hash of its name.
pub(crate) fn replica_seed(replica: &ReplicaId) -> u64 {
    XxHash3_64::oneshot(replica.as_str().as_bytes())
}

/// The criteria that decide between two members, in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    tier: Tier,
    score: Score,
    id: &'a ReplicaId,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Pinned,
    Serving,
    Draining,
}
