//! The text form of quantities.

use std::borrow::Cow;

use super::amount::Small;
use super::decimal::Decimal;
use super::{Amount, Format, NANO, Quantity, QuantityError};

/// Number of decimal digits that always fit an `i64`.
const SMALL_DIGITS: i32 = 18;
/// Exponents beyond this are refused if digits would have to be written out, so that a short text
/// cannot take much memory.
const EXPONENT_MAX: i32 = 100_000;

/// Returns the suffix of a power of ten; empty if there is no such suffix.
pub(super) fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
}

/// Returns the suffix of a power of 1024; empty if there is no such suffix.
pub(super) fn binary_suffix(exponent: i32) -> &'static str {
    match exponent {
        1 => "Ki",
        2 => "Mi",
        3 => "Gi",
        4 => "Ti",
        5 => "Pi",
        6 => "Ei",
        _ => "",
    }
}

/// Returns exponent and format of a suffix.
fn interpret(suffix: &str) -> Option<(i32, Format)> {
    let (exponent, format) = match suffix {
        "" => (0, Format::DecimalSi),
        "n" => (-9, Format::DecimalSi),
        "u" => (-6, Format::DecimalSi),
        "m" => (-3, Format::DecimalSi),
        "k" => (3, Format::DecimalSi),
        "M" => (6, Format::DecimalSi),
        "G" => (9, Format::DecimalSi),
        "T" => (12, Format::DecimalSi),
        "P" => (15, Format::DecimalSi),
        "E" => (18, Format::DecimalSi),
        "Ki" => (10, Format::BinarySi),
        "Mi" => (20, Format::BinarySi),
        "Gi" => (30, Format::BinarySi),
        "Ti" => (40, Format::BinarySi),
        "Pi" => (50, Format::BinarySi),
        "Ei" => (60, Format::BinarySi),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i64 = digits.parse().ok()?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "upstream cuts the exponent to 32 bits as well"
            )]
            return Some((exponent as i32, Format::DecimalExponent));
        }
    };
    Some((exponent, format))
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let negative = text.starts_with('-');
    let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = rest.trim_start_matches('0');
    let (whole, rest) = rest.split_at(digits(rest));
    let whole = if whole.is_empty() { "0" } else { whole };
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let letters = suffix
        .bytes()
        .take_while(|byte| b"eEinumkKMGTP".contains(byte))
        .count();
    let exponent = suffix[letters..]
        .strip_prefix(['-', '+'])
        .unwrap_or(&suffix[letters..]);
    if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(QuantityError::Format);
    }
    Ok(Parts {
        negative,
        whole,
        fraction,
        suffix,
    })
}

pub(super) fn parse(text: &str) -> Result<Quantity, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let parts = split(text)?;
    let (exponent, format) = interpret(parts.suffix).ok_or(QuantityError::Suffix)?;
    match parse_small(text, &parts, exponent, format) {
        Some(quantity) => Ok(quantity),
        None => parse_large(&parts, exponent, format),
    }
}

/// Returns the quantity, if 64 bits certainly hold it.
fn parse_small(text: &str, parts: &Parts<'_>, exponent: i32, format: Format) -> Option<Quantity> {
    let digits = i32::try_from(parts.whole.len() + parts.fraction.len()).ok()?;
    let (room, mut scale, factor) = match format {
        Format::DecimalExponent | Format::DecimalSi => (SMALL_DIGITS - digits, exponent, 1),
        Format::BinarySi if parts.fraction.is_empty() => (
            15 - digits - exponent * 3 / 10 - 1,
            0,
            1i64.checked_shl(exponent.unsigned_abs())?,
        ),
        Format::BinarySi => return None,
    };
    scale = scale.wrapping_sub(i32::try_from(parts.fraction.len()).ok()?);
    if room < 0 || scale < NANO {
        return None;
    }
    let shown = match parts.fraction {
        "" => Cow::Borrowed(parts.whole),
        fraction => Cow::Owned(format!("{}{fraction}", parts.whole)),
    };
    let mantissa: i64 = shown.parse().ok()?;
    let mut value = mantissa.checked_mul(factor)?;
    if parts.negative {
        value = -value;
    }
    // Texts that are certainly canonical, by upstream's rules, are kept as they are.
    let canonical = match format {
        Format::BinarySi => exponent % 10 == 0 && mantissa & 7 != 0,
        Format::DecimalExponent | Format::DecimalSi => {
            scale % 3 == 0 && !shown.ends_with("000") && !shown.starts_with('0')
        }
    };
    Some(Quantity {
        amount: Amount::Small(Small { value, scale }),
        format,
        text: (canonical || text == "0").then(|| text.into()),
    })
}

fn parse_large(
    parts: &Parts<'_>,
    exponent: i32,
    format: Format,
) -> Result<Quantity, QuantityError> {
    let fraction = i32::try_from(parts.fraction.len()).map_err(|_| QuantityError::Numeric)?;
    if exponent > EXPONENT_MAX {
        return Err(QuantityError::Numeric);
    }
    let digits = parts
        .whole
        .bytes()
        .chain(parts.fraction.bytes())
        .map(|byte| byte - b'0');
    let mut format = format;
    let amount = match format {
        Format::BinarySi => {
            let number =
                Decimal::new(false, digits, -fraction).mul_small(1u64 << exponent.unsigned_abs());
            let largest = Decimal::from_small(Small {
                value: i64::MAX,
                scale: 0,
            });
            number.rounded_up(NANO).min(largest)
        }
        Format::DecimalExponent | Format::DecimalSi => {
            Decimal::new(false, digits, exponent.saturating_sub(fraction)).rounded_up(NANO)
        }
    };
    let one = Decimal::from_small(Small { value: 1, scale: 0 });
    if format == Format::BinarySi && amount < one && amount.sign() > 0 {
        format = Format::DecimalSi;
    }
    let amount = if parts.negative {
        amount.negated()
    } else {
        amount
    };
    Ok(Quantity {
        amount: Amount::Large(amount),
        format,
        text: None,
    })
}
