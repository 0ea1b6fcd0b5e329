//! Functions of numbers. Kubernetes 1.37 does not have them.

use std::cmp::Ordering;

use crate::library::operators::compare;
use crate::library::{Context, Library};
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        math_@min_double: math.@min(double) -> double
        math_@min_int: math.@min(int) -> int
        math_@min_uint: math.@min(uint) -> uint
        math_@min_double_double: math.@min(double, double) -> double
        math_@min_int_int: math.@min(int, int) -> int
        math_@min_uint_uint: math.@min(uint, uint) -> uint
        math_@min_int_uint: math.@min(int, uint) -> dyn
        math_@min_int_double: math.@min(int, double) -> dyn
        math_@min_double_int: math.@min(double, int) -> dyn
        math_@min_double_uint: math.@min(double, uint) -> dyn
        math_@min_uint_int: math.@min(uint, int) -> dyn
        math_@min_uint_double: math.@min(uint, double) -> dyn
        math_@min_list_double: math.@min(list(double)) -> double
        math_@min_list_int: math.@min(list(int)) -> int
        math_@min_list_uint: math.@min(list(uint)) -> uint
        math_@max_double: math.@max(double) -> double
        math_@max_int: math.@max(int) -> int
        math_@max_uint: math.@max(uint) -> uint
        math_@max_double_double: math.@max(double, double) -> double
        math_@max_int_int: math.@max(int, int) -> int
        math_@max_uint_uint: math.@max(uint, uint) -> uint
        math_@max_int_uint: math.@max(int, uint) -> dyn
        math_@max_int_double: math.@max(int, double) -> dyn
        math_@max_double_int: math.@max(double, int) -> dyn
        math_@max_double_uint: math.@max(double, uint) -> dyn
        math_@max_uint_int: math.@max(uint, int) -> dyn
        math_@max_uint_double: math.@max(uint, double) -> dyn
        math_@max_list_double: math.@max(list(double)) -> double
        math_@max_list_int: math.@max(list(int)) -> int
        math_@max_list_uint: math.@max(list(uint)) -> uint
        math_ceil_double: math.ceil(double) -> double
        math_floor_double: math.floor(double) -> double
        math_round_double: math.round(double) -> double
        math_trunc_double: math.trunc(double) -> double
        math_isInf_double: math.isInf(double) -> bool
        math_isNaN_double: math.isNaN(double) -> bool
        math_isFinite_double: math.isFinite(double) -> bool
        math_abs_double: math.abs(double) -> double
        math_abs_int: math.abs(int) -> int
        math_abs_uint: math.abs(uint) -> uint
        math_sign_double: math.sign(double) -> double
        math_sign_int: math.sign(int) -> int
        math_sign_uint: math.sign(uint) -> uint
        math_bitAnd_int_int: math.bitAnd(int, int) -> int
        math_bitAnd_uint_uint: math.bitAnd(uint, uint) -> uint
        math_bitOr_int_int: math.bitOr(int, int) -> int
        math_bitOr_uint_uint: math.bitOr(uint, uint) -> uint
        math_bitXor_int_int: math.bitXor(int, int) -> int
        math_bitXor_uint_uint: math.bitXor(uint, uint) -> uint
        math_bitNot_int_int: math.bitNot(int) -> int
        math_bitNot_uint_uint: math.bitNot(uint) -> uint
        math_bitShiftLeft_int_int: math.bitShiftLeft(int, int) -> int
        math_bitShiftLeft_uint_int: math.bitShiftLeft(uint, int) -> uint
        math_bitShiftRight_int_int: math.bitShiftRight(int, int) -> int
        math_bitShiftRight_uint_int: math.bitShiftRight(uint, int) -> uint
        math_sqrt_double: math.sqrt(double) -> double
        math_sqrt_int: math.sqrt(int) -> double
        math_sqrt_uint: math.sqrt(uint) -> double",
    runs: &[
        ("math.@min", |context, args| {
            extreme(context, args, Ordering::Greater, "min")
        }),
        ("math.@max", |context, args| {
            extreme(context, args, Ordering::Less, "max")
        }),
        ("math.ceil", |_, args| change(args, f64::ceil)),
        ("math.floor", |_, args| change(args, f64::floor)),
        ("math.round", |_, args| change(args, f64::round)),
        ("math.trunc", |_, args| change(args, f64::trunc)),
        ("math.isInf", |_, args| test(args, f64::is_infinite)),
        ("math.isNaN", |_, args| test(args, f64::is_nan)),
        ("math.isFinite", |_, args| test(args, f64::is_finite)),
        ("math.abs", |_, args| match args {
            [Value::Int(value)] => value
                .checked_abs()
                .map(Value::Int)
                .ok_or_else(|| Fault::error("integer overflow")),
            [Value::Uint(value)] => Ok(Value::Uint(*value)),
            _ => change(args, f64::abs),
        }),
        ("math.sign", |_, args| match args {
            [Value::Int(value)] => Ok(Value::Int(value.signum())),
            [Value::Uint(value)] => Ok(Value::Uint(u64::from(*value > 0))),
            _ => change(args, |value| {
                if value == 0.0 || value.is_nan() {
                    value
                } else {
                    value.signum()
                }
            }),
        }),
        ("math.bitAnd", |_, args| bits(args, |a, b| a & b)),
        ("math.bitOr", |_, args| bits(args, |a, b| a | b)),
        ("math.bitXor", |_, args| bits(args, |a, b| a ^ b)),
        ("math.bitNot", |_, args| match args {
            [Value::Int(value)] => Ok(Value::Int(!*value)),
            [Value::Uint(value)] => Ok(Value::Uint(!*value)),
            _ => Err(Fault::no_overload()),
        }),
        ("math.bitShiftLeft", |_, args| {
            shift(args, "Left", |bits, by| bits.checked_shl(by))
        }),
        ("math.bitShiftRight", |_, args| {
            shift(args, "Right", |bits, by| bits.checked_shr(by))
        }),
        ("math.sqrt", |context, args| {
            let double = context.environment.functions.get("double");
            let double = double.and_then(|found| found.run);
            let value = double.ok_or_else(Fault::no_overload)?(context, args)?;
            change(&[value], f64::sqrt)
        }),
    ],
    types: &[],
};

fn change<'a>(args: &[Value<'a>], by: fn(f64) -> f64) -> Outcome<'a> {
    match args {
        [Value::Double(value)] => Ok(Value::Double(by(*value))),
        _ => Err(Fault::no_overload()),
    }
}

fn test<'a>(args: &[Value<'a>], by: fn(f64) -> bool) -> Outcome<'a> {
    match args {
        [Value::Double(value)] => Ok(Value::Bool(by(*value))),
        _ => Err(Fault::no_overload()),
    }
}

fn bits<'a>(args: &[Value<'a>], by: fn(u64, u64) -> u64) -> Outcome<'a> {
    match args {
        [Value::Int(one), Value::Int(two)] => Ok(Value::Int(
            by(one.cast_unsigned(), two.cast_unsigned()).cast_signed(),
        )),
        [Value::Uint(one), Value::Uint(two)] => Ok(Value::Uint(by(*one, *two))),
        _ => Err(Fault::no_overload()),
    }
}

fn shift<'a>(args: &[Value<'a>], side: &str, by: fn(u64, u32) -> Option<u64>) -> Outcome<'a> {
    let [value, Value::Int(count)] = args else {
        return Err(Fault::no_overload());
    };
    let Ok(count) = u64::try_from(*count) else {
        let text = format!("math.bitShift{side}() negative offset: {count}");
        return Err(Fault::error(text));
    };
    // Beyond the width nothing is left.
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let shifted = |bits: u64| by(bits, count).unwrap_or(0);
    match value {
        Value::Int(value) => Ok(Value::Int(shifted(value.cast_unsigned()).cast_signed())),
        Value::Uint(value) => Ok(Value::Uint(shifted(*value))),
        _ => Err(Fault::no_overload()),
    }
}

fn extreme<'a>(
    context: Context<'_>,
    args: &[Value<'a>],
    replace: Ordering,
    name: &str,
) -> Outcome<'a> {
    let values: Vec<Value<'a>> = match args {
        [Value::List(list)] => {
            context.budget.elements(list.len())?;
            list.iter().collect()
        }
        several => several.to_vec(),
    };
    let is_number =
        |value: &Value<'_>| matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_));
    if !values.iter().all(is_number) {
        return Err(Fault::no_overload());
    }
    let best = extreme_of(values.into_iter(), replace)?;
    best.ok_or_else(|| Fault::error(format!("math.@{name}(list) argument must not be empty")))
}

/// Returns the first of the smallest or largest values: one replaces the best so far if that compares with it as
/// `replace` says.
fn extreme_of<'a>(
    values: impl Iterator<Item = Value<'a>>,
    replace: Ordering,
) -> Result<Option<Value<'a>>, Fault> {
    let mut best: Option<Value<'a>> = None;
    for value in values {
        best = Some(match best {
            Some(best) if compare(&best, &value)? != replace => best,
            _ => value,
        });
    }
    Ok(best)
}
