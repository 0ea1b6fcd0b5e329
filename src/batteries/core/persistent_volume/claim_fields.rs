//! Fields that PersistentVolumes and their claims have in common.

use crate::shared::resource_names::amount;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Value, names};
use polyplane_registry::metadata::strings;

/// The access modes and their names in tables, in the order in which tables list them.
const MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

/// Returns the access modes as a table shows them.
pub fn short_modes(modes: &Value) -> String {
    let modes = strings(modes);
    let short = MODES
        .iter()
        .filter(|(mode, _)| modes.contains(mode))
        .map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

/// Returns the phase as a table shows it.
pub fn shown_phase(object: &Value) -> &str {
    match object.str_at(&["metadata", "deletionTimestamp"]) {
        "" => object.str_at(&["status", "phase"]),
        _ => "Terminating",
    }
}

/// Checks `accessModes`.
pub fn validate_modes(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let place = path.child("accessModes");
    let modes = strings(&spec["accessModes"]);
    let known = |mode: &str| MODES.iter().any(|(known, _)| *known == mode);
    for mode in modes.iter().filter(|mode| !known(mode)) {
        let bad = Bad::Json((*mode).into());
        errors.push(FieldError::not_supported_sorted(
            &place,
            bad,
            &MODES.map(|(mode, _)| mode),
        ));
    }
    let (single, others): (Vec<&str>, Vec<&str>) = modes
        .into_iter()
        .filter(|mode| known(mode))
        .partition(|mode| *mode == "ReadWriteOncePod");
    if !single.is_empty() && !others.is_empty() {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&place, detail));
    }
}

/// Checks `volumeMode`.
pub fn validate_mode(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let Some(mode) = spec["volumeMode"].as_str() else {
        return;
    };
    let valid = ["Block", "Filesystem"];
    if !valid.contains(&mode) {
        let bad = Bad::Json(mode.into());
        errors.push(FieldError::not_supported(
            &path.child("volumeMode"),
            bad,
            &valid,
        ));
    }
}

/// Checks the name of a class, if there is one.
pub fn validate_class(spec: &Value, field: &str, path: &Path<'_>, errors: &mut Complaints) {
    let name = spec.str_at(&[field]);
    if name.is_empty() {
        return;
    }
    for detail in names::dns1123_subdomain(name) {
        errors.push(FieldError::invalid(&path.child(field), name, detail));
    }
}

/// Returns the complaint about an amount below zero.
pub fn validate_basic(value: &Value, path: &Path<'_>) -> Option<FieldError> {
    let units = amount(Some(value)).value();
    (units < 0).then(|| FieldError::invalid(path, units, "must be a valid resource quantity"))
}
