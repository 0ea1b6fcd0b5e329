//! Behaviour of the kinds of the core group, whose name is empty.

pub mod component_status;
pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod replication_controller;
pub mod resource_quota;
pub mod secret;
pub mod service;
pub mod service_account;

use polyplane_registry::Strategy;
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        // A binding changes a pod; it is not stored itself.
        "bindings" => Arc::new(Plain),
        "componentstatuses" => Arc::new(component_status::ComponentStatus),
        "configmaps" => Arc::new(config_map::ConfigMap),
        "endpoints" => Arc::new(endpoints::Endpoints),
        "events" => Arc::new(event::Event::Core),
        "limitranges" => Arc::new(limit_range::LimitRange),
        "namespaces" => Arc::new(namespace::Namespace),
        "nodes" => Arc::new(node::Node),
        "persistentvolumeclaims" => Arc::new(persistent_volume_claim::PersistentVolumeClaim),
        "persistentvolumes" => Arc::new(persistent_volume::PersistentVolume),
        "pods" => Arc::new(pod::Pod),
        "podtemplates" => Arc::new(pod_template::PodTemplate),
        "replicationcontrollers" => Arc::new(replication_controller::ReplicationController),
        "resourcequotas" => Arc::new(resource_quota::ResourceQuota),
        "secrets" => Arc::new(secret::Secret),
        "serviceaccounts" => Arc::new(service_account::ServiceAccount),
        "services" => Arc::new(service::Service),
        _ => return None,
    };
    Some(strategy)
}

/// The indexes that claims of these kinds ask, by their [`polyplane_plane::IndexId`].
pub fn indexes() -> Vec<Arc<dyn polyplane_plane::Index>> {
    vec![Arc::new(service::allocation::NodePorts)]
}
