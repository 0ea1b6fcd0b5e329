//! Encodes canonical trees into canonical bytes.
//!
//! Owns the order of members and the offsets that a stored body needs. The trees come from
//! [`super::decode`] and are not checked here: a value of another type than its field's is written
//! as it is.

use std::ops::Range;

use super::{DefId, Definition, Order, Schemas, Type};
use crate::json::{write, write_string};
use crate::value::{Map, Value};

/// The bytes of an object without `metadata.resourceVersion`, with the positions that are needed
/// later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The object.
    pub bytes: Vec<u8>,
    /// The slot of the version; `None` if the object has no metadata.
    pub version: Option<Slot>,
    /// The range of the value of `metadata.labels`.
    pub labels: Option<Range<usize>>,
}

/// The position at which `"resourceVersion":"…"` is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The offset.
    pub offset: usize,
    /// The side on which the inserted member needs a comma.
    pub comma: Comma,
}

/// The position of the comma of an inserted member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comma {
    /// Before it, because another member precedes it.
    Before,
    /// After it, because other members only follow it.
    After,
    /// None, because it is the only member.
    None,
}

impl Encoded {
    /// Returns the bytes with a version inserted.
    pub fn with_version(&self, version: u64) -> Vec<u8> {
        let Some(slot) = self.version else {
            return self.bytes.clone();
        };
        let (head, tail) = self.bytes.split_at(slot.offset);
        let mut out = Vec::with_capacity(self.bytes.len() + 44);
        out.extend_from_slice(head);
        slot.write(version, &mut out);
        out.extend_from_slice(tail);
        out
    }
}

impl Slot {
    /// Returns the offset of the member that follows the version, at which `"resourceVersion":"…",`
    /// can be inserted. There must be such a member.
    pub fn following(self) -> usize {
        match self.comma {
            Comma::Before => self.offset + 1,
            Comma::After | Comma::None => self.offset,
        }
    }

    /// Writes the member for this slot.
    pub fn write(self, version: u64, out: &mut Vec<u8>) {
        use std::io::Write;
        let (before, after) = match self.comma {
            Comma::Before => (",", ""),
            Comma::After => ("", ","),
            Comma::None => ("", ""),
        };
        write!(out, "{before}\"resourceVersion\":\"{version}\"{after}")
            .expect("a Vec takes any bytes");
    }
}

impl Schemas {
    /// Writes an object.
    pub fn encode(&self, id: DefId, value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Object(members) => self.write_object(self.get(id), members, out),
            other => write(other, out),
        }
    }

    /// Returns the bytes of an object.
    pub fn to_vec(&self, id: DefId, value: &Value) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        self.encode(id, value, &mut out);
        out
    }

    /// Returns the bytes of an object as they are stored: without version, metadata first.
    pub fn encode_stored(&self, id: DefId, value: &Value) -> Encoded {
        let mut out = Encoded {
            bytes: Vec::with_capacity(1024),
            ..Encoded::default()
        };
        let definition = self.get(id);
        let Value::Object(members) = value else {
            write(value, &mut out.bytes);
            return out;
        };
        out.bytes.push(b'{');
        if let (Some(Value::Object(metadata)), Some(field)) =
            (members.get("metadata"), definition.field("metadata"))
        {
            out.bytes.extend_from_slice(&field.key);
            match field.ty {
                Type::Ref(meta) => self.write_metadata(self.get(meta), metadata, &mut out),
                _ => write(
                    members.get("metadata").unwrap_or(&Value::Null),
                    &mut out.bytes,
                ),
            }
            out.bytes.push(b',');
        }
        self.each_member(definition, members, |key, name, value, ty| {
            if name != "metadata" {
                self.write_member(key, name, value, ty, &mut out.bytes);
                out.bytes.push(b',');
            }
        });
        close(&mut out.bytes);
        out
    }

    fn write_metadata(&self, definition: &Definition, members: &Map, out: &mut Encoded) {
        out.bytes.push(b'{');
        let start = out.bytes.len();
        let mut slot = None;
        let passed = |name: &str| match definition.order {
            Order::Declared => false,
            Order::Sorted => name > "resourceVersion",
        };
        let version_at = definition.place("resourceVersion").unwrap_or_default();
        self.each_member(definition, members, |key, name, value, ty| {
            if name == "resourceVersion" {
                return;
            }
            let is_later = || match definition.order {
                Order::Declared => definition.place(name).is_none_or(|at| at > version_at),
                Order::Sorted => passed(name),
            };
            if slot.is_none() && is_later() {
                slot = Some(out.bytes.len());
            }
            let value_at = self.write_member(key, name, value, ty, &mut out.bytes);
            if name == "labels" {
                out.labels = Some(value_at..out.bytes.len());
            }
            out.bytes.push(b',');
        });
        let end = out.bytes.len();
        close(&mut out.bytes);
        // After a member the slot is before the comma that follows it.
        let slot = slot.unwrap_or(end);
        out.version = Some(match (slot == start, end == start) {
            (true, true) => Slot {
                offset: start,
                comma: Comma::None,
            },
            (true, false) => Slot {
                offset: start,
                comma: Comma::After,
            },
            (false, _) => Slot {
                offset: slot - 1,
                comma: Comma::Before,
            },
        });
    }

    /// Writes `"name":value` and returns where the value starts.
    fn write_member(
        &self,
        key: &[u8],
        name: &str,
        value: &Value,
        ty: Option<&Type>,
        out: &mut Vec<u8>,
    ) -> usize {
        if key.is_empty() {
            write_string(name, out);
            out.push(b':');
        } else {
            out.extend_from_slice(key);
        }
        let start = out.len();
        match ty {
            Some(ty) => self.write_value(ty, value, out),
            None => write(value, out),
        }
        start
    }

    fn write_object(&self, definition: &Definition, members: &Map, out: &mut Vec<u8>) {
        out.push(b'{');
        self.each_member(definition, members, |key, name, value, ty| {
            self.write_member(key, name, value, ty, out);
            out.push(b',');
        });
        close(out);
    }

    /// Appends the JSON of a value of a type, with objects in the order of declaration.
    pub fn write_value(&self, ty: &Type, value: &Value, out: &mut Vec<u8>) {
        match (ty, value) {
            (Type::Ref(id), Value::Object(members)) => {
                self.write_object(self.get(*id), members, out)
            }
            (Type::List(item) | Type::Map(item), _) if item.definition().is_none() => {
                write(value, out)
            }
            (Type::List(item), Value::Array(items)) => {
                out.push(b'[');
                for value in items {
                    self.write_value(item, value, out);
                    out.push(b',');
                }
                close_with(out, b'[', b']');
            }
            (Type::Map(item), Value::Object(members)) => {
                out.push(b'{');
                for (key, value) in members.iter() {
                    write_string(key, out);
                    out.push(b':');
                    self.write_value(item, value, out);
                    out.push(b',');
                }
                close(out);
            }
            (Type::Nullable(inner), value) => self.write_value(inner, value, out),
            (
                Type::SchemaOrBool(id) | Type::SchemaOrArray(id) | Type::SchemaOrStrings(id),
                Value::Object(members),
            ) => {
                self.write_object(self.get(*id), members, out);
            }
            (Type::SchemaOrArray(id), Value::Array(items)) => {
                out.push(b'[');
                for value in items {
                    self.encode(*id, value, out);
                    out.push(b',');
                }
                close_with(out, b'[', b']');
            }
            (_, value) => write(value, out),
        }
    }

    /// Visits members in the order in which they are written.
    fn each_member<'v>(
        &self,
        definition: &'v Definition,
        members: &'v Map,
        mut visit: impl FnMut(&'v [u8], &'v str, &'v Value, Option<&'v Type>),
    ) {
        if definition.type_meta {
            for (key, name) in [
                (&b"\"kind\":"[..], "kind"),
                (&b"\"apiVersion\":"[..], "apiVersion"),
            ] {
                if let Some(value) = members.get(name) {
                    visit(key, name, value, None);
                }
            }
        }
        if definition.order == Order::Sorted {
            for (name, value) in members.iter() {
                match definition.field(name) {
                    Some(field) => visit(&field.key, name, value, Some(&field.ty)),
                    None => visit(&[], name, value, None),
                }
            }
            return;
        }
        if definition.fields.len() > SLOTS {
            return Self::each_member_of_many(definition, members, visit);
        }
        // Finds the value of each field. No name occurs twice, so each value belongs to one field.
        let mut values = [0u32; SLOTS];
        let mut present = 0u64;
        let mut strangers = false;
        for (at, (name, _)) in members.iter().enumerate() {
            match definition.place(name) {
                Some(declared) => {
                    values[declared] = at as u32;
                    present |= 1 << declared;
                }
                None => strangers = true,
            }
        }
        while present != 0 {
            let declared = present.trailing_zeros() as usize;
            present &= present - 1;
            let field = &definition.fields[declared];
            if let Some((_, value)) = members.nth(values[declared] as usize) {
                visit(&field.key, &field.name, value, Some(&field.ty));
            }
        }
        if strangers {
            Self::each_stranger(definition, members, visit);
        }
    }

    fn each_member_of_many<'v>(
        definition: &'v Definition,
        members: &'v Map,
        mut visit: impl FnMut(&'v [u8], &'v str, &'v Value, Option<&'v Type>),
    ) {
        for field in &definition.fields {
            if let Some(value) = members.get(&field.name) {
                visit(&field.key, &field.name, value, Some(&field.ty));
            }
        }
        Self::each_stranger(definition, members, visit);
    }

    fn each_stranger<'v>(
        definition: &'v Definition,
        members: &'v Map,
        mut visit: impl FnMut(&'v [u8], &'v str, &'v Value, Option<&'v Type>),
    ) {
        let written = |name: &str| definition.type_meta && matches!(name, "kind" | "apiVersion");
        for (name, value) in members.iter() {
            if definition.field(name).is_none() && !written(name) {
                visit(&[], name, value, None);
            }
        }
    }
}

/// Number of fields beyond which a definition is encoded by a slower method. No built-in one has so
/// many.
const SLOTS: usize = 64;

fn close(out: &mut Vec<u8>) {
    close_with(out, b'{', b'}');
}

/// Ends a list of items, each of which has a comma behind it.
fn close_with(out: &mut Vec<u8>, open: u8, end: u8) {
    match out.last_mut() {
        Some(last) if *last == b',' => *last = end,
        _ => {
            debug_assert_eq!(out.last(), Some(&open));
            out.push(end);
        }
    }
}
