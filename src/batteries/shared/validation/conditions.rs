//! Checks of the conditions in a status.

use super::complaints::{complain, one_of};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, labels, names};
use std::collections::BTreeSet;

/// Most bytes of a condition's reason, as upstream limits it.
const REASON_BYTES_MAX: usize = 1024;

/// Most bytes of a condition's message, as upstream limits it.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Validates conditions of the common form.
pub fn conditions(errors: &mut Complaints, path: &Path<'_>, list: &Value) {
    let mut seen = BTreeSet::new();
    for (at, condition) in list.as_array().unwrap_or(&[]).iter().enumerate() {
        let path = path.index(at);
        let text = |field: &str| condition.str_at(&[field]);
        if !seen.insert(text("type")) {
            errors.push(FieldError::duplicate(&path, text("type")).covered());
        }
        if text("type").is_empty() {
            errors.push(FieldError::required(&path.child("type"), "is required").covered());
        } else {
            errors.extend(labels::validate_label_name(
                text("type"),
                &path.child("type"),
            ));
        }
        if text("status").is_empty() {
            errors.push(FieldError::required(&path.child("status"), "").covered());
        } else {
            one_of(
                errors,
                &path.child("status"),
                text("status"),
                &["False", "True", "Unknown"],
            );
        }
        if let Some(generation) = condition
            .int_at(&["observedGeneration"])
            .filter(|number| *number < 0)
        {
            let detail = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(
                &path.child("observedGeneration"),
                generation,
                detail,
            ));
        }
        if text("lastTransitionTime").is_empty() {
            errors.push(FieldError::required(&path.child("lastTransitionTime"), "").covered());
        }
        if text("reason").is_empty() {
            errors.push(FieldError::required(&path.child("reason"), "").covered());
        } else {
            complain(
                errors,
                &path.child("reason"),
                text("reason"),
                names::condition_reason(text("reason")),
            );
            if text("reason").len() > REASON_BYTES_MAX {
                errors.push(FieldError::too_long(
                    &path.child("reason"),
                    REASON_BYTES_MAX,
                ));
            }
        }
        if text("message").len() > MESSAGE_BYTES_MAX {
            errors.push(FieldError::too_long(
                &path.child("message"),
                MESSAGE_BYTES_MAX,
            ));
        }
    }
}
