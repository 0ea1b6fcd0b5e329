//! Behaviour of the kinds of `discovery.k8s.io`.

pub mod endpoint_slice;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "discovery.k8s.io",
    kinds: &[Kind::new("endpointslices", || {
        Arc::new(endpoint_slice::EndpointSlice)
    })],
    indexes: &[],
};
