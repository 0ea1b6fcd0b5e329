//! Behaviour of the kinds of `resource.k8s.io`.
//!
//! The kinds are devices, classes of devices, and claims to devices.

pub mod admin_access;
pub mod device;
pub mod device_class;
pub mod device_taint_rule;
mod expressions;
mod flat;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_pool_status_request;
pub mod resource_slice;
pub mod validation;

use crate::battery::{Battery, Kind};
use resource_claim::ResourceClaim;
use resource_claim_template::ResourceClaimTemplate;
use resource_slice::ResourceSlice;
use std::sync::Arc;

/// The version whose form is not that of the others.
const FLAT: &str = "v1beta1";

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "resource.k8s.io",
    kinds: &[
        Kind::new("deviceclasses", || Arc::new(device_class::DeviceClass)),
        Kind::new("devicetaintrules", || {
            Arc::new(device_taint_rule::DeviceTaintRule)
        }),
        Kind::new("resourcepoolstatusrequests", || {
            Arc::new(resource_pool_status_request::PoolStatusRequest)
        }),
        Kind::in_version(FLAT, "resourceclaims", || Arc::new(ResourceClaim::Flat)),
        Kind::new("resourceclaims", || Arc::new(ResourceClaim::Stored)),
        Kind::in_version(FLAT, "resourceclaimtemplates", || {
            Arc::new(ResourceClaimTemplate::Flat)
        }),
        Kind::new("resourceclaimtemplates", || {
            Arc::new(ResourceClaimTemplate::Stored)
        }),
        Kind::in_version(FLAT, "resourceslices", || Arc::new(ResourceSlice::Flat)),
        Kind::new("resourceslices", || Arc::new(ResourceSlice::Stored)),
    ],
    indexes: &[],
};
