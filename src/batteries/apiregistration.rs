//! Behaviour of the kinds of `apiregistration.k8s.io`.

pub mod api_service;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "apiservices" => Arc::new(api_service::ApiService),
        _ => return None,
    };
    Some(strategy)
}
