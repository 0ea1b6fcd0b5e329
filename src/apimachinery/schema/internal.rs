//! Internal types of upstream, which messages show where they differ from the published ones.

use crate::value::Value;

/// One field of the internal type that upstream converts a [`Definition`](super::Definition) to.
#[derive(Clone, Debug, PartialEq)]
pub enum InternalField {
    /// A field of the definition.
    Published {
        /// Its place among the fields of the definition.
        place: usize,
        /// What stands for an absent value, if that is not what the published type has.
        zero: Option<Value>,
    },
    /// A field that only the internal type has and that is never set.
    Added {
        /// Go's name of it.
        go_name: Box<str>,
        /// Its value.
        zero: Value,
    },
}
