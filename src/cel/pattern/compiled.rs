//! Patterns as values of an evaluation.

use std::any::Any;

use crate::value::{Fault, Opaque, Value};

use super::{Engine, Failed, Pattern, shared};
use crate::budget::{TooMuchWork, WorkBudget};

/// A constant pattern, which is compiled when it is needed.
#[derive(Debug)]
pub(crate) struct Compiled {
    pattern: Pattern,
    letters: u64,
}

impl Compiled {
    /// Creates it from its text.
    pub fn new(pattern: &str) -> Self {
        Self {
            pattern: Pattern::new(pattern),
            letters: pattern.chars().count() as u64,
        }
    }
}

impl Opaque for Compiled {
    fn type_name(&self) -> &'static str {
        "string"
    }

    fn equals(&self, _: &dyn Opaque) -> bool {
        false
    }

    fn cost_size(&self) -> u64 {
        self.letters
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Runs `search` with the pattern that `value` is. `label` stands in front of a complaint, unless the pattern is a
/// constant: that upstream compiles before.
pub(crate) fn with<R>(
    value: &Value<'_>,
    label: &str,
    budget: &WorkBudget,
    search: impl FnOnce(&Engine) -> Result<R, TooMuchWork>,
) -> Result<R, Fault> {
    let (engine, label) = match value {
        Value::Opaque(compiled) => match compiled.as_any().downcast_ref::<Compiled>() {
            Some(compiled) => (compiled.pattern.engine(budget), ""),
            None => return Err(Fault::no_overload()),
        },
        Value::String(text) => (shared(text, budget), label),
        _ => return Err(Fault::no_overload()),
    };
    let found = engine.and_then(|engine| search(&engine).map_err(Failed::from));
    found.map_err(|why| match why {
        Failed::Refused(_) => Fault::error(format!("{label}{why}")),
        Failed::TooMuchWork(spent) => spent.into(),
    })
}
