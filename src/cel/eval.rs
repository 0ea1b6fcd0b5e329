//! Evaluates programs and counts what that costs.
//!
//! Variables, selects and indexes form one *attribute* for upstream: the attribute costs once, each
//! access inside it once more, and an attribute that another one or a condition contains costs only
//! its accesses. The budget is compared after every charge.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cost::{self, ACCESS};
use crate::limits::{DEPTH_MAX, PARTS_MAX};
use crate::plan::{At, Call, Fold, Program, Step};
use crate::value::{Fault, Key, List, Map, Outcome, Value};

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
        let mut machine = Machine {
            program: self,
            variables,
            locals: Vec::new(),
            depth: 0,
            cost: 0,
            cost_max,
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
}

impl<'a> Machine<'_, 'a> {
    fn step(&self, at: At) -> &'a Step {
        let program = self.program;
        program.steps.get(at).unwrap_or(&Step::NotFalse(0))
    }

    fn charge(&mut self, cost: u64) -> Result<(), Fault> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.cost_max {
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
                        let found = list.iter().any(|it| it.equals(&element));
                        Ok(Value::Bool(found))
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
                    let found = inner.as_deref().and_then(|inner| match inner {
                        Value::Map(map) => map.field(name),
                        _ => None,
                    });
                    return self.optional(found);
                }
                self.charge(ACCESS)?;
                field(&operand, name)
            }
            Step::Has { operand, name } => {
                let operand = self.part(*operand)?;
                if let Value::Optional(inner) = operand {
                    let found = inner.as_deref().is_some_and(|it| has(it, name) == Ok(true));
                    self.charge(if found { ACCESS } else { 0 })?;
                    return Ok(Value::Bool(found));
                }
                self.charge(ACCESS)?;
                has(&operand, name).map(Value::Bool)
            }
            Step::Index { operand, index } => {
                let operand = self.part(*operand)?;
                let index = self.part(*index)?;
                if let Value::Optional(inner) = operand {
                    let found = optional_index(inner.as_deref(), &index)?;
                    return self.optional(found);
                }
                self.charge(ACCESS)?;
                element(&operand, &index)?.map_err(Fault::Error)
            }
            Step::OptionalIndex { operand, index } => {
                let operand = self.part(*operand)?;
                let index = self.part(*index)?;
                let found = match &operand {
                    Value::Optional(inner) => optional_index(inner.as_deref(), &index)?,
                    other => optional_index(Some(other), &index)?,
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
            Value::Optional(None) => match self.eval(right)? {
                Value::Optional(inner) if !or_value => Ok(Value::Optional(inner)),
                other if or_value => Ok(other),
                _ => Err(Fault::no_overload()),
            },
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
        let size = |side: &Outcome<'a>| side.as_ref().map_or(1, Value::cost_size);
        // Values of a library's type cost one, whatever their size is.
        let cost = match (&left, negated) {
            (Ok(Value::Opaque(_)), false) => 1,
            _ => cost::smaller(size(&left), size(&right)),
        };
        self.charge(cost)?;
        let mut parts = PARTS_MAX;
        let is_equal = left?.equals_within(&right?, &mut parts);
        if parts == 0 {
            return Err(Fault::Budget);
        }
        Ok(Value::Bool(is_equal != negated))
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
        self.charge(call.cost.before(args))?;
        let run = call.run.ok_or_else(Fault::no_overload)?;
        let outcome = run(&self.program.environment, args);
        self.charge(call.cost.after(outcome.as_ref().ok()))?;
        outcome
    }

    fn list(&mut self, elements: &[(At, bool)]) -> Outcome<'a> {
        let mut made = Vec::with_capacity(elements.len());
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

    fn fold(&mut self, fold: &'a Fold) -> Outcome<'a> {
        let range = self.eval(fold.range)?;
        let init = self.eval(fold.init);
        if init.as_ref().is_err_and(Fault::is_final) {
            return init;
        }
        let depth = self.locals.len();
        self.locals.push(init);
        let ended = if fold.always == Some(false) {
            Ok(())
        } else {
            self.iterate(fold, depth, &range)
        };
        self.locals.truncate(depth + 1);
        let outcome = ended.and_then(|()| self.eval(fold.result));
        self.locals.truncate(depth);
        outcome
    }

    fn iterate(&mut self, fold: &'a Fold, depth: usize, range: &Value<'a>) -> Result<(), Fault> {
        self.locals.push(Ok(Value::Null));
        if fold.two {
            self.locals.push(Ok(Value::Null));
        }
        match range {
            Value::List(list) => {
                for (number, value) in list.iter().enumerate() {
                    let number = i64::try_from(number).unwrap_or(i64::MAX);
                    if !self.turn(fold, depth, Value::Int(number), Some(value))? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    let value = fold.two.then_some(value);
                    if !self.turn(fold, depth, key, value)? {
                        break;
                    }
                }
                Ok(())
            }
            other => Err(Fault::error(format!(
                "got '{}', expected iterable type",
                other.type_name()
            ))),
        }
    }

    /// Does one turn of a loop. Returns false if the loop ends before it.
    fn turn(
        &mut self,
        fold: &'a Fold,
        depth: usize,
        place: Value<'a>,
        value: Option<Value<'a>>,
    ) -> Result<bool, Fault> {
        match (fold.two, value) {
            (true, Some(value)) => {
                self.locals[depth + 1] = Ok(place);
                self.locals[depth + 2] = Ok(value);
            }
            (false, Some(value)) => self.locals[depth + 1] = Ok(value),
            (_, None) => self.locals[depth + 1] = Ok(place),
        }
        if fold.always != Some(true) {
            match self.eval(fold.condition) {
                Ok(Value::Bool(true)) => {}
                Err(fault) if fault.is_final() => return Err(fault),
                _ => return Ok(false),
            }
        }
        let next = self.eval(fold.step);
        match next {
            Err(fault) if fault.is_final() => return Err(fault),
            other => self.locals[depth] = other,
        }
        Ok(true)
    }
}

fn no_such_key(name: &str) -> Fault {
    Fault::error(format!("no such key: {name}"))
}

fn field<'a>(operand: &Value<'a>, name: &str) -> Outcome<'a> {
    match operand {
        Value::Map(map) => map.field(name).ok_or_else(|| no_such_key(name))?.valid(),
        _ => Err(Fault::no_overload()),
    }
}

fn has(operand: &Value<'_>, name: &str) -> Result<bool, Fault> {
    match operand {
        Value::Map(map) => match map.field(name) {
            None => Ok(false),
            Some(found) => found.valid().map(|_| true),
        },
        _ => Err(Fault::no_overload()),
    }
}

/// Looks an element up. The outer error is of the index itself, the inner one that the element is
/// not there.
fn element<'a>(
    operand: &Value<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, std::borrow::Cow<'static, str>>, Fault> {
    match operand {
        Value::List(list) => list_element(list, index),
        Value::Map(map) => map_element(map, index),
        _ => Err(Fault::no_overload()),
    }
}

fn list_element<'a>(
    list: &List<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, std::borrow::Cow<'static, str>>, Fault> {
    let at = match index {
        Value::Int(at) => Some(*at),
        Value::Uint(at) => i64::try_from(*at).ok(),
        Value::Double(at) => crate::value::exact_int(*at),
        other => {
            return Err(Fault::error(format!(
                "unsupported index type '{}' in list",
                other.type_name()
            )));
        }
    };
    let Some(at) = at else {
        let shown = crate::format::plain(index);
        return Err(Fault::error(format!(
            "unsupported index value {shown} in list"
        )));
    };
    let found = usize::try_from(at).ok().and_then(|at| list.at(at));
    let found = found.map(Value::valid).transpose()?;
    Ok(found.ok_or_else(|| format!("index out of bounds: {at}").into()))
}

fn map_element<'a>(
    map: &Map<'a>,
    index: &Value<'a>,
) -> Result<Result<Value<'a>, std::borrow::Cow<'static, str>>, Fault> {
    let shown = || format!("no such key: {}", crate::format::plain(index)).into();
    let found = map.get(index).map(Value::valid).transpose()?;
    Ok(found.ok_or_else(shown))
}

fn optional_index<'a>(
    operand: Option<&Value<'a>>,
    index: &Value<'a>,
) -> Result<Option<Value<'a>>, Fault> {
    match operand {
        None => Ok(None),
        Some(operand @ (Value::List(_) | Value::Map(_))) => Ok(element(operand, index)?.ok()),
        Some(_) => Ok(None),
    }
}
