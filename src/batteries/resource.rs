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

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "resource.k8s.io",
    kinds: &[
        Kind::new("deviceclasses", || Arc::new(device_class::DeviceClass)),
        Kind::new("devicetaintrules", || {
            Arc::new(device_taint_rule::DeviceTaintRule)
        }),
        Kind::new("resourceclaims", || Arc::new(resource_claim::ResourceClaim)),
        Kind::new("resourceclaimtemplates", || {
            Arc::new(resource_claim_template::ResourceClaimTemplate)
        }),
        Kind::new("resourceslices", || Arc::new(resource_slice::ResourceSlice)),
    ],
    indexes: &[],
};
