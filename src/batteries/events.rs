//! Behaviour of the kinds of `events.k8s.io`.
//!
//! The group has a second view of the Events that `core` stores.

use crate::core::event::Event;
use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "events" => Arc::new(Event::Events),
        _ => return None,
    };
    Some(strategy)
}
