//! Kubernetes API machinery without I/O: the form of objects, and how they are read, validated,
//! changed and written. Knows no HTTP, no store and no single built-in kind; kinds are data (see
//! [`schema`]).

pub mod complaints;
pub mod config;
mod error_chain;
pub mod field_error;
pub mod field_selector;
pub mod int_or_string;
pub mod json;
pub mod labels;
pub mod names;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod shape;
pub mod status;
pub mod structural;
pub mod time;
pub mod value;
pub mod yaml;

#[cfg(test)]
mod vectors;

pub use error_chain::error_chain;
pub use polyplane_strconv::{number as strconv, quote};
pub use value::{Map, Str, Value};
