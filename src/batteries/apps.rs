//! Behaviour of the kinds of `apps`.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod rolling_update;
pub mod stateful_set;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "apps",
    kinds: &[
        Kind::new("controllerrevisions", || {
            Arc::new(controller_revision::ControllerRevision)
        }),
        Kind::new("daemonsets", || Arc::new(daemon_set::DaemonSet)),
        Kind::new("deployments", || Arc::new(deployment::Deployment)),
        Kind::new("replicasets", || Arc::new(replica_set::ReplicaSet)),
        Kind::new("statefulsets", || Arc::new(stateful_set::StatefulSet)),
    ],
    indexes: &[],
};
