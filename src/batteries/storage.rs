//! Behaviour of the kinds of `storage.k8s.io`.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod provisioner;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "storage.k8s.io",
    kinds: &[
        Kind::new("csidrivers", || Arc::new(csi_driver::CsiDriver)),
        Kind::new("csinodes", || Arc::new(csi_node::CsiNode)),
        Kind::new("csistoragecapacities", || {
            Arc::new(csi_storage_capacity::CsiStorageCapacity)
        }),
        Kind::new("storageclasses", || Arc::new(storage_class::StorageClass)),
        Kind::new("volumeattachments", || {
            Arc::new(volume_attachment::VolumeAttachment)
        }),
        Kind::new("volumeattributesclasses", || {
            Arc::new(volume_attributes_class::VolumeAttributesClass)
        }),
    ],
    indexes: &[],
};
