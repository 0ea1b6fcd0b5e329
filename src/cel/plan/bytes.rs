//! What a program takes in memory, for those who keep many.

use super::{Constant, Program, Step};
use crate::value::{Key, Value};

impl Program {
    /// Returns the bytes of memory that the program takes, approximately, without the environment, which others share.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let steps: usize = self.steps.iter().map(Step::bytes).sum();
        let broken = self.broken.as_ref().map_or(0, |why| why.len());
        size_of::<Self>() + steps + broken
    }
}

impl Step {
    fn bytes(&self) -> usize {
        let parts = match self {
            Self::Constant(constant) => constant.bytes(),
            Self::InConstant { list, .. } => list.bytes(),
            Self::Field { name, .. } | Self::Has { name, .. } => name.len(),
            Self::Call(call) => size_of_val(&*call.args),
            Self::List { elements } => size_of_val(&**elements),
            Self::Map { entries } => size_of_val(&**entries),
            Self::Broken(why) => why.len(),
            Self::Variable(_)
            | Self::Local(_)
            | Self::Index { .. }
            | Self::OptionalIndex { .. }
            | Self::Condition { .. }
            | Self::And(..)
            | Self::Or(..)
            | Self::NotFalse(_)
            | Self::Equal { .. }
            | Self::Otherwise { .. }
            | Self::Fold(_) => 0,
        };
        size_of::<Self>() + parts
    }
}

impl Constant {
    /// Returns the bytes of the value, without those of the parts of a list or a map: they have steps of their own.
    fn bytes(&self) -> usize {
        match self.value() {
            Value::List(list) => list.len() * size_of::<Value<'_>>(),
            Value::Map(map) => map.len() * (size_of::<Key<'_>>() + size_of::<Value<'_>>()),
            Value::Type(name) => name.len(),
            // The size of a pattern is that of its text.
            Value::Opaque(value) => {
                value.bytes() + usize::try_from(value.cost_size()).unwrap_or(usize::MAX)
            }
            other => other.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::environment::Environment;
    use crate::parse::parse;

    fn bytes(text: &str) -> usize {
        let environment = Arc::new(Environment::kubernetes());
        let ast = parse(text, &environment.syntax).expect("it parses");
        Program::unchecked(&ast, &environment).bytes()
    }

    #[test]
    fn programs_count_their_texts_patterns_and_constants() {
        let long = "x".repeat(50_000);
        assert!(bytes("1 == 2") < 2_000);
        assert!(bytes(&format!("'{long}' == 'a'")) > 50_000);
        assert!(bytes(&format!("'a'.matches('{long}')")) > 100_000);
        let list = vec!["1"; 10_000].join(", ");
        let elements = 10_000 * (size_of::<Step>() + size_of::<Value<'_>>());
        assert!(bytes(&format!("[{list}]")) > elements);
        let calls = vec!["size('a')"; 1_000].join(", ");
        assert!(bytes(&format!("[{calls}]")) > 2_000 * size_of::<Step>());
    }
}
