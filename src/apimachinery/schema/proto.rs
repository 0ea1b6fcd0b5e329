//! Decodes objects in Kubernetes' protobuf form into trees; `encode` is the way back.
//!
//! Owns the envelope, the wire format and the messages behind scalar types; numbers and nesting of
//! fields are data. The result is the tree of the same object in JSON, with every field that was on
//! the wire present; [`super::decode`] brings it into canonical form.

use super::{DefId, Definition, Field, Schemas, Type};
use crate::json::{self, Limits};
use crate::time::{Timestamp, duration_text};
use crate::value::{Map, Str, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub(super) mod encode;
#[cfg(test)]
mod tests;

pub use encode::{
    ENVELOPE_END, envelope_head, in_envelope, watch_frame, write_item, write_list_metadata,
};

/// The media type of the protobuf form.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The bytes with which every object in this form begins.
const MAGIC: &[u8; 4] = b"k8s\0";
/// Depth beyond which messages are refused, because decoding is recursive. No type of a built-in
/// kind is so deep.
const DEPTH_MAX: usize = 200;
/// Upstream's text for a body that is not in this form.
const NO_MAGIC: &str =
    "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";

/// Returns whether bytes begin as an envelope does.
pub fn is_enveloped(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The reason why bytes cannot be decoded as an object in protobuf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// The first bytes of the envelope are missing.
    #[error("{NO_MAGIC}")]
    NoMagic,
    /// The bytes end too early.
    #[error("unexpected EOF")]
    Truncated,
    /// A field has a wire type that its type does not allow.
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType {
        /// The wire type that was found.
        wire: u64,
        /// The field's name.
        field: String,
    },
    /// A number or tag is malformed.
    #[error("proto: integer overflow")]
    Overflow,
    /// A tag has the field number 0 or a wire type that does not exist.
    #[error("proto: illegal tag {0}")]
    Tag(u64),
    /// Messages are nested too deeply.
    #[error("proto: messages are nested too deeply")]
    Depth,
    /// Embedded JSON cannot be parsed.
    #[error("{0}")]
    Json(String),
}

/// The envelope of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// The `apiVersion`, as in JSON.
    pub api_version: Str,
    /// The `kind`, as in JSON.
    pub kind: Str,
    /// The object's message.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Opens the envelope of a body.
    ///
    /// # Errors
    /// See [`ProtoError`].
    pub fn open(body: &'a [u8]) -> Result<Self, ProtoError> {
        let message = body.strip_prefix(MAGIC).ok_or(ProtoError::NoMagic)?;
        let mut envelope = Self::default();
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            match (number, wire) {
                (1, Wire::Bytes(meta)) => {
                    let mut meta = Reader(meta);
                    while let Some((number, wire)) = meta.next()? {
                        match (number, wire) {
                            (1, Wire::Bytes(text)) => envelope.api_version = text_of(text),
                            (2, Wire::Bytes(text)) => envelope.kind = text_of(text),
                            _ => {}
                        }
                    }
                }
                (2, Wire::Bytes(raw)) => envelope.raw = raw,
                _ => {}
            }
        }
        Ok(envelope)
    }
}

/// Opens the frame of a watch without its length. Returns the type of the event, and the object in
/// its envelope.
///
/// # Errors
/// See [`ProtoError`].
pub fn open_watch_frame(frame: &[u8]) -> Result<(Str, &[u8]), ProtoError> {
    let (mut kind, mut object) = (Str::default(), &[][..]);
    let mut reader = Reader(frame);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => kind = text_of(text),
            (2, Wire::Bytes(raw)) => {
                let mut raw = Reader(raw);
                while let Some((number, wire)) = raw.next()? {
                    if let (1, Wire::Bytes(bytes)) = (number, wire) {
                        object = bytes;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((kind, object))
}

/// One value on the wire.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

impl Wire<'_> {
    fn number(self) -> u64 {
        match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Fixed32 => 5,
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, ProtoError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(ProtoError::Truncated)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtoError::Overflow)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(ProtoError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// Returns the next field's number and value; `None` at the end.
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtoError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtoError::Tag(tag))?;
        if number == 0 {
            return Err(ProtoError::Tag(tag));
        }
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtoError::Overflow)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return Err(ProtoError::Tag(tag)),
        };
        Ok(Some((number, wire)))
    }
}

impl Schemas {
    /// Decodes the message of an object of a definition.
    ///
    /// # Errors
    /// See [`ProtoError`].
    pub fn decode_proto(&self, id: DefId, message: &[u8]) -> Result<Value, ProtoError> {
        let mut object = Map::new();
        self.proto_message(self.get(id), &[], message, &mut object, DEPTH_MAX)?;
        Ok(Value::Object(object))
    }

    /// Decodes the fields of a message, or of the embedded message at `path` in it, into `object`.
    fn proto_message(
        &self,
        definition: &Definition,
        path: &[u32],
        message: &[u8],
        object: &mut Map,
        depth: usize,
    ) -> Result<(), ProtoError> {
        let depth = depth.checked_sub(1).ok_or(ProtoError::Depth)?;
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            let own = definition.fields.iter().find(|field| {
                field.notes.proto_path == path
                    && field
                        .notes
                        .proto
                        .as_ref()
                        .is_some_and(|(own, _)| *own == number)
            });
            if let Some(field) = own {
                self.proto_field(field, wire, object, depth)?;
                continue;
            }
            let mut inner = path.to_vec();
            inner.push(number);
            let embeds = definition
                .fields
                .iter()
                .any(|field| field.notes.proto_path.starts_with(&inner));
            if let (true, Wire::Bytes(embedded)) = (embeds, wire) {
                self.proto_message(definition, &inner, embedded, object, depth)?;
            }
        }
        Ok(())
    }

    fn proto_field(
        &self,
        field: &Field,
        wire: Wire<'_>,
        object: &mut Map,
        depth: usize,
    ) -> Result<(), ProtoError> {
        match &field.ty {
            Type::List(item) => {
                let list = object.entry(&field.name);
                if !matches!(list, Value::Array(_)) {
                    *list = Value::Array(Vec::new());
                }
                let Value::Array(items) = list else {
                    return Ok(());
                };
                match (item.as_ref(), wire) {
                    // Numbers may be packed into one field.
                    (Type::Int32 | Type::Int64, Wire::Bytes(packed)) => {
                        let mut packed = Reader(packed);
                        while !packed.0.is_empty() {
                            items.push(Value::Int(packed.varint()?.cast_signed()));
                        }
                    }
                    (item, wire) => items.push(self.proto_value(item, wire, &field.name, depth)?),
                }
            }
            Type::Map(item) => {
                let Wire::Bytes(entry) = wire else {
                    return Err(wrong(wire, &field.name));
                };
                let (mut key, mut value) = (Str::default(), None);
                let mut reader = Reader(entry);
                while let Some((number, wire)) = reader.next()? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => key = text_of(text),
                        (2, wire) => {
                            value = Some(self.proto_map_value(item, wire, &field.name, depth)?)
                        }
                        _ => {}
                    }
                }
                let value = value.unwrap_or_else(|| self.zero(item));
                object.entry(&field.name).make_object().insert(key, value);
            }
            ty => {
                let value = self.proto_value(ty, wire, &field.name, depth)?;
                object.insert(field.name.clone(), value);
            }
        }
        Ok(())
    }

    /// Returns the value of a map's entry. Lists have a message of their own on the wire.
    fn proto_map_value(
        &self,
        ty: &Type,
        wire: Wire<'_>,
        name: &str,
        depth: usize,
    ) -> Result<Value, ProtoError> {
        let (Type::List(item), Wire::Bytes(message)) = (ty, wire) else {
            return self.proto_value(ty, wire, name, depth);
        };
        let mut items = Vec::new();
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            if number == 1 {
                items.push(self.proto_value(item, wire, name, depth)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn proto_value(
        &self,
        ty: &Type,
        wire: Wire<'_>,
        name: &str,
        depth: usize,
    ) -> Result<Value, ProtoError> {
        let depth = depth.checked_sub(1).ok_or(ProtoError::Depth)?;
        Ok(match (ty, wire) {
            (Type::Nullable(inner), wire) => self.proto_value(inner, wire, name, depth)?,
            (Type::Bool, Wire::Varint(number)) => Value::Bool(number != 0),
            (Type::Int32, Wire::Varint(number)) => {
                Value::Int(i64::from(number.cast_signed() as i32))
            }
            (Type::Int64, Wire::Varint(number)) => Value::Int(number.cast_signed()),
            (Type::Float64, Wire::Fixed64(bits)) => number_of(f64::from_bits(bits)),
            (Type::String, Wire::Bytes(text)) => Value::String(text_of(text)),
            (Type::Bytes, Wire::Bytes(bytes)) => Value::String(STANDARD.encode(bytes).into()),
            (Type::Ref(id), Wire::Bytes(message)) => {
                let mut object = Map::new();
                self.proto_message(self.get(*id), &[], message, &mut object, depth)?;
                Value::Object(object)
            }
            (Type::SchemaOrBool(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Bool, *id, depth)?
            }
            (Type::SchemaOrArray(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Schemas, *id, depth)?
            }
            (Type::SchemaOrStrings(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Strings, *id, depth)?
            }
            (ty, Wire::Bytes(message)) => scalar(ty, message, name)?,
            (_, wire) => return Err(wrong(wire, name)),
        })
    }

    /// Decodes a message that has a schema or something simpler.
    fn one_of(
        &self,
        message: &[u8],
        choice: Choice,
        id: DefId,
        depth: usize,
    ) -> Result<Value, ProtoError> {
        let (mut allows, mut schema, mut others) = (false, None, Vec::new());
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            match (choice, number, wire) {
                (Choice::Bool, 1, Wire::Varint(number)) => allows = number != 0,
                (Choice::Bool, 2, Wire::Bytes(_))
                | (Choice::Schemas | Choice::Strings, 1, Wire::Bytes(_)) => {
                    schema = Some(self.proto_value(&Type::Ref(id), wire, "schema", depth)?);
                }
                (Choice::Schemas, 2, Wire::Bytes(_)) => {
                    others.push(self.proto_value(&Type::Ref(id), wire, "jSONSchemas", depth)?);
                }
                (Choice::Strings, 2, Wire::Bytes(text)) => {
                    others.push(Value::String(text_of(text)))
                }
                _ => {}
            }
        }
        Ok(match (choice, schema) {
            (_, Some(schema)) => schema,
            (Choice::Bool, None) => Value::Bool(allows),
            (_, None) => Value::Array(others),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Bool,
    Schemas,
    Strings,
}

/// Returns the value of a scalar that is a message on the wire.
fn scalar(ty: &Type, message: &[u8], name: &str) -> Result<Value, ProtoError> {
    let (mut numbers, mut text) = ([0i64; 4], None);
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next()? {
        match wire {
            Wire::Varint(value) if number < 4 => numbers[number as usize] = value.cast_signed(),
            Wire::Bytes(bytes) => text = Some(bytes),
            _ => {}
        }
    }
    let words = || text.map(text_of).unwrap_or_default();
    Ok(match ty {
        Type::Time | Type::MicroTime if message.is_empty() => Value::Null,
        Type::Time => Value::string(moment(numbers).to_rfc3339()),
        Type::MicroTime => Value::string(moment(numbers).to_rfc3339_micro()),
        Type::Duration => Value::string(duration_text(numbers[1])),
        Type::Quantity => Value::String(if words().is_empty() {
            "0".into()
        } else {
            words()
        }),
        Type::IntOrString if numbers[1] == 0 => Value::Int(i64::from(numbers[2] as i32)),
        Type::IntOrString => Value::String(words()),
        Type::Raw | Type::Json | Type::FieldsV1 => match text {
            None => Value::Null,
            Some(text) => match json::parse(text, &Limits::default()) {
                Ok(parsed) => parsed.value,
                // As upstream: owners of fields that nobody can read are dropped later, with the rest of them.
                Err(_) if *ty == Type::FieldsV1 => Value::string(String::new()),
                Err(error) => return Err(ProtoError::Json(error.to_string())),
            },
        },
        _ => return Err(wrong(Wire::Bytes(message), name)),
    })
}

fn moment(numbers: [i64; 4]) -> Timestamp {
    Timestamp {
        seconds: numbers[1],
        nanoseconds: u32::try_from(numbers[2]).unwrap_or(0),
    }
}

fn number_of(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        Value::Int(number as i64)
    } else {
        Value::Float(number)
    }
}

fn text_of(bytes: &[u8]) -> Str {
    String::from_utf8_lossy(bytes).as_ref().into()
}

fn wrong(wire: Wire<'_>, field: &str) -> ProtoError {
    ProtoError::WireType {
        wire: wire.number(),
        field: field.to_owned(),
    }
}
