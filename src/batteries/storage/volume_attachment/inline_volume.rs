//! The specs of volumes that have no PersistentVolume, for a CSI driver that replaces an older
//! plugin.

use crate::core::persistent_volume;
use crate::core::persistent_volume::claim_fields;
use crate::core::persistent_volume::sources::is_root;
use crate::shared::validation::members::present;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Map, Value};

const NOT_INLINE: &str = "may not be specified in the context of inline volumes";

/// Validates the spec of a volume without an object.
pub fn validate(errors: &mut Complaints, spec: &Value, path: &Path<'_>) {
    if present(&spec["claimRef"]) {
        errors.push(FieldError::forbidden(&path.child("claimRef"), NOT_INLINE));
    }
    if spec["capacity"]
        .as_object()
        .is_some_and(|capacity| !Map::is_empty(capacity))
    {
        errors.push(FieldError::forbidden(&path.child("capacity"), NOT_INLINE));
    }
    if spec["csi"].is_null() {
        let detail = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), detail));
    }
    if spec.items_at(&["accessModes"]).is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    claim_fields::validate_modes(spec, path, errors);
    if !["", "Retain"].contains(&spec.str_at(&["persistentVolumeReclaimPolicy"])) {
        let detail = "may only be Retain in the context of inline volumes";
        errors.push(FieldError::forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            detail,
        ));
    }
    if present(&spec["nodeAffinity"]) {
        errors.push(FieldError::forbidden(
            &path.child("nodeAffinity"),
            NOT_INLINE,
        ));
    }
    let mut volume = Value::object();
    volume.set(&["spec"], spec.clone());
    persistent_volume::validate_sources(&volume, path, errors);
    let reclaim = spec.str_at(&["persistentVolumeReclaimPolicy"]);
    if is_root(spec.str_at(&["hostPath", "path"])) && reclaim == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            detail,
        ));
    }
    if !spec.str_at(&["storageClassName"]).is_empty() {
        errors.push(FieldError::forbidden(
            &path.child("storageClassName"),
            NOT_INLINE,
        ));
    }
    if spec["volumeMode"]
        .as_str()
        .is_some_and(|mode| mode != "Filesystem")
    {
        let detail =
            "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.push(FieldError::forbidden(&path.child("volumeMode"), detail));
    }
}
