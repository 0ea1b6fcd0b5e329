//! Parses RFC 3339 texts, with the complaints of Go's `time.Parse`.

use super::quote;
use super::{Timestamp, days_of_civil};

/// The layout of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Seconds,
    Micro,
}

impl Layout {
    fn layout(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micro => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// The reason why a text is not a time, with Go's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text does not have the form of the layout.
    #[error("parsing time {} as {}: cannot parse {} as {}", quote(.text), quote(.layout), quote(.rest), quote(.element))]
    Shape {
        /// The whole text.
        text: String,
        /// The layout it should have.
        layout: &'static str,
        /// The rest of the text, which could not be parsed.
        rest: String,
        /// The part of the layout that was expected there.
        element: &'static str,
    },
    /// A part is out of range.
    #[error("parsing time {}: {part} out of range", quote(.text))]
    Range {
        /// The whole text.
        text: String,
        /// The name of the part.
        part: &'static str,
    },
    /// There is text behind the time.
    #[error("parsing time {}: extra text: {}", quote(.text), quote(.rest))]
    Extra {
        /// The whole text.
        text: String,
        /// That text.
        rest: String,
    },
}

/// The result of parsing a part: a value, a value out of range, or no number.
enum ParsedNumber {
    Good(i64),
    Range(&'static str),
    Shape,
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    form: Layout,
}

impl Reader<'_> {
    fn shape(&self, rest: &str, element: &'static str) -> TimeError {
        TimeError::Shape {
            text: self.text.into(),
            layout: self.form.layout(),
            rest: rest.into(),
            element,
        }
    }

    fn range(&self, part: &'static str) -> TimeError {
        TimeError::Range {
            text: self.text.into(),
            part,
        }
    }

    fn literal(&mut self, literal: &'static str) -> Result<(), TimeError> {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.shape(self.rest, literal)),
        }
    }

    /// Parses exactly `count` digits as a number below `end`. A number out of range is reported
    /// before any later error.
    fn number(
        &mut self,
        count: usize,
        element: &'static str,
        part: Option<(&'static str, i64)>,
    ) -> Result<i64, TimeError> {
        let before = self.rest;
        let digits = before
            .as_bytes()
            .get(..count)
            .filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let step = match digits {
            None => ParsedNumber::Shape,
            Some(digits) => {
                let number = digits
                    .iter()
                    .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
                match part {
                    Some((part, end)) if number >= end => ParsedNumber::Range(part),
                    _ => ParsedNumber::Good(number),
                }
            }
        };
        match step {
            ParsedNumber::Good(number) => {
                self.rest = &before[count..];
                Ok(number)
            }
            ParsedNumber::Range(part) => Err(self.range(part)),
            ParsedNumber::Shape => Err(self.shape(before, element)),
        }
    }

    /// Parses a month or day, which is below 100 here; `check` tests its range.
    fn two(&mut self, element: &'static str) -> Result<i64, TimeError> {
        self.number(2, element, None)
    }

    /// Parses an optional fraction.
    fn optional_fraction(&mut self) -> u32 {
        let Some(after) = self.rest.strip_prefix(['.', ',']) else {
            return 0;
        };
        let count = after.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return 0;
        }
        self.rest = &after[count..];
        let nine = after
            .bytes()
            .take(count)
            .chain(std::iter::repeat(b'0'))
            .take(9);
        nine.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    }

    /// Parses exactly six digits of fraction.
    fn micro_fraction(&mut self) -> Result<u32, TimeError> {
        const ELEMENT: &str = ".000000";
        let before = self.rest;
        let digits = before
            .as_bytes()
            .get(1..7)
            .filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let point = before.starts_with(['.', ',']);
        let Some(digits) = digits.filter(|_| point) else {
            return Err(self.shape(before, ELEMENT));
        };
        self.rest = &before[7..];
        Ok(digits
            .iter()
            .fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
            * 1000)
    }

    /// Parses `Z` or an offset, in seconds.
    fn offset(&mut self) -> Result<i64, TimeError> {
        const ELEMENT: &str = "Z07:00";
        let before = self.rest;
        if let Some(rest) = before.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let bytes = before.as_bytes();
        let (sign, good) = match bytes.get(..6) {
            Some([sign @ (b'+' | b'-'), a, b, b':', c, d]) => (
                if *sign == b'-' { -1 } else { 1 },
                [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()),
            ),
            _ => (1, false),
        };
        if !good {
            return Err(self.shape(before, ELEMENT));
        }
        let two = |at: usize| i64::from(bytes[at] - b'0') * 10 + i64::from(bytes[at + 1] - b'0');
        let (hours, minutes) = (two(1), two(4));
        if hours > 24 {
            return Err(self.range("time zone offset hour"));
        }
        if minutes > 60 {
            return Err(self.range("time zone offset minute"));
        }
        self.rest = &before[6..];
        Ok(sign * (hours * 3600 + minutes * 60))
    }
}

/// Returns how many days a month of the Gregorian calendar has; `month` is 1 to 12.
pub fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

pub(super) fn parse(text: &str, form: Layout) -> Result<Timestamp, TimeError> {
    let mut reader = Reader {
        text,
        rest: text,
        form,
    };
    let year = reader.number(4, "2006", None)?;
    reader.literal("-")?;
    let month = reader.two("01")?;
    if !(1..=12).contains(&month) {
        return Err(reader.range("month"));
    }
    reader.literal("-")?;
    let day = reader.two("02")?;
    reader.literal("T")?;
    let hour_digits = if reader
        .rest
        .as_bytes()
        .get(1)
        .is_some_and(u8::is_ascii_digit)
    {
        2
    } else {
        1
    };
    let hour = reader.number(hour_digits, "15", Some(("hour", 24)))?;
    reader.literal(":")?;
    let minute = reader.number(2, "04", Some(("minute", 60)))?;
    reader.literal(":")?;
    let second = reader.number(2, "05", Some(("second", 60)))?;
    let nanoseconds = match form {
        Layout::Seconds => reader.optional_fraction(),
        Layout::Micro => reader.micro_fraction()?,
    };
    let offset = reader.offset()?;
    if !reader.rest.is_empty() {
        return Err(TimeError::Extra {
            text: text.into(),
            rest: reader.rest.into(),
        });
    }
    if day < 1 || day > days_in_month(year, month) {
        return Err(reader.range("day"));
    }
    let seconds =
        days_of_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}
