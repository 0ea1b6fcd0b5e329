//! The built-in API groups: their generated rows and schemas, and what data cannot say about each
//! kind.
//!
//! `data/` is written by the Go program in `generate/`, which asks upstream's own code; nothing in
//! it is typed by hand. A kind whose behaviour is more than its data has one short file with a
//! [`Strategy`] in the folder of its group, named in the table at
//! [`strategy`]. `golden/` holds upstream's answers to thousands of objects per kind;
//! `tests/golden.rs` measures how many of them we give too.

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod bootstrap;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod events;
pub mod feature_gates;
pub mod flowcontrol;
pub mod kind_tables;
pub mod networking;
pub mod node;
pub mod policy;
pub mod polyplane;
pub mod rbac;
pub mod resource;
pub mod scheduling;
pub mod shared;
pub mod storage;
pub mod storagemigration;

use polyplane_plane::Index;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// The indexes every plane is opened with, by their [`IndexId`](polyplane_plane::IndexId).
pub fn indexes() -> Vec<Arc<dyn Index>> {
    let mut indexes = core::indexes();
    indexes.push(Arc::new(polyplane::control_plane::PlaneIds));
    indexes
}

/// The behaviour of a resource: [`Plain`](polyplane_registry::strategy::Plain) for a kind whose data says all, `None` for a resource
/// that is named nowhere, which the table of kinds refuses.
pub fn strategy(group: &str, version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    match group {
        "" => core::strategy(resource),
        "admissionregistration.k8s.io" => admissionregistration::strategy(resource),
        "apiextensions.k8s.io" => apiextensions::strategy(resource),
        "apiregistration.k8s.io" => apiregistration::strategy(resource),
        "apps" => apps::strategy(resource),
        "authentication.k8s.io" => authentication::strategy(resource),
        "authorization.k8s.io" => authorization::strategy(resource),
        "autoscaling" => autoscaling::strategy(version, resource),
        "batch" => batch::strategy(resource),
        "certificates.k8s.io" => certificates::strategy(resource),
        "coordination.k8s.io" => coordination::strategy(resource),
        "discovery.k8s.io" => discovery::strategy(resource),
        "events.k8s.io" => events::strategy(resource),
        "flowcontrol.apiserver.k8s.io" => flowcontrol::strategy(resource),
        "networking.k8s.io" => networking::strategy(resource),
        "node.k8s.io" => node::strategy(resource),
        "policy" => policy::strategy(resource),
        "polyplane.dev" => polyplane::strategy(resource),
        "rbac.authorization.k8s.io" => rbac::strategy(resource),
        "resource.k8s.io" => resource::strategy(resource),
        "scheduling.k8s.io" => scheduling::strategy(resource),
        "storage.k8s.io" => storage::strategy(resource),
        "storagemigration.k8s.io" => storagemigration::strategy(resource),
        _ => None,
    }
}
