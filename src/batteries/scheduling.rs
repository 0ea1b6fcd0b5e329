//! Behaviour of the kinds of `scheduling.k8s.io`.

pub mod priority_class;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "scheduling.k8s.io",
    kinds: &[Kind::new("priorityclasses", || {
        Arc::new(priority_class::PriorityClass)
    })],
    indexes: &[],
};
