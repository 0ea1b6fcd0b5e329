//! Whole numbers as Go parses them, with Go's error texts.

use crate::quote::quote;

/// The reason why a text is not a number. The text is Go's, because clients see it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strconv.{function}: parsing {}: {fault}", quote(.text))]
pub struct NumberError {
    function: &'static str,
    text: String,
    fault: NumberFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NumberFault {
    #[error("invalid syntax")]
    Syntax,
    #[error("value out of range")]
    Range,
}

/// Parses a number of 64 bits as `Atoi` does: decimal, with or without a sign.
///
/// # Errors
/// Returns an error if the text is not such a number.
pub fn atoi(text: &str) -> Result<i64, NumberError> {
    text.parse().map_err(|_| error("Atoi", text))
}

/// Parses a number of 64 bits as `ParseInt` does in base ten: with or without a sign.
///
/// # Errors
/// Returns an error if the text is not such a number.
pub fn parse_int(text: &str) -> Result<i64, NumberError> {
    text.parse().map_err(|_| error("ParseInt", text))
}

/// Parses a number of 64 bits as `ParseUint` does in base ten: without a sign.
///
/// # Errors
/// Returns an error if the text is not such a number.
pub fn parse_uint(text: &str) -> Result<u64, NumberError> {
    let refused = |fault| NumberError {
        function: "ParseUint",
        text: text.to_owned(),
        fault,
    };
    if text.starts_with('+') {
        return Err(refused(NumberFault::Syntax));
    }
    text.parse().map_err(|_| refused(fault_of(text)))
}

/// Parses a number of 16 bits as `ParseUint` does in base ten: without a sign.
///
/// # Errors
/// Returns an error if the text is not such a number.
pub fn parse_uint16(text: &str) -> Result<u16, NumberError> {
    u16::try_from(parse_uint(text)?).map_err(|_| NumberError {
        function: "ParseUint",
        text: text.to_owned(),
        fault: NumberFault::Range,
    })
}

fn error(function: &'static str, text: &str) -> NumberError {
    NumberError {
        function,
        text: text.to_owned(),
        fault: fault_of(text.strip_prefix(['+', '-']).unwrap_or(text)),
    }
}

/// Returns the error in `digits`, which are not a number of the type. Go reads from the left and
/// stops at the first byte that is not a digit or that makes the number too large for 64 bits.
fn fault_of(digits: &str) -> NumberFault {
    let mut number = 0u64;
    for byte in digits.bytes() {
        if !byte.is_ascii_digit() {
            return NumberFault::Syntax;
        }
        let next = number.checked_mul(10);
        match next.and_then(|next| next.checked_add(u64::from(byte - b'0'))) {
            Some(next) => number = next,
            None => return NumberFault::Range,
        }
    }
    if digits.is_empty() {
        NumberFault::Syntax
    } else {
        NumberFault::Range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_those_that_go_meets_first_from_the_left() {
        let of = |text| atoi(text).map_err(|error| error.fault);
        assert_eq!(of("+5"), Ok(5));
        assert_eq!(of("-9223372036854775808"), Ok(i64::MIN));
        for text in ["", "+", "--1", "1_0", " 1", "٣", "9223372036854775808x"] {
            assert_eq!(of(text), Err(NumberFault::Syntax), "{text:?}");
        }
        for text in [
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999x",
        ] {
            assert_eq!(of(text), Err(NumberFault::Range), "{text:?}");
        }
        assert_eq!(parse_uint("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "+5", "-1", "5 "] {
            let fault = parse_uint(text).map_err(|error| error.fault);
            assert_eq!(fault, Err(NumberFault::Syntax), "{text:?}");
        }
        assert_eq!(parse_uint16("65535"), Ok(u16::MAX));
        for (text, wanted) in [
            ("65536", NumberFault::Range),
            ("+5", NumberFault::Syntax),
            ("", NumberFault::Syntax),
        ] {
            let fault = parse_uint16(text).map_err(|error| error.fault);
            assert_eq!(fault, Err(wanted), "{text:?}");
        }
        let text = parse_int("18446744073709551616").map_err(|error| error.to_string());
        let go = r#"strconv.ParseInt: parsing "18446744073709551616": value out of range"#;
        assert_eq!(text, Err(go.to_owned()));
    }
}
