//! Checks of changes of a PersistentVolumeClaim.

use super::{CLASS_ANNOTATION, align_sources};
use crate::shared::resource_names::amount;
use crate::shared::validation::equality::alike;
use crate::shared::validation::text_diff;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::schema::Schemas;

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";

/// Checks an update of a claim against the stored claim: most of the spec may not change, and a
/// smaller storage request must stay above `status.capacity`.
pub fn validate(schemas: &Schemas, object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let (mut new, mut before) = (object.clone(), old.clone());
    align_sources(&mut before);
    if old.str_at(&["spec", "volumeName"]).is_empty() {
        copy(&new, &mut before, "volumeName");
    }
    forgive_class(object, old, &mut new, &mut errors);
    let bound = object.str_at(&["status", "phase"]) == "Bound";
    if bound {
        if !object["spec"]["resources"]["requests"].is_null() {
            let storage = old.at(&["spec", "resources", "requests", "storage"]);
            let storage = storage.cloned().unwrap_or_else(|| "0".into());
            new.set(&["spec", "resources", "requests", "storage"], storage);
        }
        let kept = before.clone();
        copy(&kept, &mut new, "volumeAttributesClassName");
    }
    let spec = Path::new("spec");
    if !alike(schemas, SPEC, &new["spec"], &before["spec"]) {
        let diff = text_diff::texts(
            &schemas.internal_text(SPEC, &before["spec"]),
            &schemas.internal_text(SPEC, &new["spec"]),
        );
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{diff}"
        );
        errors.push(FieldError::forbidden(&spec, detail));
    }
    let storage = ["spec", "resources", "requests", "storage"];
    let (size, before_size) = (amount(object.at(&storage)), amount(old.at(&storage)));
    if size < before_size && size <= amount(old.at(&["status", "capacity", "storage"])) {
        let resources = spec.child("resources");
        let requests = resources.child("requests");
        let detail = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(&requests.child("storage"), detail));
    }
    validate_volume_mode(object, old, &mut errors);
    validate_attributes_class(object, old, &mut errors);
    errors
}

/// Checks that `volumeMode` does not change.
pub fn validate_volume_mode(object: &Value, old: &Value, errors: &mut Complaints) {
    let mode = &object["spec"]["volumeMode"];
    if *mode != old["spec"]["volumeMode"] {
        let bad = if mode.is_null() {
            Bad::Plain(Value::Null)
        } else {
            Bad::Json(mode.clone())
        };
        errors.push(FieldError::invalid(
            &Path::new("volumeMode"),
            bad,
            "field is immutable",
        ));
    }
}

fn validate_attributes_class(object: &Value, old: &Value, errors: &mut Complaints) {
    let class = &object["spec"]["volumeAttributesClassName"];
    let current = &old["status"]["currentVolumeAttributesClassName"];
    if *class == old["spec"]["volumeAttributesClassName"] || current.is_null() {
        return;
    }
    let what = match class.as_str() {
        None => "nil",
        Some("") => "empty string",
        Some(_) => return,
    };
    let spec = Path::new("spec");
    let detail = format!(
        "update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil"
    );
    errors.push(FieldError::forbidden(
        &spec.child("volumeAttributesClassName"),
        detail,
    ));
}

/// Removes complaints about the class: it may move from the old annotation to the field, and may be
/// set once.
fn forgive_class(object: &Value, old: &Value, new: &mut Value, errors: &mut Complaints) {
    let path = ["metadata", "annotations", CLASS_ANNOTATION];
    let (now, then) = (
        object.at(&path).and_then(Value::as_str),
        old.at(&path).and_then(Value::as_str),
    );
    let class = object["spec"]["storageClassName"].as_str();
    let had_class = !old["spec"]["storageClassName"].is_null();
    if then.is_some() && !had_class && class == then && (now.is_none() || now == then) {
        drop(new.remove(&["spec", "storageClassName"]));
        return;
    }
    if now.unwrap_or("") != then.unwrap_or("") {
        let metadata = Path::new("metadata");
        let annotations = metadata.child("annotations");
        let place = annotations.child(CLASS_ANNOTATION);
        errors.push(FieldError::invalid(
            &place,
            now.unwrap_or(""),
            "field is immutable",
        ));
    }
    if class.is_some() && !had_class && (then.is_none() || class == then) {
        drop(new.remove(&["spec", "storageClassName"]));
    }
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.at(&["spec", field]) {
        Some(value) => to.set(&["spec", field], value.clone()),
        None => drop(to.remove(&["spec", field])),
    }
}
