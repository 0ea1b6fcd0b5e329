//! Types that are texts in JSON but have a form in Go: they are checked and brought into one form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Type;
use crate::quantity::Quantity;
use crate::time::{Timestamp, duration_text, parse_duration};
use crate::value::Value;

/// The reason why a scalar cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    /// The whole text of the error.
    Text(String),
    /// The value has another JSON type than this Go type accepts.
    Type(&'static str),
}

/// Brings a value of a type that decodes itself into canonical form.
pub(super) fn canonical(ty: &Type, value: &mut Value) -> Result<(), Scalar> {
    match (ty, &mut *value) {
        (Type::IntOrString, Value::String(_)) => Ok(()),
        (Type::IntOrString, Value::Int(number)) if i32::try_from(*number).is_ok() => Ok(()),
        (Type::IntOrString, _) => Err(Scalar::Type("int32")),
        (Type::Quantity, _) => quantity(value),
        (Type::Time, Value::String(text)) if is_plain_time(text.as_bytes()) => Ok(()),
        (Type::Time, Value::String(text)) => {
            let time = Timestamp::parse(text).map_err(text_of)?;
            if time == ZERO_TIME {
                *value = Value::Null;
            } else if text.len() != "2006-01-02T15:04:05Z".len() || !text.ends_with('Z') {
                *text = time.to_rfc3339().into();
            }
            Ok(())
        }
        (Type::MicroTime, Value::String(text)) => {
            let time = Timestamp::parse_micro(text).map_err(text_of)?;
            if time == ZERO_TIME {
                *value = Value::Null;
            } else {
                *text = time.to_rfc3339_micro().into();
            }
            Ok(())
        }
        (Type::Duration, Value::String(text)) => {
            *text = duration_text(parse_duration(text).map_err(text_of)?).into();
            Ok(())
        }
        // A duration decodes null as the empty text, which it then refuses.
        (Type::Duration, Value::Null) => parse_duration("").map(drop).map_err(text_of),
        (Type::Time | Type::MicroTime | Type::Duration, _) => Err(Scalar::Type("string")),
        _ => Ok(()),
    }
}

/// Takes the fraction from a number that is whole, if the type is one of whole numbers.
pub(super) fn make_whole(ty: &Type, value: &mut Value) {
    /// The first whole number that 64 bits do not hold.
    const END: f64 = 9_223_372_036_854_775_808.0;
    if let (Type::Int32 | Type::Int64 | Type::IntOrString, Value::Float(number)) = (ty, &*value)
        && number.trunc() == *number
        && (-END..END).contains(number)
    {
        *value = Value::Int(*number as i64);
    }
}

/// The first second of the year 1, which Go treats as "no time".
const ZERO_TIME: Timestamp = Timestamp::from_seconds(-62_135_596_800);

fn text_of(error: impl std::fmt::Display) -> Scalar {
    Scalar::Text(error.to_string())
}

/// Returns true for times whose form is the canonical one beyond doubt, which nearly all are. The
/// others are parsed: those at the end of a month, for example.
fn is_plain_time(text: &[u8]) -> bool {
    let Ok([y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1, b'T', rest @ ..]) =
        <&[u8; 20]>::try_from(text)
    else {
        return false;
    };
    let [h0, h1, b':', min0, min1, b':', s0, s1, b'Z'] = rest else {
        return false;
    };
    let two = |tens: &u8, ones: &u8| match (tens, ones) {
        (b'0'..=b'9', b'0'..=b'9') => (tens - b'0') * 10 + (ones - b'0'),
        _ => u8::MAX,
    };
    (1..100).contains(&two(y0, y1))
        && two(y2, y3) < 100
        && (1..=12).contains(&two(m0, m1))
        && (1..=28).contains(&two(d0, d1))
        && two(h0, h1) < 24
        && two(min0, min1) < 60
        && two(s0, s1) < 60
}

fn quantity(value: &mut Value) -> Result<(), Scalar> {
    if let Value::String(text) = value
        && Quantity::is_plain(text)
    {
        return Ok(());
    }
    let written = match &*value {
        // Upstream trims the text as JSON has it, in which other spaces are escapes.
        Value::String(text) => Quantity::parse(text.trim_matches(' '))
            .map_err(text_of)?
            .to_string(),
        other => Quantity::parse(&crate::json::to_string(other))
            .map_err(text_of)?
            .to_string(),
    };
    match value {
        Value::String(text) if *text == written => {}
        _ => *value = Value::String(written.into()),
    }
    Ok(())
}

/// The reason why bytes cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadBytes {
    /// The whole text of the error.
    Text(String),
    /// The item of a list at this position is not a number that fits a byte.
    Item(usize),
}

/// Checks bytes as base64 and brings them into canonical form. A list of numbers is accepted too.
/// The error is the position of the item that is not a byte, or the text about bad base64.
pub(super) fn bytes(value: &mut Value) -> Result<(), BadBytes> {
    match value {
        Value::String(text) => {
            let kept = text
                .bytes()
                .filter(|byte| !matches!(byte, b'\r' | b'\n'))
                .count();
            if kept == text.len() && STANDARD.decode(text.as_bytes()).is_ok() {
                return Ok(());
            }
            let decoded = decode_as_go(text.as_bytes())
                .map_err(|at| BadBytes::Text(format!("illegal base64 data at input byte {at}")))?;
            *text = STANDARD.encode(decoded).into();
            Ok(())
        }
        Value::Array(items) => {
            let mut raw = Vec::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                let byte = match item {
                    Value::Null => Some(0),
                    item => item.as_int().and_then(|number| u8::try_from(number).ok()),
                };
                raw.push(byte.ok_or(BadBytes::Item(at))?);
            }
            *value = Value::String(STANDARD.encode(raw).into());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Decodes standard base64 as Go does: line breaks are skipped, bits behind the end are not
/// checked. The error is the offset that Go names.
fn decode_as_go(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let mut quad = [0u8; 4];
    let mut filled = 0;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        at += 1;
        if matches!(byte, b'\r' | b'\n') {
            continue;
        }
        if let Some(bits) = sextet(byte) {
            quad[filled] = bits;
            filled += 1;
            if filled == 4 {
                push_quad(&quad, 4, &mut out);
                filled = 0;
            }
            continue;
        }
        if byte != b'=' || filled < 2 {
            return Err(at - 1);
        }
        if filled == 2 {
            at += text[at..]
                .iter()
                .take_while(|byte| matches!(byte, b'\r' | b'\n'))
                .count();
            if at == text.len() {
                return Err(text.len());
            }
            if text[at] != b'=' {
                return Err(at);
            }
            at += 1;
        }
        at += text[at..]
            .iter()
            .take_while(|byte| matches!(byte, b'\r' | b'\n'))
            .count();
        if at < text.len() {
            return Err(at);
        }
        push_quad(&quad, filled, &mut out);
        return Ok(out);
    }
    match filled {
        0 => Ok(out),
        missing => Err(text.len() - missing),
    }
}

fn push_quad(quad: &[u8; 4], filled: usize, out: &mut Vec<u8>) {
    let all = quad
        .iter()
        .take(filled)
        .fold(0u32, |bits, sextet| bits << 6 | u32::from(*sextet))
        << (6 * (4 - filled));
    out.extend_from_slice(&all.to_be_bytes()[1..filled]);
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_for_a_time_parses_to_itself() {
        let mut plain = 0;
        for date in [
            "2026-01-01",
            "0001-01-01",
            "0100-12-28",
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "9999-10-00",
            "2x26-01-01",
        ] {
            for time in [
                "00:00:00Z",
                "23:59:59Z",
                "24:00:00Z",
                "12:60:00Z",
                "12:00:60Z",
                "1:00:000Z",
                "12:00:00z",
                "12:00:0aZ",
            ] {
                let text = format!("{date}T{time}");
                if is_plain_time(text.as_bytes()) {
                    plain += 1;
                    let parsed = Timestamp::parse(&text).expect("it is a time");
                    assert_eq!(parsed.to_rfc3339(), text);
                    assert_ne!(parsed, ZERO_TIME);
                }
            }
        }
        assert_eq!(plain, 4);
    }
}
