//! Behaviour of the kinds of `discovery.k8s.io`.

pub mod endpoint_slice;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "endpointslices" => Arc::new(endpoint_slice::EndpointSlice),
        _ => return None,
    };
    Some(strategy)
}
