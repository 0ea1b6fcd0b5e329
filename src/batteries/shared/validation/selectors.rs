//! Checks of label selectors.

use super::complaints::Errors;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, labels};

/// Whether label values in selectors are checked; what is stored already stays allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorValues {
    /// They have to be label values.
    Checked,
    /// Anything goes, for the object had a bad one before.
    Free,
}

/// Checks a label selector.
pub fn selector(errors: &mut Errors, path: &Path<'_>, value: &Value, values: SelectorValues) {
    let found = labels::validate_label_selector(Some(value), path).into_iter();
    let kept =
        |error: &FieldError| values == SelectorValues::Checked || !error.field.contains(".values[");
    errors.extend(found.filter(kept));
}

/// How the selector of a changed object is checked, given the one before.
pub fn selector_values(old: &Value) -> SelectorValues {
    match labels::validate_label_selector(Some(old), &Path::NIL).is_empty() {
        true => SelectorValues::Checked,
        false => SelectorValues::Free,
    }
}
