//! Behaviour of the kinds of misc.

pub mod api_service;
pub mod crd_defaults;
pub mod crd_schema;
pub mod crd_spec;
pub mod crd_structural;
pub mod crd_version;
pub mod crd_warnings;
pub mod custom_resource_definition;
pub mod lease;
pub mod priority_class;
pub mod runtime_class;
pub mod storage_version_migration;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of these groups; `None` if it is none of these kinds.
pub fn strategy(group: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    Some(match (group, resource) {
        ("events.k8s.io", "events") => Arc::new(crate::core::event::Event::Events),
        ("apiregistration.k8s.io", "apiservices") => Arc::new(api_service::ApiService),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            Arc::new(custom_resource_definition::CustomResourceDefinition)
        }
        ("coordination.k8s.io", "leases") => Arc::new(lease::Lease),
        ("node.k8s.io", "runtimeclasses") => Arc::new(runtime_class::RuntimeClass),
        ("scheduling.k8s.io", "priorityclasses") => Arc::new(priority_class::PriorityClass),
        ("storagemigration.k8s.io", "storageversionmigrations") => {
            Arc::new(storage_version_migration::StorageVersionMigration)
        }
        _ => return None,
    })
}
