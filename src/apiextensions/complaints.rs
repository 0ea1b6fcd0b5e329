//! The paths that complaints show, bounded.
//!
//! A member's name may have a megabyte, and a complaint shows every name on the way to its field. Without bounds a
//! request of some megabytes would have an answer of gigabytes.

use std::borrow::Cow;

#[cfg(test)]
use polyplane_apimachinery::Value;
pub(crate) use polyplane_apimachinery::complaints::{BYTES_MAX, PATH_BYTES_MAX, value_bytes};
use polyplane_apimachinery::complaints::{STEP_BYTES_MAX, shortened};

/// Returns a step of a path as complaints show it.
pub(crate) fn step(name: &str) -> Cow<'_, str> {
    shortened(name, STEP_BYTES_MAX)
}

/// Returns a path as complaints show it.
pub(crate) fn path(path: String) -> String {
    match path.len() > PATH_BYTES_MAX {
        true => shortened(&path, PATH_BYTES_MAX).into_owned(),
        false => path,
    }
}

/// Returns the path of a member as complaints show it. Below a path that was shortened nothing is told apart.
pub(crate) fn member(above: &str, name: &str) -> String {
    match above.len() > PATH_BYTES_MAX {
        true => above.to_owned(),
        false => path(format!("{above}.{}", step(name))),
    }
}

/// Returns the path of an item as complaints show it, see [`member`].
pub(crate) fn item(above: &str, at: usize) -> String {
    match above.len() > PATH_BYTES_MAX {
        true => above.to_owned(),
        false => path(format!("{above}[{at}]")),
    }
}

/// Returns a schema and its value as they stand three levels below, in members whose names have so many bytes.
#[cfg(test)]
pub(crate) fn below_long_names(
    mut schema: Value,
    mut value: Value,
    bytes: usize,
) -> (Value, Value) {
    for _ in 0..3 {
        let name = "n".repeat(bytes);
        let mut above = polyplane_apimachinery::json!({"type": "object"});
        above.set(&["properties", name.as_str()], schema);
        schema = above;
        value = Value::Object([(name.as_str(), value)].into_iter().collect());
    }
    (schema, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "…";

    #[test]
    fn paths_of_normal_length_are_shown_whole() {
        let name = "a".repeat(STEP_BYTES_MAX);
        assert_eq!(step(&name), name);
        assert_eq!(member("spec", "a.b"), "spec.a.b");
        assert_eq!(item("spec.list", 7), "spec.list[7]");
        let whole = "a".repeat(PATH_BYTES_MAX);
        assert_eq!(path(whole.clone()), whole);
    }

    #[test]
    fn long_steps_and_paths_are_shortened_between_letters() {
        // The bound lies inside a letter of two bytes.
        let name = format!("a{}", "é".repeat(STEP_BYTES_MAX));
        let shown = step(&name);
        assert!(shown.ends_with("é…"), "{shown}");
        assert!(shown.len() <= STEP_BYTES_MAX + REST.len());
        let mut deep = String::new();
        for _ in 0..100 {
            deep = item(&member(&deep, &name), 1);
        }
        assert!(deep.len() <= PATH_BYTES_MAX + REST.len());
        assert!(deep.ends_with(REST), "{}", deep.len());
    }
}
