//! Behaviour of the kinds of resource: devices, classes of them, and claims to them.

pub mod admin_access;
pub mod capacity_policy;
pub mod checks;
pub mod claim_spec;
pub mod claim_status;
pub mod device;
pub mod device_class;
pub mod device_taint_rule;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    Some(match resource {
        "deviceclasses" => Arc::new(device_class::DeviceClass),
        "devicetaintrules" => Arc::new(device_taint_rule::DeviceTaintRule),
        "resourceclaims" => Arc::new(resource_claim::ResourceClaim),
        "resourceclaimtemplates" => Arc::new(resource_claim_template::ResourceClaimTemplate),
        "resourceslices" => Arc::new(resource_slice::ResourceSlice),
        _ => return None,
    })
}
