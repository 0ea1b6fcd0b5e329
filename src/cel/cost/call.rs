//! How the cost of a call follows from its arguments, by function and overload.

use crate::budget::WorkBudget;
use crate::library::pattern_size;
use crate::value::Value;

use super::{LIST, PATTERN_FACTOR, STRUCT, TEXT_FACTOR, compares_sizes, scaled, smaller};

/// How the cost of a call follows from its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallCost {
    /// A figure, whatever the values are.
    Fixed(u64),
    /// A tenth of the size of an argument.
    Traverse(usize),
    /// A fifth of the size of the first argument.
    TraverseTwice,
    /// The size of an argument.
    Size(usize),
    /// A tenth of the smaller size.
    Smaller,
    /// A tenth of the sum of the sizes.
    Sum,
    /// The text's tenth times the pattern's quarter.
    Pattern,
    /// Like `Pattern`, for a format in front of the text.
    Validate,
    /// The product of the tenths.
    Product,
    /// Every part of the first argument.
    Deep,
    /// Whether a network contains an address or, `network`, a network; either may be `text`.
    Contains { network: bool, text: bool },
    /// A selector: reading it and its requirements.
    Selector,
    /// One, and a comparison of all pairs of elements, so often.
    Pairs(u64),
    /// A new list that compares all elements of an argument with each other.
    SelfCompare(usize),
    /// A new list of the size of the first argument, once for each level.
    Flatten,
    /// A new list of the size of the result.
    NewList,
    /// A fifth of the size of the result.
    ResultTwice,
}

impl CallCost {
    /// Returns how the cost of a call is computed; `overload` is none if the types leave several.
    pub fn of(function: &str, overload: Option<&str>) -> Self {
        if let Some(found) = overload.and_then(of_overload) {
            return found;
        }
        match function {
            "check" => Self::Fixed(350_000),
            "fieldSelector" | "labelSelector" => Self::Selector,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
                Self::Deep
            }
            "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP"
            | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => Self::Traverse(0),
            "ip" if overload == Some("cidr_ip") => Self::Fixed(1),
            "ip" => Self::Traverse(0),
            "replace" | "split" | "ip.isCanonical" => Self::TraverseTwice,
            "join" => Self::ResultTwice,
            "find" | "findAll" => Self::Pattern,
            "validate" => Self::Validate,
            "containsIP" => Self::Contains {
                network: false,
                text: overload == Some("cidr_contains_ip_string"),
            },
            "containsCIDR" => Self::Contains {
                network: true,
                text: overload == Some("cidr_contains_cidr_string"),
            },
            _ => Self::Fixed(1),
        }
    }

    /// Returns the cost of a call with these arguments, if it does not depend on the result.
    pub fn before(self, args: &[Value<'_>], budget: &WorkBudget) -> u64 {
        let size = |at: usize| args.get(at).map_or(1, Value::cost_size);
        let tenth = |size: u64| scaled(size, TEXT_FACTOR);
        match self {
            Self::Fixed(cost) => cost,
            Self::Traverse(at) => tenth(size(at)),
            Self::TraverseTwice => tenth(size(0).saturating_mul(2)),
            Self::Size(at) => size(at),
            Self::Smaller => smaller(size(0), size(1)),
            Self::Sum => tenth(size(0).saturating_add(size(1))),
            Self::Pattern => {
                let pattern = scaled(size(1), PATTERN_FACTOR);
                tenth(size(0).saturating_add(1)).saturating_mul(pattern)
            }
            Self::Validate => args.first().and_then(pattern_size).map_or(1, |pattern| {
                let pattern = scaled(pattern, PATTERN_FACTOR);
                tenth(size(1).saturating_add(1)).saturating_mul(pattern)
            }),
            Self::Product => tenth(size(0)).saturating_mul(tenth(size(1))),
            Self::Deep => args.first().map_or(0, |value| traversal(value, budget)),
            Self::Contains { network, text } => {
                let mut cost = tenth(size(0).saturating_mul(2));
                if network {
                    cost += tenth(size(0)) + 1;
                }
                cost + if text { tenth(size(1)) } else { 0 }
            }
            Self::Selector => {
                let requirements = scaled(size(1), 0.5).saturating_mul(LIST + STRUCT);
                requirements.saturating_add(LIST + tenth(size(1)))
            }
            Self::Pairs(times) => size(0)
                .saturating_mul(size(1))
                .saturating_mul(times)
                .saturating_add(1),
            Self::SelfCompare(at) => self_compare(args.get(at)),
            Self::Flatten => {
                let levels = match args.get(1) {
                    Some(Value::Int(levels)) => u64::try_from(*levels).unwrap_or(1),
                    _ => 1,
                };
                new_list(size(0).saturating_mul(levels))
            }
            Self::NewList | Self::ResultTwice => 0,
        }
    }

    /// Returns the cost of a call that depends on its result.
    pub fn after(self, result: Option<&Value<'_>>) -> u64 {
        let size = result.map_or(1, Value::cost_size);
        match self {
            Self::NewList => new_list(size),
            Self::ResultTwice => scaled(size.saturating_mul(2), TEXT_FACTOR),
            _ => 0,
        }
    }
}

fn of_overload(overload: &str) -> Option<CallCost> {
    Some(match overload {
        "starts_with_string" | "ends_with_string" => CallCost::Traverse(1),
        "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => {
            CallCost::Traverse(0)
        }
        "in_list" => CallCost::Size(1),
        "add_string" | "add_bytes" => CallCost::Sum,
        "matches" | "matches_string" => CallCost::Pattern,
        "contains_string" => CallCost::Product,
        "list_slice" | "lists_range" | "list_reverse" => CallCost::NewList,
        "list_flatten" | "list_flatten_int" => CallCost::Flatten,
        "list_sets_contains_list" | "list_sets_intersects_list" => CallCost::Pairs(1),
        "list_sets_equivalent_list" => CallCost::Pairs(2),
        "list_distinct" => CallCost::SelfCompare(0),
        other if compares_sizes(other) => CallCost::Smaller,
        other if other.ends_with("_sortByAssociatedKeys") => CallCost::SelfCompare(1),
        other if other.starts_with("list_") && other.ends_with("_sort") => CallCost::SelfCompare(0),
        _ => return None,
    })
}

fn new_list(size: u64) -> u64 {
    size.saturating_add(1 + LIST)
}

/// Returns the cost of comparing all elements of a list with each other.
fn self_compare(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else {
        return new_list(0);
    };
    let texts = matches!(list.at(0), Some(Value::String(_) | Value::Bytes(_)));
    let size = list.len() as u64;
    let pairs = size.saturating_mul(size);
    let extra = if texts { part(pairs) } else { 0 };
    new_list(pairs.saturating_mul(2).saturating_add(extra))
}

/// Returns a tenth, rounded down.
fn part(size: u64) -> u64 {
    size / 10
}

/// Returns the cost of walking through a value, as far as the budget allows it.
fn traversal(value: &Value<'_>, budget: &WorkBudget) -> u64 {
    if budget.parts(1).is_err() {
        return 0;
    }
    match value {
        Value::String(text) => part(text.len() as u64),
        Value::Bytes(bytes) => part(bytes.len() as u64),
        Value::List(list) => list.iter().map(|it| traversal(&it, budget)).sum(),
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| traversal(&key, budget) + traversal(&value, budget))
            .sum(),
        _ => 1,
    }
}
