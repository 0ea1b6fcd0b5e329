//! Adds the results of checks to a list of errors.

use super::members::texts;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};

/// The text about fields that an update may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// Marks the errors that `check` finds as declared by the schema too.
pub fn covered(errors: &mut Complaints, check: impl FnOnce(&mut Complaints)) {
    let mut found = Complaints::default();
    check(&mut found);
    errors.extend(found.into_iter().map(FieldError::covered));
}

/// Adds one error for every complaint about a value.
pub fn complain(
    errors: &mut Complaints,
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
pub fn one_of(errors: &mut Complaints, path: &Path<'_>, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        errors.push(FieldError::not_supported(path, named(word), known));
    }
}

/// Works as [`one_of`], for a field that may be left out.
pub fn one_of_if_set(errors: &mut Complaints, path: &Path<'_>, word: &Value, known: &[&str]) {
    if let Some(word) = word.as_str() {
        one_of(errors, path, word, known);
    }
}

/// Complains about a list in which a wildcard is not the only item; `words` is what the text calls the items.
pub fn lone_wildcard(
    errors: &mut Complaints,
    rule: &Value,
    field: &str,
    words: &str,
    path: &Path<'_>,
) {
    let list = texts(&rule[field]);
    if list.len() > 1 && list.contains(&"*") {
        let detail = format!("if '*' is present, must not specify other {words}");
        errors.push(FieldError::invalid(
            &path.child(field),
            Bad::Json(rule[field].clone()),
            detail,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_check_finds_is_marked_as_declared() {
        let error = |name: &str| FieldError::required(&Path::new(name), "");
        let mut errors = Complaints::from([error("a")]);
        covered(&mut errors, |errors| errors.push(error("b")));
        errors.push(error("c"));
        let marks = errors.iter().map(|error| error.covered);
        assert_eq!(marks.collect::<Vec<_>>(), [false, true, false]);
    }
}
