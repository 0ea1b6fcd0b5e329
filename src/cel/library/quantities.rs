//! Quantities of Kubernetes: decimal numbers with a suffix.
//!
//! A quantity is kept in billionths, as upstream rounds it; it never exceeds 2⁶³ - 1 units.

use std::any::Any;
use std::cmp::Ordering;
use std::sync::Arc;

use crate::library::{Context, Library};
use crate::value::{Fault, Opaque, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        string_to_quantity: quantity(string) -> kubernetes.Quantity
        is_quantity_string: isQuantity(string) -> bool
        quantity_sign: sign(kubernetes.Quantity) -> int
        quantity_get_float: asApproximateFloat:(kubernetes.Quantity) -> double
        quantity_get_int: asInteger:(kubernetes.Quantity) -> int
        quantity_is_integer: isInteger:(kubernetes.Quantity) -> bool
        quantity_add: add:(kubernetes.Quantity, kubernetes.Quantity) -> kubernetes.Quantity
        quantity_add_int: add:(kubernetes.Quantity, int) -> kubernetes.Quantity
        quantity_sub: sub:(kubernetes.Quantity, kubernetes.Quantity) -> kubernetes.Quantity
        quantity_sub_int: sub:(kubernetes.Quantity, int) -> kubernetes.Quantity",
    runs: &[
        ("quantity", quantity),
        ("isQuantity", |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())),
            _ => Err(Fault::no_overload()),
        }),
        ("sign", |_, args| {
            of(args.first())
                .map(|it| Value::Int(i64::try_from(it.billionths.signum()).unwrap_or(0)))
        }),
        ("asApproximateFloat", |_, args| {
            of(args.first()).map(|it| Value::Double(approximate(it.billionths)))
        }),
        ("asInteger", |_, args| {
            let whole = of(args.first())?.integer();
            whole
                .map(Value::Int)
                .ok_or_else(|| Fault::error("cannot convert value to integer"))
        }),
        ("isInteger", |_, args| {
            of(args.first()).map(|it| Value::Bool(it.integer().is_some()))
        }),
        ("add", |_, args| calculate(args, i128::saturating_add)),
        ("sub", |_, args| calculate(args, i128::saturating_sub)),
    ],
    types: &[],
};

/// The billionths of a unit.
const UNIT: i128 = 1_000_000_000;
/// The most that a quantity can be.
const MOST: i128 = (i64::MAX as i128) * UNIT;

#[derive(Debug, Clone, Copy)]
struct Quantity {
    billionths: i128,
    /// True if it was written without a part of a unit: upstream calls no other an integer, whatever its value.
    is_whole: bool,
}

impl Quantity {
    fn integer(self) -> Option<i64> {
        integer(self.billionths).filter(|_| self.is_whole)
    }
}

impl Opaque for Quantity {
    fn type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    fn compare(&self, other: &dyn Opaque) -> Option<Ordering> {
        let other: &Self = other.as_any().downcast_ref()?;
        Some(self.billionths.cmp(&other.billionths))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn made<'a>(quantity: Quantity) -> Value<'a> {
    Value::Opaque(Arc::new(quantity))
}

fn of(value: Option<&Value<'_>>) -> Result<Quantity, Fault> {
    let found = match value {
        Some(Value::Opaque(value)) => value.as_any().downcast_ref::<Quantity>(),
        _ => None,
    };
    found.copied().ok_or_else(Fault::no_overload)
}

fn integer(billionths: i128) -> Option<i64> {
    // Upstream keeps what was cut to the most as a decimal, which is never an integer.
    let whole = billionths % UNIT == 0 && billionths.abs() < MOST;
    whole
        .then(|| i64::try_from(billionths / UNIT).ok())
        .flatten()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the result is approximate by name"
)]
fn approximate(billionths: i128) -> f64 {
    match integer(billionths) {
        Some(whole) => whole as f64,
        None => billionths as f64 / 1e9,
    }
}

fn quantity<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(text)] => parse(text).map(made).map_err(Fault::error),
        _ => Err(Fault::no_overload()),
    }
}

fn calculate<'a>(args: &[Value<'a>], by: fn(i128, i128) -> i128) -> Outcome<'a> {
    let [one, two] = args else {
        return Err(Fault::no_overload());
    };
    let two = match two {
        Value::Int(units) => Quantity {
            billionths: i128::from(*units) * UNIT,
            is_whole: true,
        },
        other => of(Some(other))?,
    };
    let one = of(Some(one))?;
    Ok(made(Quantity {
        billionths: by(one.billionths, two.billionths),
        // As upstream, for which nothing has no parts.
        is_whole: (one.is_whole || one.billionths == 0) && (two.is_whole || two.billionths == 0),
    }))
}

const FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const SUFFIX: &str = "unable to parse quantity's suffix";

/// Reads a quantity.
fn parse(text: &str) -> Result<Quantity, &'static str> {
    if text.is_empty() {
        return Err(FORMAT);
    }
    let negative = text.starts_with('-');
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = body
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.contains('.') || (whole.is_empty() && part.is_empty()) {
        return Err(FORMAT);
    }
    let letters = suffix.trim_start_matches(|letter| "eEinumkKMGTP".contains(letter));
    let digits = letters.strip_prefix(['-', '+']).unwrap_or(letters);
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(FORMAT);
    }
    let (base, power) = scale(suffix)?;
    let size = size(whole, part, base, power);
    let places = i32::try_from(part.len()).unwrap_or(i32::MAX);
    Ok(Quantity {
        billionths: if negative { -size } else { size },
        is_whole: match base {
            10 => power >= places,
            _ => part.is_empty(),
        },
    })
}

/// Returns the base and the power that a suffix multiplies with.
fn scale(suffix: &str) -> Result<(i128, i32), &'static str> {
    Ok(match suffix {
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        other => {
            let exponent = other.strip_prefix(['e', 'E']).ok_or(SUFFIX)?;
            let power: i32 = exponent.parse().map_err(|_| SUFFIX)?;
            (10, power)
        }
    })
}

/// Multiplies digits with a power and rounds up to billionths; beyond the most it is the most.
fn size(whole: &str, part: &str, base: i128, power: i32) -> i128 {
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // The decimal exponent of the last digit, in billionths.
    let places = i64::try_from(part.len()).unwrap_or(i64::MAX);
    let decimal = if base == 10 { i64::from(power) } else { 0 };
    let exponent = decimal.saturating_add(9).saturating_sub(places);
    let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    if length.saturating_add(exponent) > 37 {
        return MOST;
    }
    // Digits far behind the billionths matter only in that there are some.
    let cut = exponent.saturating_neg().clamp(0, length);
    let (kept, dropped) = digits.split_at(usize::try_from(length - cut).unwrap_or(0));
    let mut number: i128 = if kept.is_empty() {
        0
    } else {
        kept.parse().unwrap_or(MOST)
    };
    let mut rest = dropped.bytes().any(|digit| digit != b'0');
    if exponent > 0 {
        let scale = u32::try_from(exponent).unwrap_or(u32::MAX);
        number = number.saturating_mul(10_i128.saturating_pow(scale));
    }
    if base == 2 {
        let factor = 1_i128 << power;
        number = number.saturating_mul(factor);
        // The dropped digits count too once they are multiplied.
        if rest {
            let places = u32::try_from(dropped.len().min(18)).unwrap_or(18);
            let part: i128 = dropped
                .get(..18.min(dropped.len()))
                .and_then(|it| it.parse().ok())
                .unwrap_or(0);
            let scale = 10_i128.pow(places);
            let product = part.saturating_mul(factor);
            number = number.saturating_add(product / scale);
            rest = product % scale != 0;
        }
    }
    (number.saturating_add(i128::from(rest))).min(MOST)
}
