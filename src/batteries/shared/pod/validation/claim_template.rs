//! Claim templates inside a pod, and the specs of claims.

use crate::shared::resource_names;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::has;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels;
use polyplane_apimachinery::names;
use polyplane_registry::metadata;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

/// Fields of metadata that a template must not have, in upstream's order.
const FORBIDDEN_METADATA: [&str; 13] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Validates the template of a claim.
pub fn validate(template: &Value, path: &Path<'_>, errors: &mut Complaints) {
    validate_metadata(&template["metadata"], &path.child("metadata"), errors);
    validate_spec(&template["spec"], &path.child("spec"), errors);
}

/// Validates the metadata of a template: it may only have labels and annotations.
pub fn validate_metadata(given: &Value, path: &Path<'_>, errors: &mut Complaints) {
    metadata::validate_annotations(&given["annotations"], &path.child("annotations"), errors);
    errors.extend(labels::validate_labels(
        given.get("labels"),
        &path.child("labels"),
    ));
    for field in FORBIDDEN_METADATA {
        // An empty list and a period of zero count as set: upstream compares with Go's zero value, nil.
        let empty = match &given[field] {
            Value::Null => true,
            Value::Int(0) => field != "deletionGracePeriodSeconds",
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        if !empty {
            let shown = if field == "uid" { "uID" } else { field };
            errors.push(FieldError::forbidden(&path.child(shown), "cannot be set"));
        }
    }
}

/// Validates the spec of a new claim.
pub fn validate_spec(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let modes_path = path.child("accessModes");
    let modes: Vec<&str> = crate::shared::validation::members::texts(&spec["accessModes"]);
    if modes.is_empty() {
        errors.push(FieldError::required(
            &modes_path,
            "at least 1 access mode is required",
        ));
    }
    errors.extend(labels::validate_label_selector(
        spec.get("selector"),
        &path.child("selector"),
    ));
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.push(FieldError::not_supported(
            &modes_path,
            named(mode),
            &ACCESS_MODES,
        ));
    }
    let single = modes.contains(&"ReadWriteOncePod");
    if single
        && modes
            .iter()
            .any(|mode| *mode != "ReadWriteOncePod" && ACCESS_MODES.contains(mode))
    {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&modes_path, detail));
    }
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    match spec.at(&["resources", "requests", "storage"]) {
        None => errors.push(FieldError::required(&storage_path, "")),
        Some(amount) => errors.extend(resource_names::validate_positive(amount, &storage_path)),
    }
    class_name(spec, "storageClassName", path, errors);
    if let Some(mode) = spec.get("volumeMode").and_then(Value::as_str) {
        let known = ["Block", "Filesystem"];
        if !known.contains(&mode) {
            errors.push(FieldError::not_supported(
                &path.child("volumeMode"),
                named(mode),
                &known,
            ));
        }
    }
    validate_sources(spec, path, errors);
    class_name(spec, "volumeAttributesClassName", path, errors);
}

fn class_name(spec: &Value, field: &str, path: &Path<'_>, errors: &mut Complaints) {
    let name = spec.str_at(&[field]);
    if !name.is_empty() {
        complain(
            errors,
            &path.child(field),
            name,
            names::dns1123_subdomain(name),
        );
    }
}

fn validate_sources(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for field in ["dataSource", "dataSourceRef"] {
        let source = &spec[field];
        if source.is_null() {
            continue;
        }
        let path = path.child(field);
        super::volume_sources::require(source, &["name", "kind"], &path, errors);
        let (group, kind) = (source.str_at(&["apiGroup"]), source.str_at(&["kind"]));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(&path, kind, detail));
        }
        if !group.is_empty() {
            complain(
                errors,
                &path.child("apiGroup"),
                group,
                names::dns1123_subdomain(group),
            );
        }
        let namespace = source.str_at(&["namespace"]);
        if !namespace.is_empty() {
            complain(
                errors,
                &path.child("namespace"),
                namespace,
                names::dns1123_label(namespace),
            );
        }
    }
    if !has(spec, "dataSource") || !has(spec, "dataSourceRef") {
        return;
    }
    let (plain, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    let same = ["apiGroup", "kind", "name"]
        .iter()
        .all(|field| plain.str_at(&[field]) == reference.str_at(&[field]));
    let detail = if !reference.str_at(&["namespace"]).is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if !same {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream shows the path as the value here, which as JSON is an empty object.
    errors.push(FieldError::invalid(path, Bad::Shown("{}".into()), detail));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_counts_as_set_in_the_metadata_of_a_template() {
        let mut metadata = Value::object();
        metadata.set(&["generation"], 0_i64);
        metadata.set(&["generateName"], "");
        let mut errors = Complaints::default();
        validate_metadata(&metadata, &Path::new("metadata"), &mut errors);
        assert!(errors.is_empty());

        metadata.set(&["ownerReferences"], Value::Array(Vec::new()));
        validate_metadata(&metadata, &Path::new("metadata"), &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected = "metadata.ownerReferences: Forbidden: cannot be set";
        assert_eq!(texts, [expected]);
    }
}
