//! Checks of object names by a rule that only one kind has.

use super::complaints::complain;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;

/// The choice whether a whole name is checked or the prefix of a generated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePart {
    /// The whole name.
    Whole,
    /// The prefix before the generated suffix.
    Prefix,
}

/// Checks the name of an object by a rule that only its kind has.
pub fn own_name_rule(object: &Value, rule: impl Fn(&str, NamePart) -> Vec<String>) -> Complaints {
    let path = Path::new("metadata");
    let mut errors = Complaints::default();
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
