//! Lists as sets.

use crate::library::Library;
use crate::value::{Fault, List, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        list_sets_contains_list: sets.contains(list(T), list(T)) -> bool
        list_sets_equivalent_list: sets.equivalent(list(T), list(T)) -> bool
        list_sets_intersects_list: sets.intersects(list(T), list(T)) -> bool",
    runs: &[
        ("sets.contains", |_, args| match args {
            [Value::List(one), Value::List(two)] => Ok(Value::Bool(contains(one, two))),
            _ => Err(Fault::no_overload()),
        }),
        ("sets.equivalent", |_, args| match args {
            [Value::List(one), Value::List(two)] => {
                Ok(Value::Bool(contains(one, two) && contains(two, one)))
            }
            _ => Err(Fault::no_overload()),
        }),
        ("sets.intersects", |_, args| match args {
            [Value::List(one), Value::List(two)] => {
                Ok(Value::Bool(one.iter().any(|it| has(two, &it))))
            }
            _ => Err(Fault::no_overload()),
        }),
    ],
    types: &[],
};

fn has(list: &List<'_>, value: &Value<'_>) -> bool {
    list.iter().any(|it| it.equals(value))
}

fn contains(list: &List<'_>, parts: &List<'_>) -> bool {
    parts.iter().all(|part| has(list, &part))
}
