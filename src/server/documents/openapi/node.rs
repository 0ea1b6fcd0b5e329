//! A document while it is written: each of its long members is made when it is written, and dropped then.
//!
//! As one tree, the document of a plane with many large definitions would take several times its own length.

use std::collections::BTreeMap;

use polyplane_apimachinery::{Map, Str, Value, json};

/// Bytes that are written before they are passed on. With fewer, each small member would be hashed and compressed for
/// itself.
const PIECE_BYTES: usize = 64 << 10;

/// A value of a document.
pub(super) enum Node<'n> {
    /// A value that is in memory.
    Value(Value),
    /// An object whose members are written one by one.
    Members(Members<'n>),
    /// A value that is made when it is written.
    Made(Box<dyn FnOnce() -> Value + 'n>),
}

/// The members of an object, in the order in which JSON has them.
pub(super) type Members<'n> = BTreeMap<Str, Node<'n>>;

impl<'n> Node<'n> {
    /// Creates a node whose value `make` returns.
    pub(super) fn made(make: impl FnOnce() -> Value + 'n) -> Self {
        Self::Made(Box::new(make))
    }

    /// Writes the node as JSON. Bytes are collected in `buffer` and passed on when they are many; the last ones stay
    /// there.
    pub(super) fn write_json(self, buffer: &mut Vec<u8>, pass_on: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Value(value) => json::write(&value, buffer),
            Self::Made(make) => json::write(&make(), buffer),
            Self::Members(members) => {
                buffer.push(b'{');
                for (at, (name, node)) in members.into_iter().enumerate() {
                    if at > 0 {
                        buffer.push(b',');
                    }
                    json::write_string(&name, buffer);
                    buffer.push(b':');
                    node.write_json(buffer, pass_on);
                }
                buffer.push(b'}');
            }
        }
        if buffer.len() >= PIECE_BYTES {
            pass_on(buffer.as_slice());
            buffer.clear();
        }
    }
}

/// Returns the members of `all`, with those of `others` in place of members of the same name.
pub(super) fn with_others<'n>(all: Map, others: Members<'n>) -> Members<'n> {
    let all = all
        .into_iter()
        .map(|(name, value)| (name, Node::Value(value)));
    let mut members: Members<'n> = all.collect();
    members.extend(others);
    members
}
