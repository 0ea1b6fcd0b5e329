//! Patterns that are compiled before they are needed.

use std::any::Any;

use crate::value::{Fault, Opaque, Value};

use super::{Engine, Pattern, TooLong, shared};

/// A constant pattern, read when the program was planned.
#[derive(Debug)]
pub(crate) struct Compiled {
    pattern: Pattern,
    letters: u64,
}

impl Compiled {
    /// Compiles a pattern; `None` if it is refused, which the evaluation then reports.
    pub fn new(pattern: &str) -> Option<Self> {
        let compiled = Self {
            pattern: Pattern::new(pattern),
            letters: pattern.chars().count() as u64,
        };
        compiled.pattern.engine().ok().map(|_| compiled)
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

/// Runs `search` with the pattern that `value` is. `label` stands in front of a complaint.
pub(crate) fn with<R>(
    value: &Value<'_>,
    label: &str,
    search: impl FnOnce(&Engine) -> Result<R, TooLong>,
) -> Result<R, Fault> {
    let engine = match value {
        Value::Opaque(compiled) => match compiled.as_any().downcast_ref::<Compiled>() {
            Some(compiled) => compiled.pattern.engine(),
            None => return Err(Fault::no_overload()),
        },
        Value::String(text) => shared(text),
        _ => return Err(Fault::no_overload()),
    };
    let engine = engine
        .map_err(|refused| Fault::error(format!("{label}error parsing regexp: {refused}")))?;
    search(&engine).map_err(|why| Fault::error(format!("{label}{why}")))
}
