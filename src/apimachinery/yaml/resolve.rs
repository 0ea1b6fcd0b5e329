//! The meaning of a plain scalar in YAML 1.1, as Go's library resolves it.

use crate::time::days_in_month;

/// The meaning of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Resolved {
    Null,
    Bool(bool),
    Int(i64),
    /// A number too large for 64 bits signed.
    Unsigned(u64),
    Float(f64),
    Text,
}

/// Resolves a scalar without a tag.
pub(super) fn resolve(text: &str) -> Resolved {
    let Some(first) = text.bytes().next() else {
        return Resolved::Null;
    };
    match first {
        b'+' | b'-' | b'0'..=b'9' => special_float(text)
            .or_else(|| number(text))
            .unwrap_or(Resolved::Text),
        b'.' => special_float(text)
            .or_else(|| go_float(text).map(Resolved::Float))
            .unwrap_or(Resolved::Text),
        _ => word(text).unwrap_or(Resolved::Text),
    }
}

/// Resolves a scalar that must be a number; underscores and all forms of numbers are allowed.
fn number(text: &str) -> Option<Resolved> {
    if looks_like_timestamp(text) {
        return Some(Resolved::Text);
    }
    let plain = text.replace('_', "");
    if let Some(integer) = integer(&plain, text) {
        return Some(integer);
    }
    if is_yaml_float(&plain) {
        return plain
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .map(Resolved::Float);
    }
    None
}

fn word(text: &str) -> Option<Resolved> {
    Some(match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Resolved::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Resolved::Bool(false)
        }
        "~" | "null" | "Null" | "NULL" => Resolved::Null,
        _ => return None,
    })
}

fn special_float(text: &str) -> Option<Resolved> {
    Some(Resolved::Float(match text {
        ".nan" | ".NaN" | ".NAN" => f64::NAN,
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => f64::INFINITY,
        "-.inf" | "-.Inf" | "-.INF" => f64::NEG_INFINITY,
        _ => return None,
    }))
}

/// Parses an integer with any of Go's prefixes.
fn integer(plain: &str, _given: &str) -> Option<Resolved> {
    let (negative, digits) = match plain.as_bytes().first()? {
        b'-' => (true, &plain[1..]),
        b'+' => (false, &plain[1..]),
        _ => (false, plain),
    };
    let signed = plain.len() != digits.len();
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(digits) = lower.strip_prefix("0x") {
        (16, digits)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (2, digits)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (8, digits)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    match (negative, i64::try_from(number)) {
        (false, Ok(number)) => Some(Resolved::Int(number)),
        (true, Ok(number)) => Some(Resolved::Int(-number)),
        (true, Err(_)) if number == 1 << 63 => Some(Resolved::Int(i64::MIN)),
        (false, Err(_)) if !signed => Some(Resolved::Unsigned(number)),
        _ => None,
    }
}

/// Returns true for the form of floats: digits with a point somewhere, and an optional exponent.
fn is_yaml_float(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(text);
    let mut rest = &text[whole..];
    if let Some(after) = rest.strip_prefix('.') {
        let fraction = digits(after);
        if whole == 0 && fraction == 0 {
            return false;
        }
        rest = &after[fraction..];
    } else if whole == 0 {
        return false;
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
    }
}

/// Parses a text that starts with a point, as Go's `ParseFloat` does.
fn go_float(text: &str) -> Option<f64> {
    if !is_yaml_float(text) {
        return None;
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// Returns true for the forms that Go's library takes for timestamps; they stay text.
pub(super) fn looks_like_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count()
        != 4
        || bytes.get(4) != Some(&b'-')
    {
        return false;
    }
    let part = |text: &str| {
        (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let date_end = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let mut date = text[5..date_end].split('-');
    date.next().is_some_and(part) && date.next().is_some_and(part) && date.next().is_none()
}

/// Returns true for texts that YAML 1.1 parsers take for numbers of base 60, such as `1:30`.
pub(super) fn is_base60_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|first: char| first.is_ascii_digit()) || !text.contains(':') {
        return false;
    }
    let (body, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut parts = body.split(':');
    let first = parts.next().is_some_and(|part| {
        part.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
    });
    let rest = parts.all(|part| match part.as_bytes() {
        [only] => only.is_ascii_digit(),
        [tens, ones] => (b'0'..=b'5').contains(tens) && ones.is_ascii_digit(),
        _ => false,
    });
    first
        && rest
        && fraction
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
}

/// Returns true if Go's library takes a text for a timestamp.
pub(super) fn is_timestamp(text: &str) -> bool {
    if !looks_like_timestamp(text) {
        return false;
    }
    let Some(at) = text.find(['T', 't', ' ']) else {
        return date_is_real(text);
    };
    let (date, clock) = (&text[..at], &text[at + 1..]);
    if !date_is_real(date) {
        return false;
    }
    let zone_at = clock.find(['Z', '+', '-']);
    let (clock, zone) = clock.split_at(zone_at.unwrap_or(clock.len()));
    let zone_good = match text.as_bytes()[at] {
        b' ' => zone.is_empty(),
        _ => {
            zone == "Z"
                || matches!(zone.as_bytes(), [b'+' | b'-', a, b, b':', c, d] if [a, b, c, d].iter().all(|byte| byte.is_ascii_digit()))
        }
    };
    zone_good && clock_is_real(clock)
}

fn date_is_real(date: &str) -> bool {
    let mut parts = date.split('-').map(|part| part.parse::<i64>().unwrap_or(0));
    let (year, month, day) = (
        parts.next().unwrap_or(0),
        parts.next().unwrap_or(0),
        parts.next().unwrap_or(0),
    );
    (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day)
}

fn clock_is_real(clock: &str) -> bool {
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let bounds = [24u32, 60, 60];
    let parts: Vec<&str> = clock.split(':').collect();
    parts.len() == 3
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
        && parts
            .iter()
            .zip(bounds)
            .enumerate()
            .all(|(index, (part, bound))| {
                let digits = part.bytes().all(|byte| byte.is_ascii_digit());
                let length = if index == 0 {
                    part.len() == 2 || part.len() == 1
                } else {
                    (1..=2).contains(&part.len())
                };
                digits && length && part.parse::<u32>().is_ok_and(|number| number < bound)
            })
}
