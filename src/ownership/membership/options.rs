//! What a replica is started with: its name, address and weight, and how long its records last. Must
//! not know where these values come from.

use polyplane_fencing::{LeaseTerms, Rules};
use polyplane_plane::{Layer, LayerHash};
use polyplane_ring::{PeerAddress, ReplicaId, Weight, Zone};
use std::time::Duration;

/// The options of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaOptions {
    /// Its name, unique in the ring; a newcomer of the same name ends its predecessor's life.
    pub id: ReplicaId,
    /// Where peers reach it.
    pub address: PeerAddress,
    /// Its failure domain, where known.
    pub zone: Option<Zone>,
    /// Its share of the planes.
    pub weight: Weight,
    /// How long its member key outlives the last renewal; it is renewed at a third of that time.
    pub member_ttl: Duration,
    /// The lease terms for a store that has none yet. Every replica follows the store's.
    pub terms: LeaseTerms,
    /// The level of this binary: it joins only a store whose floor is not above it.
    pub level: u32,
    /// The layer of that level: planes step to it once the floor has reached the level.
    pub layer: LayerHash,
    /// For how long all members must have had a level before the store's floor rises to it.
    pub raise_floor_after: Duration,
    /// The root's owner compacts history that is older.
    pub history: Duration,
    /// The rules in force. Only a test of this crate can take one out: for everybody else the field
    /// does not exist, and all hold.
    #[cfg(test)]
    pub(crate) rules: Rules,
}

impl ReplicaOptions {
    /// The lowest level there is.
    pub const FIRST_LEVEL: u32 = 1;

    /// A replica of this name and address, everything else as it is by default.
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
            layer: Layer::empty().hash().clone(),
            raise_floor_after: Duration::from_secs(3600),
            history: Duration::from_secs(300),
            #[cfg(test)]
            rules: Rules::default(),
        }
    }

    /// The rules of the protocol in force: all of them, but in a test of this crate.
    pub(crate) fn rules(&self) -> Rules {
        #[cfg(test)]
        return self.rules;
        #[cfg(not(test))]
        Rules::default()
    }

    /// The one replica of a store that only this process has open. Nobody could take its place, so
    /// its member key outlives any suspend of the machine.
    #[must_use]
    pub fn alone(id: ReplicaId, address: PeerAddress) -> Self {
        Self {
            member_ttl: Duration::from_secs(10 * 365 * 24 * 3600),
            ..Self::new(id, address)
        }
    }
}
