//! The macros: calls that become other trees while the expression is parsed.

use std::borrow::Cow;
use std::sync::Arc;

use crate::ast::{Comprehension, Expr, ExprId, Literal};

use super::Builder;

/// The variable of intermediate results. No text can name it.
const ACCUMULATOR: &str = "@result";
/// What that variable was called before; expressions still may not use it as a variable.
const ACCUMULATOR_BEFORE: &str = "__result__";
/// Most nodes of an expression when a macro copies a tree. Without a limit a chain of `optMap`, each of which copies
/// what it is called on, takes all time and memory.
const NODES_MAX: usize = 250_000;

/// What became of a call.
pub(super) enum Expanded {
    /// The call is none of a macro.
    NoMacro,
    /// The macro's tree.
    Into(ExprId),
    /// The call is not well-formed: the position and the complaint.
    Failed(usize, Cow<'static, str>),
}

/// A complaint about an argument.
struct Bad(ExprId, Cow<'static, str>);

impl Bad {
    fn new(id: ExprId, text: &'static str) -> Self {
        Self(id, Cow::Borrowed(text))
    }
}

/// Replaces the call by the macro's tree if it calls a macro.
pub(super) fn expand(
    builder: &mut Builder,
    id: ExprId,
    function: &str,
    target: Option<ExprId>,
    args: &[ExprId],
) -> Expanded {
    let at = builder.position(id);
    let mut made = Maker { builder, at };
    let result = match (target, function, args) {
        (None, "has", [argument]) => made.has(*argument),
        (Some(target), name, args) => match made.receiver(target, name, args) {
            Some(result) => result,
            None => return Expanded::NoMacro,
        },
        _ => return Expanded::NoMacro,
    };
    match result {
        Ok(made) => Expanded::Into(made),
        Err(Bad(id, text)) => Expanded::Failed(builder.position(id), text),
    }
}

/// Which quantifier.
#[derive(Clone, Copy)]
enum Quantifier {
    All,
    Exists,
    One,
}

/// The variables of a loop.
struct Variables {
    first: Arc<str>,
    second: Option<Arc<str>>,
}

impl Variables {
    fn one(first: Arc<str>) -> Self {
        Self {
            first,
            second: None,
        }
    }
}

/// Makes nodes at the position of the call.
struct Maker<'a> {
    builder: &'a mut Builder,
    at: usize,
}

impl Maker<'_> {
    fn receiver(
        &mut self,
        target: ExprId,
        name: &str,
        args: &[ExprId],
    ) -> Option<Result<ExprId, Bad>> {
        let macros = self.builder.macros;
        let quantifier = match name {
            "all" => Some(Quantifier::All),
            "exists" => Some(Quantifier::Exists),
            "exists_one" | "existsOne" => Some(Quantifier::One),
            _ => None,
        };
        if let Some(kind) = quantifier {
            return match args {
                [variable, test] => Some(self.quantifier(kind, target, *variable, *test)),
                [first, second, test] if macros.two_variables => {
                    Some(self.quantifier_of_two(kind, target, [*first, *second], *test))
                }
                _ => None,
            };
        }
        match (name, args) {
            ("map", [variable, element]) => Some(self.map(target, *variable, None, *element)),
            ("map", [variable, test, element]) => {
                Some(self.map(target, *variable, Some(*test), *element))
            }
            ("filter", [variable, test]) => Some(self.filter(target, *variable, *test)),
            (_, [first, second, rest @ ..]) if macros.two_variables => self
                .transform(target, name, [*first, *second], rest)
                .or_else(|| self.extended(target, name, args)),
            _ => self.extended(target, name, args),
        }
    }

    /// Expands the macros that not every environment has.
    fn extended(
        &mut self,
        target: ExprId,
        name: &str,
        args: &[ExprId],
    ) -> Option<Result<ExprId, Bad>> {
        let macros = self.builder.macros;
        match (name, args) {
            ("optMap", [variable, value]) if macros.optional => {
                Some(self.opt_map(target, *variable, *value, true))
            }
            ("optFlatMap", [variable, value]) if macros.optional => {
                Some(self.opt_map(target, *variable, *value, false))
            }
            ("sortBy", [variable, key]) if macros.sort_by => {
                Some(self.sort_by(target, *variable, *key))
            }
            ("bind", [variable, value, body]) if macros.bind && self.is_name(target, "cel") => {
                Some(self.bind(*variable, *value, *body))
            }
            ("least", args) if macros.math && self.is_name(target, "math") => {
                Some(self.extreme(target, "math.@min", args))
            }
            ("greatest", args) if macros.math && self.is_name(target, "math") => {
                Some(self.extreme(target, "math.@max", args))
            }
            _ => None,
        }
    }

    fn add(&mut self, expr: Expr) -> ExprId {
        self.builder.add(self.at, expr)
    }

    fn literal(&mut self, value: Literal) -> ExprId {
        self.add(Expr::Literal(value))
    }

    fn ident(&mut self, name: &str) -> ExprId {
        self.add(Expr::Ident(name.into()))
    }

    fn result(&mut self) -> ExprId {
        self.ident(ACCUMULATOR)
    }

    fn call(&mut self, function: &str, args: &[ExprId]) -> ExprId {
        self.add(Expr::Call {
            target: None,
            function: function.into(),
            args: args.into(),
        })
    }

    fn member_call(&mut self, function: &str, target: ExprId, args: &[ExprId]) -> ExprId {
        self.add(Expr::Call {
            target: Some(target),
            function: function.into(),
            args: args.into(),
        })
    }

    fn list(&mut self, elements: &[ExprId]) -> ExprId {
        self.add(Expr::List {
            elements: elements.into(),
            optional: [].into(),
        })
    }

    fn is_name(&self, id: ExprId, name: &str) -> bool {
        matches!(self.builder.expr(id), Expr::Ident(found) if **found == *name)
    }

    /// Returns whether nothing more may be copied.
    fn is_full(&self) -> bool {
        self.builder.nodes.len() >= NODES_MAX
    }

    /// Copies a tree with new ids, as far as there is room.
    fn copy(&mut self, id: ExprId) -> ExprId {
        if self.is_full() {
            return id;
        }
        let new = self.builder.id(self.builder.position(id));
        let mut expr = self.builder.expr(id).clone();
        match &mut expr {
            Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => {}
            Expr::Select { operand, .. } => *operand = self.copy(*operand),
            Expr::Call { target, args, .. } => {
                if let Some(target) = target {
                    *target = self.copy(*target);
                }
                args.iter_mut().for_each(|arg| *arg = self.copy(*arg));
            }
            Expr::List { elements, .. } => {
                elements.iter_mut().for_each(|it| *it = self.copy(*it));
            }
            Expr::Map(entries) => {
                for entry in entries {
                    entry.id = self.builder.id(self.builder.position(entry.id));
                    entry.key = self.copy(entry.key);
                    entry.value = self.copy(entry.value);
                }
            }
            Expr::Struct { fields, .. } => {
                for field in fields {
                    field.id = self.builder.id(self.builder.position(field.id));
                    field.value = self.copy(field.value);
                }
            }
            Expr::Comprehension(inner) => {
                inner.range = self.copy(inner.range);
                inner.init = self.copy(inner.init);
                inner.condition = self.copy(inner.condition);
                inner.step = self.copy(inner.step);
                inner.result = self.copy(inner.result);
            }
        }
        self.builder.set(new, expr)
    }

    /// Makes a loop; its parts have been made in the order init, condition, step, result.
    fn fold(&mut self, range: ExprId, names: Variables, parts: [ExprId; 4]) -> ExprId {
        let [init, condition, step, result] = parts;
        self.add(Expr::Comprehension(Box::new(Comprehension {
            range,
            variable: names.first,
            second: names.second,
            accumulator: ACCUMULATOR.into(),
            init,
            condition,
            step,
            result,
        })))
    }

    fn has(&mut self, argument: ExprId) -> Result<ExprId, Bad> {
        let Expr::Select { operand, field, .. } = self.builder.expr(argument).clone() else {
            return Err(Bad::new(argument, "invalid argument to has() macro"));
        };
        Ok(self.add(Expr::Select {
            operand,
            field,
            test_only: true,
        }))
    }

    fn variable(&self, id: ExprId, complaint: &'static str) -> Result<Arc<str>, Bad> {
        let Expr::Ident(name) = self.builder.expr(id) else {
            return Err(Bad::new(id, complaint));
        };
        if [ACCUMULATOR, ACCUMULATOR_BEFORE].contains(&&**name) {
            let text = "iteration variable overwrites accumulator variable";
            return Err(Bad::new(id, text));
        }
        Ok(name.clone())
    }

    fn two_variables(&self, ids: [ExprId; 2]) -> Result<Variables, Bad> {
        let text = "argument must be a simple name";
        let first = self.variable(ids[0], text)?;
        let second = self.variable(ids[1], text)?;
        if first == second {
            let text = format!("duplicate variable name: {first}");
            return Err(Bad(ids[1], Cow::Owned(text)));
        }
        Ok(Variables {
            first,
            second: Some(second),
        })
    }

    fn quantifier(
        &mut self,
        kind: Quantifier,
        range: ExprId,
        variable: ExprId,
        test: ExprId,
    ) -> Result<ExprId, Bad> {
        let first = self.variable(variable, "argument must be a simple name")?;
        let names = Variables::one(first);
        Ok(self.quantified(kind, range, names, test))
    }

    fn quantifier_of_two(
        &mut self,
        kind: Quantifier,
        range: ExprId,
        variables: [ExprId; 2],
        test: ExprId,
    ) -> Result<ExprId, Bad> {
        let names = self.two_variables(variables)?;
        Ok(self.quantified(kind, range, names, test))
    }

    fn quantified(
        &mut self,
        kind: Quantifier,
        range: ExprId,
        names: Variables,
        test: ExprId,
    ) -> ExprId {
        let parts = match kind {
            Quantifier::All => {
                let init = self.literal(Literal::Bool(true));
                let accumulator = self.result();
                let condition = self.call("@not_strictly_false", &[accumulator]);
                let accumulator = self.result();
                let step = self.call("_&&_", &[accumulator, test]);
                [init, condition, step, self.result()]
            }
            Quantifier::Exists => {
                let init = self.literal(Literal::Bool(false));
                let accumulator = self.result();
                let not = self.call("!_", &[accumulator]);
                let condition = self.call("@not_strictly_false", &[not]);
                let accumulator = self.result();
                let step = self.call("_||_", &[accumulator, test]);
                [init, condition, step, self.result()]
            }
            Quantifier::One => {
                let init = self.literal(Literal::Int(0));
                let condition = self.literal(Literal::Bool(true));
                let (count, one) = (self.result(), self.literal(Literal::Int(1)));
                let more = self.call("_+_", &[count, one]);
                let same = self.result();
                let step = self.call("_?_:_", &[test, more, same]);
                let (count, one) = (self.result(), self.literal(Literal::Int(1)));
                [init, condition, step, self.call("_==_", &[count, one])]
            }
        };
        self.fold(range, names, parts)
    }

    /// Makes a loop that adds `element` to a list where `test` holds.
    fn collect(
        &mut self,
        range: ExprId,
        names: Variables,
        test: Option<ExprId>,
        element: ExprId,
    ) -> ExprId {
        let init = self.list(&[]);
        let condition = self.literal(Literal::Bool(true));
        let (before, added) = (self.result(), self.list(&[element]));
        let step = self.call("_+_", &[before, added]);
        let step = self.only_if(test, step);
        let parts = [init, condition, step, self.result()];
        self.fold(range, names, parts)
    }

    fn only_if(&mut self, test: Option<ExprId>, step: ExprId) -> ExprId {
        match test {
            Some(test) => {
                let same = self.result();
                self.call("_?_:_", &[test, step, same])
            }
            None => step,
        }
    }

    fn map(
        &mut self,
        range: ExprId,
        variable: ExprId,
        test: Option<ExprId>,
        element: ExprId,
    ) -> Result<ExprId, Bad> {
        let first = self.variable(variable, "argument is not an identifier")?;
        let names = Variables::one(first);
        Ok(self.collect(range, names, test, element))
    }

    fn filter(&mut self, range: ExprId, variable: ExprId, test: ExprId) -> Result<ExprId, Bad> {
        self.map(range, variable, Some(test), variable)
    }

    /// Expands `transformList`, `transformMap` and `transformMapEntry`.
    fn transform(
        &mut self,
        range: ExprId,
        name: &str,
        variables: [ExprId; 2],
        rest: &[ExprId],
    ) -> Option<Result<ExprId, Bad>> {
        let (test, value) = match rest {
            [value] => (None, *value),
            [test, value] => (Some(*test), *value),
            _ => return None,
        };
        if !["transformList", "transformMap", "transformMapEntry"].contains(&name) {
            return None;
        }
        let names = match self.two_variables(variables) {
            Ok(names) => names,
            Err(bad) => return Some(Err(bad)),
        };
        if name == "transformList" {
            return Some(Ok(self.collect(range, names, test, value)));
        }
        let init = self.add(Expr::Map([].into()));
        let condition = self.literal(Literal::Bool(true));
        let before = self.result();
        let step = if name == "transformMap" {
            let key = self.ident(&names.first.clone());
            self.call("cel.@mapInsert", &[before, key, value])
        } else {
            self.call("cel.@mapInsert", &[before, value])
        };
        let step = self.only_if(test, step);
        let parts = [init, condition, step, self.result()];
        Some(Ok(self.fold(range, names, parts)))
    }

    /// Makes a loop over nothing whose accumulator binds a name to a value.
    fn binding(&mut self, name: &Arc<str>, value: ExprId, body: ExprId) -> ExprId {
        let range = self.list(&[]);
        let condition = self.literal(Literal::Bool(false));
        let step = self.ident(name);
        self.add(Expr::Comprehension(Box::new(Comprehension {
            range,
            variable: "#unused".into(),
            second: None,
            accumulator: name.clone(),
            init: value,
            condition,
            step,
            result: body,
        })))
    }

    fn opt_map(
        &mut self,
        target: ExprId,
        variable: ExprId,
        value: ExprId,
        wrap: bool,
    ) -> Result<ExprId, Bad> {
        let Expr::Ident(name) = self.builder.expr(variable).clone() else {
            let text = if wrap {
                "optMap() variable name must be a simple identifier"
            } else {
                "optFlatMap() variable name must be a simple identifier"
            };
            return Err(Bad::new(variable, text));
        };
        let has = self.member_call("hasValue", target, &[]);
        let range = self.list(&[]);
        let copied = self.copy(target);
        if self.is_full() {
            let text = "the expression is too large once its macros are expanded: each optMap() and optFlatMap() copies what it is called on";
            return Err(Bad::new(target, text));
        }
        let init = self.member_call("value", copied, &[]);
        let condition = self.literal(Literal::Bool(false));
        let step = self.ident(&name);
        let bound = self.add(Expr::Comprehension(Box::new(Comprehension {
            range,
            variable: "#unused".into(),
            second: None,
            accumulator: name,
            init,
            condition,
            step,
            result: value,
        })));
        let bound = if wrap {
            self.call("optional.of", &[bound])
        } else {
            bound
        };
        let none = self.call("optional.none", &[]);
        Ok(self.call("_?_:_", &[has, bound, none]))
    }

    fn sort_by(&mut self, target: ExprId, variable: ExprId, key: ExprId) -> Result<ExprId, Bad> {
        let is_list = matches!(
            self.builder.expr(target),
            Expr::List { .. }
                | Expr::Select { .. }
                | Expr::Ident(_)
                | Expr::Comprehension(_)
                | Expr::Call { .. }
        );
        if !is_list {
            let text = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Bad::new(target, text));
        }
        let name: Arc<str> = "@__sortBy_input__".into();
        let input = self.ident(&name);
        let keys_of = self.copy(input);
        let keys = self.map(keys_of, variable, None, key)?;
        let sorted = self.copy(input);
        let call = self.member_call("@sortByAssociatedKeys", sorted, &[keys]);
        Ok(self.binding(&name, target, call))
    }

    fn bind(&mut self, variable: ExprId, value: ExprId, body: ExprId) -> Result<ExprId, Bad> {
        let Expr::Ident(name) = self.builder.expr(variable).clone() else {
            let text = "cel.bind() variable names must be simple identifiers";
            return Err(Bad::new(variable, text));
        };
        Ok(self.binding(&name, value, body))
    }

    /// Expands `math.least` and `math.greatest`.
    fn extreme(&mut self, target: ExprId, function: &str, args: &[ExprId]) -> Result<ExprId, Bad> {
        let least = function == "math.@min";
        let pick = |first: &'static str, second: &'static str| if least { first } else { second };
        match args {
            [] => Err(Bad::new(
                target,
                pick(
                    "math.least() requires at least one argument",
                    "math.greatest() requires at least one argument",
                ),
            )),
            [only] if self.may_be_number(*only) || self.is_number_list(*only) => {
                Ok(self.call(function, &[*only]))
            }
            [only] => Err(Bad::new(
                *only,
                pick(
                    "math.least() invalid single argument value",
                    "math.greatest() invalid single argument value",
                ),
            )),
            several => {
                if let Some(bad) = several.iter().find(|arg| !self.may_be_number(**arg)) {
                    let text = pick(
                        "math.least() simple literal arguments must be numeric",
                        "math.greatest() simple literal arguments must be numeric",
                    );
                    return Err(Bad::new(*bad, text));
                }
                if several.len() == 2 {
                    return Ok(self.call(function, several));
                }
                let list = self.list(several);
                Ok(self.call(function, &[list]))
            }
        }
    }

    fn may_be_number(&self, id: ExprId) -> bool {
        match self.builder.expr(id) {
            Expr::Literal(value) => matches!(
                value,
                Literal::Int(_) | Literal::Uint(_) | Literal::Double(_)
            ),
            Expr::List { .. } | Expr::Map(_) | Expr::Struct { .. } => false,
            Expr::Unspecified
            | Expr::Ident(_)
            | Expr::Select { .. }
            | Expr::Call { .. }
            | Expr::Comprehension(_) => true,
        }
    }

    fn is_number_list(&self, id: ExprId) -> bool {
        match self.builder.expr(id) {
            Expr::List { elements, .. } => {
                !elements.is_empty() && elements.iter().all(|id| self.may_be_number(*id))
            }
            _ => false,
        }
    }
}
