//! Behaviour of the kinds of `polyplane.dev`.
//!
//! Only the root plane serves them. Their rows and schemas are written by hand in the form
//! of the generated ones.

pub mod control_plane;
pub mod fence;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "controlplanes" => Arc::new(control_plane::ControlPlane),
        "fences" => Arc::new(fence::Fence),
        _ => return None,
    };
    Some(strategy)
}
