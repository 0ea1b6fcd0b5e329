//! The messages behind types that are scalars in JSON: times, quantities, numbers or texts, and JSON.
//!
//! A field that stands on the wire more than once is read into the value that it has already, as
//! upstream's generated code does it.

use super::wire::{BYTES, Reader};
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

/// Upstream's names of a message and of its fields, these in the order of their numbers from 1 on.
type Names = (&'static str, &'static [(&'static str, Sort)]);

/// Returns the names of a type's message.
fn message_of(ty: &Type) -> Option<Names> {
    let names: Names = match ty {
        Type::Time | Type::MicroTime => (
            "Timestamp",
            &[("Seconds", Sort::Number), ("Nanos", Sort::Number)],
        ),
        Type::Duration => ("Duration", &[("Duration", Sort::Number)]),
        Type::Quantity => ("Quantity", &[("String_", Sort::Text)]),
        Type::IntOrString => (
            "IntOrString",
            &[
                ("Type", Sort::Number),
                ("IntVal", Sort::Number),
                ("StrVal", Sort::Text),
            ],
        ),
        Type::Raw => ("RawExtension", RAW),
        Type::Json => ("JSON", RAW),
        Type::FieldsV1 => ("FieldsV1", RAW),
        _ => return None,
    };
    Some(names)
}

/// The field of the messages that have JSON.
const RAW: &[(&str, Sort)] = &[("Raw", Sort::Text)];

/// The fields that a message has.
#[derive(Default)]
struct Found<'a> {
    /// Its numbers, each at its field's number less one.
    numbers: [Option<i64>; 2],
    /// Its text. No message has two.
    text: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    /// Reads a message called `name`. Fields that it should not have are passed over.
    fn read(name: &str, fields: &[(&str, Sort)], message: &'a [u8]) -> Result<Self, ProtoError> {
        let mut found = Self::default();
        let mut reader = Reader(message);
        while let Some(head) = reader.next(name)? {
            let place = usize::try_from(head.number()).map_or(usize::MAX, |number| number - 1);
            let Some((name, sort)) = fields.get(place) else {
                reader.skip(head)?;
                continue;
            };
            match (*sort, found.numbers.get_mut(place)) {
                (Sort::Number, Some(slot)) => {
                    *slot = Some(reader.varint_of(head, name)?.cast_signed());
                }
                _ => found.text = Some(reader.bytes_of(head, name)?),
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
    let Some((message_name, fields)) = message_of(ty) else {
        return Err(wrong(BYTES, name));
    };
    let found = Found::read(message_name, fields, message)?;
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
