//! Checks of label selectors.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, labels};

/// The choice whether label values in selectors are checked. Values that are stored already stay
/// allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorValues {
    /// They must be valid label values.
    Checked,
    /// Any text is accepted, because the object had an invalid one before.
    Free,
}

/// Checks a label selector.
pub fn selector(errors: &mut Complaints, path: &Path<'_>, value: &Value, values: SelectorValues) {
    let found = labels::validate_label_selector(Some(value), path).into_iter();
    let kept =
        |error: &FieldError| values == SelectorValues::Checked || !error.field.contains(".values[");
    errors.extend(found.filter(kept));
}

/// Returns how the selector of a changed object is checked, given the old selector.
pub fn selector_values(old: &Value) -> SelectorValues {
    match labels::validate_label_selector(Some(old), &Path::NIL).is_empty() {
        true => SelectorValues::Checked,
        false => SelectorValues::Free,
    }
}
