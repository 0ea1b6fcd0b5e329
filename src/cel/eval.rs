//! Evaluates programs and counts what that costs.
//!
//! Variables, selects and indexes form one *attribute* for upstream: the attribute costs once, each
//! access inside it once more, and an attribute that another one or a condition contains costs only
//! its accesses. The budget is compared after every charge.

mod access;
mod fold;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::WorkBudget;
use crate::cost::{self, ACCESS};
use crate::library::Context;
use crate::limits::DEPTH_MAX;
use crate::plan::{At, Call, Program, Step};
use crate::refusal::{Refusal, refuse_types};
use crate::value::{Fault, Key, Outcome, Value};

use access::{element, field, has, optional_index};

/// Units of work of a byte of an error's text, which quotes values.
const TEXT_WORK: u64 = 10;

/// What an evaluation gave and what it cost.
#[derive(Debug, Clone)]
pub struct Evaluated<'a> {
    /// The value, or why there is none.
    pub outcome: Outcome<'a>,
    /// The cost.
    pub cost: u64,
}

impl Program {
    /// Evaluates the program. `variables` are in the order of their declaration; `cost_max` is the
    /// cost beyond which evaluation stops.
    #[must_use]
    pub fn evaluate<'a>(&'a self, variables: &[Value<'a>], cost_max: u64) -> Evaluated<'a> {
        self.evaluate_within(variables, cost_max, &WorkBudget::default())
    }

    /// Like [`Self::evaluate`], with a budget from which other evaluations take too.
    #[must_use]
    pub fn evaluate_within<'a>(
        &'a self,
        variables: &[Value<'a>],
        cost_max: u64,
        budget: &WorkBudget,
    ) -> Evaluated<'a> {
        budget.begin();
        let mut machine = Machine {
            program: self,
            variables,
            locals: Vec::new(),
            depth: 0,
            cost: 0,
            cost_max,
            budget,
        };
        let outcome = machine.eval(self.root);
        Evaluated {
            outcome,
            cost: machine.cost,
        }
    }
}

struct Machine<'p, 'a> {
    program: &'a Program,
    variables: &'p [Value<'a>],
    /// The variables of loops. An accumulator may be an error that a later element makes harmless.
    locals: Vec<Outcome<'a>>,
    depth: usize,
    cost: u64,
    cost_max: u64,
    budget: &'p WorkBudget,
}

impl<'a> Machine<'_, 'a> {
    fn step(&self, at: At) -> &'a Step {
        let program = self.program;
        program.steps.get(at).unwrap_or(&Step::NotFalse(0))
    }

    fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.cost_max || self.budget.is_spent() {
            return Err(Fault::Budget);
        }
        Ok(())
    }

    fn eval(&mut self, at: At) -> Outcome<'a> {
        if self.depth >= DEPTH_MAX {
            return Err(Fault::Budget);
        }
        self.depth += 1;
        let outcome = self.eval_step(self.step(at), at);
        self.depth -= 1;
        outcome
    }

    fn eval_step(&mut self, step: &'a Step, at: At) -> Outcome<'a> {
        match step {
            Step::Variable(_)
            | Step::Local(_)
            | Step::Field { .. }
            | Step::Index { .. }
            | Step::OptionalIndex { .. } => {
                let outcome = self.resolve(at);
                if !self.is_conditional(at) {
                    self.charge(ACCESS)?;
                }
                outcome
            }
            Step::Has { .. } | Step::Condition { .. } => self.resolve(at),
            Step::Constant(constant) => Ok(constant.value()),
            Step::And(left, right) => self.logical(*left, *right, false),
            Step::Or(left, right) => self.logical(*left, *right, true),
            Step::NotFalse(inner) => {
                let outcome = self.eval(*inner);
                self.charge(1)?;
                match outcome {
                    Ok(Value::Bool(value)) => Ok(Value::Bool(value)),
                    Err(fault) if fault.is_final() => Err(fault),
                    _ => Ok(Value::Bool(true)),
                }
            }
            Step::Equal {
                left,
                right,
                negated,
            } => self.equal(*left, *right, *negated),
            Step::InConstant { element, list } => {
                let element = self.eval(*element)?;
                match list.value() {
                    Value::List(list) => {
                        self.budget.read(element.bytes())?;
                        let is_here = |it: Value<'_>| element.equals_within(&it, self.budget);
                        let found = list.iter().any(is_here);
                        self.unless_spent(Value::Bool(found))
                    }
                    _ => Err(Fault::no_overload()),
                }
            }
            Step::Otherwise {
                left,
                right,
                or_value,
            } => self.otherwise(*left, *right, *or_value),
            Step::Call(call) => self.call(call),
            Step::List { elements } => {
                let made = self.list(elements);
                self.charge(cost::LIST)?;
                made
            }
            Step::Map { entries } => {
                let made = self.map(entries);
                self.charge(cost::MAP)?;
                made
            }
            Step::Fold(fold) => self.fold(fold),
            Step::Broken(text) => Err(Fault::error(text.to_string())),
        }
    }

    /// Returns whether the step is an attribute in upstream's sense.
    fn is_attribute(&self, at: At) -> bool {
        matches!(
            self.step(at),
            Step::Variable(_)
                | Step::Local(_)
                | Step::Field { .. }
                | Step::Has { .. }
                | Step::Index { .. }
                | Step::OptionalIndex { .. }
                | Step::Condition { .. }
        )
    }

    /// Returns whether an attribute begins with a condition, whose cost is that of its parts.
    fn is_conditional(&self, mut at: At) -> bool {
        loop {
            match self.step(at) {
                Step::Field { operand, .. }
                | Step::Index { operand, .. }
                | Step::OptionalIndex { operand, .. } => at = *operand,
                Step::Condition { .. } => return true,
                _ => return false,
            }
        }
    }

    /// Evaluates a part of an attribute.
    fn part(&mut self, at: At) -> Outcome<'a> {
        if self.is_attribute(at) {
            self.resolve(at)
        } else {
            self.eval(at)
        }
    }

    /// Evaluates an attribute without its own cost.
    fn resolve(&mut self, at: At) -> Outcome<'a> {
        match self.step(at) {
            Step::Variable(index) => {
                let found = self.variables.get(*index).cloned();
                found
                    .ok_or_else(|| Fault::error("no such attribute(s)"))?
                    .valid()
            }
            Step::Local(index) => {
                let found = self.locals.get(*index).cloned();
                found.unwrap_or_else(|| Err(Fault::error("no such attribute(s)")))
            }
            Step::Field { operand, name } => {
                let operand = self.part(*operand)?;
                if let Value::Optional(inner) = operand {
                    let found = access::optional_field(inner.as_deref(), name)?;
                    return self.optional(found);
                }
                self.charge(ACCESS)?;
                field(&operand, name)
            }
            Step::Has { operand, name } => {
                let operand = self.part(*operand)?;
                if let Value::Optional(inner) = operand {
                    let found = match inner.as_deref() {
                        Some(inner) => has(inner, name)?,
                        None => false,
                    };
                    self.charge(if found { ACCESS } else { 0 })?;
                    return Ok(Value::Bool(found));
                }
                self.charge(ACCESS)?;
                has(&operand, name).map(Value::Bool)
            }
            Step::Index { operand, index } => {
                let operand = self.part(*operand)?;
                if let Value::Optional(None) = operand {
                    return Ok(operand);
                }
                let index = self.part(*index)?;
                if let Value::Optional(Some(inner)) = operand {
                    let found = optional_index(&inner, &index)?;
                    return self.optional(found);
                }
                self.charge(ACCESS)?;
                self.budget.read(index.bytes())?;
                element(&operand, &index)?.map_err(Fault::Error)
            }
            Step::OptionalIndex { operand, index } => {
                let operand = self.part(*operand)?;
                if let Value::Optional(None) = operand {
                    return Ok(operand);
                }
                let index = self.part(*index)?;
                let found = match &operand {
                    Value::Optional(Some(inner)) => optional_index(inner, &index)?,
                    other => optional_index(other, &index)?,
                };
                self.optional(found)
            }
            Step::Condition { test, yes, no } => match self.eval(*test)? {
                Value::Bool(true) => self.part(*yes),
                Value::Bool(false) => self.part(*no),
                _ => Err(Fault::no_overload()),
            },
            _ => self.eval(at),
        }
    }

    /// Wraps what an optional access found; only then the access costs.
    fn optional(&mut self, found: Option<Value<'a>>) -> Outcome<'a> {
        if found.is_some() {
            self.charge(ACCESS)?;
        }
        Ok(Value::Optional(found.map(Arc::new)))
    }

    /// Evaluates `or`, or `or_value`, whose argument is evaluated only if it is needed.
    fn otherwise(&mut self, left: At, right: At, or_value: bool) -> Outcome<'a> {
        match self.eval(left)? {
            Value::Optional(Some(inner)) if or_value => Ok((*inner).clone()),
            Value::Optional(Some(inner)) => Ok(Value::Optional(Some(inner))),
            Value::Optional(None) => self.eval(right),
            _ => Err(Fault::no_overload()),
        }
    }

    /// Evaluates `&&`, which `false` decides, or `||`, which `true` decides.
    fn logical(&mut self, left: At, right: At, decides: bool) -> Outcome<'a> {
        let mut fault = None;
        for side in [left, right] {
            match self.eval(side) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(value)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => fault = fault.or(Some(Fault::no_overload())),
                Err(other) if other.is_final() => return Err(other),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        match fault {
            Some(fault) => Err(fault),
            None => Ok(Value::Bool(!decides)),
        }
    }

    fn equal(&mut self, left: At, right: At, negated: bool) -> Outcome<'a> {
        let left = self.eval(left);
        let right = match &left {
            Err(fault) if fault.is_final() => return left,
            _ => self.eval(right),
        };
        for side in [&left, &right].into_iter().flatten() {
            self.budget.read(side.bytes())?;
        }
        let size = |side: &Outcome<'a>| side.as_ref().map_or(1, Value::cost_size);
        // Values of a library's type cost one, whatever their size is.
        let cost = match (&left, negated) {
            (Ok(Value::Opaque(_)), false) => 1,
            _ => cost::smaller(size(&left), size(&right)),
        };
        self.charge(cost)?;
        let (left, right) = (left?, right?);
        let is_equal = match left.equality(&right, self.budget) {
            // What cannot be compared is not equal either.
            Err(_) if negated => false,
            answer => answer?,
        };
        self.unless_spent(Value::Bool(is_equal != negated))
    }

    /// Returns a value that was computed as far as the budget allowed it.
    fn unless_spent(&self, value: Value<'a>) -> Outcome<'a> {
        match self.budget.is_spent() {
            true => Err(Fault::Budget),
            false => Ok(value),
        }
    }

    fn call(&mut self, call: &'a Call) -> Outcome<'a> {
        if let Some(Err(earlier)) = call.takes_local.and_then(|at| self.locals.get(at))
            && call.args.len() > 2
        {
            let earlier = earlier.clone();
            self.charge(ACCESS)?;
            return Err(earlier);
        }
        // Most calls have one or two arguments, which then need no memory of their own.
        match (call.takes_local, &*call.args) {
            (None, [only]) => {
                let only = self.argument(*only)?;
                let only = self.or_charge(only)?;
                return self.run(call, &mut [only]);
            }
            (None, [left, right]) => {
                let (left, right) = (self.argument(*left)?, self.argument(*right)?);
                let (left, right) = match (left, right) {
                    (Ok(left), Ok(right)) => (left, right),
                    (left, right) => {
                        self.charge(1)?;
                        return left.and(right);
                    }
                };
                return self.run(call, &mut [left, right]);
            }
            _ => {}
        }
        let mut args: Vec<Value<'a>> = Vec::with_capacity(call.args.len());
        let mut fault = None;
        for (number, arg) in call.args.iter().enumerate() {
            if number == 0 && call.takes_local.is_some() {
                args.push(Value::Null);
                self.charge(ACCESS)?;
                continue;
            }
            match self.eval(*arg) {
                Ok(value) => args.push(value),
                Err(other) if other.is_final() => return Err(other),
                // Upstream evaluates both arguments of two, and of more those before an error.
                Err(other) if call.args.len() > 2 => return Err(other),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        if let Some(fault) = fault {
            self.charge(1)?;
            return Err(fault);
        }
        if let Some(local) = call.takes_local.and_then(|at| self.locals.get_mut(at)) {
            match std::mem::replace(local, Ok(Value::Null)) {
                Ok(value) => args[0] = value,
                Err(earlier) => {
                    self.charge(1)?;
                    return Err(earlier);
                }
            }
        }
        self.run(call, &mut args)
    }

    /// Evaluates an argument. The outer error is one that nothing absorbs.
    fn argument(&mut self, at: At) -> Result<Outcome<'a>, Fault> {
        match self.eval(at) {
            Err(fault) if fault.is_final() => Err(fault),
            other => Ok(other),
        }
    }

    /// Charges for a call that an argument's error prevents.
    fn or_charge(&mut self, argument: Outcome<'a>) -> Outcome<'a> {
        if argument.is_err() {
            self.charge(1)?;
        }
        argument
    }

    fn run(&mut self, call: &'a Call, args: &mut [Value<'a>]) -> Outcome<'a> {
        for arg in &*args {
            self.budget.read(arg.bytes())?;
        }
        self.charge(call.cost.before(args, self.budget))?;
        let run = call.run.ok_or_else(Fault::no_overload)?;
        let context = Context {
            environment: &self.program.environment,
            budget: self.budget,
            accumulates: call.takes_local.is_some(),
        };
        let outcome = match self.refused(call, args) {
            Some(fault) => Err(fault),
            None => run(context, args),
        };
        match &outcome {
            Ok(made) => self.budget.make(made.made_bytes())?,
            Err(Fault::Error(text)) => {
                let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
                self.budget.work(bytes.saturating_mul(TEXT_WORK))?;
            }
            Err(_) => {}
        }
        self.charge(call.cost.after(outcome.as_ref().ok()))?;
        outcome
    }

    /// Returns the error if the function does not take the values.
    fn refused(&self, call: &Call, args: &[Value<'a>]) -> Option<Fault> {
        // A value that may be null has the type of those that are not.
        let has_null = || args.iter().any(|arg| matches!(arg, Value::Null));
        if !call.is_doubtful && !has_null() {
            return None;
        }
        match call.refusal {
            Refusal::Code => None,
            Refusal::Operation(operation) => operation.refuse(&call.name, args),
            Refusal::Types => {
                let function = self.program.environment.functions.get(&call.name)?;
                refuse_types(&call.name, &function.overloads, args)
            }
        }
    }

    fn list(&mut self, elements: &[(At, bool)]) -> Outcome<'a> {
        let mut made = Vec::with_capacity(elements.len());
        self.budget.elements(elements.len() + 1)?;
        for (at, optional) in elements {
            let value = self.eval(*at)?;
            match (optional, value) {
                (false, value) => made.push(value),
                (true, Value::Optional(Some(value))) => made.push((*value).clone()),
                (true, Value::Optional(None)) => {}
                (true, other) => {
                    return Err(Fault::error(format!(
                        "cannot initialize optional list element from non-optional value {}",
                        other.type_name()
                    )));
                }
            }
        }
        Ok(Value::list(made))
    }

    fn map(&mut self, entries: &[(At, At, bool)]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(*key)?;
            let value = self.eval(*value)?;
            let key = match key {
                Value::Double(_) => None,
                other => Key::of(&other),
            };
            let key = key.ok_or_else(|| Fault::error("unsupported key type"))?;
            self.budget.elements(2)?;
            self.budget.read(key.value().bytes())?;
            let value = match (optional, value) {
                (false, value) => value,
                (true, Value::Optional(Some(value))) => (*value).clone(),
                (true, Value::Optional(None)) => {
                    made.remove(&key);
                    continue;
                }
                (true, other) => {
                    return Err(Fault::error(format!(
                        "cannot initialize optional entry '{}' from non-optional value {}",
                        crate::format::plain(&key.value()),
                        crate::format::plain(&other)
                    )));
                }
            };
            // As upstream, the last one of equal keys counts.
            made.insert(key, value);
        }
        Ok(Value::map(made))
    }
}
