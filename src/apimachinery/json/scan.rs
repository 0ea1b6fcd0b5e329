//! Lookups in JSON bytes without building a tree, for objects that are matched and not changed.
//!
//! Invariant: the bytes are a valid JSON text in compact form, as [`super::write`] makes it. On any
//! other input an answer may be missing or wrong, but nothing panics or loops.

use std::borrow::Cow;
use std::ops::Range;

/// Returns the range of the value at `path`, a chain of member names; `None` if a member is
/// missing.
pub fn find(bytes: &[u8], path: &[&str]) -> Option<Range<usize>> {
    let mut start = 0;
    for name in path {
        // Not to the end of the value: that would be a second walk over all that lies in it.
        start += members(&bytes[start..]).start_of(name)?;
    }
    Some(start..value_end(bytes, start)?)
}

/// Returns the text of the string at `path`, a chain of member names; `None` if there is no string.
pub fn string_at<'a>(bytes: &'a [u8], path: &[&str]) -> Option<Cow<'a, str>> {
    string(&bytes[find(bytes, path)?])
}

/// Returns the text of a JSON string, quotes included in `raw`; borrowed if it has no escapes.
pub fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let text = std::str::from_utf8(inner).ok()?;
    if inner.contains(&b'\\') {
        super::parse::unescape(text).map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(text))
    }
}

/// A JSON value of which single members are read without a tree.
#[derive(Clone, Copy, Debug)]
pub struct Scanned<'a>(pub &'a [u8]);

impl<'a> Scanned<'a> {
    /// Returns the value at a chain of member names.
    pub fn at(self, path: &[&str]) -> Option<Self> {
        find(self.0, path).map(|range| Self(&self.0[range]))
    }

    /// Returns the string at a chain of member names; empty if there is none.
    pub fn str_at(self, path: &[&str]) -> Cow<'a, str> {
        let found = self.at(path).and_then(|value| string(value.0));
        found.unwrap_or_default()
    }

    /// Returns the integer at a chain of member names.
    pub fn int_at(self, path: &[&str]) -> Option<i64> {
        let text = std::str::from_utf8(self.at(path)?.0).ok()?;
        text.parse().ok()
    }

    /// Returns whether there is `true` at a chain of member names.
    pub fn bool_at(self, path: &[&str]) -> bool {
        self.at(path).is_some_and(|value| value.0 == b"true")
    }

    /// Returns the members of these names in one walk, for large objects of which several are needed.
    pub fn parts<const N: usize>(self, names: [&str; N]) -> [Option<Self>; N] {
        let (mut parts, mut left) = ([None; N], N);
        let mut members = members(self.0);
        while left > 0
            && let Some((key, range)) = members.next()
        {
            let at = names.iter().position(|name| key_is(key, name));
            if let Some(part) = at.map(|at| &mut parts[at]).filter(|part| part.is_none()) {
                *part = Some(Self(&self.0[range]));
                left -= 1;
            }
        }
        parts
    }

    /// Returns the text of a string; empty if this is none.
    pub fn text(self) -> Cow<'a, str> {
        string(self.0).unwrap_or_default()
    }

    /// Returns the items of an array; none if this is none.
    pub fn items(self) -> impl Iterator<Item = Self> + use<'a> {
        items(self.0).map(move |range| Self(&self.0[range]))
    }

    /// Returns the first item of the array at a chain of member names.
    pub fn first_at(self, path: &[&str]) -> Option<Self> {
        let array = self.at(path)?.0;
        items(array).next().map(|range| Self(&array[range]))
    }
}

/// Returns the members of the object that `bytes` begin with: each raw key, quotes included, and
/// the range of its value within `bytes`. Empty if there is no object.
pub fn members(bytes: &[u8]) -> Members<'_> {
    let at = if bytes.first() == Some(&b'{') {
        1
    } else {
        bytes.len()
    };
    Members { bytes, at }
}

/// Returns the items of the array that `bytes` begin with, as ranges within `bytes`.
pub fn items(bytes: &[u8]) -> Items<'_> {
    let at = if bytes.first() == Some(&b'[') {
        1
    } else {
        bytes.len()
    };
    Items { bytes, at }
}

/// Returns true if the raw key, quotes included, represents `name`.
pub fn key_is(raw: &[u8], name: &str) -> bool {
    match raw
        .strip_prefix(b"\"")
        .and_then(|raw| raw.strip_suffix(b"\""))
    {
        Some(inner) if !inner.contains(&b'\\') => inner == name.as_bytes(),
        Some(_) => string(raw).is_some_and(|key| key == name),
        None => false,
    }
}

/// The iterator that [`members`] returns.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    /// Returns the next raw key and where its value starts. The caller moves behind the value.
    fn next_key(&mut self) -> Option<(&'a [u8], usize)> {
        if self.bytes.get(self.at) == Some(&b',') {
            self.at += 1;
        }
        let key_start = self.at;
        let key_end = string_end(self.bytes, key_start)?;
        if self.bytes.get(key_end) != Some(&b':') {
            self.at = self.bytes.len();
            return None;
        }
        Some((&self.bytes[key_start..key_end], key_end + 1))
    }

    /// Returns where the value of the member of this name starts.
    fn start_of(mut self, name: &str) -> Option<usize> {
        loop {
            let (key, start) = self.next_key()?;
            if key_is(key, name) {
                return Some(start);
            }
            self.at = value_end(self.bytes, start)?;
        }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, start) = self.next_key()?;
        self.at = value_end(self.bytes, start)?;
        Some((key, start..self.at))
    }
}

/// The iterator that [`items`] returns.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Iterator for Items<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.bytes.get(self.at)? {
            b']' => return None,
            b',' => self.at += 1,
            _ => {}
        }
        let start = self.at;
        self.at = value_end(self.bytes, start)?;
        Some(start..self.at)
    }
}

/// Returns the position behind the closing quote of the string that starts at `start`.
pub(crate) fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the end of the value that starts at `start`.
pub(super) fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start)? {
        b'"' => string_end(bytes, start),
        b'{' | b'[' => brackets_end(bytes, start),
        b'}' | b']' | b',' | b':' => None,
        _ => {
            let rest = &bytes[start..];
            let length = rest
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']'));
            Some(start + length.unwrap_or(rest.len()))
        }
    }
}

fn brackets_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = start;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}
