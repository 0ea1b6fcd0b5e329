//! VolumeAttachments: a request to attach a volume to a node, and its outcome.

pub mod inline_volume;

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::domain_names::csi_driver_name;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

/// Most bytes of all keys and values of `status.attachmentMetadata` together.
const METADATA_BYTES_MAX: usize = 256 * 1024;
const MESSAGE_BYTES_MAX: usize = 1024;

/// Behaviour of VolumeAttachments.
#[derive(Debug)]
pub struct VolumeAttachment;

impl Strategy for VolumeAttachment {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate(&mut errors, object);
        errors
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        self.validate_update(context, object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_cell(object),
            spec.str_at(&["attacher"]).into(),
            spec.str_at(&["source", "persistentVolumeName"]).into(),
            spec.str_at(&["nodeName"]).into(),
            object.bool_at(&["status", "attached"]).into(),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    let path = Path::new("spec");
    let spec = &object["spec"];
    let mut attacher = Complaints::default();
    csi_driver_name(
        spec.str_at(&["attacher"]),
        &path.child("attacher"),
        &mut attacher,
    );
    errors.extend(attacher.into_iter().map(FieldError::covered));
    validate_source(errors, &spec["source"], &path.child("source"));
    let node = spec.str_at(&["nodeName"]);
    complain(
        errors,
        &path.child("nodeName"),
        node,
        names::dns1123_subdomain(node),
    );
    validate_status(errors, &object["status"]);
    if let Some(volume) = spec["source"]["persistentVolumeName"].as_str() {
        let place = path.child("source");
        complain(
            errors,
            &place.child("persistentVolumeName"),
            volume,
            names::dns1123_subdomain(volume),
        );
    }
}

fn validate_source(errors: &mut Complaints, source: &Value, path: &Path<'_>) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let inline = &source["inlineVolumeSpec"];
    match source["persistentVolumeName"].as_str() {
        None if inline.is_null() => errors.push(FieldError::required(path, ONE)),
        Some(_) if !inline.is_null() => errors.push(FieldError::forbidden(path, ONE)),
        Some("") => {
            let place = path.child("persistentVolumeName");
            errors.push(FieldError::required(
                &place,
                "must specify non empty persistentVolumeName",
            ));
        }
        Some(_) => {}
        None => inline_volume::validate(errors, inline, &path.child("inlineVolumeSpec")),
    }
}

fn validate_status(errors: &mut Complaints, status: &Value) {
    let path = Path::new("status");
    let metadata = status["attachmentMetadata"]
        .as_object()
        .into_iter()
        .flat_map(Map::iter);
    let bytes: usize = metadata
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > METADATA_BYTES_MAX {
        errors.push(FieldError::too_long(
            &path.child("attachmentMetadata"),
            METADATA_BYTES_MAX,
        ));
    }
    for field in ["attachError", "detachError"] {
        let place = path.child(field);
        if status.str_at(&[field, "message"]).len() > MESSAGE_BYTES_MAX {
            errors.push(FieldError::too_long(
                &place.child("message"),
                MESSAGE_BYTES_MAX,
            ));
        }
        if let Some(code) = status
            .int_at(&[field, "errorCode"])
            .filter(|code| *code < 0)
        {
            let detail = names::inclusive_range(0, i64::from(i32::MAX));
            errors.push(FieldError::invalid(&place.child("errorCode"), code, detail));
        }
    }
}
