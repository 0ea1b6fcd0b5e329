//! Behaviour of the kinds of `storage.k8s.io`.

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod provisioner;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "csidrivers" => Arc::new(csi_driver::CsiDriver),
        "csinodes" => Arc::new(csi_node::CsiNode),
        "csistoragecapacities" => Arc::new(csi_storage_capacity::CsiStorageCapacity),
        "storageclasses" => Arc::new(storage_class::StorageClass),
        "volumeattachments" => Arc::new(volume_attachment::VolumeAttachment),
        "volumeattributesclasses" => Arc::new(volume_attributes_class::VolumeAttributesClass),
        _ => return None,
    };
    Some(strategy)
}
