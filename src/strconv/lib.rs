//! What Go's `strconv` does and clients see in error texts: quoted texts, and whole numbers.
//!
//! Invariant: everything here is a pure function of its arguments. The crate depends on no other crate of the
//! workspace, so that the pure crates above it agree on these texts.

pub mod number;
pub mod quote;
