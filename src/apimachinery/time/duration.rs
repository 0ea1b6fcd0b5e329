//! Durations: Go's duration texts and the short form of tables.

use super::quote;

/// The reason why a text is not a duration, with Go's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not have the form of a duration, or is too long a time.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit does not exist.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

fn unit_nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Parses a duration such as `1h15m30.5s` into nanoseconds.
///
/// # Errors
/// Returns an error with Go's text.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let limit = 1u64 << 63;
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let whole: u64 = match &rest[..digits] {
            "" => 0,
            whole => whole
                .parse()
                .ok()
                .filter(|whole| *whole <= limit)
                .ok_or_else(invalid)?,
        };
        let after = &rest[digits..];
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if digits == 0 && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_end = after
            .bytes()
            .take_while(|byte| *byte != b'.' && !byte.is_ascii_digit())
            .count();
        let (unit, after) = after.split_at(unit_end);
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let Some(scale) = unit_nanoseconds(unit) else {
            return Err(DurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        };
        let mut part = whole
            .checked_mul(scale)
            .filter(|part| *part <= limit)
            .ok_or_else(invalid)?;
        part += fraction_nanoseconds(fraction, scale);
        total = total
            .checked_add(part)
            .filter(|total| *total <= limit)
            .ok_or_else(invalid)?;
        rest = after;
    }
    match (negative, i64::try_from(total)) {
        (true, Ok(total)) => Ok(-total),
        (true, Err(_)) => Ok(i64::MIN),
        (false, Ok(total)) => Ok(total),
        (false, Err(_)) => Err(invalid()),
    }
}

/// Returns the digits after the point as nanoseconds of a unit. Digits beyond 18 are ignored.
fn fraction_nanoseconds(fraction: &str, scale: u64) -> u64 {
    let mut number = 0u64;
    let mut divisor = 1.0f64;
    for digit in fraction.bytes().take(18) {
        number = number * 10 + u64::from(digit - b'0');
        divisor *= 10.0;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "Go computes the fraction in floating point as well"
    )]
    let exact = number as f64 * (scale as f64 / divisor);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive and below an hour"
    )]
    let nanoseconds = exact as u64;
    nanoseconds
}

/// Returns a duration in nanoseconds as Go prints it: `1h0m0.5s`, `1.5ms`, `0s`.
pub fn duration_text(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let size = nanoseconds.unsigned_abs();
    match size {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{size}ns"),
        1_000..1_000_000 => format!("{sign}{}\u{b5}s", with_fraction(size, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", with_fraction(size, 1_000_000)),
        _ => {
            let minutes = size / 60_000_000_000;
            let seconds = with_fraction(size % 60_000_000_000, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Returns `size / unit` with as many digits after the point as it needs.
fn with_fraction(size: u64, unit: u64) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", size / unit, size % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a duration in nanoseconds as the age columns of tables show it: `5d3h`, `90s`,
/// `<invalid>` in the future.
pub fn human_duration(nanoseconds: i64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    if seconds < 120 {
        return format!("{seconds}s");
    }
    let with_rest = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    if minutes < 10 {
        with_rest(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        with_rest(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        with_rest(hours / 24, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{}d", hours / 24)
    } else if hours < 24 * 365 * 8 {
        with_rest(hours / 24 / 365, "y", hours / 24 % 365, "d")
    } else {
        format!("{}y", hours / 24 / 365)
    }
}
