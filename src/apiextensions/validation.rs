//! The values that a schema allows: types, bounds, patterns, formats, enumerations and junctors.
//!
//! Owns the checks of OpenAPI v3 and their texts, which are upstream's. The structure of objects,
//! duplicates in lists and expressions are checked elsewhere. Everything here is pure.

mod by_keys;
mod check;
mod formats;
mod junction;
mod numbers;
mod schema;
mod types;

pub(crate) use by_keys::ByKeys;
pub use check::{Change, validate};
pub(crate) use formats::duration;
pub(crate) use schema::Counterparts;
pub use schema::{Schema, SchemaError};
