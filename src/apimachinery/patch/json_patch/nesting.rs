//! How deep values lie in one another while a patch is applied. A few copies of a value into itself double that
//! each time, and whoever reads, writes or drops a value calls itself for each level.

use super::{ApplyError, MemberError, Operation, Spent};
use crate::json::Limits;
use crate::value::Value;

/// The depth of an object to which operations are applied.
pub(super) struct Nesting {
    /// No less than the object's depth.
    bound: usize,
    max: usize,
}

impl Nesting {
    /// Measures an object.
    pub(super) fn of(document: &Value) -> Self {
        Self {
            bound: measure(document).depth,
            max: Limits::default().depth_max,
        }
    }

    /// Checks the object after an operation. It is measured only if it may have become too deep; that counts
    /// as shifted values, or many operations on a large object would take very long.
    ///
    /// # Errors
    /// Returns an error if it is too deep, or was measured too often.
    pub(super) fn check(
        &mut self,
        operation: &Operation,
        document: &Value,
        spent: &mut Spent,
    ) -> Result<(), ApplyError> {
        self.bound = self.bound.max(self.reach(operation));
        if self.bound <= self.max {
            return Ok(());
        }
        let measured = measure(document);
        let counted = spent.shift(measured.values);
        self.bound = measured.depth;
        let checked = counted.and(match self.bound > self.max {
            true => Err(MemberError::TooDeep),
            false => Ok(()),
        });
        let kind = &operation.kind;
        checked.map_err(|error| ApplyError(format!("error in {kind}: {error}")))
    }

    /// Returns a depth that what the operation has written does not exceed.
    fn reach(&self, operation: &Operation) -> usize {
        let parts = |path: &Result<String, _>| match path {
            Ok(path) => path.matches('/').count(),
            Err(_) => 0,
        };
        let written = match operation.kind.as_str() {
            "add" | "replace" => operation
                .value
                .as_ref()
                .map_or(0, |value| measure(value).depth),
            "copy" | "move" => self.bound.saturating_sub(parts(&operation.from)),
            _ => return 0,
        };
        parts(&operation.path) + written
    }
}

struct Measured {
    /// The number of lists and objects around the innermost value.
    depth: usize,
    values: usize,
}

/// Measures a value without calling itself.
fn measure<'v>(value: &'v Value) -> Measured {
    let mut measured = Measured {
        depth: 0,
        values: 1,
    };
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        let mut enter = |inner: &'v Value| {
            measured.values += 1;
            if matches!(inner, Value::Object(_) | Value::Array(_)) {
                open.push((inner, depth + 1));
            }
        };
        match value {
            Value::Object(members) => members.iter().for_each(|(_, inner)| enter(inner)),
            Value::Array(items) => items.iter().for_each(enter),
            _ => continue,
        }
        measured.depth = measured.depth.max(depth);
    }
    measured
}
