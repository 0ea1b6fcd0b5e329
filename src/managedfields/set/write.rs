//! Writes sets as `fieldsV1`, with the bytes that upstream writes.

use polyplane_apimachinery::json;
use polyplane_apimachinery::value::{Map, Str, Value};

use super::FieldSet;
use crate::element::{Borrowed, PathElement};

/// Bytes of the names of most elements that are no fields. With less, their buffers would grow.
const NAME_BYTES: usize = 64;

impl FieldSet {
    /// Appends the set as JSON, in the order of its elements.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        self.write(false, &mut Vec::new(), out);
    }

    /// Returns the set as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        self.write_json(&mut out);
        out
    }

    /// Returns the set as a tree. Members of a tree are sorted by name, so keys with numbers may
    /// stand in another order than in [`FieldSet::to_json`].
    pub fn to_value(&self) -> Value {
        self.tree(false)
    }

    /// Writes the nodes, and a mark first if the element above them is a member, too.
    fn write(&self, is_member: bool, name: &mut Vec<u8>, out: &mut Vec<u8>) {
        out.push(b'{');
        let mut is_first = true;
        if is_member {
            out.extend_from_slice(b"\".\":{}");
            is_first = false;
        }
        for node in self.nodes() {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            name.clear();
            write_element(&node.element.borrow(), name);
            write_text(name, Escapes::None, out);
            out.push(b':');
            let also = node.member && !node.children.is_empty();
            node.children.write(also, name, out);
        }
        out.push(b'}');
    }

    fn tree(&self, is_member: bool) -> Value {
        let mark = is_member.then(|| (".".into(), Value::object()));
        let nodes = self.nodes().iter().map(|node| {
            let name = node.element.name();
            let also = node.member && !node.children.is_empty();
            (name, node.children.tree(also))
        });
        let members = mark.into_iter().chain(nodes).collect();
        Value::Object(Map::from_unsorted(members, |_| {}))
    }
}

impl PathElement {
    /// Returns the name of the element in a set, such as `f:spec`.
    pub fn name(&self) -> Str {
        self.borrow().name()
    }

    /// Returns the name of a field in a set. Nearly all are short enough to need no memory.
    pub(crate) fn field_name(field: &str) -> Str {
        let mut name = Str::with_capacity(field.len() + 2);
        name.push_str("f:");
        name.push_str(field);
        name
    }
}

impl Borrowed<'_> {
    /// Returns the name of the element in a set: see [`PathElement::name`].
    pub(crate) fn name(&self) -> Str {
        if let Self::Field(field) = self {
            return PathElement::field_name(field);
        }
        let mut name = Vec::with_capacity(NAME_BYTES);
        write_element(self, &mut name);
        let name = String::from_utf8(name).expect("texts are written whole, and escapes are ASCII");
        name.into()
    }
}

/// Appends the name of an element in a set: `f:`, `k:`, `v:` or `i:` and its content.
fn write_element(element: &Borrowed<'_>, out: &mut Vec<u8>) {
    match element {
        Borrowed::Field(name) => {
            out.extend_from_slice(b"f:");
            out.extend_from_slice(name.as_bytes());
        }
        Borrowed::One(..) | Borrowed::Many(_) | Borrowed::Owned(_) => {
            out.extend_from_slice(b"k:{");
            for (at, (name, value)) in element.parts().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(name.as_bytes(), Escapes::None, out);
                out.push(b':');
                write_value(value, out);
            }
            out.push(b'}');
        }
        Borrowed::Value(value) => {
            out.extend_from_slice(b"v:");
            write_value(value, out);
        }
        Borrowed::Index(at) => out.extend_from_slice(format!("i:{at}").as_bytes()),
    }
}

/// Appends a value of a key or a set.
fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => write_text(text.as_bytes(), Escapes::Html, out),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            out.push(b'{');
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(name.as_bytes(), Escapes::Html, out);
                out.push(b':');
                write_value(value, out);
            }
            out.push(b'}');
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => json::write(value, out),
    }
}

/// The characters that are escaped besides quotes, backslashes and controls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// None: names of members are written so.
    None,
    /// `<`, `>`, `&` and the line separators U+2028 and U+2029: values are written so.
    Html,
}

/// Appends a text in quotes. The escapes are those of upstream's library for sets, which differ
/// from those of [`json::write_string`] in backspace and form feed.
fn write_text(text: &[u8], escapes: Escapes, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let html = escapes == Escapes::Html;
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => push_unicode(*byte, out),
            b'<' | b'>' | b'&' if html => push_unicode(*byte, out),
            0xE2 if html && matches!(behind, [0x80, 0xA8 | 0xA9, ..]) => {
                out.extend_from_slice(b"\\u202");
                out.push(HEX[usize::from(behind[1] & 15)]);
                rest = &behind[2..];
            }
            _ => out.push(*byte),
        }
    }
    out.push(b'"');

    fn push_unicode(byte: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\\u00");
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
}
