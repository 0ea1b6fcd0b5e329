//! Resource quantities: `100m`, `1.5Gi`, `12e6`.
//!
//! Owns parsing, the canonical form, comparison and arithmetic, exact at any size. Small numbers,
//! which nearly all are, are an `i64` with a power of ten; the others are decimal digits.

mod amount;
mod decimal;
mod parse;

use std::cmp::Ordering;
use std::fmt;

use amount::Small;
use decimal::Decimal;

/// The form in which a quantity is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// With an exponent: `12e6`.
    DecimalExponent,
    /// With a binary suffix: `12Mi`.
    BinarySi,
    /// With a decimal suffix: `12M`.
    #[default]
    DecimalSi,
}

/// The reason why a text is not a quantity; the texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not have the form of a quantity.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The number is invalid, or has more digits than any quantity needs.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is not known.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[derive(Clone, Debug)]
enum Amount {
    Small(Small),
    Large(Decimal),
}

/// An amount of a resource.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text that it was parsed from, if it would be written as the same text.
    text: Option<Box<str>>,
}

/// The exponent of the smallest power of ten that quantities can have.
const NANO: i32 = -9;
const MILLI: i32 = -3;

impl Quantity {
    /// Parses a quantity as objects contain it.
    ///
    /// # Errors
    /// Returns an error if the text is not a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse::parse(text)
    }

    /// Returns true for texts that are canonical and a whole number of thousandths beyond doubt: a few
    /// digits of which no larger unit takes any. Nearly all are; of the others nothing is said.
    pub fn is_plain(text: &str) -> bool {
        let text = text.as_bytes();
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=9).contains(&digits) || text[0] == b'0' {
            return false;
        }
        let (number, unit) = text.split_at(digits);
        let number = number
            .iter()
            .fold(0u32, |number, digit| number * 10 + u32::from(digit - b'0'));
        match unit {
            b"" | b"m" | b"k" | b"M" | b"G" => number % 1000 != 0,
            b"Ki" | b"Mi" | b"Gi" => number % 1024 != 0,
            _ => false,
        }
    }

    /// Creates a quantity of whole units.
    pub fn new(units: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small(Small {
                value: units,
                scale: 0,
            }),
            format,
            text: None,
        }
    }

    /// Creates a quantity of thousandths.
    pub fn from_milli(thousandths: i64, format: Format) -> Self {
        Self {
            amount: Amount::Small(Small {
                value: thousandths,
                scale: MILLI,
            }),
            format,
            text: None,
        }
    }

    /// Returns the form in which it is written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns true if the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.sign() == 0
    }

    /// Returns the sign: -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match &self.amount {
            Amount::Small(small) => small.value.signum() as i32,
            Amount::Large(decimal) => decimal.sign(),
        }
    }

    /// Returns the whole units, with fractions rounded up. If the number does not fit, the result
    /// is upstream's: 0 for a small mantissa with a large suffix, else the low bits.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Returns the thousandths, with fractions rounded up; see [`Quantity::value`] for numbers that
    /// do not fit.
    pub fn milli_value(&self) -> i64 {
        self.scaled(MILLI)
    }

    fn scaled(&self, scale: i32) -> i64 {
        match &self.amount {
            Amount::Small(small) => small.scaled(scale),
            Amount::Large(decimal) => decimal.scaled(scale),
        }
    }

    /// Returns the nearest float.
    pub fn as_f64(&self) -> f64 {
        self.decimal().as_f64()
    }

    fn decimal(&self) -> Decimal {
        match &self.amount {
            Amount::Small(small) => Decimal::from_small(*small),
            Amount::Large(decimal) => decimal.clone(),
        }
    }

    /// Adds `other`. If this is zero, it also gets the format of `other`.
    pub fn add(&mut self, other: &Self) {
        if self.is_zero() {
            self.format = other.format;
        }
        self.text = None;
        if let (Amount::Small(a), Amount::Small(b)) = (&self.amount, &other.amount)
            && let Some(sum) = a.checked_add(*b)
        {
            self.amount = Amount::Small(sum);
            return;
        }
        self.amount = Amount::Large(self.decimal().add(&other.decimal()));
    }

    /// Subtracts `other`. If this is zero, it also gets the format of `other`.
    pub fn sub(&mut self, other: &Self) {
        let mut other = other.clone();
        other.negate();
        self.add(&other);
    }

    /// Changes the sign.
    pub fn negate(&mut self) {
        self.text = None;
        self.amount = match std::mem::replace(&mut self.amount, Amount::Small(Small::ZERO)) {
            Amount::Small(small) if small.value != i64::MIN => Amount::Small(Small {
                value: -small.value,
                ..small
            }),
            Amount::Small(small) => Amount::Large(Decimal::from_small(small).negated()),
            Amount::Large(decimal) => Amount::Large(decimal.negated()),
        };
    }

    /// Returns the number and suffix of the canonical form.
    fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        if self.format == Format::BinarySi
            && let Some(text) = self.canonical_binary()
        {
            return text;
        }
        let (number, exponent) = match &self.amount {
            Amount::Small(small) => match small.canonical() {
                Some((number, exponent)) => (number.to_string(), exponent),
                None => Decimal::from_small(*small).canonical(),
            },
            Amount::Large(decimal) => decimal.canonical(),
        };
        match (self.format, exponent) {
            (Format::DecimalExponent, 0) => number,
            (Format::DecimalExponent, _) => format!("{number}e{exponent}"),
            (Format::BinarySi | Format::DecimalSi, _) => number + parse::decimal_suffix(exponent),
        }
    }

    /// Returns the form with binary suffixes, unless the amount is a fraction or below 1024.
    fn canonical_binary(&self) -> Option<String> {
        let mut number = self.decimal().whole()?;
        if number.abs_below(1024) {
            return None;
        }
        let mut exponent = 0;
        while let Some(quotient) = number.div_exact_1024() {
            number = quotient;
            exponent += 1;
        }
        Some(format!(
            "{}{}",
            number.integer_text(),
            parse::binary_suffix(exponent)
        ))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.amount, &other.amount) {
            (Amount::Small(a), Amount::Small(b)) if a.scale == b.scale => a.value.cmp(&b.value),
            _ => self.decimal().cmp(&other.decimal()),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Equal amounts are equal, however they are written.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl Default for Quantity {
    fn default() -> Self {
        Self::new(0, Format::DecimalSi)
    }
}

#[cfg(test)]
mod tests;
