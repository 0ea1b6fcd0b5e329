//! Conversions between types.

use crate::library::{Context, Library};
use crate::time::{self, Timestamp};
use crate::value::{Blob, Fault, Outcome, Text, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        bool_to_bool: bool(bool) -> bool
        string_to_bool: bool(string) -> bool
        bytes_to_bytes: bytes(bytes) -> bytes
        string_to_bytes: bytes(string) -> bytes
        double_to_double: double(double) -> double
        int64_to_double: double(int) -> double
        string_to_double: double(string) -> double
        uint64_to_double: double(uint) -> double
        duration_to_duration: duration(duration) -> duration
        string_to_duration: duration(string) -> duration
        to_dyn: dyn(T) -> dyn
        int64_to_int64: int(int) -> int
        double_to_int64: int(double) -> int
        duration_to_int64: int(duration) -> int
        string_to_int64: int(string) -> int
        timestamp_to_int64: int(timestamp) -> int
        uint64_to_int64: int(uint) -> int
        string_to_string: string(string) -> string
        bool_to_string: string(bool) -> string
        bytes_to_string: string(bytes) -> string
        double_to_string: string(double) -> string
        duration_to_string: string(duration) -> string
        int64_to_string: string(int) -> string
        timestamp_to_string: string(timestamp) -> string
        uint64_to_string: string(uint) -> string
        timestamp_to_timestamp: timestamp(timestamp) -> timestamp
        int64_to_timestamp: timestamp(int) -> timestamp
        string_to_timestamp: timestamp(string) -> timestamp
        type: type(T) -> type(T)
        uint64_to_uint64: uint(uint) -> uint
        double_to_uint64: uint(double) -> uint
        int64_to_uint64: uint(int) -> uint
        string_to_uint64: uint(string) -> uint",
    runs: &[
        ("bool", to_bool),
        ("bytes", to_bytes),
        ("double", to_double),
        ("duration", to_duration),
        ("dyn", to_dyn),
        ("int", to_int),
        ("string", to_string),
        ("timestamp", to_timestamp),
        ("type", type_of),
        ("uint", to_uint),
    ],
    types: &[],
};

fn failed(from: &Value<'_>, to: &str) -> Fault {
    Fault::error(format!(
        "type conversion error from '{}' to '{to}'",
        from.type_name()
    ))
}

fn one<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Value<'a>, Fault> {
    match args {
        [only] => Ok(only),
        _ => Err(Fault::no_overload()),
    }
}

fn to_bool<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Bool(value) => Ok(Value::Bool(*value)),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
            _ => Err(failed(value, "bool")),
        },
        _ => Err(Fault::no_overload()),
    }
}

fn to_bytes<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match one(args)? {
        Value::Bytes(bytes) => Ok(Value::Bytes(bytes.clone())),
        Value::String(Text::Borrowed(text)) => Ok(Value::Bytes(Blob::Borrowed(text.as_bytes()))),
        Value::String(text) => Ok(Value::Bytes(Blob::Shared(text.as_bytes().into()))),
        _ => Err(Fault::no_overload()),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest double is the result"
)]
fn to_double<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Double(value) => Ok(Value::Double(*value)),
        Value::Int(value) => Ok(Value::Double(*value as f64)),
        Value::Uint(value) => Ok(Value::Double(*value as f64)),
        Value::String(text) => {
            let parsed = parse_double(text).map(Value::Double);
            parsed.ok_or_else(|| failed(value, "double"))
        }
        _ => Err(Fault::no_overload()),
    }
}

/// Reads a number as Go does, but for hexadecimal ones: digits may have an underscore between them, a number that is
/// too large is none, and what is not a number has no sign.
fn parse_double(text: &str) -> Option<f64> {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    let stands_alone = |(at, byte): (usize, &u8)| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        *byte == b'_' && !(is_digit(before) && is_digit(bytes.get(at + 1)))
    };
    if bytes.iter().enumerate().any(stands_alone) {
        return None;
    }
    let number: f64 = text.replace('_', "").parse().ok()?;
    let letters = text.trim_start_matches(['+', '-']);
    let is_name = letters.starts_with(|letter: char| letter.is_ascii_alphabetic());
    match (number.is_finite(), is_name) {
        (false, false) => None,
        _ if number.is_nan() && letters.len() < text.len() => None,
        _ => Some(number),
    }
}

fn to_duration<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Duration(nanos) => Ok(Value::Duration(*nanos)),
        Value::String(text) => time::parse_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| failed(value, "google.protobuf.Duration")),
        _ => Err(Fault::no_overload()),
    }
}

fn to_dyn<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    one(args).cloned()
}

fn to_int<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    let overflow = || Fault::error("integer overflow");
    match value {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Uint(value) => i64::try_from(*value)
            .map(Value::Int)
            .map_err(|_| overflow()),
        Value::Double(value) => {
            // Upstream refuses the border, which is not exact as a double.
            let inside = *value > -9.223_372_036_854_776e18 && *value < 9.223_372_036_854_776e18;
            let whole = inside
                .then(|| crate::value::exact_int(value.trunc()))
                .flatten();
            whole.map(Value::Int).ok_or_else(overflow)
        }
        Value::Duration(nanos) => Ok(Value::Int(*nanos)),
        Value::Timestamp(at) => Ok(Value::Int(at.order().0)),
        Value::String(text) => text
            .parse()
            .map(Value::Int)
            .map_err(|_| failed(value, "int")),
        _ => Err(Fault::no_overload()),
    }
}

fn to_uint<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    let overflow = || Fault::error("unsigned integer overflow");
    match value {
        Value::Uint(value) => Ok(Value::Uint(*value)),
        Value::Int(value) => u64::try_from(*value)
            .map(Value::Uint)
            .map_err(|_| overflow()),
        Value::Double(value) => {
            let inside = *value >= 0.0 && *value < 1.844_674_407_370_955_2e19;
            let whole = inside
                .then(|| crate::value::exact_uint(value.trunc()))
                .flatten();
            whole.map(Value::Uint).ok_or_else(overflow)
        }
        Value::String(text) if !text.starts_with('+') => text
            .parse()
            .map(Value::Uint)
            .map_err(|_| failed(value, "uint")),
        Value::String(_) => Err(failed(value, "uint")),
        _ => Err(Fault::no_overload()),
    }
}

/// Converts a value to text.
pub(crate) fn string_of<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::String(text) => Ok(Value::String(text.clone())),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Value::text(text)),
            Err(_) => Err(Fault::error(
                "invalid UTF-8 in bytes, cannot convert to string",
            )),
        },
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Duration(_)
        | Value::Timestamp(_) => Ok(Value::text(crate::format::plain(value))),
        Value::Opaque(value) => {
            let text = value.text().ok_or_else(Fault::no_overload)?;
            Ok(Value::text(text))
        }
        _ => Err(Fault::no_overload()),
    }
}

fn to_string<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    string_of(one(args)?)
}

fn to_timestamp<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let value = one(args)?;
    match value {
        Value::Timestamp(at) => Ok(Value::Timestamp(*at)),
        Value::Int(seconds) => Timestamp::new(*seconds, 0).map(Value::Timestamp),
        Value::String(text) => match Timestamp::parse(text) {
            Some(parsed) => parsed.map(Value::Timestamp),
            None => Err(failed(value, "google.protobuf.Timestamp")),
        },
        _ => Err(Fault::no_overload()),
    }
}

fn type_of<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    Ok(Value::Type(Text::Borrowed(one(args)?.type_name())))
}
