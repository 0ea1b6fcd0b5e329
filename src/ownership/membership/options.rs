//! The options that a replica is started with: its name, address and weight, and the lifetimes of
//! its records. Must not know where these values come from.

use polyplane_fencing::{LeaseTerms, Rules};
use polyplane_plane::{Layer, LayerHash};
use polyplane_ring::{PeerAddress, ReplicaId, Weight, Zone};
use std::time::Duration;

/// The options of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaOptions {
    /// The replica's name, unique in the ring. A newcomer of the same name ends its predecessor's
    /// life.
    pub id: ReplicaId,
    /// The address at which peers reach the replica.
    pub address: PeerAddress,
    /// The replica's failure domain, if known.
    pub zone: Option<Zone>,
    /// The replica's share of the planes.
    pub weight: Weight,
    /// The time for which the member key outlives its last renewal. It is renewed at a third of
    /// that time.
    pub member_ttl: Duration,
    /// The lease terms for a store that has none yet. If the store has terms, every replica follows
    /// those.
    pub terms: LeaseTerms,
    /// True if no other replica can have the store open.
    pub is_alone: bool,
    /// The level of this binary: it joins only a store whose floor is not above it.
    pub level: u32,
    /// The layer of that level: planes step to it once the floor has reached the level.
    pub layer: LayerHash,
    /// For how long all members must have had a level before the store's floor rises to it.
    pub raise_floor_after: Duration,
    /// The age beyond which the root's owner compacts history.
    pub history: Duration,
    /// The rules of the protocol in force. Only tests of this crate can take one out: in other
    /// builds the field does not exist, and all rules hold.
    #[cfg(test)]
    pub(crate) rules: Rules,
}

impl ReplicaOptions {
    /// The lowest level of any binary.
    pub const FIRST_LEVEL: u32 = 1;

    /// Creates the options of a replica with this name and address and default values for
    /// everything else.
    #[must_use]
    pub fn new(id: ReplicaId, address: PeerAddress) -> Self {
        Self {
            id,
            address,
            zone: None,
            weight: Weight::default(),
            member_ttl: Duration::from_secs(3),
            terms: LeaseTerms::default(),
            level: Self::FIRST_LEVEL,
            is_alone: false,
            layer: Layer::empty().hash().clone(),
            raise_floor_after: Duration::from_secs(3600),
            history: Duration::from_secs(300),
            #[cfg(test)]
            rules: Rules::default(),
        }
    }

    /// Returns the rules of the protocol in force: all of them, except in a test of this crate.
    pub(crate) fn rules(&self) -> Rules {
        #[cfg(test)]
        return self.rules;
        #[cfg(not(test))]
        Rules::default()
    }

    /// Returns the options of the one replica of a store that only this process has open. No other
    /// replica could take its place, so its member key outlives any suspend of the machine.
    #[must_use]
    pub fn alone(id: ReplicaId, address: PeerAddress) -> Self {
        Self {
            member_ttl: Duration::from_secs(10 * 365 * 24 * 3600),
            is_alone: true,
            ..Self::new(id, address)
        }
    }
}
