//! Encodes canonical trees in Kubernetes' protobuf form, byte for byte as upstream's generated code.
//!
//! A message is written from its end to its beginning, so that its length is known when its head is
//! written; [`Schemas::to_proto`] turns the bytes round at the end.

use super::super::{DefId, Definition, Field, Presence, Schemas, Type};
use super::wire::{BYTES, FIXED64, VARINT};
use super::{Envelope, MAGIC, is_message_of_items, is_type_meta};
use crate::json::{self, Limits};
use crate::time::{Timestamp, parse_duration};
use crate::value::{Map, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The bytes with which an envelope ends: an empty encoding and an empty media type.
pub const ENVELOPE_END: &[u8] = &[3 << 3 | BYTES as u8, 0, 4 << 3 | BYTES as u8, 0];
/// The group of tables and partial objects, whose definitions are shared by its versions.
const META_GROUP: &str = "meta.k8s.io";
const META_PACKAGE: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// The number of the field that has the items of a list.
const ITEMS: u32 = 2;

/// Returns the bytes of an envelope up to a message of `length` bytes. [`ENVELOPE_END`] follows the
/// message.
pub fn envelope_head(api_version: &str, kind: &str, length: usize) -> Vec<u8> {
    let mut meta = Vec::with_capacity(api_version.len() + kind.len() + 8);
    write_bytes(1, api_version.as_bytes(), &mut meta);
    write_bytes(2, kind.as_bytes(), &mut meta);
    let mut head = Vec::with_capacity(meta.len() + 24);
    head.extend_from_slice(MAGIC);
    write_bytes(1, &meta, &mut head);
    write_varint(u64::from(2u8) << 3 | BYTES, &mut head);
    write_varint(length as u64, &mut head);
    head
}

/// Returns an object in its envelope.
pub fn in_envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut object = envelope_head(api_version, kind, message.len());
    object.extend_from_slice(message);
    object.extend_from_slice(ENVELOPE_END);
    object
}

/// Returns an event of a watch with its length in front, as it is sent.
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(object.len() + 8);
    write_bytes(1, object, &mut raw);
    let mut frame = Vec::with_capacity(raw.len() + kind.len() + 16);
    frame.extend_from_slice(&[0; 4]);
    write_bytes(1, kind.as_bytes(), &mut frame);
    write_bytes(2, &raw, &mut frame);
    let length = u32::try_from(frame.len() - 4).expect("no object has 4 GiB");
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Appends an item of a list.
pub fn write_item(message: &[u8], out: &mut Vec<u8>) {
    write_bytes(ITEMS, message, out);
}

/// Appends the metadata of a list, which precede its items.
pub fn write_list_metadata(message: &[u8], out: &mut Vec<u8>) {
    write_bytes(1, message, out);
}

fn write_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | BYTES, out);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// One step of the way in which a definition is written.
#[derive(Clone, Debug)]
pub(in crate::schema) enum Step {
    /// The field at this place in the definition.
    Field(u16),
    /// An embedded message, with its number.
    Embedded(u32, Box<[Step]>),
}

/// Returns the steps for the fields at `path`, highest number first.
fn steps(definition: &Definition, path: &[u32]) -> Box<[Step]> {
    let mut numbered: Vec<(u32, Step)> = Vec::new();
    for (place, field) in definition.fields.iter().enumerate() {
        let notes = &field.notes;
        let Some((number, _)) = notes.proto else {
            continue;
        };
        if is_type_meta(field) || !notes.proto_path.starts_with(path) {
            continue;
        }
        match notes.proto_path.get(path.len()) {
            None => numbered.push((number, Step::Field(place as u16))),
            Some(inner) if numbered.iter().all(|(known, _)| known != inner) => {
                let deeper = [path, &[*inner]].concat();
                let step = Step::Embedded(*inner, steps(definition, &deeper));
                numbered.push((*inner, step));
            }
            Some(_) => {}
        }
    }
    numbered.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    numbered.into_iter().map(|(_, step)| step).collect()
}

impl Schemas {
    /// Returns the definition of the objects of a kind in protobuf; `None` if there is no such form.
    fn proto_definition(&self, api_version: &str, kind: &str) -> Option<DefId> {
        let (group, version) = match api_version {
            // Upstream's oldest documents name no version.
            "" => ("", "v1"),
            other => other.split_once('/').unwrap_or(("", other)),
        };
        let found = match group {
            META_GROUP => self.find(&format!("{META_PACKAGE}.{kind}")),
            group => self.kind(group, version, kind),
        };
        found.filter(|id| self.has_proto(*id))
    }

    /// Returns whether objects of a definition have a form in protobuf.
    pub fn has_proto(&self, id: DefId) -> bool {
        let fields = &self.get(id).fields;
        fields.iter().any(|field| field.notes.proto.is_some())
    }

    /// Returns an object in its envelope, from JSON that names its kind; `None` if the kind has no
    /// form in protobuf.
    pub fn proto_of_json(&self, text: &[u8]) -> Option<Vec<u8>> {
        let object = json::parse(text, &Limits::default()).ok()?.value;
        let (version, kind) = (object.str_at(&["apiVersion"]), object.str_at(&["kind"]));
        let message = self.to_proto(self.proto_definition(version, kind)?, &object);
        Some(in_envelope(version, kind, &message))
    }

    /// Returns the object in an envelope with its kind, as it is in JSON; `None` if the bytes are
    /// damaged or the kind is unknown.
    pub fn tree_of_proto(&self, bytes: &[u8]) -> Option<Value> {
        let envelope = Envelope::open(bytes).ok()?;
        let id = self.proto_definition(&envelope.api_version, &envelope.kind)?;
        let mut object = self.decode_proto(id, envelope.raw).ok()?;
        object.set(&["kind"], envelope.kind);
        object.set(&["apiVersion"], envelope.api_version);
        Some(object)
    }

    /// Returns the message of the metadata of a list of any kind.
    pub fn list_metadata_to_proto(&self, metadata: &Value) -> Vec<u8> {
        self.meta_to_proto("ListMeta", metadata)
    }

    /// Returns the message of an object of which only the metadata is shown.
    pub fn partial_to_proto(&self, object: &Value) -> Vec<u8> {
        self.meta_to_proto("PartialObjectMetadata", object)
    }

    fn meta_to_proto(&self, name: &str, value: &Value) -> Vec<u8> {
        let found = self.find(&format!("{META_PACKAGE}.{name}"));
        found.map_or_else(Vec::new, |id| self.to_proto(id, value))
    }

    /// Returns the message of an object of a definition. The tree is canonical.
    pub fn to_proto(&self, id: DefId, object: &Value) -> Vec<u8> {
        let mut out = Reversed(Vec::with_capacity(1024));
        self.put_object(id, object, &mut out);
        out.0.reverse();
        out.0
    }

    fn put_object(&self, id: DefId, object: &Value, out: &mut Reversed) {
        static NOTHING: Map = Map::new();
        let definition = self.get(id);
        let plan = definition
            .proto_steps
            .get_or_init(|| steps(definition, &[]));
        self.put_steps(
            definition,
            plan,
            object.as_object().unwrap_or(&NOTHING),
            out,
        );
    }

    fn put_steps(&self, definition: &Definition, plan: &[Step], members: &Map, out: &mut Reversed) {
        for step in plan {
            match step {
                Step::Field(place) => {
                    let field = &definition.fields[usize::from(*place)];
                    let number = field.notes.proto.as_ref().map_or(0, |(number, _)| *number);
                    self.put_field(field, number, members.get(&field.name), out);
                }
                Step::Embedded(number, inner) => {
                    out.message(*number, |out| {
                        self.put_steps(definition, inner, members, out);
                    });
                }
            }
        }
    }

    fn put_field(&self, field: &Field, number: u32, value: Option<&Value>, out: &mut Reversed) {
        // A time that may be absent, is there and is null is Go's zero time, whose message is empty.
        let is_time = matches!(field.ty, Type::Time | Type::MicroTime);
        let is_zero_time = is_time && value.is_some_and(Value::is_null);
        match (&field.ty, value.filter(|value| !value.is_null())) {
            (Type::List(item), Some(Value::Array(items))) => {
                if is_message_of_items(field, item) {
                    out.message(number, |out| self.put_items(item, 1, items, out));
                } else {
                    self.put_items(item, number, items, out);
                }
            }
            (Type::Map(item), Some(Value::Object(entries))) => {
                for (key, value) in entries.iter().rev() {
                    out.message(number, |out| {
                        self.put_map_value(item, value, out);
                        out.bytes(1, key.as_bytes());
                    });
                }
            }
            (Type::List(_) | Type::Map(_), _) => {}
            (Type::Bytes, None) => {}
            (_, None) if field.presence == Presence::Pointer && !is_zero_time => {}
            (ty, value) => self.put_value(ty, number, value.unwrap_or(&Value::Null), out),
        }
    }

    fn put_items(&self, item: &Type, number: u32, items: &[Value], out: &mut Reversed) {
        for value in items.iter().rev() {
            self.put_value(item, number, value, out);
        }
    }

    fn put_map_value(&self, ty: &Type, value: &Value, out: &mut Reversed) {
        match (ty, value) {
            (Type::Bytes | Type::List(_), Value::Null) => {}
            (Type::List(item), Value::Array(items)) => {
                out.message(2, |out| self.put_items(item, 1, items, out));
            }
            (ty, value) => self.put_value(ty, 2, value, out),
        }
    }

    /// Writes a value; `null` is the zero value.
    fn put_value(&self, ty: &Type, number: u32, value: &Value, out: &mut Reversed) {
        match ty {
            Type::Nullable(inner) => self.put_value(inner, number, value, out),
            Type::Bool => out.varint(number, u64::from(value.as_bool().unwrap_or_default())),
            Type::Int32 | Type::Int64 => out.varint(number, integer(value).cast_unsigned()),
            Type::Float64 => out.fixed64(number, float(value).to_bits()),
            Type::String => out.bytes(number, text(value).as_bytes()),
            Type::Bytes => {
                let bytes = STANDARD.decode(text(value)).unwrap_or_default();
                out.bytes(number, &bytes);
            }
            Type::Ref(id) => out.message(number, |out| self.put_object(*id, value, out)),
            Type::SchemaOrBool(id) => out.message(number, |out| {
                if value.as_object().is_some() {
                    out.message(2, |out| self.put_object(*id, value, out));
                }
                out.varint(
                    1,
                    u64::from(value.as_bool() != Some(false) && !value.is_null()),
                );
            }),
            Type::SchemaOrArray(id) => out.message(number, |out| match value {
                Value::Array(schemas) => self.put_items(&Type::Ref(*id), 2, schemas, out),
                Value::Null => {}
                schema => out.message(1, |out| self.put_object(*id, schema, out)),
            }),
            Type::SchemaOrStrings(id) => out.message(number, |out| match value {
                Value::Array(names) => self.put_items(&Type::String, 2, names, out),
                Value::Null => {}
                schema => out.message(1, |out| self.put_object(*id, schema, out)),
            }),
            Type::Time
            | Type::MicroTime
            | Type::Duration
            | Type::Quantity
            | Type::IntOrString
            | Type::Raw
            | Type::Json
            | Type::FieldsV1 => out.message(number, |out| put_scalar(ty, value, out)),
            // Lists and maps within a list have no form in protobuf, and no kind has them.
            Type::List(_) | Type::Map(_) => {}
        }
    }
}

/// Writes the fields of a scalar that is a message on the wire.
fn put_scalar(ty: &Type, value: &Value, out: &mut Reversed) {
    match (ty, value) {
        (Type::Time, Value::String(time)) => put_time(Timestamp::parse(time).ok(), out),
        (Type::MicroTime, Value::String(time)) => put_time(Timestamp::parse_micro(time).ok(), out),
        (Type::Duration, value) => {
            let nanoseconds = parse_duration(text(value)).unwrap_or_default();
            out.varint(1, nanoseconds.cast_unsigned());
        }
        (Type::Quantity, Value::Null) => out.bytes(1, b"0"),
        (Type::Quantity, value) => out.bytes(1, text(value).as_bytes()),
        (Type::IntOrString, value) => {
            out.bytes(3, text(value).as_bytes());
            out.varint(2, integer(value).cast_unsigned());
            out.varint(1, u64::from(value.as_str().is_some()));
        }
        (Type::Raw | Type::Json | Type::FieldsV1, value) if !value.is_null() => {
            let mut json = Vec::new();
            json::write(value, &mut json);
            out.bytes(1, &json);
        }
        _ => {}
    }
}

fn put_time(time: Option<Timestamp>, out: &mut Reversed) {
    if let Some(time) = time {
        out.varint(2, u64::from(time.nanoseconds));
        out.varint(1, time.seconds.cast_unsigned());
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn integer(value: &Value) -> i64 {
    value.as_int().unwrap_or_default()
}

fn float(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        other => integer(other) as f64,
    }
}

/// A message, written from its end to its beginning.
struct Reversed(Vec<u8>);

impl Reversed {
    fn tag(&mut self, number: u32, wire: u64) {
        self.plain_varint(u64::from(number) << 3 | wire);
    }

    fn plain_varint(&mut self, value: u64) {
        // The longest number of 64 bits.
        let mut digits = [0; 10];
        let (mut length, mut rest) = (0, value);
        loop {
            digits[length] = rest as u8 | 0x80;
            length += 1;
            rest >>= 7;
            if rest == 0 {
                break;
            }
        }
        digits[length - 1] &= 0x7F;
        self.0.extend(digits[..length].iter().rev());
    }

    fn varint(&mut self, number: u32, value: u64) {
        self.plain_varint(value);
        self.tag(number, VARINT);
    }

    fn fixed64(&mut self, number: u32, bits: u64) {
        self.0.extend(bits.to_be_bytes());
        self.tag(number, FIXED64);
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.0.extend(bytes.iter().rev());
        self.plain_varint(bytes.len() as u64);
        self.tag(number, BYTES);
    }

    fn message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        let end = self.0.len();
        write(self);
        self.plain_varint((self.0.len() - end) as u64);
        self.tag(number, BYTES);
    }
}
