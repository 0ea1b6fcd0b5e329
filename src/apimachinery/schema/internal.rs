//! Upstream's internal types, which messages show if they differ from the published ones.

use crate::value::Value;

/// One field of the internal type into which upstream converts a [`Definition`](super::Definition).
#[derive(Clone, Debug, PartialEq)]
pub enum InternalField {
    /// A field of the definition.
    Published {
        /// Its position among the fields of the definition.
        place: usize,
        /// The value that replaces an absent one, if it differs from that of the published type.
        zero: Option<Value>,
    },
    /// A field that only the internal type has and that is never set.
    Added {
        /// Go's name of the field.
        go_name: Box<str>,
        /// Its value, which is always the zero value.
        zero: Value,
    },
}
