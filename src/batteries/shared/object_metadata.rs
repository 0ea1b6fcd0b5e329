//! Metadata as the kinds of upstream's core validation check it: the common rules, and finalizers
//! that are standard or qualified.
//!
//! The common rules of a create and of an update are checked before a strategy is called (see the
//! registry's `prepare`). The functions here are for kinds that check metadata once more by their
//! own rules.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::{Scope, metadata};

/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Returns the complaint about a finalizer that is neither standard nor qualified.
pub fn validate_standard_finalizer(name: &str, path: &Path<'_>) -> Option<FieldError> {
    let bad = !name.contains('/') && !STANDARD_FINALIZERS.contains(&name);
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    bad.then(|| FieldError::invalid(path, name, detail))
}

/// Validates the finalizers of an object beyond the common rules.
pub fn validate_finalizers(object: &Value) -> Complaints {
    let (metadata_path, finalizers) = (Path::new("metadata"), &object["metadata"]["finalizers"]);
    let path = metadata_path.child("finalizers");
    metadata::strings(finalizers)
        .into_iter()
        .enumerate()
        .filter_map(|(at, name)| validate_standard_finalizer(name, &path.index(at)))
        .collect()
}

/// Validates the metadata of an object by the rules of its kind.
pub fn validate(object: &Value, scope: Scope, rule: NameRule) -> Complaints {
    let mut errors = metadata::validate(object, scope, rule);
    errors.extend(validate_finalizers(object));
    errors
}

/// Validates a change of metadata.
pub fn validate_update(object: &Value, old: &Value) -> Complaints {
    let mut errors = metadata::validate_update(object, old);
    errors.extend(validate_finalizers(object));
    errors
}
