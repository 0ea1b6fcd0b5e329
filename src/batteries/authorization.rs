//! Behaviour of the kinds of `authorization.k8s.io`.
//!
//! Reviews are answered and never stored: nothing prepares or validates them.

use polyplane_registry::Strategy;
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "localsubjectaccessreviews" => Arc::new(Plain),
        "selfsubjectaccessreviews" => Arc::new(Plain),
        "selfsubjectrulesreviews" => Arc::new(Plain),
        "subjectaccessreviews" => Arc::new(Plain),
        _ => return None,
    };
    Some(strategy)
}
