//! Checks that the kinds of several groups make of single fields, and what errors show of bad values.

pub mod bad_value;
pub mod fields;
pub mod text_diff;
pub mod values;
