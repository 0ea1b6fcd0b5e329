//! The kinds that clients define: from the bytes of a CustomResourceDefinition to a row that the
//! registry serves.
//!
//! [`CustomKinds`] derives the rows of a plane from its definitions. Each version of a definition is
//! a *unit*: a schema with its columns and selectable fields, identified by its content and
//! shared by all planes. A unit is compiled when it is first needed, into the structure
//! of objects, the values that are allowed ([`validation`]) and expressions ([`rules`]).
//! `strategy` is the behaviour of all custom kinds.
//!
//! Invariant: a row is a pure function of one definition. Nothing here does I/O or knows HTTP; which
//! definitions may be stored, and what becomes of their status, `batteries` decides.

mod complaints;
pub mod defaults;
pub mod definition;
mod derivation;
mod embedded;
pub mod json_path;
pub mod rules;
mod strategy;
mod table;
mod units;
pub mod validation;
#[cfg(test)]
mod vectors;

pub use derivation::CustomKinds;
