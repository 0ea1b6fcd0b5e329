//! What the check of types complains about, in upstream's words.

use std::fmt;

use crate::ast::ExprId;
use crate::types::Type;

use super::Checker;
use super::assign::Substitutions;

/// The types that a function is applied to, as complaints show them.
struct Signature<'a> {
    types: &'a [Type],
    /// Whether the first type is that of a receiver.
    member: bool,
    substitutions: &'a Substitutions,
}

impl fmt::Display for Signature<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.types;
        if let (true, [target, others @ ..]) = (self.member, rest) {
            write!(out, "{}.", self.substitutions.apply(target, true))?;
            rest = others;
        }
        out.write_str("(")?;
        for (number, of) in rest.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(out, "{comma}{}", self.substitutions.apply(of, true))?;
        }
        out.write_str(")")
    }
}

impl Checker<'_> {
    pub(super) fn complain(&mut self, id: ExprId, text: fmt::Arguments<'_>) {
        self.issues.add(self.ast.position(id), text);
    }

    pub(super) fn undeclared(&mut self, id: ExprId, name: &str) -> Type {
        let environment = self.environment;
        let container = &environment.container;
        self.complain(
            id,
            format_args!("undeclared reference to '{name}' (in container '{container}')"),
        );
        Type::Error
    }

    pub(super) fn mismatch(&mut self, id: ExprId, expected: &Type, found: &Type) {
        self.complain(
            id,
            format_args!("expected type '{expected}' but found '{found}'"),
        );
    }

    /// Complains that no overload of a function takes arguments of these types.
    pub(super) fn no_overload(&mut self, id: ExprId, name: &str, types: &[Type], member: bool) {
        let signature = Signature {
            types,
            member,
            substitutions: &self.substitutions,
        };
        self.issues.add(
            self.ast.position(id),
            format_args!("found no matching overload for '{name}' applied to '{signature}'"),
        );
    }
}
