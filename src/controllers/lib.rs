//! Reconcilers that run at a plane's owner.
//!
//! Nothing here watches or polls: each write through the registry queues the work that it causes,
//! and a plane that wakes is searched once for pending work. So a plane without work has no task.
//! One timer for all planes removes expired objects and writes the sizes of planes.
//!
//! The reconcilers: `namespaces` empties and removes deleted namespaces; `restore` recreates the
//! objects that every namespace and every plane must have; `bootstrap_roles` brings the bootstrap roles
//! of a plane that was loaded up to date; `roles` writes the rules of aggregated roles; `definitions`
//! empties deleted kinds and removes their definitions; `api_services` keeps the APIServices of
//! custom kinds; `control_planes` removes deleted planes with their objects; `sweep` removes expired objects; `token_secrets` fills the
//! Secrets that hold tokens; `dependents` deletes objects whose owners are gone, and makes owners wait for their
//! dependents; `protection` lets deleted storage objects go once nothing uses them, keeps the
//! finalizers by which they wait, and shows which volume claims are in use; `quotas` shows in the status
//! of quotas what a namespace takes; `flow_schemas` shows in the status of flow schemas whether their
//! priority level exists; `authentication_cas` shows extension API servers the CAs of the plane's
//! clients; `certificates` approves and signs certificate signing requests and deletes old ones;
//! `service_ranges` adds a secondary range to the ServiceCIDR that shows the ranges of service
//! addresses, and says there that they can be used; `layers` steps planes of an older layer to this
//! program's once the store's floor allows it. `observer` knows which work a write causes. `work`
//! queues and runs them, so it names each of them, and they use its types; `charged` charges planes
//! for their runs.
//!
//! Invariant: reconcilers change objects through the registry, like any client, and what they do is
//! recorded by the audit like a client's requests (`audited`). Three exceptions commit to the plane
//! itself: `sweep` deletes expired objects, `layers` takes steps, `restore` creates the endpoints of the
//! server anew if their address is one that no client may write. Nothing here knows HTTP.

mod api_services;
mod audited;
mod authentication_cas;
mod bootstrap_roles;
mod certificates;
mod charged;
mod client;
mod control_planes;
mod definitions;
mod dependents;
mod flow_schemas;
mod layers;
mod namespaces;
mod observer;
mod protection;
mod quotas;
mod restore;
mod roles;
mod service_ranges;
mod sweep;
#[cfg(test)]
mod tests;
mod token_secrets;
mod work;

pub use client::OwnClient;
pub use observer::WriteObserver;
pub use sweep::{RootHere, Sweeper};
pub use work::{PlaneInfo, Reconcilers};
