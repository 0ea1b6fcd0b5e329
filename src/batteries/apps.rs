//! Behaviour of the kinds of apps.

mod common;
mod controller_revision;
mod daemon_set;
mod deployment;
mod replica_set;
mod rolling;
mod stateful_set;

pub(crate) use common::{shown_selector, template_warnings};

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    match resource {
        "controllerrevisions" => Some(Arc::new(controller_revision::ControllerRevision)),
        "daemonsets" => Some(Arc::new(daemon_set::DaemonSet)),
        "deployments" => Some(Arc::new(deployment::Deployment)),
        "replicasets" => Some(Arc::new(replica_set::ReplicaSet)),
        "statefulsets" => Some(Arc::new(stateful_set::StatefulSet)),
        _ => None,
    }
}
