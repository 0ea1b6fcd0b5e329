//! Estimates of the libraries' functions: those of Kubernetes by name, those of lists by overload.

use std::sync::Arc;

use crate::ast::{Expr, ExprId, Literal};
use crate::cost::{LIST, PATTERN_FACTOR, STRUCT, TEXT_FACTOR};
use crate::types::Type;

use super::calls::Estimate;
use super::{Estimator, Range};

/// The sizes of an address in bytes.
const ADDRESS: Range = Range { min: 4, max: 16 };

/// The size of the largest pattern of a format, in characters.
const FORMAT_SIZE: f64 = 128.0;
/// The sizes of formats, for comparing them.
const FORMATS: Range = Range { min: 1, max: 64 };

impl Estimator<'_> {
    /// Estimates a call of a library's function; `None` for all others.
    pub(super) fn library(
        &mut self,
        function: &str,
        overload: &str,
        target: Option<ExprId>,
        args: &[ExprId],
    ) -> Option<Estimate> {
        if let Some(found) = self.list_function(overload, target, args) {
            return Some(found);
        }
        if let Some(target) = target {
            return self.member(function, overload, target, args);
        }
        let first = args.first().copied();
        Some(match (function, first) {
            ("url", Some(text)) => {
                let size = self.size_or_unknown(text);
                Estimate::sized(size.scaled(TEXT_FACTOR), size)
            }
            (
                "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver"
                | "isSemver",
                Some(text),
            ) => Estimate::of(self.size_or_unknown(text).scaled(TEXT_FACTOR)),
            (_, Some(text)) if overload == "ip_is_canonical" => {
                Estimate::of(self.size_or_unknown(text).scaled(2.0 * TEXT_FACTOR))
            }
            ("_==_", Some(one)) => return self.equality(one),
            _ => return None,
        })
    }

    /// Equality of two values of a library's type.
    fn equality(&mut self, one: ExprId) -> Option<Estimate> {
        match self.checked.type_of(one) {
            Type::Opaque(name, _) if **name == *"kubernetes.NamedFormat" => {
                Some(Estimate::of(FORMATS.scaled(TEXT_FACTOR)))
            }
            Type::Opaque(name, _)
                if name.starts_with("net.") || name.starts_with("kubernetes.") =>
            {
                Some(Estimate::of(Range::fixed(1)))
            }
            _ => None,
        }
    }

    fn member(
        &mut self,
        function: &str,
        overload: &str,
        target: ExprId,
        args: &[ExprId],
    ) -> Option<Estimate> {
        let first = args.first().copied();
        Some(match (function, first) {
            ("check", _) => Estimate::of(Range::fixed(350_000)),
            ("fieldSelector" | "labelSelector", Some(text)) => {
                let size = self.size_or_unknown(text);
                let requirements = size.scaled(0.5).times(Range::fixed(LIST + STRUCT));
                let read = Range::fixed(LIST).plus(size.scaled(TEXT_FACTOR));
                Estimate::of(read.plus(requirements))
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes", _) => {
                self.walk(function, target)
            }
            ("lowerAscii" | "upperAscii" | "substring" | "trim", _) => {
                let size = self.size_or_unknown(target);
                Estimate::sized(size.scaled(TEXT_FACTOR), size)
            }
            ("replace", _) if args.len() >= 2 => self.replace(target, args),
            ("split", _) => self.split(target, args),
            ("join", _) => self.join(target, first),
            ("validate", Some(text)) => {
                let read = self.size_or_unknown(text).scaled(TEXT_FACTOR);
                Estimate::of(read.scaled(FORMAT_SIZE * PATTERN_FACTOR))
            }
            ("find" | "findAll", Some(pattern)) => {
                let size = self.size_or_unknown(target);
                let text = size.plus(Range::fixed(1)).scaled(TEXT_FACTOR);
                let pattern = self.size_or_unknown(pattern).scaled(PATTERN_FACTOR);
                let found = Range { min: 0, ..size };
                Estimate::sized(text.times(pattern), found)
            }
            ("containsIP" | "containsCIDR", Some(other)) => {
                let mut cost = ADDRESS.plus(ADDRESS).scaled(TEXT_FACTOR);
                if function == "containsCIDR" {
                    cost = cost.plus(ADDRESS.scaled(TEXT_FACTOR)).plus(Range::fixed(1));
                }
                if overload.ends_with("_string") {
                    cost = cost.plus(self.size_or_unknown(other).scaled(TEXT_FACTOR));
                }
                Estimate::of(cost)
            }
            _ => return None,
        })
    }

    /// Walks through a list, or through a text.
    fn walk(&mut self, function: &str, target: ExprId) -> Estimate {
        let size = self.size_or_unknown(target);
        match self.element(target) {
            Some((of, element)) => {
                let mut each = Range::fixed(1);
                if matches!(of, Type::String | Type::Bytes) {
                    each = each.plus(element.scaled(TEXT_FACTOR));
                }
                Estimate::of(size.times(each))
            }
            None if function == "includes" => Estimate::of(size),
            None => Estimate::of(size.scaled(TEXT_FACTOR)),
        }
    }

    /// Returns the type and the size of the elements of a list.
    fn element(&mut self, list: ExprId) -> Option<(Type, Range)> {
        let of = (*self.checked.type_of(list).parameters().first()?).clone();
        let mut path: Vec<Arc<str>> = self.path(list);
        if !path.is_empty() {
            path.push("@items".into());
        }
        let size = self.sizes.size(&path, &of).unwrap_or(Range::UNKNOWN);
        Some((of, size))
    }

    fn replace(&mut self, target: ExprId, args: &[ExprId]) -> Estimate {
        let size = self.size_or_unknown(target);
        let old = self.size_or_unknown(args[0]);
        let new = self.size_or_unknown(args[1]);
        let (mut count, mut kept) = (Range::fixed(0), Range::fixed(0));
        if old.min == 0 {
            // Nothing is found around every character.
            count.max = size.max.saturating_add(1);
            kept.max = size.max;
        } else if new.max <= old.min {
            kept.max = size.max;
        } else {
            count.max = size.max.div_ceil(old.min);
        }
        if old.max == 0 {
            count.min = size.min.saturating_add(1);
            kept.min = size.min;
        } else if old.max <= new.min {
            kept.min = size.min;
        } else {
            count.min = size.min.div_ceil(old.max);
        }
        let result = count.times(new).plus(kept);
        Estimate::sized(size.scaled(2.0 * TEXT_FACTOR), result)
    }

    fn split(&mut self, target: ExprId, args: &[ExprId]) -> Estimate {
        let size = self.size_or_unknown(target);
        let most = args.get(1).and_then(|count| self.number(*count));
        let result = Range {
            min: 0,
            max: most.unwrap_or(size.max),
        };
        Estimate::sized(size.scaled(2.0 * TEXT_FACTOR), result)
    }

    fn join(&mut self, target: ExprId, separator: Option<ExprId>) -> Estimate {
        let list = self.size_or_unknown(target);
        let mut size = match self.element(target) {
            Some((_, element)) => list.times(element),
            None => Range::fixed(0),
        };
        if let Some(separator) = separator {
            let between = Range {
                min: list.min.saturating_sub(1),
                max: list.max.saturating_sub(1),
            };
            size = size.plus(self.size_or_unknown(separator).times(between));
        }
        Estimate::sized(size.scaled(TEXT_FACTOR), size)
    }

    /// Returns a number that stands in the expression.
    fn number(&self, id: ExprId) -> Option<u64> {
        match self.expr(id) {
            Expr::Literal(Literal::Int(number)) => Some(number.cast_unsigned()),
            Expr::Literal(Literal::Uint(number)) => Some(*number),
            _ => None,
        }
    }

    /// Returns a number of elements that stands in the expression: a negative one is none, and upstream does not
    /// look at unsigned ones.
    fn count(&self, id: ExprId) -> Option<u64> {
        match self.expr(id) {
            Expr::Literal(Literal::Int(number)) => Some(u64::try_from(*number).unwrap_or(0)),
            _ => None,
        }
    }

    fn list_function(
        &mut self,
        overload: &str,
        target: Option<ExprId>,
        args: &[ExprId],
    ) -> Option<Estimate> {
        let made = |factor: f64, size: Range| {
            let cost = size.scaled(factor).plus(Range::fixed(1 + LIST));
            Some(Estimate::sized(cost, size))
        };
        match (overload, target, args) {
            ("list_slice", Some(list), [start, end]) => {
                let size = self.size_or_unknown(list);
                let start = self.count(*start).unwrap_or(0);
                let end = self.count(*end).unwrap_or(size.max);
                made(1.0, Range::fixed(end.wrapping_sub(start)))
            }
            ("lists_range", None, [count]) => {
                let count = self.count(*count).unwrap_or(u64::MAX);
                made(1.0, Range::fixed(count))
            }
            ("list_reverse", Some(list), []) => made(1.0, self.size_or_unknown(list)),
            ("list_flatten" | "list_flatten_int", Some(list), levels) => {
                let levels = match levels.first() {
                    Some(levels) => self.count(*levels).unwrap_or(u64::MAX),
                    None => 1,
                };
                #[expect(clippy::cast_precision_loss, reason = "upstream's figure is a float")]
                let factor = levels as f64;
                made(factor, self.size_or_unknown(list))
            }
            (
                "list_sets_contains_list"
                | "list_sets_intersects_list"
                | "list_sets_equivalent_list",
                None,
                [one, two],
            ) => {
                let pairs = self.size_or_unknown(*one).times(self.size_or_unknown(*two));
                let times = if overload.contains("equivalent") {
                    2.0
                } else {
                    1.0
                };
                Some(Estimate::of(pairs.scaled(times).plus(Range::fixed(1))))
            }
            ("list_distinct", Some(list), []) => {
                let size = self.size_or_unknown(list);
                made(2.0, size.times(size))
            }
            (sort, Some(list), keys)
                if sort.ends_with("_sort") || sort.ends_with("AssociatedKeys") =>
            {
                let keys = keys.first().copied().unwrap_or(list);
                let size = self.size_or_unknown(keys);
                let texts = sort.starts_with("list_string_") || sort.starts_with("list_bytes_");
                let factor = if texts { 2.0 + TEXT_FACTOR } else { 2.0 };
                made(factor, size.times(size))
            }
            _ => None,
        }
    }
}
