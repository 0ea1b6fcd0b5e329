//! Behaviour of the kinds of `storagemigration.k8s.io`.

pub mod storage_version_migration;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "storageversionmigrations" => Arc::new(storage_version_migration::StorageVersionMigration),
        _ => return None,
    };
    Some(strategy)
}
