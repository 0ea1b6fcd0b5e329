//! Points and spans of time: arithmetic with limits, reading and writing as Go does.

use crate::value::Fault;

const NANOS: i64 = 1_000_000_000;
/// The first second of the year 1.
const SECONDS_MIN: i64 = -62_135_596_800;
/// The last second of the year 9999.
const SECONDS_MAX: i64 = 253_402_300_799;
const DAY: i64 = 86_400;

/// A point in time from the year 1 to 9999, with the offset from UTC it was written with.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
    offset_seconds: i32,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}
impl Eq for Timestamp {}

/// The parts of a date and time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Civil {
    /// The year.
    pub year: i64,
    /// The month, from 1.
    pub month: i64,
    /// The day of the month, from 1.
    pub day: i64,
    /// The day of the year, from 1.
    pub day_of_year: i64,
    /// The day of the week, from Sunday, 0.
    pub weekday: i64,
    /// The hour.
    pub hour: i64,
    /// The minute.
    pub minute: i64,
    /// The second.
    pub second: i64,
    /// The nanosecond.
    pub nanos: i64,
}

fn out_of_range() -> Fault {
    Fault::error("timestamp overflow")
}

fn integer_overflow() -> Fault {
    Fault::error("integer overflow")
}

impl Timestamp {
    /// Makes a point in time of seconds since 1970.
    ///
    /// # Errors
    /// Returns an error outside the years 1 to 9999.
    pub fn new(seconds: i64, nanos: u32) -> Result<Self, Fault> {
        if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
            return Err(out_of_range());
        }
        Ok(Self {
            seconds,
            nanos,
            offset_seconds: 0,
        })
    }

    /// Returns the seconds since 1970 and the nanoseconds, to compare by.
    #[must_use]
    pub fn order(&self) -> (i64, u32) {
        (self.seconds, self.nanos)
    }

    fn total_nanos(self) -> i128 {
        i128::from(self.seconds) * i128::from(NANOS) + i128::from(self.nanos)
    }

    /// Adds a span in nanoseconds.
    ///
    /// # Errors
    /// Returns an error outside the years 1 to 9999.
    pub fn plus(self, nanos: i128) -> Result<Self, Fault> {
        let total = self.total_nanos() + nanos;
        let seconds = total.div_euclid(i128::from(NANOS));
        let nanos = total.rem_euclid(i128::from(NANOS));
        let seconds = i64::try_from(seconds).map_err(|_| out_of_range())?;
        let mut made = Self::new(seconds, u32::try_from(nanos).unwrap_or(0))?;
        made.offset_seconds = self.offset_seconds;
        Ok(made)
    }

    /// Returns the span from another point in nanoseconds.
    ///
    /// # Errors
    /// Returns an error if the span does not fit.
    pub fn since(self, other: Self) -> Result<i64, Fault> {
        i64::try_from(self.total_nanos() - other.total_nanos()).map_err(|_| integer_overflow())
    }

    /// Returns the offset from UTC that the time was written with.
    #[must_use]
    pub fn offset_seconds(&self) -> i32 {
        self.offset_seconds
    }

    /// Returns the date and time of day at an offset from UTC.
    #[must_use]
    pub fn civil(&self, offset_seconds: i64) -> Civil {
        let local = self.seconds + offset_seconds;
        let days = local.div_euclid(DAY);
        let second = local.rem_euclid(DAY);
        let (year, month, day) = date_of(days);
        Civil {
            year,
            month,
            day,
            day_of_year: days - days_of(year, 1, 1) + 1,
            weekday: (days + 4).rem_euclid(7),
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
            nanos: i64::from(self.nanos),
        }
    }

    /// Reads a time as RFC 3339 writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Result<Self, Fault>> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<i64> {
            let part = bytes.get(from..to)?;
            if !part.iter().all(u8::is_ascii_digit) {
                return None;
            }
            std::str::from_utf8(part).ok()?.parse().ok()
        };
        let mark = |at: usize, letter: u8| (bytes.get(at) == Some(&letter)).then_some(());
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        // As Go, an hour may have one digit.
        let at = if bytes.get(12) == Some(&b':') { 12 } else { 13 };
        let (hour, minute) = (number(11, at)?, number(at + 1, at + 3)?);
        let second = number(at + 4, at + 6)?;
        mark(4, b'-')?;
        mark(7, b'-')?;
        mark(10, b'T')?;
        mark(at, b':')?;
        mark(at + 3, b':')?;
        let good = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !good {
            return None;
        }
        let (nanos, rest) = fraction(text.get(at + 6..)?)?;
        let offset = offset(rest)?;
        let seconds = days_of(year, month, day) * DAY + hour * 3_600 + minute * 60 + second;
        Some(Self::new(seconds - offset, nanos).map(|mut made| {
            made.offset_seconds = i32::try_from(offset).unwrap_or(0);
            made
        }))
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let offset = i64::from(self.offset_seconds);
        let at = self.civil(offset);
        write!(
            out,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            at.year, at.month, at.day, at.hour, at.minute, at.second
        )?;
        if at.nanos > 0 {
            let digits = format!("{:09}", at.nanos);
            write!(out, ".{}", digits.trim_end_matches('0'))?;
        }
        if offset == 0 {
            return out.write_str("Z");
        }
        let sign = if offset < 0 { '-' } else { '+' };
        let minutes = offset.abs() / 60;
        write!(out, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

/// Reads a fraction of a second; returns nanoseconds and what follows.
fn fraction(text: &str) -> Option<(u32, &str)> {
    let Some(digits) = text.strip_prefix(['.', ',']) else {
        return Some((0, text));
    };
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let padded: String = digits[..end]
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Some((padded.parse().ok()?, &digits[end..]))
}

/// Reads `Z` or an offset from UTC in hours and minutes; returns seconds.
fn offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let part = |text: &str| -> Option<i64> {
        let digits = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (hours, minutes) = (part(hours)?, part(minutes)?);
    // Go takes these limits too, because some write them.
    (hours <= 24 && minutes <= 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1970 to a date of the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the date of a number of days from 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Reads a span as Go writes it, such as `1h30m` or `-1.5s`; returns nanoseconds.
#[must_use]
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, behind) = rest.split_at(end);
        let unit_end = behind
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(behind.len());
        let (unit, next) = behind.split_at(unit_end);
        total = total.checked_add(span(number, unit)?)?;
        if total > 1 << 63 {
            return None;
        }
        rest = next;
    }
    let total = i128::try_from(total).ok()?;
    i64::try_from(if negative { -total } else { total }).ok()
}

fn span(number: &str, unit: &str) -> Option<u128> {
    let unit: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') || whole.len() > 20 {
        return None;
    }
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let part: String = part.chars().take(18).collect();
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let part: u128 = if part.is_empty() {
        0
    } else {
        part.parse().ok()?
    };
    whole.checked_mul(unit)?.checked_add(part * unit / scale)
}

/// Writes a span in seconds.
#[must_use]
pub fn format_duration(nanos: i64) -> String {
    #[expect(
        clippy::cast_precision_loss,
        reason = "upstream writes the nearest double"
    )]
    let seconds = (nanos / NANOS) as f64 + (nanos % NANOS) as f64 / 1e9;
    format!("{seconds}s")
}
