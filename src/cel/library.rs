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
pub use urls::is_request_uri;

use crate::budget::{TooMuchWork, WorkBudget};
use crate::environment::Environment;
use crate::value::{List, Outcome, Value};
pub(crate) use formats::pattern_size;
pub(crate) use strings::formatting;

/// The code of a function. It chooses by the values, so one serves all overloads. It may take the
/// arguments out of the slice.
pub type Run = for<'a> fn(Context<'_>, &mut [Value<'a>]) -> Outcome<'a>;

/// What the code of a function may use beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Context<'c> {
    /// Where the program was planned.
    pub environment: &'c Environment,
    /// What the evaluation may still take.
    pub budget: &'c WorkBudget,
    /// Whether the first argument is the result of a loop so far.
    pub accumulates: bool,
}

impl Context<'_> {
    /// Takes the work of going through a list once.
    ///
    /// # Errors
    /// Returns an error if less is left.
    pub(crate) fn walk(&self, list: &List<'_>) -> Result<(), TooMuchWork> {
        self.budget.parts(list.len())?;
        list.iter().try_for_each(|it| self.budget.read(it.bytes()))
    }

    /// Returns whether a list has a value, as far as the budget allows to look for it. The value decides what is
    /// equal to it.
    pub(crate) fn has(&self, list: &List<'_>, value: &Value<'_>) -> bool {
        list.iter().any(|it| value.equals_within(&it, self.budget))
    }
}

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
