//! The bounds of complaints: of the paths that they show, and of all complaints about one value.
//!
//! A member's name may have a megabyte, and a complaint shows every name on the way to its field. Without bounds a
//! request of some megabytes would have an answer of gigabytes.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{Bad, FieldError};
use std::borrow::Cow;

/// Bytes of a step of a path beyond which it is shortened. Names in use have some dozen bytes.
pub(crate) const STEP_BYTES_MAX: usize = 1 << 10;
/// Bytes of a path beyond which it is shortened: paths in use have some hundred bytes, and a thousand complaints of
/// this length still fit into an answer.
pub(crate) const PATH_BYTES_MAX: usize = 8 << 10;
/// Bytes of the complaints about one value, beyond which no more are made. Nobody reads more, and an object of some
/// megabytes may break a rule a million times.
pub(crate) const BYTES_MAX: usize = 1 << 20;
/// Stands for what was cut off.
const REST: char = '…';

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

fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(bytes_max);
    Cow::Owned(format!("{}{REST}", &text[..end]))
}

/// Counts the bytes of complaints about one value while they are made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComplaintCounter {
    bytes: usize,
}

impl ComplaintCounter {
    /// Counts a complaint: its place, its text and the value that it shows.
    pub fn count(&mut self, error: &FieldError) {
        let texts = error.field.len() + error.detail.len();
        self.bytes += size_of::<FieldError>() + texts + shown_bytes(&error.bad);
    }

    /// Returns whether no more complaints may be made.
    pub const fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }
}

/// Returns about how many bytes a complaint keeps of the value that it shows.
fn shown_bytes(bad: &Bad) -> usize {
    match bad {
        Bad::Omitted => 0,
        Bad::Shown(text) => text.len(),
        Bad::Plain(value) | Bad::Json(value) | Bad::Typed { value, .. } => {
            value_bytes(value, BYTES_MAX)
        }
    }
}

/// Returns about how many bytes of memory a value takes. What has more than `bytes_max` is not looked at to its end.
pub(crate) fn value_bytes(value: &Value, bytes_max: usize) -> usize {
    let (mut bytes, mut open) = (0, vec![value]);
    while let Some(value) = open.pop().filter(|_| bytes < bytes_max) {
        bytes += size_of::<Value>();
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter()),
            Value::Object(members) => {
                bytes += members.keys().map(str::len).sum::<usize>();
                open.extend(members.values());
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::field_error::Path;
    use polyplane_apimachinery::json;

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
        assert!(shown.len() <= STEP_BYTES_MAX + REST.len_utf8());
        let mut deep = String::new();
        for _ in 0..100 {
            deep = item(&member(&deep, &name), 1);
        }
        assert!(deep.len() <= PATH_BYTES_MAX + REST.len_utf8());
        assert!(deep.ends_with(REST), "{}", deep.len());
    }

    #[test]
    fn places_texts_and_values_count_among_the_bytes_of_complaints() {
        let long = "x".repeat(BYTES_MAX);
        let of = |error: FieldError| {
            let mut counter = ComplaintCounter::default();
            counter.count(&error);
            counter.is_full()
        };
        let short = Path::new("a");
        assert!(!of(FieldError::invalid(&short, "b", "c")));
        let with_field = FieldError {
            field: long.clone(),
            ..FieldError::required(&Path::NIL, "")
        };
        assert!(of(with_field));
        assert!(of(FieldError::forbidden(&short, long.clone())));
        assert!(of(FieldError::duplicate(&short, long.as_str())));
        let members = json!({"a": [(long.as_str())]});
        assert!(of(FieldError::invalid(&short, members, "")));
        let written = Bad::Shown(long.as_str().into());
        assert!(of(FieldError::invalid(&short, written, "")));
    }

    #[test]
    fn small_complaints_fill_the_room_too() {
        let mut counter = ComplaintCounter::default();
        let error = FieldError::required(&Path::new("a"), "");
        let made = (0..BYTES_MAX).take_while(|_| {
            counter.count(&error);
            !counter.is_full()
        });
        assert!(made.count() < BYTES_MAX / size_of::<FieldError>());
    }
}
