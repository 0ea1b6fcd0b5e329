//! Behaviour of the kinds of the core group, whose name is empty.

pub mod component_status;
pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod node_access;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_template;
pub mod replication_controller;
pub mod resource_quota;
pub mod secret;
pub mod service;
pub mod service_account;

use crate::battery::{Battery, Kind};
use polyplane_registry::strategy::Plain;
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "",
    kinds: &[
        // A binding changes a pod; it is not stored itself.
        Kind::new("bindings", || Arc::new(Plain)),
        Kind::new("componentstatuses", || {
            Arc::new(component_status::ComponentStatus)
        }),
        Kind::new("configmaps", || Arc::new(config_map::ConfigMap)),
        Kind::new("endpoints", || Arc::new(endpoints::Endpoints)),
        Kind::new("events", || Arc::new(event::Event::Core)),
        Kind::new("limitranges", || Arc::new(limit_range::LimitRange)),
        Kind::new("namespaces", || Arc::new(namespace::Namespace)),
        Kind::new("nodes", || Arc::new(node::Node)),
        Kind::new("persistentvolumeclaims", || {
            Arc::new(persistent_volume_claim::PersistentVolumeClaim)
        }),
        Kind::new("persistentvolumes", || {
            Arc::new(persistent_volume::PersistentVolume)
        }),
        Kind::new("pods", || Arc::new(pod::Pod)),
        Kind::new("podtemplates", || Arc::new(pod_template::PodTemplate)),
        Kind::new("replicationcontrollers", || {
            Arc::new(replication_controller::ReplicationController)
        }),
        Kind::new("resourcequotas", || Arc::new(resource_quota::ResourceQuota)),
        Kind::new("secrets", || Arc::new(secret::Secret)),
        Kind::new("serviceaccounts", || {
            Arc::new(service_account::ServiceAccount)
        }),
        Kind::new("services", || Arc::new(service::Service)),
    ],
    indexes: &[
        || Arc::new(service::allocation::NodePorts),
        || Arc::new(node_access::NodeRelations),
    ],
};
