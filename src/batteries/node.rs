//! Behaviour of the kinds of `node.k8s.io`.

pub mod runtime_class;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "runtimeclasses" => Arc::new(runtime_class::RuntimeClass),
        _ => return None,
    };
    Some(strategy)
}
