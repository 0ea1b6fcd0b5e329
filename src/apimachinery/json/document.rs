//! Members and items of JSON text as written: in their original order, with spaces.
//!
//! Used if an answer depends on something that a tree does not keep: the order of members or the
//! digits of numbers. Invariant: the text is valid JSON, as [`super::parse`] accepts it. On any
//! other input an answer may be missing or wrong, but nothing panics or loops.

use std::borrow::Cow;

use super::scan;

/// Returns the members of the object that `text` begins with: each key and the text of its value.
pub fn members(text: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let mut cursor = Cursor::open(text, b'{');
    std::iter::from_fn(move || {
        let key = cursor.value()?;
        cursor.skip(b':');
        let value = cursor.value()?;
        cursor.skip(b',');
        Some((scan::string(key.as_bytes())?, value))
    })
}

/// Returns the items of the array that `text` begins with.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut cursor = Cursor::open(text, b'[');
    std::iter::from_fn(move || {
        let value = cursor.value()?;
        cursor.skip(b',');
        Some(value)
    })
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Returns the position behind the bracket `open`, or at the end if there is none.
    fn open(text: &'a str, open: u8) -> Self {
        let mut cursor = Self { text, at: 0 };
        cursor.spaces();
        if text.as_bytes().get(cursor.at) == Some(&open) {
            cursor.at += 1;
        } else {
            cursor.at = text.len();
        }
        cursor
    }

    fn spaces(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        let spaces = rest
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'));
        self.at += spaces.count();
    }

    fn skip(&mut self, byte: u8) {
        self.spaces();
        if self.text.as_bytes().get(self.at) == Some(&byte) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<&'a str> {
        self.spaces();
        let start = self.at;
        self.at = scan::value_end(self.text.as_bytes(), start)?;
        Some(self.text.get(start..self.at)?.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_spaces_and_digits_are_kept() {
        let text = " { \"b\" : 1.50 , \"a\\n\" : [ 1 , \"x]\" , { } ] ,\n\"b\":null }";
        let found: Vec<_> = members(text)
            .map(|(key, value)| (key.into_owned(), value))
            .collect();
        assert_eq!(found[0], ("b".to_owned(), "1.50"));
        assert_eq!(found[1].0, "a\n");
        assert_eq!(found[2], ("b".to_owned(), "null"));
        assert_eq!(
            items(found[1].1).collect::<Vec<_>>(),
            ["1", "\"x]\"", "{ }"]
        );
    }

    #[test]
    fn text_that_is_no_object_has_no_members() {
        assert_eq!(
            members("[1]").count() + members("").count() + items("{}").count(),
            0
        );
        assert_eq!(members("{\"a\":").count() + items("[").count(), 0);
    }
}
