//! Functions of lists: upstream's extension and those of Kubernetes.

use std::cmp::Ordering;

use crate::library::operators::compare;
use crate::library::{Context, Library};
use crate::limits::check_elements;
use crate::refusal::code_type;
use crate::value::{Fault, List, Outcome, Value};

/// Most elements of `lists.range`. Without a limit one call could take all memory.
const RANGE_MAX: i64 = 1_000_000;

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        list_slice: slice:(list(T), int, int) -> list(T)
        list_flatten: flatten:(list(list(T))) -> list(T)
        list_flatten_int: flatten:(list(dyn), int) -> list(dyn)
        list_int_sort: sort:(list(int)) -> list(int)
        list_uint_sort: sort:(list(uint)) -> list(uint)
        list_double_sort: sort:(list(double)) -> list(double)
        list_bool_sort: sort:(list(bool)) -> list(bool)
        list_google.protobuf.Duration_sort: sort:(list(duration)) -> list(duration)
        list_google.protobuf.Timestamp_sort: sort:(list(timestamp)) -> list(timestamp)
        list_string_sort: sort:(list(string)) -> list(string)
        list_bytes_sort: sort:(list(bytes)) -> list(bytes)
        list_int_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(int)) -> list(T)
        list_uint_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(uint)) -> list(T)
        list_double_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(double)) -> list(T)
        list_bool_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(bool)) -> list(T)
        list_google.protobuf.Duration_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(duration)) -> list(T)
        list_google.protobuf.Timestamp_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(timestamp)) -> list(T)
        list_string_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(string)) -> list(T)
        list_bytes_sortByAssociatedKeys: @sortByAssociatedKeys:(list(T), list(bytes)) -> list(T)
        lists_range: lists.range(int) -> list(int)
        list_reverse: reverse:(list(T)) -> list(T)
        list_distinct: distinct:(list(T)) -> list(T)
        list_int_is_sorted_bool: isSorted:(list(int)) -> bool
        list_uint_is_sorted_bool: isSorted:(list(uint)) -> bool
        list_double_is_sorted_bool: isSorted:(list(double)) -> bool
        list_bool_is_sorted_bool: isSorted:(list(bool)) -> bool
        list_duration_is_sorted_bool: isSorted:(list(duration)) -> bool
        list_timestamp_is_sorted_bool: isSorted:(list(timestamp)) -> bool
        list_string_is_sorted_bool: isSorted:(list(string)) -> bool
        list_bytes_is_sorted_bool: isSorted:(list(bytes)) -> bool
        list_int_sum_int: sum:(list(int)) -> int
        list_uint_sum_uint: sum:(list(uint)) -> uint
        list_double_sum_double: sum:(list(double)) -> double
        list_duration_sum_duration: sum:(list(duration)) -> duration
        list_int_max_int: max:(list(int)) -> int
        list_uint_max_uint: max:(list(uint)) -> uint
        list_double_max_double: max:(list(double)) -> double
        list_bool_max_bool: max:(list(bool)) -> bool
        list_duration_max_duration: max:(list(duration)) -> duration
        list_timestamp_max_timestamp: max:(list(timestamp)) -> timestamp
        list_string_max_string: max:(list(string)) -> string
        list_bytes_max_bytes: max:(list(bytes)) -> bytes
        list_int_min_int: min:(list(int)) -> int
        list_uint_min_uint: min:(list(uint)) -> uint
        list_double_min_double: min:(list(double)) -> double
        list_bool_min_bool: min:(list(bool)) -> bool
        list_duration_min_duration: min:(list(duration)) -> duration
        list_timestamp_min_timestamp: min:(list(timestamp)) -> timestamp
        list_string_min_string: min:(list(string)) -> string
        list_bytes_min_bytes: min:(list(bytes)) -> bytes
        list_a_index_of_int: indexOf:(list(A), A) -> int
        list_a_last_index_of_int: lastIndexOf:(list(A), A) -> int
        list_includes_dyn_dyn: includes:(dyn, dyn) -> bool",
    runs: &[
        ("slice", slice),
        ("flatten", flattened),
        ("sort", sort),
        ("@sortByAssociatedKeys", sort_by_keys),
        ("lists.range", range),
        ("distinct", distinct),
        ("reverse", |context, args| match args {
            [Value::List(list)] => {
                context.budget.elements(list.len())?;
                Ok(reversed(list))
            }
            _ => Err(Fault::no_overload()),
        }),
        ("isSorted", is_sorted),
        ("sum", sum),
        ("max", |context, args| {
            extreme(context, args, Ordering::Less, "max")
        }),
        ("min", |context, args| {
            extreme(context, args, Ordering::Greater, "min")
        }),
        ("includes", includes),
    ],
    types: &[],
};

fn slice<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return Err(Fault::no_overload());
    };
    let (from, to) = (usize::try_from(*start), usize::try_from(*end));
    let reason = match (from, to) {
        (Ok(from), Ok(to)) if from > to => {
            "start index must be less than or equal to end index".to_owned()
        }
        (Ok(_), Ok(to)) if to > list.len() => format!("list is length {}", list.len()),
        (Ok(from), Ok(to)) => {
            context.budget.elements(to - from)?;
            let part = (from..to).filter_map(|at| list.at(at)).collect();
            return Ok(Value::list(part));
        }
        _ => "negative indexes not supported".to_owned(),
    };
    Err(Fault::error(format!(
        "cannot slice({start}, {end}), {reason}"
    )))
}

fn flattened<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(_), Value::Int(depth)] if *depth < 0 => {
            return Err(Fault::error("level must be non-negative"));
        }
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        [other] => {
            let of = written_type(other);
            return Err(Fault::error(format!("no such overload: {of}.flatten()")));
        }
        [other, Value::Int(_)] => {
            let of = written_type(other);
            return Err(Fault::error(format!("no such overload: {of}.flatten(int)")));
        }
        // Upstream computes the cost from the depth.
        [_, depth] => {
            let found = code_type(depth);
            return Err(Fault::error(format!(
                "internal error: interface conversion: ref.Val is {found}, not types.Int"
            )));
        }
        _ => return Err(Fault::no_overload()),
    };
    let mut made = Vec::new();
    flatten(context, list, depth, &mut made)?;
    Ok(Value::list(made))
}

/// Returns the type of a value with its parameters, which are not known.
fn written_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::List(_) => "list(dyn)",
        Value::Map(_) => "map(dyn, dyn)",
        Value::Optional(_) => "optional_type(dyn)",
        other => other.type_name(),
    }
}

fn flatten<'a>(
    context: Context<'_>,
    list: &List<'a>,
    depth: i64,
    made: &mut Vec<Value<'a>>,
) -> Result<(), Fault> {
    for element in list.iter() {
        context.budget.elements(1)?;
        match element {
            Value::List(inner) if depth > 0 => flatten(context, &inner, depth - 1, made)?,
            other => {
                check_elements(made.len())?;
                made.push(other);
            }
        }
    }
    Ok(())
}

fn sort<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::List(list)] => sorted(context, list, list),
        _ => Err(Fault::no_overload()),
    }
}

fn sort_by_keys<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::List(list), Value::List(keys)] => sorted(context, list, keys),
        _ => Err(Fault::no_overload()),
    }
}

fn sorted<'a>(context: Context<'_>, list: &List<'a>, keys: &List<'a>) -> Outcome<'a> {
    if list.len() != keys.len() {
        return Err(Fault::error(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let Some(first) = keys.at(0) else {
        return Ok(Value::List(list.clone()));
    };
    if compare(&first, &first).is_err() {
        return Err(Fault::error("list elements must be comparable"));
    }
    if keys.iter().any(|key| key.type_name() != first.type_name()) {
        return Err(Fault::error("list elements must have the same type"));
    }
    context.budget.elements(2 * list.len())?;
    for _ in 0..=list.len().ilog2() {
        context.walk(keys)?;
    }
    let mut pairs: Vec<(Value<'a>, Value<'a>)> = keys.iter().zip(list.iter()).collect();
    pairs.sort_by(|one, two| compare(&one.0, &two.0).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|pair| pair.1).collect()))
}

fn range<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(size)] if *size < 0 => Err(Fault::error(format!(
            "lists.range: size must be non-negative, got {size}"
        ))),
        [Value::Int(size)] if *size > RANGE_MAX => Err(Fault::error(format!(
            "lists.range: size {size} exceeds maximum allowed ({RANGE_MAX})"
        ))),
        [Value::Int(size)] => {
            context
                .budget
                .elements(usize::try_from(*size).unwrap_or(0))?;
            Ok(Value::list((0..*size).map(Value::Int).collect()))
        }
        _ => Err(Fault::no_overload()),
    }
}

/// Returns the list backwards.
fn reversed<'a>(list: &List<'a>) -> Value<'a> {
    let elements = (0..list.len()).rev().filter_map(|at| list.at(at));
    Value::list(elements.collect())
}

fn distinct<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return Err(Fault::no_overload());
    };
    let mut made: Vec<Value<'a>> = Vec::new();
    for element in list.iter() {
        let is_equal = |it: &Value<'_>| it.equals_within(&element, context.budget);
        if !made.iter().any(is_equal) {
            context.budget.elements(1)?;
            made.push(element);
        }
    }
    Ok(Value::list(made))
}

fn is_sorted<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return Err(Fault::no_overload());
    };
    context.walk(list)?;
    for (before, after) in list.iter().zip(list.iter().skip(1)) {
        // What cannot be compared is in order.
        if compare(&before, &after).is_ok_and(Ordering::is_gt) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return Err(Fault::no_overload());
    };
    let add = context
        .environment
        .functions
        .get("_+_")
        .and_then(|function| function.run);
    let add = add.ok_or_else(Fault::no_overload)?;
    context.budget.parts(list.len())?;
    let mut total = match list.at(0) {
        Some(Value::Uint(_)) => Value::Uint(0),
        Some(Value::Double(_)) => Value::Double(0.0),
        Some(Value::Duration(_)) => Value::Duration(0),
        _ => Value::Int(0),
    };
    for element in list.iter() {
        total = add(context, &mut [total, element])?;
    }
    Ok(total)
}

fn extreme<'a>(
    context: Context<'_>,
    args: &[Value<'a>],
    replace: Ordering,
    name: &str,
) -> Outcome<'a> {
    let [Value::List(list)] = args else {
        return Err(Fault::no_overload());
    };
    context.walk(list)?;
    let mut best: Option<Value<'a>> = None;
    for value in list.iter() {
        // What cannot be compared is neither smaller nor larger.
        best = Some(match best {
            Some(best) if compare(&best, &value) != Ok(replace) => best,
            _ => value,
        });
    }
    best.ok_or_else(|| Fault::error(format!("{name} called on empty list")))
}

/// Returns the place of a value in a list, from the beginning or from the end.
pub(crate) fn place<'a>(
    context: Context<'_>,
    list: &List<'a>,
    value: &Value<'a>,
    from_end: bool,
) -> Value<'a> {
    let mut places = 0..list.len();
    let is_here = |at: &usize| {
        let element = list.at(*at);
        element.is_some_and(|it| it.equals_within(value, context.budget))
    };
    let found = if from_end {
        places.rev().find(is_here)
    } else {
        places.find(is_here)
    };
    Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

fn includes<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::List(list), value] => {
            let is_it = |it: Value<'_>| it.equals_within(value, context.budget);
            Ok(Value::Bool(list.iter().any(is_it)))
        }
        [one, value] => Ok(Value::Bool(one.equals_within(value, context.budget))),
        _ => Err(Fault::no_overload()),
    }
}
