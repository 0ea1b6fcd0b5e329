//! Checks of single fields that the kinds of several groups share, and the form in which errors
//! show bad values.

pub mod bad_value;
pub mod complaints;
pub mod conditions;
pub mod domain_names;
pub mod equality;
pub mod members;
pub mod numbers;
pub mod object_names;
pub mod selectors;
pub mod text_diff;
