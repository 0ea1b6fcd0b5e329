//! Behaviour of the kinds of `coordination.k8s.io`.

pub mod lease;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "leases" => Arc::new(lease::Lease),
        _ => return None,
    };
    Some(strategy)
}
