//! Loops over lists and maps.

use super::Machine;
use crate::plan::Fold;
use crate::refusal::code_type;
use crate::value::{Fault, Outcome, Value};

impl<'a> Machine<'_, 'a> {
    pub(super) fn fold(&mut self, fold: &'a Fold) -> Outcome<'a> {
        let range = self.eval(fold.range)?;
        let init = self.eval(fold.init);
        if init.as_ref().is_err_and(Fault::is_final) {
            return init;
        }
        let depth = self.locals.len();
        self.locals.push(init);
        let ended = if fold.always == Some(false) {
            Ok(())
        } else {
            self.iterate(fold, depth, &range)
        };
        self.locals.truncate(depth + 1);
        let outcome = ended.and_then(|()| self.eval(fold.result));
        self.locals.truncate(depth);
        outcome
    }

    fn iterate(&mut self, fold: &'a Fold, depth: usize, range: &Value<'a>) -> Result<(), Fault> {
        self.locals.push(Ok(Value::Null));
        if fold.two {
            self.locals.push(Ok(Value::Null));
        }
        match range {
            Value::List(list) => {
                for (number, value) in list.iter().enumerate() {
                    let number = i64::try_from(number).unwrap_or(i64::MAX);
                    if !self.turn(fold, depth, Value::Int(number), Some(value))? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    let value = fold.two.then_some(value);
                    if !self.turn(fold, depth, key, value)? {
                        break;
                    }
                }
                Ok(())
            }
            other if fold.two => Err(Fault::error(format!(
                "unsupported comprehension range type: {}",
                code_type(other)
            ))),
            other => Err(Fault::error(format!(
                "got '{}', expected iterable type",
                code_type(other)
            ))),
        }
    }

    /// Does one turn of a loop. Returns false if the loop ends before it.
    fn turn(
        &mut self,
        fold: &'a Fold,
        depth: usize,
        place: Value<'a>,
        value: Option<Value<'a>>,
    ) -> Result<bool, Fault> {
        match (fold.two, value) {
            (true, Some(value)) => {
                self.locals[depth + 1] = Ok(place);
                self.locals[depth + 2] = Ok(value);
            }
            (false, Some(value)) => self.locals[depth + 1] = Ok(value),
            (_, None) => self.locals[depth + 1] = Ok(place),
        }
        if fold.always != Some(true) {
            match self.eval(fold.condition) {
                Ok(Value::Bool(true)) => {}
                Err(fault) if fault.is_final() => return Err(fault),
                _ => return Ok(false),
            }
        }
        let next = self.eval(fold.step);
        match next {
            Err(fault) if fault.is_final() => return Err(fault),
            other => self.locals[depth] = other,
        }
        Ok(true)
    }
}
