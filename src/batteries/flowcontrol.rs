//! Behaviour of the kinds of `flowcontrol.apiserver.k8s.io`.

pub mod flow_schema;
pub mod priority_level_configuration;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "flowschemas" => Arc::new(flow_schema::FlowSchema),
        "prioritylevelconfigurations" => {
            Arc::new(priority_level_configuration::PriorityLevelConfiguration)
        }
        _ => return None,
    };
    Some(strategy)
}
