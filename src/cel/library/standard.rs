//! Sizes, and the functions of texts that every environment has.

use crate::library::{Context, Library};
use crate::pattern;
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        size_bytes: size(bytes) -> int
        bytes_size: size:(bytes) -> int
        size_list: size(list(T)) -> int
        list_size: size:(list(T)) -> int
        size_map: size(map(K, T)) -> int
        map_size: size:(map(K, T)) -> int
        size_string: size(string) -> int
        string_size: size:(string) -> int
        contains_string: contains:(string, string) -> bool
        ends_with_string: endsWith:(string, string) -> bool
        starts_with_string: startsWith:(string, string) -> bool
        matches: matches(string, string) -> bool
        matches_string: matches:(string, string) -> bool
        map_insert_key_value: cel.@mapInsert(map(K, V), K, V) -> map(K, V)
        map_insert_map: cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)",
    runs: &[
        ("size", size),
        ("contains", contains),
        ("endsWith", ends_with),
        ("startsWith", starts_with),
        ("matches", matches),
        ("cel.@mapInsert", insert),
    ],
    types: &[],
};

fn size<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let size = match args {
        [Value::String(text)] => text.chars().count(),
        [Value::Bytes(bytes)] => bytes.len(),
        [Value::List(list)] => list.len(),
        [Value::Map(map)] => map.len(),
        _ => return Err(Fault::no_overload()),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn contains<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.contains(&**part))),
        _ => Err(Fault::no_overload()),
    }
}

fn ends_with<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.ends_with(&**part))),
        _ => Err(Fault::no_overload()),
    }
}

fn starts_with<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.starts_with(&**part))),
        _ => Err(Fault::no_overload()),
    }
}

fn matches<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text), pattern] => pattern::with(pattern, "", context.budget, |engine| {
            engine.is_match(text, context.budget).map(Value::Bool)
        }),
        _ => Err(Fault::no_overload()),
    }
}

fn insert<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (Some(Value::Map(map)), rest) = (
        args.first_mut()
            .map(|first| std::mem::replace(first, Value::Null)),
        args.get(1..).unwrap_or_default(),
    ) else {
        return Err(Fault::no_overload());
    };
    let added: Vec<(Value<'a>, Value<'a>)> = match rest {
        [Value::Map(more)] => more.iter().collect(),
        [key, value] => vec![(key.clone(), value.clone())],
        _ => return Err(Fault::no_overload()),
    };
    // An entry takes as much as some elements.
    context.budget.elements(3 * added.len())?;
    if !map.is_own() {
        context.budget.elements(3 * map.len())?;
    }
    let mut entries = map.into_entries();
    for (key, value) in added {
        let key = crate::value::Key::of(&key).ok_or_else(Fault::no_overload)?;
        let shown = key.value();
        context.budget.read(shown.bytes())?;
        if entries.insert(key, value).is_some() {
            let shown = crate::format::plain(&shown);
            return Err(Fault::error(format!(
                "insert failed: key {shown} already exists"
            )));
        }
    }
    Ok(Value::map(entries))
}
