//! Behaviour of the kinds of `apps`.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod rolling_update;
pub mod stateful_set;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "controllerrevisions" => Arc::new(controller_revision::ControllerRevision),
        "daemonsets" => Arc::new(daemon_set::DaemonSet),
        "deployments" => Arc::new(deployment::Deployment),
        "replicasets" => Arc::new(replica_set::ReplicaSet),
        "statefulsets" => Arc::new(stateful_set::StatefulSet),
        _ => return None,
    };
    Some(strategy)
}
