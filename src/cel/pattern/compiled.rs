//! Patterns that are compiled before they are needed.

use std::any::Any;

use regex::Regex;

use crate::value::{Fault, Opaque, Value};

use super::compile;

/// A constant pattern, compiled when the program was planned.
#[derive(Debug)]
pub(crate) struct Compiled {
    regex: Regex,
    letters: u64,
}

impl Compiled {
    /// Compiles a pattern; `None` if it is refused, which the evaluation then reports.
    pub fn new(pattern: &str) -> Option<Self> {
        Some(Self {
            regex: compile(pattern).ok()?,
            letters: pattern.chars().count() as u64,
        })
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
    search: impl FnOnce(&Regex) -> R,
) -> Result<R, Fault> {
    match value {
        Value::Opaque(compiled) => match compiled.as_any().downcast_ref::<Compiled>() {
            Some(compiled) => Ok(search(&compiled.regex)),
            None => Err(Fault::no_overload()),
        },
        Value::String(text) => compile(text)
            .map(|regex| search(&regex))
            .map_err(|refused| Fault::error(format!("{label}error parsing regexp: {refused}"))),
        _ => Err(Fault::no_overload()),
    }
}
