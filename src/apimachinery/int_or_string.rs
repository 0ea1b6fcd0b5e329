//! Fields that contain a number or a text, most often a percentage.

use crate::quote::quote;
use crate::strconv::{self, NumberError};
use crate::value::Value;

/// A number or a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// A text.
    Text(String),
}

impl IntOrString {
    /// Returns the number that `text` represents, or else the text.
    pub fn parse(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Text(text.to_owned()), Self::Int)
    }

    /// Returns the number or text in a value of an object; `None` if it is of another type or too
    /// large.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Int(number) => i32::try_from(*number).ok().map(Self::Int),
            Value::String(text) => Some(Self::Text(text.to_string())),
            _ => None,
        }
    }

    /// Returns the number, or the number that the text represents; 0 if it represents none.
    pub fn int_value(&self) -> i64 {
        match self {
            Self::Int(number) => i64::from(*number),
            Self::Text(text) => text.parse().unwrap_or(0),
        }
    }

    /// Returns the number, or the share of `total` if the text is a percentage.
    ///
    /// # Errors
    /// Returns an error if the text is not a percentage.
    pub fn scaled(&self, total: i64, rounding: Rounding) -> Result<i64, ScaleError> {
        let text = match self {
            Self::Int(number) => return Ok(i64::from(*number)),
            Self::Text(text) => text,
        };
        let Some(percent) = text.strip_suffix('%') else {
            return Err(ScaleError::NoPercentage);
        };
        let percent = strconv::atoi(percent).map_err(|cause| ScaleError::NoNumber {
            text: text.clone(),
            cause,
        })?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "upstream scales in floating point as well"
        )]
        let exact = percent as f64 * total as f64 / 100.0;
        #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
        Ok(match rounding {
            Rounding::Up => exact.ceil() as i64,
            Rounding::Down => exact.floor() as i64,
        })
    }
}

impl From<&IntOrString> for Value {
    fn from(source: &IntOrString) -> Self {
        match source {
            IntOrString::Int(number) => Value::from(*number),
            IntOrString::Text(text) => Value::from(text.as_str()),
        }
    }
}

impl std::fmt::Display for IntOrString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The direction in which a share is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next whole number.
    Up,
    /// To the whole number before.
    Down,
}

/// The reason why a text is not a percentage; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// The text does not end with `%`.
    #[error("invalid value for IntOrString: invalid type: string is not a percentage")]
    NoPercentage,
    /// The text before the `%` is not a number.
    #[error("invalid value for IntOrString: invalid value {}: {cause}", quote(.text))]
    NoNumber {
        /// The whole text.
        text: String,
        /// The error in the number.
        cause: NumberError,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_as_asked() {
        let quarter = IntOrString::parse("25%");
        assert_eq!(quarter.scaled(10, Rounding::Up), Ok(3));
        assert_eq!(quarter.scaled(10, Rounding::Down), Ok(2));
        assert_eq!(IntOrString::parse("7").scaled(10, Rounding::Up), Ok(7));
        assert_eq!(IntOrString::parse("-5%").scaled(10, Rounding::Up), Ok(0));
        assert_eq!(
            IntOrString::parse("2147483648"),
            IntOrString::Text("2147483648".into())
        );
    }

    #[test]
    fn a_text_that_is_no_share_is_refused_in_upstreams_words() {
        let complaint = |text| {
            IntOrString::Text(String::from(text))
                .scaled(1, Rounding::Up)
                .expect_err("bad")
                .to_string()
        };
        assert_eq!(
            complaint("ten"),
            "invalid value for IntOrString: invalid type: string is not a percentage"
        );
        assert_eq!(
            complaint("x%"),
            r#"invalid value for IntOrString: invalid value "x%": strconv.Atoi: parsing "x": invalid syntax"#
        );
    }
}
