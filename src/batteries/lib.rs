//! The built-in API groups: their generated rows and schemas, and the behaviour of each kind that
//! data cannot express.
//!
//! `data/` is written by the Go program in `generate/`, which runs upstream's own code; nothing in
//! it is written by hand. A kind whose behaviour is more than its data has one short file with a
//! [`Strategy`] in the folder of its group; the file beside the folder has the group's row, the
//! `BATTERY`, which names all kinds of the group. `data/previews/` has the kinds of alpha and beta
//! versions, which only a server reads that serves them. `golden/` holds upstream's answers to hundreds of
//! cases for most kinds; `tests/golden.rs` measures how many of these answers this crate gives too.

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod battery;
pub mod bootstrap;
mod certificates;
mod coordination;
mod core;
mod discovery;
mod events;
pub mod feature_gates;
mod flowcontrol;
mod internal_apiserver;
pub mod kind_tables;
mod lifecycle;
mod networking;
mod node;
mod policy;
pub mod polyplane;
mod rbac;
mod resource;
mod scheduling;
mod shared;
mod storage;
mod storagemigration;

pub use crate::core::namespace::root_ca;
pub use crate::core::node_access;
pub use apiextensions::custom_resource_definition::status as definition_status;
pub use certificates::{keys as certificate_keys, pem};

use battery::Battery;
use polyplane_plane::Index;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// All batteries. An index is identified by its position among those of all rows
/// ([`IndexId`](polyplane_plane::IndexId)), so `core` must be first and `polyplane`, which only the
/// root plane serves, last.
const BATTERIES: &[Battery] = &[
    core::BATTERY,
    admissionregistration::BATTERY,
    apiextensions::BATTERY,
    apiregistration::BATTERY,
    apps::BATTERY,
    authentication::BATTERY,
    authorization::BATTERY,
    autoscaling::BATTERY,
    batch::BATTERY,
    certificates::BATTERY,
    coordination::BATTERY,
    discovery::BATTERY,
    events::BATTERY,
    flowcontrol::BATTERY,
    internal_apiserver::BATTERY,
    lifecycle::BATTERY,
    networking::BATTERY,
    node::BATTERY,
    policy::BATTERY,
    rbac::BATTERY,
    resource::BATTERY,
    scheduling::BATTERY,
    storage::BATTERY,
    storagemigration::BATTERY,
    polyplane::BATTERY,
];

/// Returns the indexes that every plane is opened with, in the order of their
/// [`IndexId`](polyplane_plane::IndexId).
pub fn indexes() -> Vec<Arc<dyn Index>> {
    let indexes = BATTERIES.iter().flat_map(|battery| battery.indexes);
    indexes.map(|index| index()).collect()
}

/// Returns the behaviour of a resource: [`Plain`](polyplane_registry::strategy::Plain) for a kind
/// that is not stored, `None` for a resource that no battery names, which the table of kinds
/// refuses.
pub fn strategy(group: &str, version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    let battery = BATTERIES.iter().find(|battery| battery.group == group)?;
    battery.strategy(version, resource)
}
