//! Behaviour of the kinds of `scheduling.k8s.io`.

pub mod priority_class;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "priorityclasses" => Arc::new(priority_class::PriorityClass),
        _ => return None,
    };
    Some(strategy)
}
