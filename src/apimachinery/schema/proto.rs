//! Decodes objects in Kubernetes' protobuf form into trees; `encode` is the way back.
//!
//! Owns the envelope and the order of messages in each other; numbers and nesting of fields are data.
//! `wire` knows the bytes of a field, `scalar` the messages behind scalar types. The result is the tree
//! of the same object in JSON, with every field that was on the wire present; [`super::decode`] brings
//! it into canonical form.
//!
//! As in upstream's generated code, a message that stands twice in its field is merged: its fields are
//! replaced one by one, lists grow, and maps take further entries.

use super::{DefId, Definition, Field, Schemas, Type};
use crate::value::{Map, Str, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::{Reader, Wire};

pub(super) mod encode;
mod scalar;
#[cfg(test)]
mod tests;
mod wire;

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
    /// Nothing follows the first bytes of the envelope.
    #[error("empty body")]
    Empty,
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
    /// The `apiVersion`, as in JSON; empty if upstream would take the one of the request instead.
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
        if message.is_empty() {
            return Err(ProtoError::Empty);
        }
        let mut envelope = Self::default();
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            match (number, wire) {
                (1, Wire::Bytes(meta)) => {
                    let mut meta = Reader(meta);
                    while let Some((number, wire)) = meta.next()? {
                        match (number, wire) {
                            (1, Wire::Bytes(text)) => {
                                envelope.api_version = known_version(text_of(text));
                            }
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

/// Returns the version that an envelope names: none if it has too many parts, or has a group alone.
fn known_version(named: Str) -> Str {
    match named.split_once('/') {
        Some((_, version)) if version.is_empty() || version.contains('/') => Str::default(),
        _ => named,
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
                    (item, wire) => {
                        let mut value = Value::Null;
                        self.proto_value(item, wire, &field.name, depth, &mut value)?;
                        items.push(value);
                    }
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
                let slot = object.entry(&field.name);
                self.proto_value(ty, wire, &field.name, depth, slot)?;
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
            let mut value = Value::Null;
            self.proto_value(ty, wire, name, depth, &mut value)?;
            return Ok(value);
        };
        let mut items = Vec::new();
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            if number == 1 {
                let mut value = Value::Null;
                self.proto_value(item, wire, name, depth, &mut value)?;
                items.push(value);
            }
        }
        Ok(Value::Array(items))
    }

    /// Decodes a value into `slot`, which has the value that the same field had before, or null. A
    /// message is merged with it, anything else takes its place.
    fn proto_value(
        &self,
        ty: &Type,
        wire: Wire<'_>,
        name: &str,
        depth: usize,
        slot: &mut Value,
    ) -> Result<(), ProtoError> {
        let depth = depth.checked_sub(1).ok_or(ProtoError::Depth)?;
        *slot = match (ty, wire) {
            (Type::Nullable(inner), wire) => {
                return self.proto_value(inner, wire, name, depth, slot);
            }
            (Type::Bool, Wire::Varint(number)) => Value::Bool(number != 0),
            (Type::Int32, Wire::Varint(number)) => {
                Value::Int(i64::from(number.cast_signed() as i32))
            }
            (Type::Int64, Wire::Varint(number)) => Value::Int(number.cast_signed()),
            (Type::Float64, Wire::Fixed64(bits)) => number_of(f64::from_bits(bits)),
            (Type::String, Wire::Bytes(text)) => Value::String(text_of(text)),
            (Type::Bytes, Wire::Bytes(bytes)) => Value::String(STANDARD.encode(bytes).into()),
            (Type::Ref(id), Wire::Bytes(message)) => {
                let object = slot.make_object();
                return self.proto_message(self.get(*id), &[], message, object, depth);
            }
            (Type::SchemaOrBool(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Bool, *id, depth, slot.take())?
            }
            (Type::SchemaOrArray(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Schemas, *id, depth, slot.take())?
            }
            (Type::SchemaOrStrings(id), Wire::Bytes(message)) => {
                self.one_of(message, Choice::Strings, *id, depth, slot.take())?
            }
            (ty, Wire::Bytes(message)) => return scalar::read(ty, message, name, slot),
            (_, wire) => return Err(wrong(wire, name)),
        };
        Ok(())
    }

    /// Decodes a message that has a schema or something simpler. `before` is the value that its field
    /// had already, or null.
    fn one_of(
        &self,
        message: &[u8],
        choice: Choice,
        id: DefId,
        depth: usize,
        before: Value,
    ) -> Result<Value, ProtoError> {
        let (mut allows, mut schema, mut others) = match before {
            Value::Bool(allows) => (allows, Value::Null, Vec::new()),
            Value::Array(others) => (false, Value::Null, others),
            schema => (false, schema, Vec::new()),
        };
        let mut reader = Reader(message);
        while let Some((number, wire)) = reader.next()? {
            match (choice, number, wire) {
                (Choice::Bool, 1, Wire::Varint(number)) => allows = number != 0,
                (Choice::Bool, 2, Wire::Bytes(_))
                | (Choice::Schemas | Choice::Strings, 1, Wire::Bytes(_)) => {
                    self.proto_value(&Type::Ref(id), wire, "schema", depth, &mut schema)?;
                }
                (Choice::Schemas, 2, Wire::Bytes(_)) => {
                    let mut other = Value::Null;
                    self.proto_value(&Type::Ref(id), wire, "jSONSchemas", depth, &mut other)?;
                    others.push(other);
                }
                (Choice::Strings, 2, Wire::Bytes(text)) => {
                    others.push(Value::String(text_of(text)))
                }
                _ => {}
            }
        }
        Ok(match choice {
            // As upstream writes them: a list that has items hides the schema.
            _ if !others.is_empty() => Value::Array(others),
            _ if !schema.is_null() => schema,
            Choice::Bool => Value::Bool(allows),
            Choice::Schemas | Choice::Strings => Value::Array(others),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Bool,
    Schemas,
    Strings,
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
