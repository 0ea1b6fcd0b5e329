//! JSON as Go reads and writes it: bytes to a [`Value`] and back, and lookups in bytes that are
//! already canonical.
//!
//! Owns syntax, number and string forms and Go's error texts. Knows no schema: which fields exist,
//! in which order a kind writes them and whether a number may be a float is [`crate::schema`]'s.

pub mod document;
mod find;
mod number;
mod parse;
mod pretty;
pub mod scan;
mod write;

pub use number::write_float;
pub(crate) use number::{write_exponent, write_float_verb};
pub use parse::{parse, validate};
pub use pretty::pretty;
pub use write::{to_string, to_vec, write, write_string};

use crate::value::Value;

/// What a parser accepts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Brackets that may be open at once. Trees are walked by recursive functions everywhere, so
    /// this bounds their stack; upstream's own bound is 10 000.
    pub depth_max: usize,
    /// Size of the whole input.
    pub bytes_max: usize,
    /// What a repeated key does.
    pub duplicates: Duplicates,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth_max: 512,
            bytes_max: 16 << 20,
            duplicates: Duplicates::LastWins,
        }
    }
}

/// What a repeated key in one object does to the first value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// The last value replaces it: untyped data.
    LastWins,
    /// Two objects are merged, anything else is replaced: what decoding into Go structs does.
    MergeObjects,
}

/// A parsed document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The document.
    pub value: Value,
    /// Paths of keys that were repeated, such as `spec.items[0].name`, in the order in which they
    /// were met, each once, at most 100.
    pub duplicates: Vec<String>,
}

/// The reason why bytes are not the JSON that was asked for; the texts are Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("{message}")]
    Syntax {
        /// Go's text.
        message: String,
        /// How many bytes were read before the error.
        offset: usize,
    },
    /// A number that no Go number takes.
    #[error("json: cannot unmarshal number {literal} into Go value of type float64")]
    Number {
        /// The number as it was written.
        literal: String,
    },
    /// More bytes than [`Limits::bytes_max`].
    #[error("limit on the number of bytes exceeded: {bytes} > {bytes_max}")]
    TooLarge {
        /// How many there are.
        bytes: usize,
        /// How many there may be.
        bytes_max: usize,
    },
}

#[cfg(test)]
pub(crate) mod tests;
