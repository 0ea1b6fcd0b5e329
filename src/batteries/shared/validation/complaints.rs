//! Adds the results of checks to a list of errors.

use polyplane_apimachinery::Value;
pub use polyplane_apimachinery::complaints::is_full;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};

/// A list of errors.
pub type Errors = Vec<FieldError>;

/// The text about fields that an update may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// Marks the errors that `check` finds as declared by the schema too.
pub fn covered(errors: &mut Errors, check: impl FnOnce(&mut Errors)) {
    let before = errors.len();
    check(errors);
    errors[before..]
        .iter_mut()
        .for_each(|error| error.covered = true);
}

/// Adds one error for every complaint about a value.
pub fn complain(
    errors: &mut Errors,
    path: &Path<'_>,
    bad: impl Into<Bad>,
    complaints: Vec<String>,
) {
    if complaints.is_empty() {
        return;
    }
    let bad = bad.into();
    for complaint in complaints {
        errors.push(FieldError::invalid(path, bad.clone(), complaint));
    }
}

/// Returns a text of a named type as a bad value, which upstream shows as JSON.
pub fn named(text: &str) -> Bad {
    Bad::Json(text.into())
}

/// Checks that a word is in a list, which is in the order in which texts name its items.
pub fn one_of(errors: &mut Errors, path: &Path<'_>, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        errors.push(FieldError::not_supported(path, named(word), known));
    }
}

/// Works as [`one_of`], for a field that may be left out.
pub fn one_of_if_set(errors: &mut Errors, path: &Path<'_>, word: &Value, known: &[&str]) {
    if let Some(word) = word.as_str() {
        one_of(errors, path, word, known);
    }
}
