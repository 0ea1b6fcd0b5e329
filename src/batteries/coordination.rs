//! Behaviour of the kinds of `coordination.k8s.io`.

pub mod lease;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "coordination.k8s.io",
    kinds: &[Kind::new("leases", || Arc::new(lease::Lease))],
    indexes: &[],
};
