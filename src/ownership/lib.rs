//! The ring, the fences, and planes that wake and sleep: which replica serves a plane.
//!
//! The pure crates `ring` and `fencing` decide. The drivers here perform the actions that these
//! return, and report the outcomes to them.
//!
//! * [`Ring`]: this replica's membership, the view of all members, evictions. A thread of its own
//!   joins, reads the member key each 100 ms, and renews.
//! * [`Planes`]: locates and wakes planes. A plane's fence is acquired at its first use and
//!   released when it falls asleep. Handing off, draining and deleting are here too.
//! * [`Peers`] and [`PeerHandler`]: the messages between replicas, independent of the transport.
//!
//! A store that only this process has open uses the same code and waits for no other replica:
//! opening it proved that all earlier lives are dead.
//!
//! # Which folder to open
//! * `membership`: a replica does not join, loses its life, or evicts a peer; lease terms.
//! * `planes`: a plane is not acquired, does not move, is not released or deleted; the level floor.
//! * `directory`: a plane is not found by its name, or only after a delay.
//!
//! `peers` has the messages between replicas, `peer_trust` which CAs they go by, `records` what this crate keeps in the store,
//! `transactions` the translation between the protocol's transactions and the store's.
//!
//! # Where the rules of `fencing/PROTOCOL.md` are
//! The machines of `fencing` enforce 1, 2, 6, 7, 9, 10 and 17; the drivers send each transaction
//! once and report its outcome (`planes/fence_driver`). Of the others, in `membership`: 3, 11 and
//! 16 in `own_life` (the read lease's copy); 5 in `member_driver`, `members` and `welcome`; 8 in
//! `lease_terms`; 11 also in `member_driver`; 18 in `suspicion` and `member_driver` (progress); 21
//! in [`Ring::next_observed`]; 22 in [`Ring::newcomer`]; 23 in `candidates`. In `planes`: 3 and 16 in `fence_driver`
//! (the tenure's copy); 12 in `release` (Released of the root names a head that counts the commits
//! of member keys too); 14 in `rebalance` (compaction); 19 in `peer_handler` and `rebalance`;
//! `fence_sweep` removes the fences of planes that were deleted (10). In `transactions`: 15. In the
//! crate `plane`: 4 in `Plane::settled`; 12 in `write::follow`; 13 in `write::committer`; 14 in
//! `history::past` (bookmarks). In the crate `server`: 20 in `peer::forward`. A replica that cannot
//! reach the store polls its peers (`membership/peer_view`). `planes/level_floor` has the level floor: it
//! decides which binaries may join, and which layer planes have. `copy` fills a store from another one.
//!
//! Invariant: this crate knows planes, keys and transactions. It knows no kinds and no HTTP.

pub mod agreement;
mod copy;
pub mod directory;
mod log_limit;
mod membership;
mod peer_trust;
mod peers;
mod planes;
mod records;
mod transactions;

#[cfg(test)]
mod tests;

pub use copy::record::{CopyFigures, CopyRecordError, is_unfinished_copy};
pub use copy::{CopyEnd, CopyError, CopyOptions, CopyState, StoreCopy};
pub use directory::birth::{Birth, DirectoryKey};
pub use directory::freshness::Freshness;
pub use membership::candidates::Candidate;
pub use membership::join_facts::JoinError;
pub use membership::lease_terms::ChangeError;
pub use membership::member_record::members_prefix;
pub use membership::options::ReplicaOptions;
pub use membership::ring::{Ring, RingStats};
pub use peer_trust::PeerTrust;
pub use peers::{
    Figures, Life, NoPeers, PeerError, PeerHandler, PeerMessage, PeerReply, PeerRequest, Peers,
    Used, ViewMember,
};
pub use planes::delete::DeleteError;
pub use planes::inspect::{FencePage, FenceRow, FenceSeen, InspectError, RingFigures};
pub use planes::level_floor::RaiseError;
pub use planes::metrics::PlanesStats;
pub use planes::options::{DeriveParams, PlanesOptions};
pub use planes::rewrap::RewrapError;
pub use planes::{PlaneLocation, Planes, ROOT, StartError, Unavailable, WakeError};
pub use polyplane_fencing::{Duration as Length, LeaseTerms, Terms};
pub use polyplane_ring::{Member, Pin, ReplicaId, Standing, View, ViewNumber, Weight, Zone};
pub use records::{Damaged, Floor};
