//! Validates the constants of an expression whose types are known.

use std::fmt;

use crate::ast::{Expr, ExprId, Literal, is_optional};
use crate::library::formatting;
use crate::source::Complaints;
use crate::time::{Timestamp, parse_duration};
use crate::types::Type;

use super::Checked;

/// Returns complaints about constants that can never be evaluated, and about lists and maps of
/// several types.
pub(super) fn issues(checked: &Checked) -> Complaints {
    let mut validator = Validator {
        checked,
        issues: Complaints::default(),
    };
    validator.visit(checked.ast().root(), false);
    validator.issues
}

struct Validator<'a> {
    checked: &'a Checked,
    issues: Complaints,
}

impl Validator<'_> {
    fn complain(&mut self, id: ExprId, text: fmt::Arguments<'_>) {
        let at = self.checked.ast().position(id);
        self.issues.add(at, text);
    }

    /// Visits a node and those below it. What is formatted may have several types.
    fn visit(&mut self, id: ExprId, mut formatted: bool) {
        let ast = self.checked.ast();
        match ast.expr(id) {
            Expr::Call {
                target,
                function,
                args,
            } => {
                formatted |= &**function == "format";
                self.call(id, *target, function, args);
            }
            Expr::List { elements, optional } if !formatted => {
                let parts = elements.iter().enumerate();
                let parts = parts.map(|(at, id)| (*id, is_optional(optional, at)));
                let parts: Vec<(ExprId, bool)> = parts.collect();
                self.one_type(&parts, true);
            }
            Expr::Map(entries) if !formatted => {
                let keys: Vec<(ExprId, bool)> = entries.iter().map(|it| (it.key, false)).collect();
                let values = entries.iter().map(|it| (it.value, it.optional));
                let values: Vec<(ExprId, bool)> = values.collect();
                self.one_type(&keys, false);
                self.one_type(&values, false);
            }
            _ => {}
        }
        for child in ast.children(id) {
            self.visit(child, formatted);
        }
    }

    /// Compares the types of parts with that of the first one.
    fn one_type(&mut self, parts: &[(ExprId, bool)], only_first: bool) {
        let checked = self.checked;
        let of = |(id, optional): &(ExprId, bool)| -> Type {
            let found = checked.type_of(*id);
            let inner = found.unwrapped().filter(|_| *optional);
            inner.unwrap_or(found).clone()
        };
        let Some(expected) = parts.first().map(of) else {
            return;
        };
        for part in parts {
            let found = of(part);
            if found != expected {
                self.complain(
                    part.0,
                    format_args!("expected type '{expected}' but found '{found}'"),
                );
                if only_first {
                    return;
                }
            }
        }
    }

    fn call(&mut self, id: ExprId, target: Option<ExprId>, function: &str, args: &[ExprId]) {
        let ast = self.checked.ast();
        let text = |id: ExprId| match ast.expr(id) {
            Expr::Literal(Literal::String(text)) => Some(text.clone()),
            _ => None,
        };
        let Some(first) = args.first() else {
            return;
        };
        if let (Some(format), "format") = (target.and_then(text), function) {
            self.format(id, &format, *first);
            return;
        }
        let is_wrong = match (ast.expr(*first), function) {
            (Expr::Literal(Literal::Int(seconds)), "timestamp") => {
                Timestamp::new(*seconds, 0).is_err()
            }
            (Expr::Literal(Literal::Null), "timestamp" | "duration") => true,
            _ => false,
        };
        if is_wrong {
            self.complain(*first, format_args!("invalid {function} argument"));
        }
        let Some(argument) = text(*first) else {
            return;
        };
        let good = match function {
            "duration" => parse_duration(&argument).is_some(),
            "timestamp" => Timestamp::parse(&argument).is_some_and(|parsed| parsed.is_ok()),
            "matches" => crate::pattern::check(&argument).is_ok(),
            _ => return,
        };
        if !good {
            self.complain(*first, format_args!("invalid {function} argument"));
        }
    }

    /// Compares a constant format with what is formatted.
    fn format(&mut self, call: ExprId, format: &str, list: ExprId) {
        let Expr::List { elements, .. } = self.checked.ast().expr(list) else {
            return;
        };
        let (clauses, bad) = formatting::clauses(format);
        for (number, clause) in clauses.iter().enumerate() {
            let Some(element) = elements.get(number) else {
                self.complain(call, format_args!("index {number} out of range"));
                return;
            };
            if let Some((part, text)) = self.unfit(*clause, *element) {
                self.complain(part, format_args!("error during formatting: {text}"));
                return;
            }
        }
        let (expected, given) = (clauses.len(), elements.len());
        match bad {
            // A missing value comes before a clause that cannot be read.
            Some(text) if expected < given || text == formatting::UNEXPECTED_END => {
                self.complain(call, format_args!("{text}"));
            }
            Some(_) => self.complain(call, format_args!("index {expected} out of range")),
            None if given > expected => {
                self.complain(
                    call,
                    format_args!(
                        "too many arguments supplied to string.format (expected {expected}, got {given})"
                    ),
                );
            }
            None => {}
        }
    }

    /// Returns the part of what is formatted that a clause cannot write, and the complaint about it.
    fn unfit(&self, clause: char, id: ExprId) -> Option<(ExprId, String)> {
        if let Err(text) = formatting::fits(clause, self.checked.type_of(id)) {
            return Some((id, text));
        }
        let parts: Vec<ExprId> = match self.checked.ast().expr(id) {
            Expr::List { elements, .. } if clause == 's' => elements.to_vec(),
            Expr::Map(entries) if clause == 's' => {
                let parts = entries.iter().flat_map(|entry| [entry.key, entry.value]);
                parts.collect()
            }
            _ => Vec::new(),
        };
        parts.into_iter().find_map(|part| self.unfit(clause, part))
    }
}

#[cfg(test)]
mod tests {
    use crate::check::check;
    use crate::environment::Environment;
    use crate::parse::parse;

    #[test]
    fn formats_are_compared_with_what_is_formatted_as_upstream_does() {
        let environment = Environment::kubernetes();
        for (text, complaint) in [
            ("'%s'.format(['a'])", None),
            ("'%f %e'.format([1.5, 'NaN'])", None),
            ("'100%%'.format([])", None),
            (
                "'%s'.format(['a', 'b'])",
                Some("too many arguments supplied to string.format (expected 1, got 2)"),
            ),
            (
                "'%f'.format([1])",
                Some("fixed-point clause can only be used on doubles, was given int"),
            ),
            (
                "'%s'.format([[quantity('1')]])",
                Some("was given kubernetes.Quantity"),
            ),
            (
                "'%d %a'.format(['x', 1])",
                Some("decimal clause can only be used on integers, was given string"),
            ),
            ("'%a'.format([])", Some("index 0 out of range")),
            ("'%'.format([])", Some("unexpected end of string")),
        ] {
            let ast = parse(text, &environment.syntax).expect(text);
            let found = check(ast, &environment)
                .err()
                .map(|issues| issues.to_string());
            match (found, complaint) {
                (None, None) => {}
                (Some(found), Some(complaint)) => {
                    assert!(found.contains(complaint), "{text}: {found}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
