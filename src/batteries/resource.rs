//! Behaviour of the kinds of `resource.k8s.io`.
//!
//! The kinds are devices, classes of devices, and claims to devices.

pub mod admin_access;
pub mod device;
pub mod device_class;
pub mod device_taint_rule;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;
pub mod validation;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "deviceclasses" => Arc::new(device_class::DeviceClass),
        "devicetaintrules" => Arc::new(device_taint_rule::DeviceTaintRule),
        "resourceclaims" => Arc::new(resource_claim::ResourceClaim),
        "resourceclaimtemplates" => Arc::new(resource_claim_template::ResourceClaimTemplate),
        "resourceslices" => Arc::new(resource_slice::ResourceSlice),
        _ => return None,
    };
    Some(strategy)
}
