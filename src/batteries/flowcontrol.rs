//! Behaviour of the kinds of `flowcontrol.apiserver.k8s.io`.

pub mod flow_schema;
pub mod priority_level_configuration;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "flowcontrol.apiserver.k8s.io",
    kinds: &[
        Kind::new("flowschemas", || Arc::new(flow_schema::FlowSchema)),
        Kind::new("prioritylevelconfigurations", || {
            Arc::new(priority_level_configuration::PriorityLevelConfiguration)
        }),
    ],
    indexes: &[],
};
