//! Parsing of numbers and strings in JSON text.

use super::{Fallible, Parser};
use crate::json::find;
use crate::value::{Str, Value};

impl<'t> Parser<'t> {
    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    pub(super) fn number(&mut self) -> Fallible<Value> {
        let start = self.at;
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else if self.digits() == 0 {
            return Err(self.unexpected("in numeric literal"));
        }
        let mut fraction = false;
        let mut exponent = false;
        if self.bytes.get(self.at) == Some(&b'.') {
            fraction = true;
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.unexpected("after decimal point in numeric literal"));
            }
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            exponent = true;
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.unexpected("in exponent of numeric literal"));
            }
        }
        let literal = &self.text[start..self.at];
        if !fraction
            && !exponent
            && let Ok(number) = literal.parse::<i64>()
        {
            return Ok(Value::Int(number));
        }
        match literal.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                self.floats = true;
                Ok(Value::Float(number))
            }
            _ => {
                self.bad_number.get_or_insert_with(|| literal.to_owned());
                Ok(Value::Null)
            }
        }
    }

    /// Reads a string without escapes whose opening quote was read. Reads nothing if the string has
    /// escapes.
    #[inline]
    pub(super) fn plain_string(&mut self) -> Option<&'t str> {
        let start = self.at;
        let end = start + find::plain(&self.bytes[start..]);
        if self.bytes.get(end) != Some(&b'"') {
            return None;
        }
        self.at = end + 1;
        Some(&self.text[start..end])
    }

    /// Reads any string whose opening quote was read.
    #[cold]
    pub(super) fn string(&mut self) -> Fallible<Str> {
        let start = self.at;
        self.at += find::plain(&self.bytes[start..]);
        match self.bytes.get(self.at) {
            Some(b'"') => {
                let text = &self.text[start..self.at];
                self.at += 1;
                Ok(Str::new(text))
            }
            Some(b'\\') => self.string_with_escapes(start),
            Some(_) => Err(self.unexpected("in string literal")),
            None => Err(self.end_of_input()),
        }
    }

    fn string_with_escapes(&mut self, start: usize) -> Fallible<Str> {
        let mut text = String::with_capacity(self.at - start + 32);
        let mut copied = start;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    text.push_str(&self.text[copied..self.at]);
                    self.at += 1;
                    return Ok(Str::from(text));
                }
                Some(b'\\') => {
                    text.push_str(&self.text[copied..self.at]);
                    self.at += 1;
                    text.push(self.escape()?);
                    copied = self.at;
                }
                Some(0..0x20) => return Err(self.unexpected("in string literal")),
                Some(_) => self.at += find::plain(&self.bytes[self.at..]),
                None => return Err(self.end_of_input()),
            }
        }
    }

    /// Reads the rest of an escape, behind its backslash.
    fn escape(&mut self) -> Fallible<char> {
        let plain = match self.bytes.get(self.at) {
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(&byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.unexpected("in string escape code")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Fallible<char> {
        let high = self.hex4()?;
        if !(0xD800..0xE000).contains(&high) {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if high < 0xDC00 && self.bytes[self.at..].starts_with(b"\\u") {
            let here = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if (0xDC00..0xE000).contains(&low) {
                let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                return Ok(char::from_u32(code).expect("a surrogate pair is a character"));
            }
            // This was not the second half of a surrogate pair, so it is read again on its own.
            self.at = here;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Fallible<u32> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self
                .bytes
                .get(self.at)
                .and_then(|byte| char::from(*byte).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.unexpected("in \\u hexadecimal character escape"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}
