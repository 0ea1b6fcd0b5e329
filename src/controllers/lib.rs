//! Reconcilers that run at a plane's owner.
//!
//! Nothing here watches or polls: a write through the registry wakes what it concerns, and a plane
//! that is woken is looked through once for work that was left. So a plane without work has no
//! task. One clock for all planes sweeps expired objects and writes the figures of planes.
//!
//! What runs: namespaces that are deleted are emptied and go; what every namespace and every plane
//! has comes back when it is deleted; planes that are deleted are removed with all they hold;
//! objects whose time has come go; objects go with their owners, or their owners wait for them;
//! planes of an older layer come to this program's once the store's floor allows it.

mod client;
mod control_planes;
mod dependents;
mod layers;
mod namespaces;
mod restore;
mod sweep;
mod work;

pub use sweep::{RootHere, Sweeper};
pub use work::{PlaneInfo, Reconcilers, WriteObserver};
