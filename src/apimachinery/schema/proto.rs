//! Decodes objects in Kubernetes' protobuf form into trees; `encode` is the way back.
//!
//! Owns the envelope and the order of messages in each other; numbers and nesting of fields are data.
//! `wire` knows the bytes of a field, `scalar` the messages behind scalar types. The result is the tree
//! of the same object in JSON, with every field that was on the wire present; [`super::decode`] brings
//! it into canonical form.
//!
//! As in upstream's generated code, a message that stands twice in its field is merged: its fields are
//! replaced one by one, lists grow, and maps take further entries.

use super::internal_text::go_name;
use super::{DefId, Definition, Field, Schemas, Type, go};
use crate::json::replace_bad_bytes;
use crate::value::{Map, Str, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::{BYTES, FIXED64, Head, Part, Reader, VARINT, Wire};

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

/// The reason why bytes cannot be decoded as an object in protobuf; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// There are no bytes at all.
    #[error("empty data")]
    NoData,
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
    /// A number has more than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A length is below zero, as a number with a sign.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// The number of a field is not above zero.
    #[error("proto: {message}: illegal tag {number} (wire type {tag})")]
    Tag {
        /// Go's name of the message.
        message: String,
        /// The number of the field.
        number: i32,
        /// The tag as it was found.
        tag: u64,
    },
    /// A group ends in the message with this name in Go, and none has begun.
    #[error("proto: {0}: wiretype end group for non-group")]
    EndGroup(String),
    /// A group ends in an entry of a map, and none has begun.
    #[error("proto: unexpected end of group")]
    GroupEnd,
    /// An unknown field has a wire type that does not exist.
    #[error("proto: illegal wireType {0}")]
    IllegalWire(u64),
    /// Messages are nested too deeply.
    #[error("proto: messages are nested too deeply")]
    Depth,
    /// Embedded JSON cannot be parsed, or JSON has no form for a value.
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
        if body.is_empty() {
            return Err(ProtoError::NoData);
        }
        let message = body.strip_prefix(MAGIC).ok_or(ProtoError::NoMagic)?;
        if message.is_empty() {
            return Err(ProtoError::Empty);
        }
        let mut envelope = Self::default();
        let mut reader = Reader(message);
        while let Some(head) = reader.next("Unknown")? {
            match head.number() {
                1 => envelope.read_type_meta(reader.bytes_of(head, "TypeMeta")?)?,
                2 => envelope.raw = reader.bytes_of(head, "Raw")?,
                3 => {
                    reader.bytes_of(head, "ContentEncoding")?;
                }
                4 => {
                    reader.bytes_of(head, "ContentType")?;
                }
                _ => reader.skip(head)?,
            }
        }
        Ok(envelope)
    }

    fn read_type_meta(&mut self, message: &[u8]) -> Result<(), ProtoError> {
        let mut reader = Reader(message);
        while let Some(head) = reader.next("TypeMeta")? {
            match head.number() {
                1 => {
                    let version = text_of(reader.bytes_of(head, "APIVersion")?);
                    self.api_version = known_version(version);
                }
                2 => self.kind = text_of(reader.bytes_of(head, "Kind")?),
                _ => reader.skip(head)?,
            }
        }
        Ok(())
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
    while let Some(head) = reader.next("WatchEvent")? {
        match head.number() {
            1 => kind = text_of(reader.bytes_of(head, "Type")?),
            2 => {
                let mut raw = Reader(reader.bytes_of(head, "Object")?);
                while let Some(head) = raw.next("RawExtension")? {
                    match head.number() {
                        1 => object = raw.bytes_of(head, "Raw")?,
                        _ => raw.skip(head)?,
                    }
                }
            }
            _ => reader.skip(head)?,
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
        let name = struct_at(definition, path);
        let mut reader = Reader(message);
        while let Some(head) = reader.next(name)? {
            // The number is compared first: it is the cheapest, and a message may have a million fields.
            let own = definition.fields.iter().find(|field| {
                let number = field.notes.proto.as_ref().map(|(number, _)| *number);
                number == Some(head.number())
                    && field.notes.proto_path == path
                    && !is_type_meta(field)
            });
            if let Some(field) = own {
                self.proto_field(field, head, &mut reader, object, depth)?;
                continue;
            }
            let inner = [path, &[head.number()]].concat();
            let embeds = definition
                .fields
                .iter()
                .any(|field| field.notes.proto_path.starts_with(&inner));
            if embeds {
                let embedded = reader.bytes_of(head, struct_at(definition, &inner))?;
                self.proto_message(definition, &inner, embedded, object, depth)?;
            } else {
                reader.skip(head)?;
            }
        }
        Ok(())
    }

    /// Reads the value of a field behind its head, and decodes it into `object`.
    fn proto_field(
        &self,
        field: &Field,
        head: Head,
        reader: &mut Reader<'_>,
        object: &mut Map,
        depth: usize,
    ) -> Result<(), ProtoError> {
        let wire = match &field.ty {
            Type::List(item) => wire_of(item),
            ty => wire_of(ty),
        };
        // The numbers of a list may be packed into one field.
        let may_be_packed = wire == VARINT && matches!(field.ty, Type::List(_));
        if head.wire() != wire && !(may_be_packed && head.wire() == BYTES) {
            return Err(wrong(head.wire(), &go_name(field)));
        }
        match &field.ty {
            Type::List(item) => {
                let list = object.entry(&field.name);
                if !matches!(list, Value::Array(_)) {
                    *list = Value::Array(Vec::new());
                }
                match list {
                    Value::Array(items) => {
                        self.proto_items((field, item), head, reader, depth, items)
                    }
                    _ => Ok(()),
                }
            }
            Type::Map(item) => {
                let entry = reader.part()?;
                let (key, value) = self.proto_entry(field, item, entry, depth)?;
                object.entry(&field.name).make_object().insert(key, value);
                Ok(())
            }
            ty => {
                let value = reader.value(head)?;
                let slot = object.entry(&field.name);
                self.proto_value(ty, value, &field.name, depth, slot)
            }
        }
    }

    /// Reads one value of a list field behind its head, which is an item, packed items, or a message
    /// with items, and appends the items.
    fn proto_items(
        &self,
        (field, item): (&Field, &Type),
        head: Head,
        reader: &mut Reader<'_>,
        depth: usize,
        items: &mut Vec<Value>,
    ) -> Result<(), ProtoError> {
        if head.wire() == BYTES && wire_of(item) == VARINT {
            let mut packed = reader.part()?;
            while let Some(number) = packed.next_number()? {
                let number = Wire::Varint(number);
                items.push(self.proto_item(item, number, &field.name, depth)?);
            }
            *reader = packed.into_rest();
            return Ok(());
        }
        match reader.value(head)? {
            Wire::Bytes(message) if is_message_of_items(field, item) => {
                self.proto_list_message(field, item, message, depth, items)?;
            }
            value => items.push(self.proto_item(item, value, &field.name, depth)?),
        }
        Ok(())
    }

    fn proto_item(
        &self,
        item: &Type,
        wire: Wire<'_>,
        name: &str,
        depth: usize,
    ) -> Result<Value, ProtoError> {
        let mut value = Value::Null;
        self.proto_value(item, wire, name, depth, &mut value)?;
        Ok(value)
    }

    /// Appends the items of a list that is a message of its own.
    fn proto_list_message(
        &self,
        field: &Field,
        item: &Type,
        message: &[u8],
        depth: usize,
        items: &mut Vec<Value>,
    ) -> Result<(), ProtoError> {
        // The type of the field or of the values of its map, such as `map[string]v1.ExtraValue`.
        let ty = field.notes.go_type.as_deref().unwrap_or_default();
        let name = ty.rsplit('.').next().unwrap_or_default();
        let mut reader = Reader(message);
        while let Some(head) = reader.next(name)? {
            if head.number() == 1 {
                let wire = Wire::Bytes(reader.bytes_of(head, "Items")?);
                items.push(self.proto_item(item, wire, &field.name, depth)?);
            } else {
                reader.skip(head)?;
            }
        }
        Ok(())
    }

    /// Returns key and value of an entry of a map. Upstream does not look at the wire types of their
    /// fields.
    fn proto_entry(
        &self,
        field: &Field,
        item: &Type,
        mut entry: Part<'_>,
        depth: usize,
    ) -> Result<(Str, Value), ProtoError> {
        let (mut key, mut value) = (Str::default(), None);
        while let Some(head) = entry.next_head()? {
            match head.number() {
                1 => key = text_of(entry.bytes()?),
                2 => {
                    let message = entry.bytes()?;
                    value = Some(self.proto_map_value(field, item, message, depth)?);
                }
                _ => entry.skip(head)?,
            }
        }
        let value = value.unwrap_or_else(|| match item {
            Type::Bytes => Value::String(Str::default()),
            item => self.zero(item),
        });
        Ok((key, value))
    }

    /// Returns the value of a map's entry. Lists have a message of their own on the wire, and are null
    /// if it has no items.
    fn proto_map_value(
        &self,
        field: &Field,
        ty: &Type,
        message: &[u8],
        depth: usize,
    ) -> Result<Value, ProtoError> {
        let Type::List(item) = ty else {
            return self.proto_item(ty, Wire::Bytes(message), &field.name, depth);
        };
        let mut items = Vec::new();
        self.proto_list_message(field, item, message, depth, &mut items)?;
        Ok(if items.is_empty() {
            Value::Null
        } else {
            Value::Array(items)
        })
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
            (Type::Float64, Wire::Fixed64(bits)) => number_of(f64::from_bits(bits))?,
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
            (_, wire) => return Err(wrong(wire.number(), name)),
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
        while let Some(head) = reader.next(choice.go_name())? {
            match (choice, head.number()) {
                (Choice::Bool, 1) => allows = reader.varint_of(head, "Allows")? != 0,
                (Choice::Bool, 2) | (Choice::Schemas | Choice::Strings, 1) => {
                    let wire = Wire::Bytes(reader.bytes_of(head, "Schema")?);
                    self.proto_value(&Type::Ref(id), wire, "Schema", depth, &mut schema)?;
                }
                (Choice::Schemas, 2) => {
                    let wire = Wire::Bytes(reader.bytes_of(head, "JSONSchemas")?);
                    others.push(self.proto_item(&Type::Ref(id), wire, "JSONSchemas", depth)?);
                }
                (Choice::Strings, 2) => {
                    let text = reader.bytes_of(head, "Property")?;
                    others.push(Value::String(text_of(text)));
                }
                _ => reader.skip(head)?,
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

impl Choice {
    /// Returns the name of the message in Go.
    fn go_name(self) -> &'static str {
        match self {
            Self::Bool => "JSONSchemaPropsOrBool",
            Self::Schemas => "JSONSchemaPropsOrArray",
            Self::Strings => "JSONSchemaPropsOrStringArray",
        }
    }
}

/// Returns a number as JSON has it. What JSON has no number for is refused here, because upstream cannot
/// show it.
fn number_of(number: f64) -> Result<Value, ProtoError> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if !number.is_finite() {
        let text = match (number.is_nan(), number > 0.0) {
            (true, _) => "NaN",
            (false, true) => "+Inf",
            (false, false) => "-Inf",
        };
        let text = format!("json: unsupported value: {text}");
        return Err(ProtoError::Json(text));
    }
    Ok(if number.fract() == 0.0 && number.abs() < EXACT {
        Value::Int(number as i64)
    } else {
        Value::Float(number)
    })
}

/// Returns bytes as a text. Trees are JSON, which upstream writes without the bytes that are no text.
fn text_of(bytes: &[u8]) -> Str {
    replace_bad_bytes(bytes).as_ref().into()
}

fn wrong(wire: u64, field: &str) -> ProtoError {
    ProtoError::WireType {
        wire,
        field: field.to_owned(),
    }
}

/// Returns the wire type of the values of a type.
fn wire_of(ty: &Type) -> u64 {
    match ty {
        Type::Bool | Type::Int32 | Type::Int64 => VARINT,
        Type::Float64 => FIXED64,
        Type::Nullable(inner) => wire_of(inner),
        _ => BYTES,
    }
}

/// Returns Go's name of a definition, or of the struct embedded in it whose message is at `path`.
fn struct_at<'d>(definition: &'d Definition, path: &[u32]) -> &'d str {
    let Some(last) = path.len().checked_sub(1) else {
        return go::struct_name(definition);
    };
    let mut fields = definition.fields.iter();
    let inner = fields.find(|field| field.notes.proto_path.starts_with(path));
    let embedded = inner.and_then(|field| field.notes.embedded.as_deref());
    let name = embedded.and_then(|names| names.split('.').nth(last));
    name.unwrap_or_default()
}

/// Returns true for kind and version of an object, which stand in the envelope.
fn is_type_meta(field: &Field) -> bool {
    field.notes.embedded.as_deref() == Some("TypeMeta")
}

/// Returns true for a list field whose type is a named one of texts: such a list is a message of its
/// own. The only other named type of lists, that of the rules of a schema, is written as any list.
fn is_message_of_items(field: &Field, item: &Type) -> bool {
    let ty = field.notes.go_type.as_deref().unwrap_or("[]");
    *item == Type::String && !ty.starts_with(['[', '*'])
}
