//! JSON as Go reads and writes it: conversion between bytes and a [`Value`], and lookups in
//! canonical bytes.
//!
//! Owns syntax, number and string forms and Go's error texts. Must not know schemas: which fields
//! exist, in which order a kind writes them and whether a number may be a float is decided in
//! [`crate::schema`].

pub mod document;
mod find;
mod number;
mod parse;
mod pretty;
pub mod scan;
mod write;

pub(crate) use number::write_exponent;
pub use number::{write_float, write_float_verb};
pub(crate) use parse::replace_bad_bytes;
pub use parse::{parse, parse_sharing, validate};
pub use pretty::{Indenter, pretty};
pub use write::{to_string, to_vec, write, write_string};

use crate::value::Value;

/// Returns the number of bytes before the first one that ends a string or is not plain in one: a
/// quote, a backslash or a control character.
#[inline]
pub fn plain_len(bytes: &[u8]) -> usize {
    find::plain(bytes)
}

/// The limits of a parser.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Number of brackets that may be open at once. Many functions walk trees recursively, so this
    /// limits their stack; upstream's own limit is 10 000.
    pub depth_max: usize,
    /// Bytes of the whole input.
    pub bytes_max: usize,
    /// The effect of a repeated key.
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

/// The effect of a repeated key in an object on the first value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// The last value replaces the first one, as in untyped data.
    LastWins,
    /// Two objects are merged, other values are replaced, as when Go decodes into structs.
    MergeObjects,
}

/// A parsed document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The document.
    pub value: Value,
    /// Paths of repeated keys, such as `spec.items[0].name`, in the order in which they were found,
    /// each once, at most 100.
    pub duplicates: Vec<String>,
    /// True if a number in it is a float, of whose digits the tree has only the value.
    pub floats: bool,
}

/// The reason why bytes are not the requested JSON; the texts are Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("{message}")]
    Syntax {
        /// Go's text.
        message: String,
        /// Number of bytes that were read before the error.
        offset: usize,
    },
    /// A number that fits no number type of Go.
    #[error("json: cannot unmarshal number {literal} into Go value of type float64")]
    Number {
        /// The number as it was written.
        literal: String,
    },
    /// The input has more bytes than [`Limits::bytes_max`].
    #[error("limit on the number of bytes exceeded: {bytes} > {bytes_max}")]
    TooLarge {
        /// Number of bytes in the input.
        bytes: usize,
        /// Number of bytes allowed.
        bytes_max: usize,
    },
}

#[cfg(test)]
pub(crate) mod tests;
