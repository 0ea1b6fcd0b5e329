//! The messages behind types that are scalars in JSON: times, quantities, numbers or texts, and JSON.
//!
//! A field that stands on the wire more than once is read into the value that it has already, as
//! upstream's generated code does it.

use super::wire::{Reader, Wire};
use super::{ProtoError, text_of, wrong};
use crate::json::{self, Limits};
use crate::schema::Type;
use crate::time::{Timestamp, duration_text};
use crate::value::{Str, Value};

/// Nanoseconds of a second and of a microsecond.
const SECOND: i64 = 1_000_000_000;
const MICROSECOND: i64 = 1_000;

/// What a field of such a message has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Number,
    Text,
}

/// Returns upstream's names of the fields of a type's message, in the order of their numbers from 1 on.
fn fields_of(ty: &Type) -> Option<&'static [(&'static str, Sort)]> {
    let fields: &'static [(&'static str, Sort)] = match ty {
        Type::Time | Type::MicroTime => &[("Seconds", Sort::Number), ("Nanos", Sort::Number)],
        Type::Duration => &[("Duration", Sort::Number)],
        Type::Quantity => &[("String_", Sort::Text)],
        Type::IntOrString => &[
            ("Type", Sort::Number),
            ("IntVal", Sort::Number),
            ("StrVal", Sort::Text),
        ],
        Type::Raw | Type::Json | Type::FieldsV1 => &[("Raw", Sort::Text)],
        _ => return None,
    };
    Some(fields)
}

/// The fields that a message has.
#[derive(Default)]
struct Found<'a> {
    /// Its numbers, each at its field's number less one.
    numbers: [Option<i64>; 2],
    /// Its text. No message has two.
    text: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    /// Reads a message. Fields that it should not have are passed over.
    fn read(fields: &[(&str, Sort)], message: &'a [u8]) -> Result<Self, ProtoError> {
        let mut found = Self::default();
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            let place = usize::try_from(number).map_or(usize::MAX, |number| number - 1);
            let Some((name, sort)) = fields.get(place) else {
                continue;
            };
            match (*sort, wire, found.numbers.get_mut(place)) {
                (Sort::Number, Wire::Varint(value), Some(slot)) => {
                    *slot = Some(value.cast_signed())
                }
                (Sort::Text, Wire::Bytes(bytes), _) => found.text = Some(bytes),
                (_, wire, _) => return Err(wrong(wire, name)),
            }
        }
        Ok(found)
    }
}

/// Reads a scalar that is a message on the wire into `slot`, which has the value that the same field
/// had before, or null.
pub(super) fn read(
    ty: &Type,
    message: &[u8],
    name: &str,
    slot: &mut Value,
) -> Result<(), ProtoError> {
    let Some(fields) = fields_of(ty) else {
        return Err(wrong(Wire::Bytes(message), name));
    };
    let found = Found::read(fields, message)?;
    let [first, second] = found.numbers;
    let (seconds, nanoseconds) = (first.unwrap_or_default(), second.unwrap_or_default());
    *slot = match (ty, found.text) {
        // A time is the only one of them that forgets what it was.
        (Type::Time | Type::MicroTime, _) if message.is_empty() => Value::Null,
        (Type::Time, _) => Value::string(Timestamp::from_seconds(seconds).to_rfc3339()),
        (Type::MicroTime, _) => Value::string(moment(seconds, nanoseconds).to_rfc3339_micro()),
        (Type::Duration, _) => match first {
            Some(nanoseconds) => Value::string(duration_text(nanoseconds)),
            None => kept(slot, "0s"),
        },
        // The decoder of the object refuses a text that is no quantity, as the empty one.
        (Type::Quantity, Some(text)) => Value::String(text_of(text)),
        (Type::Quantity, None) => kept(slot, "0"),
        (Type::IntOrString, text) => int_or_string(first, second, text, slot.take()),
        (_, None) => slot.take(),
        (ty, Some(text)) => json_of(ty, text)?,
    };
    Ok(())
}

/// Returns the text that a field has already, or the one of its zero value.
fn kept(slot: &mut Value, zero: &'static str) -> Value {
    match slot.take() {
        Value::Null => Value::String(Str::const_new(zero)),
        before => before,
    }
}

/// Returns a number or a text: the type chooses, and is that of a number if it is absent.
fn int_or_string(
    chosen: Option<i64>,
    number: Option<i64>,
    text: Option<&[u8]>,
    before: Value,
) -> Value {
    let (chosen_before, number_before, text_before) = match before {
        Value::Int(number) => (0, number, Str::default()),
        Value::String(text) => (1, 0, text),
        _ => (0, 0, Str::default()),
    };
    if chosen.unwrap_or(chosen_before) == 0 {
        Value::Int(i64::from(low_half(number.unwrap_or(number_before))))
    } else {
        Value::String(text.map_or(text_before, text_of))
    }
}

fn json_of(ty: &Type, text: &[u8]) -> Result<Value, ProtoError> {
    match json::parse(text, &Limits::default()) {
        Ok(parsed) => Ok(parsed.value),
        // As upstream: owners of fields that nobody can read are dropped later, with the rest of them.
        Err(_) if *ty == Type::FieldsV1 => Ok(Value::string(String::new())),
        Err(error) => Err(ProtoError::Json(error.to_string())),
    }
}

/// Returns a time with its microseconds. Nanoseconds below zero or of more than a second change the
/// seconds.
fn moment(seconds: i64, nanoseconds: i64) -> Timestamp {
    let nanoseconds = i64::from(low_half(nanoseconds)) / MICROSECOND * MICROSECOND;
    Timestamp {
        seconds: seconds.wrapping_add(nanoseconds.div_euclid(SECOND)),
        nanoseconds: u32::try_from(nanoseconds.rem_euclid(SECOND)).unwrap_or_default(),
    }
}

/// Returns the lower 32 bits of a number, which are those that a field of 32 bits takes.
fn low_half(number: i64) -> i32 {
    number as i32
}
