//! What the types of Kubernetes' libraries have in common: an order between two values of a type.

use std::cmp::Ordering;

use crate::library::{Context, Library};
use crate::value::{Fault, Outcome, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        quantity_is_greater_than: isGreaterThan:(kubernetes.Quantity, kubernetes.Quantity) -> bool
        quantity_is_less_than: isLessThan:(kubernetes.Quantity, kubernetes.Quantity) -> bool
        quantity_compare_to: compareTo:(kubernetes.Quantity, kubernetes.Quantity) -> int
        semver_is_greater_than: isGreaterThan:(kubernetes.Semver, kubernetes.Semver) -> bool
        semver_is_less_than: isLessThan:(kubernetes.Semver, kubernetes.Semver) -> bool
        semver_compare_to: compareTo:(kubernetes.Semver, kubernetes.Semver) -> int",
    runs: &[
        ("isGreaterThan", |_, args| {
            order(args).map(|it| Value::Bool(it.is_gt()))
        }),
        ("isLessThan", |_, args| {
            order(args).map(|it| Value::Bool(it.is_lt()))
        }),
        ("compareTo", compare),
    ],
    types: &[],
};

fn order(args: &[Value<'_>]) -> Result<Ordering, Fault> {
    let found = match args {
        [Value::Opaque(one), Value::Opaque(two)] => one.compare(&**two),
        _ => None,
    };
    found.ok_or_else(Fault::no_overload)
}

fn compare<'a>(_: Context<'_>, args: &mut [Value<'a>]) -> Outcome<'a> {
    order(args).map(|order| Value::Int(order as i64))
}
