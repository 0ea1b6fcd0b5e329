//! Who serves a plane: fences, and planes that wake and sleep.
//!
//! Today one replica has the store to itself, so it is designated for every plane and asks nobody:
//! it takes a plane's fence when the plane is first used and every commit compares it
//! ([`polyplane_plane::CommitGuard`]). The drivers of membership, hand-off and forwarding over
//! several replicas take the same places: a guard per plane, one way to wake, one way to let go.
//!
//! Invariant: this crate knows planes, keys and transactions. It knows no kinds and no HTTP.

mod birth;
mod layers;
mod options;
mod peers;
mod planes;

pub use birth::{Birth, DirectoryKey};
pub use layers::Layers;
pub use options::{Place, ReplicaOptions};
pub use peers::{
    Life, NoPeers, PeerError, PeerHandler, PeerMessage, PeerReply, PeerRequest, Peers,
};
pub use planes::{DeleteError, Planes, PlanesOptions, StartError, WakeError};
pub use polyplane_ring::{Member, Pin};
