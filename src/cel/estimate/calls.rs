//! What calls cost and how large their results are.

use std::sync::Arc;

use crate::ast::ExprId;
use crate::cost::{PATTERN_FACTOR, TEXT_FACTOR};

use super::{Estimator, Range};

/// What is known of a call.
pub(super) struct Estimate {
    cost: Range,
    size: Option<Range>,
}

impl Estimate {
    pub(super) fn of(cost: Range) -> Self {
        Self { cost, size: None }
    }

    pub(super) fn sized(cost: Range, size: Range) -> Self {
        Self {
            cost,
            size: Some(size),
        }
    }
}

impl Estimator<'_> {
    pub(super) fn call(
        &mut self,
        id: ExprId,
        target: Option<ExprId>,
        function: &str,
        args: &[ExprId],
    ) -> Range {
        if let ("dyn", [only]) = (function, args) {
            let sum = self.cost(*only).plus(Range::fixed(1));
            self.copy_sizes(id, *only);
            return sum;
        }
        let costs: Vec<Range> = args.iter().map(|arg| self.cost(*arg)).collect();
        let overloads: Vec<Arc<str>> = self.checked.overloads(id).to_vec();
        if overloads.is_empty() {
            return Range::fixed(0);
        }
        // A namespace in front of a function is no receiver.
        let target = target.filter(|_| self.checked.is_member(id));
        let mut sum = Range::fixed(0);
        if let Some(target) = target {
            sum = self.cost(target);
        }
        let (mut cost, mut size) = (Range::NONE, None::<Range>);
        for overload in &overloads {
            let found = self.overload(id, (function, overload), target, args, &costs);
            cost = cost.union(found.cost);
            size = match (size, found.size) {
                (Some(one), Some(two)) => Some(one.union(two)),
                (one, two) => one.or(two),
            };
            let part = match &**overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(part), Some(container)) = (part, args.first()) {
                size = self.entry(*container).map(|entry| entry.value);
                let mut path = self.path(*container);
                path.push(part.into());
                self.paths.insert(id, path);
            }
            if size.is_none() {
                size = self.size(id);
            }
        }
        if let Some(size) = size {
            self.computed.insert(id, size);
        }
        sum.plus(cost)
    }

    fn overload(
        &mut self,
        id: ExprId,
        (function, overload): (&str, &str),
        target: Option<ExprId>,
        args: &[ExprId],
        costs: &[Range],
    ) -> Estimate {
        let sum = costs.iter().copied().fold(Range::fixed(0), Range::plus);
        let mut estimate = match (overload, costs) {
            ("logical_or" | "logical_and", [left, right]) => {
                let both = left.plus(*right);
                return Estimate::of(Range {
                    min: left.min,
                    max: both.max,
                });
            }
            ("conditional", [test, yes, no]) => {
                let size = self
                    .size_or_unknown(args[1])
                    .union(self.size_or_unknown(args[2]));
                self.join_entries(id, args[1], args[2]);
                return Estimate::sized(test.plus(yes.union(*no)), size);
            }
            _ => match self.library(function, overload, target, args) {
                Some(found) => found,
                None => self.plain(id, overload, target, args),
            },
        };
        estimate.cost = estimate.cost.plus(sum);
        estimate
    }

    fn join_entries(&mut self, id: ExprId, one: ExprId, two: ExprId) {
        if let (Some(one), Some(two)) = (self.entry(one), self.entry(two)) {
            self.entries.insert(id, one.union(two));
        }
    }

    fn pattern(&mut self, text: ExprId, pattern: ExprId) -> Estimate {
        let text = self.size_or_unknown(text).plus(Range::fixed(1));
        let pattern = self.size_or_unknown(pattern).scaled(PATTERN_FACTOR);
        Estimate::of(text.scaled(TEXT_FACTOR).times(pattern))
    }

    /// Estimates a call without its arguments.
    fn plain(
        &mut self,
        id: ExprId,
        overload: &str,
        target: Option<ExprId>,
        args: &[ExprId],
    ) -> Estimate {
        match (overload, target, args) {
            ("string_to_bytes", None, [text]) => {
                let size = self.size_or_unknown(*text);
                let bytes = Range {
                    min: size.min,
                    max: size.max.saturating_mul(4),
                };
                Estimate::sized(size.scaled(TEXT_FACTOR), bytes)
            }
            ("string_format", Some(text), _) => {
                Estimate::of(self.size_or_unknown(text).scaled(TEXT_FACTOR))
            }
            ("strings_quote", None, [text]) => {
                let size = self.size_or_unknown(*text);
                let quoted = Range {
                    min: size.min.saturating_add(2),
                    max: size.max.saturating_mul(2).saturating_add(2),
                };
                Estimate::sized(size.scaled(TEXT_FACTOR), quoted)
            }
            ("bytes_to_string", None, [bytes]) => {
                let size = self.size_or_unknown(*bytes);
                let text = Range {
                    min: size.min / 4,
                    max: size.max,
                };
                Estimate::sized(size.scaled(TEXT_FACTOR), text)
            }
            ("starts_with_string" | "ends_with_string", Some(_), [part]) => {
                Estimate::of(self.size_or_unknown(*part).scaled(TEXT_FACTOR))
            }
            ("in_list", None, [_, list]) => Estimate::of(self.size_or_unknown(*list)),
            ("matches_string", Some(text), [pattern]) => self.pattern(text, *pattern),
            ("matches", None, [text, pattern]) => self.pattern(*text, *pattern),
            ("contains_string", Some(text), [part]) => {
                let text = self.size_or_unknown(text).scaled(TEXT_FACTOR);
                Estimate::of(text.times(self.size_or_unknown(*part).scaled(TEXT_FACTOR)))
            }
            ("add_string" | "add_bytes" | "add_list", None, [one, two]) => {
                let size = self.size_or_unknown(*one).plus(self.size_or_unknown(*two));
                self.join_entries(id, *one, *two);
                let cost = if overload == "add_list" {
                    Range::fixed(1)
                } else {
                    size.scaled(TEXT_FACTOR)
                };
                Estimate::sized(cost, size)
            }
            (compared, None, [one, two]) if crate::cost::compares_sizes(compared) => {
                let max = self
                    .size_or_unknown(*one)
                    .max
                    .min(self.size_or_unknown(*two).max);
                let size = Range {
                    min: u64::from(max > 0),
                    max,
                };
                Estimate::of(size.scaled(TEXT_FACTOR))
            }
            _ => Estimate::of(Range::fixed(1)),
        }
    }
}
