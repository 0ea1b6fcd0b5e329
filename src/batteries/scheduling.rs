//! Behaviour of the kinds of `scheduling.k8s.io`.

pub mod pod_group;
pub mod priority_class;
pub mod workload;

use crate::battery::{Battery, Kind};
use pod_group::PodGroup;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "scheduling.k8s.io",
    kinds: &[
        Kind::new("priorityclasses", || {
            Arc::new(priority_class::PriorityClass)
        }),
        Kind::new("workloads", || Arc::new(workload::Workload)),
        Kind::new("podgroups", || Arc::new(PodGroup::OfPods)),
        Kind::new("compositepodgroups", || Arc::new(PodGroup::OfGroups)),
    ],
    indexes: &[],
};
