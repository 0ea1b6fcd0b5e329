//! Behaviour of the kinds of `storagemigration.k8s.io`.

pub mod storage_version_migration;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "storagemigration.k8s.io",
    kinds: &[Kind::new("storageversionmigrations", || {
        Arc::new(storage_version_migration::StorageVersionMigration)
    })],
    indexes: &[],
};
