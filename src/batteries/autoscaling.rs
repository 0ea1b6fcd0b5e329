//! Behaviour of the kinds of `autoscaling`.

pub mod horizontal_pod_autoscaler;

use crate::battery::{Battery, Kind};
use horizontal_pod_autoscaler::Autoscaler;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "autoscaling",
    kinds: &[
        Kind::in_version("v1", "horizontalpodautoscalers", || {
            Arc::new(Autoscaler::Converted)
        }),
        Kind::in_version("v2", "horizontalpodautoscalers", || {
            Arc::new(Autoscaler::Stored)
        }),
    ],
    indexes: &[],
};
