//! The bounds of what one answer says about an object. An object of some megabytes may break a rule a million times,
//! and a complaint may name everything that would have been right: all of them together are no answer, and cost
//! gigabytes.

use std::borrow::Cow;
use std::ops::Deref;

use crate::field_error::{FieldError, FieldErrorKind};
use crate::value::Value;

/// Most complaints in one answer; further ones are left out. With more, an answer would be larger than the object.
pub const COUNT_MAX: usize = 10_000;
/// Most bytes of their texts; the last one may be longer than what is left of them.
pub const BYTES_MAX: usize = 1 << 20;
/// Most bytes of one step of a path in a text. A member name may take a whole body, and each complaint below it
/// shows it. Keys of labels and annotations have at most 317.
pub const STEP_BYTES_MAX: usize = 1 << 10;
/// Most bytes of a whole path in a text. An object has up to 512 levels.
pub const PATH_BYTES_MAX: usize = 8 << 10;

/// Stands for the rest of a text that was cut.
const REST: &str = "…";

/// The room that is left for complaints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    count: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            count: COUNT_MAX,
            bytes: BYTES_MAX,
        }
    }
}

impl Room {
    /// Takes the room of a complaint with a text of this length. Returns false if there is none left; the last
    /// complaint may be longer than what is left.
    pub fn take(&mut self, bytes: usize) -> bool {
        let is_left = !self.is_full();
        if is_left {
            self.count -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        is_left
    }

    /// Returns whether there is no room for a further complaint.
    pub fn is_full(&self) -> bool {
        self.count == 0 || self.bytes == 0
    }
}

/// A list of complaints for which one answer has room: what every validation adds to. Further ones are dropped, so a
/// walk may stop when [`Complaints::is_full`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Complaints {
    errors: Vec<FieldError>,
    room: Room,
}

impl Complaints {
    /// Adds a complaint, if there is room for it.
    pub fn push(&mut self, error: FieldError) {
        if self.room.take(error.bytes()) {
            self.errors.push(error);
        }
    }

    /// Adds a complaint in front, even if there is no room for it: one that says that others are left out.
    pub fn push_front(&mut self, error: FieldError) {
        self.room.take(error.bytes());
        self.errors.insert(0, error);
    }

    /// Returns whether further complaints are dropped.
    pub fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// Returns whether expressions about the object could fail because of a complaint, or take too
    /// long. A full list may have dropped such a complaint.
    pub fn block_rules(&self) -> bool {
        let blocks = |error: &FieldError| {
            matches!(
                error.kind,
                FieldErrorKind::NotSupported
                    | FieldErrorKind::Required
                    | FieldErrorKind::TooLong
                    | FieldErrorKind::TooMany
                    | FieldErrorKind::TypeInvalid
            )
        };
        self.is_full() || self.errors.iter().any(blocks)
    }

    /// Sorts the complaints by their texts.
    pub fn sort(&mut self) {
        self.errors.sort_by_cached_key(ToString::to_string);
    }
}

impl Deref for Complaints {
    type Target = [FieldError];

    fn deref(&self) -> &Self::Target {
        &self.errors
    }
}

/// Takes no more from the iterator than there is room for, so what would be dropped is not made.
impl Extend<FieldError> for Complaints {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        let mut errors = errors.into_iter();
        while !self.is_full() {
            let Some(error) = errors.next() else { return };
            self.push(error);
        }
    }
}

impl FromIterator<FieldError> for Complaints {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut complaints = Self::default();
        complaints.extend(errors);
        complaints
    }
}

impl<const COUNT: usize> From<[FieldError; COUNT]> for Complaints {
    fn from(errors: [FieldError; COUNT]) -> Self {
        errors.into_iter().collect()
    }
}

impl IntoIterator for Complaints {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

impl<'c> IntoIterator for &'c Complaints {
    type Item = &'c FieldError;
    type IntoIter = std::slice::Iter<'c, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.iter()
    }
}

/// Returns about how many bytes of memory a value takes. What has more than `bytes_max` is not looked at to its end.
pub fn value_bytes(value: &Value, bytes_max: usize) -> usize {
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

/// A text that ends with `…` where it would become longer than its bound.
#[derive(Clone, Debug)]
pub struct BoundedText {
    text: String,
    bytes_max: usize,
    is_cut: bool,
}

impl BoundedText {
    /// Creates an empty text of at most so many bytes, beside the mark of a cut.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            text: String::new(),
            bytes_max,
            is_cut: false,
        }
    }

    /// Appends a part, as far as there is room. After a cut, nothing is added.
    pub fn push(&mut self, part: &str) {
        if self.is_cut {
            return;
        }
        let left = self.bytes_max - self.text.len();
        if part.len() <= left {
            self.text.push_str(part);
            return;
        }
        self.text.push_str(&part[..part.floor_char_boundary(left)]);
        self.text.push_str(REST);
        self.is_cut = true;
    }

    /// Returns whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns whether the rest of the text is dropped.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the text.
    pub fn into_string(self) -> String {
        self.text
    }
}

/// Returns a text as it is, or its beginning and `…` if it has more bytes.
pub fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let mut short = BoundedText::new(bytes_max);
    short.push(text);
    Cow::Owned(short.into_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_error::Path;

    #[test]
    fn a_list_of_complaints_is_bounded_in_number_and_bytes() {
        let listed = |count: usize, error: &FieldError| {
            let mut complaints = Complaints::default();
            complaints.extend(std::iter::repeat_n(error.clone(), count));
            (complaints.len(), complaints.is_full())
        };
        let path = Path::new("spec");
        let short = FieldError::required(&path, "no");
        assert_eq!(listed(100, &short), (100, false));
        assert_eq!(listed(COUNT_MAX + 5, &short), (COUNT_MAX, true));
        let text = "x".repeat(BYTES_MAX / 4);
        for long in [
            FieldError::required(&path, text.clone()),
            FieldError::duplicate(&path, text.clone()),
            FieldError::duplicate(&path, vec![Value::string(text)]),
        ] {
            assert_eq!(listed(9, &long), (4, true));
        }
    }

    #[test]
    fn rules_are_blocked_if_a_complaint_that_blocks_them_may_have_been_dropped() {
        let path = Path::new("spec");
        let invalid = || FieldError::invalid(&path, Value::Null, "wrong");
        let mut errors = Complaints::from([invalid()]);
        assert!(!errors.block_rules());
        errors.push(FieldError::required(&path, ""));
        assert!(errors.block_rules());
        let full: Complaints = std::iter::repeat_with(invalid).collect();
        assert!(full.block_rules());
    }

    #[test]
    fn a_full_list_makes_no_further_complaint() {
        let error = FieldError::required(&Path::new("spec"), "no");
        let mut made = 0;
        let errors = std::iter::repeat_with(|| {
            made += 1;
            error.clone()
        });
        let mut complaints: Complaints = errors.take(COUNT_MAX + 5).collect();
        assert_eq!((complaints.len(), made), (COUNT_MAX, COUNT_MAX));
        complaints.push(error.clone());
        assert_eq!(complaints.len(), COUNT_MAX);
        // Somebody has to be told that others are left out.
        complaints.push_front(FieldError::forbidden(&Path::new("spec"), "more"));
        assert_eq!(complaints.len(), COUNT_MAX + 1);
        assert_eq!(complaints[0].detail, "more");
    }

    #[test]
    fn a_long_value_is_measured_only_up_to_the_bound() {
        let items = |count: usize| Value::Array(vec![Value::Null; count]);
        let each = size_of::<Value>();
        assert_eq!(value_bytes(&"ab".into(), usize::MAX), each + 2);
        assert_eq!(value_bytes(&items(9), usize::MAX), 10 * each);
        assert_eq!(value_bytes(&items(9), 3 * each), 3 * each);
    }

    #[test]
    fn only_a_text_beyond_its_bound_is_shortened() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc…");
        // No character is cut.
        assert_eq!(shortened("aéb", 2), "a…");
        let mut text = BoundedText::new(4);
        ["ab", "c", "de", "f"]
            .iter()
            .for_each(|part| text.push(part));
        assert!(text.is_cut());
        assert_eq!(text.into_string(), "abcd…");
    }
}
