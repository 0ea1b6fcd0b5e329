//! The built-in API groups: their generated rows and schemas, and what data cannot say about each
//! kind.
//!
//! `data/` is written by the Go program in `generate/`, which asks upstream's own code; nothing in
//! it is typed by hand. A kind whose behaviour is more than its data has one short file with a
//! [`Strategy`] in the folder of its group, named in the table at
//! [`strategy`]. `golden/` holds upstream's answers to thousands of objects per kind;
//! `tests/golden.rs` measures how many of them we give too.

pub mod apps;
pub mod batch;
pub mod bootstrap;
pub mod catalog;
pub mod control_plane;
pub mod core;
pub mod features;
pub mod misc;
pub mod networking;
pub mod policies;
pub mod resource;
pub mod shared;
pub mod steps;
pub mod storage;

use polyplane_plane::Index;
use polyplane_registry::Strategy;
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The indexes every plane is opened with, by their [`IndexId`](polyplane_plane::IndexId).
pub fn indexes() -> Vec<Arc<dyn Index>> {
    let mut indexes = core::indexes();
    indexes.push(Arc::new(control_plane::PlaneIds));
    indexes
}

/// The behaviour of a resource: [`Plain`] for a kind whose data says all, `None` for a resource
/// that is named nowhere, which the table of kinds refuses.
pub fn strategy(group: &str, version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    match group {
        "" => core::strategy(resource),
        "apps" => apps::strategy(resource),
        "batch" | "autoscaling" => batch::strategy(group, version, resource),
        "networking.k8s.io" | "discovery.k8s.io" => networking::strategy(group, resource),
        "storage.k8s.io" => storage::strategy(resource),
        "resource.k8s.io" => resource::strategy(resource),
        "polyplane.dev" => control_plane::strategy(resource),
        "rbac.authorization.k8s.io"
        | "admissionregistration.k8s.io"
        | "flowcontrol.apiserver.k8s.io"
        | "certificates.k8s.io"
        | "policy" => policies::strategy(group, resource),
        "authentication.k8s.io" | "authorization.k8s.io" => review_strategy(resource),
        _ => misc::strategy(group, resource),
    }
}

/// Reviews are answered and never stored: nothing prepares or validates them.
fn review_strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    matches!(
        resource,
        "tokenreviews"
            | "selfsubjectreviews"
            | "subjectaccessreviews"
            | "localsubjectaccessreviews"
            | "selfsubjectaccessreviews"
            | "selfsubjectrulesreviews"
    )
    .then(|| Arc::new(Plain) as Arc<dyn Strategy>)
}
