//! Behaviour of the kinds of `internal.apiserver.k8s.io`.

pub mod storage_version;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "internal.apiserver.k8s.io",
    kinds: &[Kind::new("storageversions", || {
        Arc::new(storage_version::StorageVersion)
    })],
    indexes: &[],
};
