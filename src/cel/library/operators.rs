//! The operators.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::library::{Context, Library};
use crate::limits::check_elements;
use crate::value::relations;
use crate::value::{Blob, Fault, List, Outcome, Relation, Value, compare_numbers};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        conditional: _?_:_(bool, T, T) -> T
        logical_and: _&&_(bool, bool) -> bool
        logical_or: _||_(bool, bool) -> bool
        logical_not: !_(bool) -> bool
        not_strictly_false: @not_strictly_false(bool) -> bool
        equals: _==_(T, T) -> bool
        not_equals: _!=_(T, T) -> bool
        add_bytes: _+_(bytes, bytes) -> bytes
        add_double: _+_(double, double) -> double
        add_duration_duration: _+_(duration, duration) -> duration
        add_duration_timestamp: _+_(duration, timestamp) -> timestamp
        add_timestamp_duration: _+_(timestamp, duration) -> timestamp
        add_int64: _+_(int, int) -> int
        add_list: _+_(list(T), list(T)) -> list(T)
        add_string: _+_(string, string) -> string
        add_uint64: _+_(uint, uint) -> uint
        divide_double: _/_(double, double) -> double
        divide_int64: _/_(int, int) -> int
        divide_uint64: _/_(uint, uint) -> uint
        modulo_int64: _%_(int, int) -> int
        modulo_uint64: _%_(uint, uint) -> uint
        multiply_double: _*_(double, double) -> double
        multiply_int64: _*_(int, int) -> int
        multiply_uint64: _*_(uint, uint) -> uint
        negate_double: -_(double) -> double
        negate_int64: -_(int) -> int
        subtract_double: _-_(double, double) -> double
        subtract_duration_duration: _-_(duration, duration) -> duration
        subtract_int64: _-_(int, int) -> int
        subtract_timestamp_duration: _-_(timestamp, duration) -> timestamp
        subtract_timestamp_timestamp: _-_(timestamp, timestamp) -> duration
        subtract_uint64: _-_(uint, uint) -> uint
        less_bool: _<_(bool, bool) -> bool
        less_int64: _<_(int, int) -> bool
        less_int64_double: _<_(int, double) -> bool
        less_int64_uint64: _<_(int, uint) -> bool
        less_uint64: _<_(uint, uint) -> bool
        less_uint64_double: _<_(uint, double) -> bool
        less_uint64_int64: _<_(uint, int) -> bool
        less_double: _<_(double, double) -> bool
        less_double_int64: _<_(double, int) -> bool
        less_double_uint64: _<_(double, uint) -> bool
        less_string: _<_(string, string) -> bool
        less_bytes: _<_(bytes, bytes) -> bool
        less_timestamp: _<_(timestamp, timestamp) -> bool
        less_duration: _<_(duration, duration) -> bool
        less_equals_bool: _<=_(bool, bool) -> bool
        less_equals_int64: _<=_(int, int) -> bool
        less_equals_int64_double: _<=_(int, double) -> bool
        less_equals_int64_uint64: _<=_(int, uint) -> bool
        less_equals_uint64: _<=_(uint, uint) -> bool
        less_equals_uint64_double: _<=_(uint, double) -> bool
        less_equals_uint64_int64: _<=_(uint, int) -> bool
        less_equals_double: _<=_(double, double) -> bool
        less_equals_double_int64: _<=_(double, int) -> bool
        less_equals_double_uint64: _<=_(double, uint) -> bool
        less_equals_string: _<=_(string, string) -> bool
        less_equals_bytes: _<=_(bytes, bytes) -> bool
        less_equals_timestamp: _<=_(timestamp, timestamp) -> bool
        less_equals_duration: _<=_(duration, duration) -> bool
        greater_bool: _>_(bool, bool) -> bool
        greater_int64: _>_(int, int) -> bool
        greater_int64_double: _>_(int, double) -> bool
        greater_int64_uint64: _>_(int, uint) -> bool
        greater_uint64: _>_(uint, uint) -> bool
        greater_uint64_double: _>_(uint, double) -> bool
        greater_uint64_int64: _>_(uint, int) -> bool
        greater_double: _>_(double, double) -> bool
        greater_double_int64: _>_(double, int) -> bool
        greater_double_uint64: _>_(double, uint) -> bool
        greater_string: _>_(string, string) -> bool
        greater_bytes: _>_(bytes, bytes) -> bool
        greater_timestamp: _>_(timestamp, timestamp) -> bool
        greater_duration: _>_(duration, duration) -> bool
        greater_equals_bool: _>=_(bool, bool) -> bool
        greater_equals_int64: _>=_(int, int) -> bool
        greater_equals_int64_double: _>=_(int, double) -> bool
        greater_equals_int64_uint64: _>=_(int, uint) -> bool
        greater_equals_uint64: _>=_(uint, uint) -> bool
        greater_equals_uint64_double: _>=_(uint, double) -> bool
        greater_equals_uint64_int64: _>=_(uint, int) -> bool
        greater_equals_double: _>=_(double, double) -> bool
        greater_equals_double_int64: _>=_(double, int) -> bool
        greater_equals_double_uint64: _>=_(double, uint) -> bool
        greater_equals_string: _>=_(string, string) -> bool
        greater_equals_bytes: _>=_(bytes, bytes) -> bool
        greater_equals_timestamp: _>=_(timestamp, timestamp) -> bool
        greater_equals_duration: _>=_(duration, duration) -> bool
        index_list: _[_](list(T), int) -> T
        index_map: _[_](map(K, T), K) -> T
        in_list: @in(T, list(T)) -> bool
        in_map: @in(K, map(K, T)) -> bool",
    runs: &[
        ("!_", not),
        ("-_", negate),
        ("_+_", add),
        ("_-_", subtract),
        ("_*_", multiply),
        ("_/_", divide),
        ("_%_", modulo),
        ("_<_", |_, args| order(args, Ordering::is_lt)),
        ("_<=_", |_, args| order(args, Ordering::is_le)),
        ("_>_", |_, args| order(args, Ordering::is_gt)),
        ("_>=_", |_, args| order(args, Ordering::is_ge)),
        ("@in", contains),
    ],
    types: &[],
};

fn int_overflow() -> Fault {
    Fault::error("integer overflow")
}

fn uint_overflow() -> Fault {
    Fault::error("unsigned integer overflow")
}

fn int<'a>(value: Option<i64>) -> Outcome<'a> {
    value.map(Value::Int).ok_or_else(int_overflow)
}

fn uint<'a>(value: Option<u64>) -> Outcome<'a> {
    value.map(Value::Uint).ok_or_else(uint_overflow)
}

fn not<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!*value)),
        _ => Err(Fault::no_overload()),
    }
}

fn negate<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(value)] => int(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-*value)),
        [Value::Duration(value)] => value
            .checked_neg()
            .map(Value::Duration)
            .ok_or_else(int_overflow),
        _ => Err(Fault::no_overload()),
    }
}

fn add<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    let [one, two] = args else {
        return Err(Fault::no_overload());
    };
    match (&*one, &*two) {
        (Value::Int(one), Value::Int(two)) => int(one.checked_add(*two)),
        (Value::Uint(one), Value::Uint(two)) => uint(one.checked_add(*two)),
        (Value::Double(one), Value::Double(two)) => Ok(Value::Double(one + two)),
        (Value::String(one), Value::String(two)) => {
            Ok(Value::text(format!("{}{}", &**one, &**two)))
        }
        (Value::Bytes(one), Value::Bytes(two)) => {
            Ok(Value::Bytes(Blob::Shared([&**one, &**two].concat().into())))
        }
        (Value::Duration(one), Value::Duration(two)) => one
            .checked_add(*two)
            .map(Value::Duration)
            .ok_or_else(int_overflow),
        (Value::Timestamp(at), Value::Duration(span))
        | (Value::Duration(span), Value::Timestamp(at)) => {
            at.plus(i128::from(*span)).map(Value::Timestamp)
        }
        (Value::List(_), Value::List(_)) => {
            let one = std::mem::replace(one, Value::Null);
            let (Value::List(one), Value::List(two)) = (one, two) else {
                return Err(Fault::no_overload());
            };
            check_elements(one.len().saturating_add(two.len()))?;
            concatenate(context, one, two)
        }
        _ => Err(Fault::no_overload()),
    }
}

/// Appends to the first list in place if nothing else holds it. To elements without an order only
/// those are added that are not there.
fn concatenate<'a>(context: Context<'_>, one: List<'a>, two: &List<'a>) -> Outcome<'a> {
    let relation = one.relation();
    if relation != Relation::Ordered {
        let joined = relations::joined(&one, two, relation, context.budget)?;
        return Ok(Value::List(joined));
    }
    if one.is_empty() {
        return Ok(Value::List(two.clone()));
    }
    if two.is_empty() {
        return Ok(Value::List(one));
    }
    if !one.is_own() {
        context.budget.elements(one.len())?;
    }
    context.budget.elements(two.len())?;
    // Upstream copies the caller's lists and adds to the result of a loop; any other list is a pair that remembers
    // its parts, and compares differently.
    let is_pair = !context.accumulates && !matches!(one, List::Tree(_));
    let mut all = one.into_vec();
    all.extend(two.iter());
    Ok(match is_pair {
        true => Value::List(List::Related(Arc::new((all, relation)))),
        false => Value::list(all),
    })
}

fn subtract<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(one), Value::Int(two)] => int(one.checked_sub(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_sub(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(*one - *two)),
        [Value::Duration(one), Value::Duration(two)] => one
            .checked_sub(*two)
            .map(Value::Duration)
            .ok_or_else(int_overflow),
        [Value::Timestamp(one), Value::Duration(two)] => {
            one.plus(-i128::from(*two)).map(Value::Timestamp)
        }
        [Value::Timestamp(one), Value::Timestamp(two)] => one.since(*two).map(Value::Duration),
        _ => Err(Fault::no_overload()),
    }
}

fn multiply<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(one), Value::Int(two)] => int(one.checked_mul(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_mul(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(*one * *two)),
        _ => Err(Fault::no_overload()),
    }
}

fn divide<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(Fault::error("division by zero"))
        }
        [Value::Int(one), Value::Int(two)] => int(one.checked_div(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_div(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(*one / *two)),
        _ => Err(Fault::no_overload()),
    }
}

fn modulo<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(Fault::error("modulus by zero"))
        }
        [Value::Int(one), Value::Int(two)] => int(one.checked_rem(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_rem(*two)),
        _ => Err(Fault::no_overload()),
    }
}

/// Compares two values of types that have an order between them.
pub(crate) fn compare(one: &Value<'_>, two: &Value<'_>) -> Result<Ordering, Fault> {
    match (one, two) {
        (Value::Bool(one), Value::Bool(two)) => Ok(one.cmp(two)),
        (Value::String(one), Value::String(two)) => Ok((**one).cmp(&**two)),
        (Value::Bytes(one), Value::Bytes(two)) => Ok((**one).cmp(&**two)),
        (Value::Duration(one), Value::Duration(two)) => Ok(one.cmp(two)),
        (Value::Timestamp(one), Value::Timestamp(two)) => Ok(one.order().cmp(&two.order())),
        (Value::Double(value), _)
        | (Value::Int(_) | Value::Uint(_) | Value::Double(_), Value::Double(value))
            if value.is_nan() =>
        {
            Err(Fault::error("NaN values cannot be ordered"))
        }
        _ => compare_numbers(one, two).ok_or_else(Fault::no_overload),
    }
}

fn order<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Outcome<'a> {
    match args {
        [one, two] => compare(one, two).map(|order| Value::Bool(holds(order))),
        _ => Err(Fault::no_overload()),
    }
}

fn contains<'a>(context: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [element, Value::List(list)] => Ok(Value::Bool(context.has(list, element))),
        [key, Value::Map(map)] => Ok(Value::Bool(map.get(key).is_some())),
        _ => Err(Fault::no_overload()),
    }
}
