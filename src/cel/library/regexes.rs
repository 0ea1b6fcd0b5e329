//! Kubernetes' searches by regular expressions.

use crate::library::{Context, Library};
use crate::pattern;
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_find_string: find:(string, string) -> string
        string_find_all_string: findAll:(string, string) -> list(string)
        string_find_all_string_int: findAll:(string, string, int) -> list(string)",
    runs: &[("find", find), ("findAll", find_all)],
    types: &[],
};

const LABEL: &str = "Illegal regex: ";

fn find<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::String(text), pattern] = args else {
        return Err(Fault::no_overload());
    };
    pattern::with(pattern, LABEL, context.budget, |engine| {
        let found = engine.find(text, 1, context.budget)?;
        Ok(Value::text(found.first().copied().unwrap_or_default()))
    })
}

fn find_all<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (text, pattern, count) = match args {
        [Value::String(text), pattern] => (text, pattern, -1),
        [Value::String(text), pattern, Value::Int(count)] => (text, pattern, *count),
        _ => return Err(Fault::no_overload()),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    pattern::with(pattern, LABEL, context.budget, |engine| {
        let found = engine.find(text, count, context.budget)?;
        context.budget.elements(found.len())?;
        let bytes = found.iter().map(|part| part.len()).sum();
        context.budget.make(bytes)?;
        Ok(Value::list(found.into_iter().map(Value::text).collect()))
    })
}
