//! Names of objects by a rule that only one kind has.

use super::complaints::{Errors, complain};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::Path;

/// Whether a whole name is checked or the beginning of a generated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePart {
    /// The whole name.
    Whole,
    /// What comes before the generated suffix.
    Prefix,
}

/// Names by a rule that only this kind has.
pub fn own_name_rule(object: &Value, rule: impl Fn(&str, NamePart) -> Vec<String>) -> Errors {
    let path = Path::new("metadata");
    let mut errors = Errors::new();
    for (field, part) in [
        ("generateName", NamePart::Prefix),
        ("name", NamePart::Whole),
    ] {
        let name = object.str_at(&["metadata", field]);
        if !name.is_empty() {
            complain(&mut errors, &path.child(field), name, rule(name, part));
        }
    }
    errors
}
