//! Behaviour of the kinds of `autoscaling`.

pub mod horizontal_pod_autoscaler;

use horizontal_pod_autoscaler::Autoscaler;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(version: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match (version, resource) {
        ("v1", "horizontalpodautoscalers") => Arc::new(Autoscaler::Converted),
        (_, "horizontalpodautoscalers") => Arc::new(Autoscaler::Stored),
        _ => return None,
    };
    Some(strategy)
}
