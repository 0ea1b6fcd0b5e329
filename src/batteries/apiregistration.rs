//! Behaviour of the kinds of `apiregistration.k8s.io`.

pub mod api_service;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "apiregistration.k8s.io",
    kinds: &[Kind::new("apiservices", || {
        Arc::new(api_service::ApiService)
    })],
    indexes: &[],
};
