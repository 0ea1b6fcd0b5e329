//! The functions that expressions may call: declarations as text, code beside them.
//!
//! A declaration is `id: name(types) -> type`; a colon behind the name makes the first type the
//! receiver's. A function without code here is a step of the evaluation itself.

mod authorization;
mod comparable;
mod conversion;
mod encoders;
mod formats;
mod lists;
mod math;
mod networks;
mod operators;
mod optional;
mod quantities;
mod regexes;
mod sets;
mod standard;
mod strings;
mod times;
mod urls;
mod versions;

pub use authorization::{Decision, Decisions, Question, authorizer, resource_authorizer};

use crate::environment::Environment;
use crate::value::{Outcome, Value};
pub(crate) use strings::formatting;

/// The code of a function. It chooses by the values, so one serves all overloads. It may take the
/// arguments out of the slice.
pub type Run = for<'a> fn(&Environment, &mut [Value<'a>]) -> Outcome<'a>;

/// Functions that belong together.
#[derive(Debug)]
pub struct Library {
    /// The declarations, one on a line.
    pub declarations: &'static str,
    /// The code by the functions' names.
    pub runs: &'static [(&'static str, Run)],
    /// The names of types that the library adds.
    pub types: &'static [&'static str],
}

/// What every environment has.
pub(crate) const STANDARD: &[&Library] = &[
    &standard::LIBRARY,
    &operators::LIBRARY,
    &conversion::LIBRARY,
    &times::LIBRARY,
];

/// What Kubernetes 1.37 adds.
pub(crate) const KUBERNETES: &[&Library] = &[
    &optional::LIBRARY,
    &strings::LIBRARY,
    &sets::LIBRARY,
    &lists::LIBRARY,
    &authorization::LIBRARY,
    &formats::LIBRARY,
    &regexes::LIBRARY,
    &urls::LIBRARY,
    &quantities::LIBRARY,
    &networks::LIBRARY,
    &versions::LIBRARY,
    &comparable::LIBRARY,
];

/// What this crate has beyond Kubernetes.
pub(crate) const BEYOND: &[&Library] = &[&math::LIBRARY, &encoders::LIBRARY];
