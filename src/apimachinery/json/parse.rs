//! Parses JSON bytes into a tree, in one pass and without recursion, so that depth costs heap, not
//! stack.

mod scalars;

use std::borrow::Cow;

use super::scan::value_end;
use super::{Duplicates, JsonError, Limits, Parsed};
use crate::complaints::{BoundedText, PATH_BYTES_MAX, STEP_BYTES_MAX, shortened};
use crate::value::{Map, SHARED_DEPTH_MAX, SHARED_MEMBER, Sharing, Str, Value};

/// Number of duplicate paths that are kept. More would only lengthen a warning.
const DUPLICATES_MAX: usize = 100;

/// Bytes beyond which a text is refused whatever the limits are, because positions in it are kept
/// in 32 bits and each bad byte is replaced by three.
const BYTES_MAX: usize = u32::MAX as usize / 3;

/// Items up to which a list is copied off the stack, which then keeps its memory for the next one. The copy of a long list
/// would be in memory beside the stack.
const COPIED_MAX: usize = 1024;

/// Members of open objects for which a parser has room at first. Small texts need no more, and room for
/// twice as many is beyond the pieces of 1 KiB that the allocator hands out fast.
const MEMBERS_FEW: usize = 16;

/// Parses one document. Integers that fit 64 bits stay exact; every other number becomes a float.
/// Bytes that are not UTF-8 and lone surrogates become U+FFFD, as in Go.
///
/// # Errors
/// See [`JsonError`]. A syntax error anywhere takes precedence over a bad number.
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Parsed, JsonError> {
    parse_sharing(bytes, limits, None)
}

/// Parses one document as [`parse`] does. The values of members called `fieldsV1` are taken from
/// other documents in `sharing` that had the same ones.
///
/// # Errors
/// See [`parse`].
pub fn parse_sharing(
    bytes: &[u8],
    limits: &Limits,
    sharing: Option<Sharing<'_>>,
) -> Result<Parsed, JsonError> {
    let bytes_max = limits.bytes_max.min(BYTES_MAX);
    if bytes.len() > bytes_max {
        return Err(JsonError::TooLarge {
            bytes: bytes.len(),
            bytes_max,
        });
    }
    let (text, replaced) = decode_utf8(bytes);
    let mut parser = Parser::new(&text, limits);
    parser.replaced = &replaced;
    parser.sharing = sharing;
    parser.run()
}

/// Returns true if `bytes` are one JSON document within the limits, whatever its numbers are.
pub fn validate(bytes: &[u8], limits: &Limits) -> bool {
    matches!(parse(bytes, limits), Ok(_) | Err(JsonError::Number { .. }))
}

/// Returns the text with each bad byte replaced, and the positions of the replacements with the
/// original bytes.
fn decode_utf8(bytes: &[u8]) -> (Cow<'_, str>, Vec<(usize, u8)>) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return (Cow::Borrowed(text), Vec::new());
    }
    let mut text = String::with_capacity(bytes.len() + 64);
    let mut replaced = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for &byte in chunk.invalid() {
            replaced.push((text.len(), byte));
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    (Cow::Owned(text), replaced)
}

/// Returns bytes as a text in which each byte that is not part of UTF-8 is a U+FFFD of its own, as in
/// Go.
pub(crate) fn replace_bad_bytes(bytes: &[u8]) -> Cow<'_, str> {
    decode_utf8(bytes).0
}

/// Returns the text of a string without its quotes, escapes resolved; `None` if an escape is
/// malformed.
pub(crate) fn unescape(inner: &str) -> Option<String> {
    let limits = Limits::default();
    let quoted = format!("{inner}\"");
    let mut parser = Parser::new(&quoted, &limits);
    parser.string().ok().map(|text| text.to_string())
}

/// A bracket that is still open.
#[derive(Clone, Copy)]
enum Frame {
    /// An object; `start` is the position of its first member on the stack. The last member waits
    /// for its value.
    Object { start: usize },
    /// An array; `start` is the position of its first item on the stack.
    Array { start: usize },
}

/// A sort key of a member; sorting these is cheaper than sorting members.
#[derive(Clone, Copy)]
struct Mark {
    /// The first bytes of the key, which usually decide.
    rank: u64,
    /// The position of the key in the text.
    at: u32,
    /// The position of the member on the stack.
    member: u32,
}

/// Returns the first eight bytes of a key as a number with the same order.
#[inline]
fn rank(key: &str) -> u64 {
    let bytes = key.as_bytes();
    if let Some(head) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let at = |place: usize| u64::from(bytes.get(place).copied().unwrap_or_default());
    let (high, from) = match bytes.first_chunk::<4>() {
        Some(head) => (u64::from(u32::from_be_bytes(*head)) << 32, 4),
        None => (0, 0),
    };
    let three = at(from) << 16 | at(from + 1) << 8 | at(from + 2);
    high | three << (40 - 8 * from)
}

/// The part of a value that was read.
#[derive(PartialEq, Eq)]
enum Begun {
    /// The whole value.
    Whole,
    /// Only its opening bracket.
    Open,
}

/// The error is boxed because errors are rare and large, while results are frequent and should be
/// small.
type Fallible<T> = Result<T, Box<JsonError>>;

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    limits: &'a Limits,
    replaced: &'a [(usize, u8)],
    sharing: Option<Sharing<'a>>,
    frames: Vec<Frame>,
    members: Vec<(Str, Value)>,
    /// The marks of `members`, one for each.
    marks: Vec<Mark>,
    items: Vec<Value>,
    /// The outermost value, once it is complete.
    root: Value,
    duplicates: Vec<(usize, String)>,
    bad_number: Option<String>,
    floats: bool,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, limits: &'a Limits) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            limits,
            replaced: &[],
            sharing: None,
            frames: Vec::with_capacity(16),
            members: Vec::with_capacity(MEMBERS_FEW),
            marks: Vec::with_capacity(MEMBERS_FEW),
            items: Vec::with_capacity(8),
            root: Value::Null,
            duplicates: Vec::new(),
            bad_number: None,
            floats: false,
        }
    }

    fn run(mut self) -> Result<Parsed, JsonError> {
        self.document().map_err(|error| *error)?;
        self.skip_space();
        if self.at < self.bytes.len() {
            return Err(*self.unexpected("after top-level value"));
        }
        if let Some(literal) = self.bad_number {
            return Err(JsonError::Number { literal });
        }
        self.duplicates.sort_by_key(|(at, _)| *at);
        let mut duplicates: Vec<String> = Vec::new();
        for (_, path) in self.duplicates {
            if duplicates.len() < DUPLICATES_MAX && !duplicates.contains(&path) {
                duplicates.push(path);
            }
        }
        Ok(Parsed {
            value: self.root,
            duplicates,
            floats: self.floats,
        })
    }

    /// Reads values until the outermost one is complete.
    fn document(&mut self) -> Fallible<()> {
        loop {
            if self.begin_value()? == Begun::Open {
                continue;
            }
            loop {
                match self.frames.last() {
                    None => return Ok(()),
                    Some(Frame::Array { start }) => {
                        let start = *start;
                        match self.after_value("after array element", b']')? {
                            b',' => break,
                            _ => self.close_array(start),
                        }
                    }
                    Some(Frame::Object { start }) => {
                        let start = *start;
                        match self.after_value("after object key:value pair", b'}')? {
                            b',' => {
                                self.skip_space();
                                self.begin_key()?;
                                break;
                            }
                            _ => self.close_object(start),
                        }
                    }
                }
            }
        }
    }

    /// Puts a complete value into the object or array that is open.
    #[inline]
    fn place(&mut self, value: Value) {
        match self.frames.last() {
            Some(Frame::Object { .. }) => {
                if let Some((_, place)) = self.members.last_mut() {
                    *place = value;
                }
            }
            Some(Frame::Array { .. }) => self.items.push(value),
            None => self.root = value,
        }
    }

    /// Reads a scalar or empty brackets, or opens brackets.
    fn begin_value(&mut self) -> Fallible<Begun> {
        self.skip_space();
        let Some(&byte) = self.bytes.get(self.at) else {
            return Err(self.end_of_input());
        };
        match byte {
            b'"' => {
                self.at += 1;
                match self.plain_string() {
                    Some(text) => self.place(Value::String(Str::new(text))),
                    None => {
                        let text = self.string()?;
                        self.place(Value::String(text));
                    }
                }
            }
            // Nearly half of the objects are empty where fields have owners.
            b'{' if self.bytes.get(self.at + 1) == Some(&b'}') => {
                self.check_depth()?;
                self.at += 2;
                self.place(Value::object());
            }
            b'{' => {
                if let Some(shared) = self.shared_object() {
                    self.place(Value::Object(shared));
                    return Ok(Begun::Whole);
                }
                let start = self.members.len();
                self.open(Frame::Object { start })?;
                if self.bytes.get(self.at) != Some(&b'}') {
                    self.begin_key()?;
                    return Ok(Begun::Open);
                }
                self.at += 1;
                self.close_object(start);
            }
            b'[' => {
                let start = self.items.len();
                self.open(Frame::Array { start })?;
                if self.bytes.get(self.at) != Some(&b']') {
                    return Ok(Begun::Open);
                }
                self.at += 1;
                self.close_array(start);
            }
            b'-' | b'0'..=b'9' => {
                let number = self.number()?;
                self.place(number);
            }
            b't' => self.literal("true", Value::Bool(true))?,
            b'f' => self.literal("false", Value::Bool(false))?,
            b'n' => self.literal("null", Value::Null)?,
            _ => return Err(self.unexpected("looking for beginning of value")),
        }
        Ok(Begun::Whole)
    }

    /// Reads an object that is shared with other documents. If it is not, nothing is read.
    fn shared_object(&mut self) -> Option<Map> {
        let sharing = self.sharing?;
        let (Frame::Object { .. }, (name, _)) = (self.frames.last()?, self.members.last()?) else {
            return None;
        };
        if name != SHARED_MEMBER || self.frames.len() + SHARED_DEPTH_MAX > self.limits.depth_max {
            return None;
        }
        let end = value_end(self.bytes, self.at)?;
        let object = sharing.get(self.text.get(self.at..end)?)?;
        self.at = end;
        Some(object)
    }

    fn check_depth(&self) -> Fallible<()> {
        match self.frames.len() < self.limits.depth_max {
            true => Ok(()),
            false => Err(self.unexpected("exceeded max depth")),
        }
    }

    fn open(&mut self, frame: Frame) -> Fallible<()> {
        self.check_depth()?;
        self.frames.push(frame);
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Reads a key and its colon. The position must be at the first byte that is not a space.
    fn begin_key(&mut self) -> Fallible<()> {
        let start = self.at;
        match self.bytes.get(self.at) {
            Some(b'"') => self.at += 1,
            Some(_) => return Err(self.unexpected("looking for beginning of object key string")),
            None => return Err(self.end_of_input()),
        }
        let (rank, key) = match self.plain_string() {
            Some(key) => (rank(key), Str::new(key)),
            None => {
                let key = self.string()?;
                (rank(&key), key)
            }
        };
        self.marks.push(Mark {
            rank,
            at: start as u32,
            member: self.members.len() as u32,
        });
        self.members.push((key, Value::Null));
        self.skip_space();
        match self.bytes.get(self.at) {
            Some(b':') => self.at += 1,
            Some(_) => return Err(self.unexpected("after object key")),
            None => return Err(self.end_of_input()),
        }
        Ok(())
    }

    /// Reads the comma or closing bracket after a value.
    #[inline]
    fn after_value(&mut self, context: &str, close: u8) -> Fallible<u8> {
        self.skip_space();
        match self.bytes.get(self.at) {
            Some(&byte) if byte == b',' || byte == close => {
                self.at += 1;
                Ok(byte)
            }
            Some(_) => Err(self.unexpected(context)),
            None => Err(self.end_of_input()),
        }
    }

    fn close_array(&mut self, start: usize) {
        self.frames.pop();
        let items = if start == 0 && self.items.len() > COPIED_MAX {
            let mut items = std::mem::take(&mut self.items);
            items.shrink_to_fit();
            items
        } else {
            self.items.drain(start..).collect()
        };
        self.place(Value::Array(items));
    }

    fn close_object(&mut self, start: usize) {
        self.frames.pop();
        let members = &self.members;
        let order = |a: &Mark, b: &Mark| {
            let key = |mark: &Mark| members[mark.member as usize].0.as_str();
            a.rank.cmp(&b.rank).then_with(|| key(a).cmp(key(b)))
        };
        let marks = &mut self.marks[start..];
        let object = if marks.is_sorted_by(|a, b| order(a, b).is_lt()) {
            self.members.drain(start..).collect()
        } else {
            // The position of the key makes the order of equal keys certain.
            marks.sort_unstable_by(|a, b| order(a, b).then_with(|| a.at.cmp(&b.at)));
            let repeats = marks
                .windows(2)
                .any(|pair| order(&pair[0], &pair[1]).is_eq());
            let taken = |mark: &Mark| std::mem::take(&mut self.members[mark.member as usize]);
            let members: Vec<(Str, Value)> = marks.iter().map(taken).collect();
            self.members.truncate(start);
            if repeats {
                self.without_repeated(start, members)
            } else {
                members
            }
        };
        self.marks.truncate(start);
        self.place(Value::Object(Map::from_sorted(object)));
    }

    /// Returns the sorted members of an object, with equal keys combined.
    fn without_repeated(&mut self, start: usize, members: Vec<(Str, Value)>) -> Vec<(Str, Value)> {
        let mut repeated: Vec<(usize, Str)> = Vec::new();
        for (pair, marks) in members.windows(2).zip(self.marks[start..].windows(2)) {
            if pair[0].0 == pair[1].0 {
                repeated.push((marks[1].at as usize, pair[1].0.clone()));
            }
        }
        self.note_duplicates(repeated);
        let mut merged: Vec<(Str, Value)> = Vec::with_capacity(members.len());
        for (key, value) in members {
            match merged.last_mut() {
                Some((known, first)) if *known == key => match self.limits.duplicates {
                    Duplicates::LastWins => *first = value,
                    Duplicates::MergeObjects => merge(first, value),
                },
                _ => merged.push((key, value)),
            }
        }
        merged
    }

    fn note_duplicates(&mut self, mut repeated: Vec<(usize, Str)>) {
        if repeated.is_empty() || self.duplicates.len() >= 2 * DUPLICATES_MAX {
            return;
        }
        repeated.sort_by_key(|(at, _)| *at);
        let prefix = self.path();
        for (at, key) in repeated.into_iter().take(DUPLICATES_MAX) {
            let mut path = BoundedText::new(PATH_BYTES_MAX);
            if !prefix.is_empty() {
                path.push(&prefix);
                path.push(".");
            }
            path.push(&shortened(&key, STEP_BYTES_MAX));
            self.duplicates.push((at, path.into_string()));
        }
    }

    /// Returns the path of the value that is being read, shortened as those of other complaints.
    fn path(&self) -> String {
        let mut path = BoundedText::new(PATH_BYTES_MAX);
        for (depth, frame) in self.frames.iter().enumerate() {
            // Members or items of an open bracket extend to the beginning of the next open one of
            // its type.
            let inner = &self.frames[depth + 1..];
            match *frame {
                Frame::Object { .. } => {
                    let next = inner.iter().find_map(|frame| match frame {
                        Frame::Object { start } => Some(*start),
                        Frame::Array { .. } => None,
                    });
                    if !path.is_empty() {
                        path.push(".");
                    }
                    let name = &self.members[next.unwrap_or(self.members.len()) - 1].0;
                    path.push(&shortened(name, STEP_BYTES_MAX));
                }
                Frame::Array { start } => {
                    let next = inner.iter().find_map(|frame| match frame {
                        Frame::Array { start } => Some(*start),
                        Frame::Object { .. } => None,
                    });
                    let index = next.unwrap_or(self.items.len()) - start;
                    path.push(&format!("[{index}]"));
                }
            }
        }
        path.into_string()
    }

    #[inline]
    fn skip_space(&mut self) {
        if self.bytes.get(self.at).is_some_and(|byte| *byte > b' ') {
            return;
        }
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn literal(&mut self, word: &'static str, value: Value) -> Fallible<()> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            for &expected in word.as_bytes() {
                if self.bytes.get(self.at) != Some(&expected) {
                    let expected = char::from(expected);
                    return Err(
                        self.unexpected(&format!("in literal {word} (expecting '{expected}')"))
                    );
                }
                self.at += 1;
            }
        }
        self.at += word.len();
        self.place(value);
        Ok(())
    }

    #[cold]
    fn end_of_input(&self) -> Box<JsonError> {
        Box::new(JsonError::Syntax {
            message: "unexpected end of JSON input".into(),
            offset: self.bytes.len(),
        })
    }

    /// Returns Go's complaint about the byte at the position; at the end it names a space, as Go
    /// does.
    #[cold]
    fn unexpected(&self, context: &str) -> Box<JsonError> {
        let mut byte = self.bytes.get(self.at).copied().unwrap_or(b' ');
        if let Ok(index) = self.replaced.binary_search_by_key(&self.at, |(at, _)| *at) {
            byte = self.replaced[index].1;
        }
        let message = format!("invalid character {} {context}", quote_byte(byte));
        Box::new(JsonError::Syntax {
            message,
            offset: (self.at + 1).min(self.bytes.len()),
        })
    }
}

/// Returns a byte as Go quotes it in syntax errors, that is as a Latin-1 character.
fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".into(),
        b'"' => "'\"'".into(),
        _ => {
            let quoted = crate::quote::quote(char::from(byte).encode_utf8(&mut [0; 4]));
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

fn merge(first: &mut Value, second: Value) {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            for (key, value) in second {
                merge(first.entry(&key), value);
            }
        }
        (first, second) => *first = second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_not_in_memory_twice() {
        let limits = Limits::default();
        let count = 10 * COPIED_MAX;
        let text = format!("{{\"a\":[[1],{}2]}}", "1,".repeat(count));
        let mut parser = Parser::new(&text, &limits);
        assert!(parser.document().is_ok());
        assert!(parser.items.capacity() < COPIED_MAX);
        let items = parser.root.items_at(&["a"]);
        assert_eq!(
            (items.len(), &items[count + 1]),
            (count + 2, &Value::Int(2))
        );
    }
}
