//! Behaviour of the kinds of `apiextensions.k8s.io`.

pub mod custom_resource_definition;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "customresourcedefinitions" => {
            Arc::new(custom_resource_definition::CustomResourceDefinition)
        }
        _ => return None,
    };
    Some(strategy)
}
