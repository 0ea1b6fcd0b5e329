//! Behaviour of the kinds of `policy`.

pub mod pod_disruption_budget;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "poddisruptionbudgets" => Arc::new(pod_disruption_budget::PodDisruptionBudget),
        _ => return None,
    };
    Some(strategy)
}
