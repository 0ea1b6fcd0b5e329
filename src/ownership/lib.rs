//! Who serves a plane: the ring, fences, and planes that wake and sleep.
//!
//! The pure crates `ring` and `fencing` decide; the drivers here do what their actions say and feed
//! the outcomes back.
//!
//! * [`Ring`]: this replica's membership, the view of all members, evictions. A thread of its own
//!   joins, reads the member key each 100 ms, and renews.
//! * [`Planes`]: where planes are, and the way to wake one: its fence is taken by the four rules of
//!   the acquire, at first use and no earlier; a plane that sleeps has a released fence. Handing
//!   off, draining and deleting are here too.
//! * [`Peers`] and [`PeerHandler`]: what replicas say to each other, whatever carries it.
//!
//! A store that only this process has open takes the same path and waits for nobody: opening it
//! proved all earlier lives dead.
//!
//! # Where the rules of `fencing/PROTOCOL.md` are
//! The machines keep 1, 2, 6, 7, 9, 10 and 17; the drivers send each transaction once and report
//! its outcome (`custody`). Of the others, by number: 3 and 16 in `custody` (the tenure's copy) and
//! `life` (the read lease's); 5 in `driver` and `members`; 8 in `driver` and `terms`; 11 in `life` and `driver`;
//! 12 in `let_go` (the root is released with the head that the member keys have moved on); 14 in
//! `steward` (compaction); 18 in `suspicion` and `driver` (progress); 19 in `handler` and `steward`;
//! 21 in [`Ring::next_observed`]; 22 in [`Ring::newcomer`]. `fences` removes the fences of planes
//! that are gone (10). A replica that only the store does not reach asks its peers (`hearsay`).
//! `floor` has the level floor of `src/plane/DESIGN.md`: which binaries may join, and which layer
//! planes have. `terms` has the lease terms and their change.
//!
//! Invariant: this crate knows planes, keys and transactions. It knows no kinds and no HTTP.

mod birth;
mod custody;
pub mod directory;
mod driver;
mod fences;
mod floor;
mod handler;
mod hearsay;
mod inspect;
mod let_go;
mod life;
mod measures;
mod member_record;
mod members;
mod options;
mod pace;
mod peers;
mod planes;
mod received;
mod record;
mod remove;
mod ring;
mod slot;
mod steward;
mod suspicion;
mod take;
mod terms;
mod translate;

#[cfg(test)]
mod tests;

pub use birth::{Birth, DirectoryKey};
pub use floor::RaiseError;
pub use inspect::{FencePage, FenceRow, FenceSeen, InspectError};
pub use measures::PlanesStats;
pub use member_record::{MEMBERS_NAMESPACE, members_prefix};
pub use options::{Place, ReplicaOptions};
pub use peers::{
    Figures, Life, NoPeers, PeerError, PeerHandler, PeerMessage, PeerReply, PeerRequest, Peers,
    Told,
};
pub use planes::{Planes, PlanesOptions, ROOT, StartError, WakeError};
pub use polyplane_fencing::{Duration as Length, LeaseTerms, Terms};
pub use polyplane_ring::{
    Member, PeerAddress, Pin, ReplicaId, Standing, View, ViewNumber, Weight, Zone,
};
pub use record::{Damaged, Floor};
pub use remove::DeleteError;
pub use ring::{JoinError, Ring, RingStats};
pub use terms::{CHANGE_LEVEL, ChangeError};
