//! Points in time and durations in the form in which objects have them.
//!
//! Owns the RFC 3339 forms of `Time` and `MicroTime` and Go's duration texts. Knows no clock: the
//! caller passes the time.

mod duration;
mod parse;

use std::time::{SystemTime, UNIX_EPOCH};

pub use duration::{DurationError, duration_text, human_duration, parse_duration};
pub use parse::{TimeError, days_in_month};

/// Bytes of the form of `Time`, for years of four digits.
const SECONDS_BYTES: usize = 20;
/// Bytes of the form of `MicroTime`, for years of four digits.
const MICRO_BYTES: usize = 27;

/// A point in time: seconds since 1970 and nanoseconds, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since 1970, negative before.
    pub seconds: i64,
    /// The nanoseconds after the whole second.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Timestamp {
    /// Returns the whole second, which is the precision of `Time`; 1970 for a clock before that.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::from_seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
    }
}

impl Timestamp {
    /// Returns the time this many seconds after 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self {
            seconds,
            nanoseconds: 0,
        }
    }

    /// Parses the form of `Time`, with any fraction and offset.
    ///
    /// # Errors
    /// Returns an error with Go's text.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        parse::parse(text, parse::Layout::Seconds)
    }

    /// Parses the form of `MicroTime`, which has six digits of fraction.
    ///
    /// # Errors
    /// Returns an error with Go's text.
    pub fn parse_micro(text: &str) -> Result<Self, TimeError> {
        parse::parse(text, parse::Layout::Micro)
    }

    /// Returns the form of `Time`: whole seconds, UTC.
    pub fn to_rfc3339(self) -> String {
        let mut text = Vec::with_capacity(SECONDS_BYTES);
        self.write_seconds(&mut text);
        text.push(b'Z');
        String::from_utf8(text).expect("digits and signs are ASCII")
    }

    /// Returns the form of `MicroTime`: six digits of fraction, UTC.
    pub fn to_rfc3339_micro(self) -> String {
        let mut text = Vec::with_capacity(MICRO_BYTES);
        self.write_rfc3339_micro(&mut text);
        String::from_utf8(text).expect("digits and signs are ASCII")
    }

    /// Appends the form of `MicroTime`: six digits of fraction, UTC.
    pub fn write_rfc3339_micro(self, out: &mut Vec<u8>) {
        self.write_seconds(out);
        let mut fraction = *b".000000Z";
        digits(&mut fraction[1..7], self.nanoseconds / 1000);
        out.extend_from_slice(&fraction);
    }

    /// Appends the date and the time of the day in whole seconds, without a zone.
    fn write_seconds(self, out: &mut Vec<u8>) {
        let Civil {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = self.civil();
        let Some(year) = u32::try_from(year).ok().filter(|year| *year < 10_000) else {
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
            return out.extend_from_slice(text.as_bytes());
        };
        let mut text = *b"0000-00-00T00:00:00";
        digits(&mut text[..4], year);
        // All parts of a date are small and positive.
        for (at, part) in [(5, month), (8, day), (11, hour), (14, minute), (17, second)] {
            digits(&mut text[at..at + 2], part as u32);
        }
        out.extend_from_slice(&text);
    }

    /// Returns the nanoseconds from `earlier` to this time, saturating.
    pub fn nanoseconds_since(self, earlier: Self) -> i64 {
        let seconds = self.seconds.saturating_sub(earlier.seconds);
        let rest = i64::from(self.nanoseconds) - i64::from(earlier.nanoseconds);
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    }

    fn civil(self) -> Civil {
        let days = self.seconds.div_euclid(86_400);
        let second = self.seconds.rem_euclid(86_400);
        let (year, month, day) = civil_of_days(days);
        Civil {
            year,
            month,
            day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

/// Writes the last digits of a number.
fn digits(out: &mut [u8], mut number: u32) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Quotes a text as Go's time package does: each byte beyond ASCII on its own.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..0x80 => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Returns the days from 1970 to a date. Years are counted from March, so that the leap day comes
/// last.
fn days_of_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns the date that is a number of days after 1970.
fn civil_of_days(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests;
