//! Lists as sets.

use crate::library::{Context, Library};
use crate::value::{Fault, List, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        list_sets_contains_list: sets.contains(list(T), list(T)) -> bool
        list_sets_equivalent_list: sets.equivalent(list(T), list(T)) -> bool
        list_sets_intersects_list: sets.intersects(list(T), list(T)) -> bool",
    runs: &[
        ("sets.contains", |context, args| match args {
            [Value::List(one), Value::List(two)] => Ok(Value::Bool(contains(context, one, two))),
            _ => Err(Fault::no_overload()),
        }),
        ("sets.equivalent", |context, args| match args {
            [Value::List(one), Value::List(two)] => Ok(Value::Bool(
                contains(context, one, two) && contains(context, two, one),
            )),
            _ => Err(Fault::no_overload()),
        }),
        ("sets.intersects", |context, args| match args {
            [Value::List(one), Value::List(two)] => {
                Ok(Value::Bool(one.iter().any(|it| context.has(two, &it))))
            }
            _ => Err(Fault::no_overload()),
        }),
    ],
    types: &[],
};

fn contains(context: Context<'_>, list: &List<'_>, parts: &List<'_>) -> bool {
    parts.iter().all(|part| context.has(list, &part))
}
