//! Makes a program of a tree: names become places, functions become code.

mod bytes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ast::{Ast, Entry, Expr, ExprId, Literal};
use crate::budget::WorkBudget;
use crate::check::Checked;
use crate::cost::CallCost;
use crate::environment::Environment;
use crate::library::{Context, Run};
use crate::pattern::Compiled;
use crate::refusal::{Refusal, check_index, may_differ};
use crate::value::{Blob, Key, Text, Value};

/// An expression that can be evaluated.
#[derive(Debug, Clone)]
pub struct Program {
    pub(crate) steps: Vec<Step>,
    pub(crate) root: usize,
    pub(crate) environment: Arc<Environment>,
    broken: Option<Arc<str>>,
}

/// The place of a step in the program.
pub(crate) type At = usize;

/// One step of an evaluation.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A constant of the expression, or what was computed from constants.
    Constant(Constant),
    /// A variable of the environment.
    Variable(usize),
    /// A variable of a loop, counted from the outermost one.
    Local(usize),
    /// A field of an operand.
    Field { operand: At, name: Arc<str> },
    /// Whether an operand has a field.
    Has { operand: At, name: Arc<str> },
    /// An element of an operand.
    Index { operand: At, index: At },
    /// An element of an operand, if it is there.
    OptionalIndex { operand: At, index: At },
    /// `a ? b : c`
    Condition { test: At, yes: At, no: At },
    /// `a && b`
    And(At, At),
    /// `a || b`
    Or(At, At),
    /// Whether a loop of `all` or `exists` goes on.
    NotFalse(At),
    /// `a == b`, or `a != b`.
    Equal { left: At, right: At, negated: bool },
    /// `a in b` for a constant `b`.
    InConstant { element: At, list: Constant },
    /// `a.or(b)`, or `a.orValue(b)`.
    Otherwise { left: At, right: At, or_value: bool },
    /// A function.
    Call(Call),
    /// A list.
    List { elements: Box<[(At, bool)]> },
    /// A map.
    Map { entries: Box<[(At, At, bool)]> },
    /// A loop.
    Fold(Fold),
    /// What cannot be evaluated, and why.
    Broken(Arc<str>),
}

/// A call of a function.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The name of the function.
    pub name: Arc<str>,
    pub run: Option<Run>,
    /// How the function refuses values.
    pub refusal: Refusal,
    /// True if the types leave a doubt whether the function takes the values, but for null.
    pub is_doubtful: bool,
    pub args: Box<[At]>,
    pub cost: CallCost,
    /// Whether the first argument is the result of the loop so far, which nothing else needs: the
    /// function then may change it instead of copying it.
    pub takes_local: Option<usize>,
}

/// A loop.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub range: At,
    pub two: bool,
    pub init: At,
    pub condition: At,
    pub step: At,
    pub result: At,
    /// Whether the condition is the constant `true` or `false`.
    pub always: Option<bool>,
}

/// A constant value.
#[derive(Debug, Clone)]
pub(crate) enum Constant {
    /// A literal.
    Literal(Literal),
    /// The name of a type.
    Type(Arc<str>),
    /// What was computed from constants. It borrows nothing.
    Computed(Value<'static>),
}

impl Constant {
    pub fn value(&self) -> Value<'_> {
        match self {
            Self::Literal(literal) => match literal {
                Literal::Null => Value::Null,
                Literal::Bool(value) => Value::Bool(*value),
                Literal::Int(value) => Value::Int(*value),
                Literal::Uint(value) => Value::Uint(*value),
                Literal::Double(value) => Value::Double(*value),
                Literal::String(text) => Value::String(Text::Borrowed(text)),
                Literal::Bytes(bytes) => Value::Bytes(Blob::Borrowed(bytes)),
            },
            Self::Type(name) => Value::Type(Text::Borrowed(name)),
            Self::Computed(value) => value.clone(),
        }
    }

    /// Returns the value so that it borrows nothing.
    pub fn owned(&self) -> Value<'static> {
        match self {
            Self::Literal(Literal::Null) => Value::Null,
            Self::Literal(Literal::Bool(value)) => Value::Bool(*value),
            Self::Literal(Literal::Int(value)) => Value::Int(*value),
            Self::Literal(Literal::Uint(value)) => Value::Uint(*value),
            Self::Literal(Literal::Double(value)) => Value::Double(*value),
            Self::Literal(Literal::String(text)) => Value::String(Text::Shared(text.clone())),
            Self::Literal(Literal::Bytes(bytes)) => Value::Bytes(Blob::Shared(bytes.clone())),
            Self::Type(name) => Value::Type(Text::Shared(name.clone())),
            Self::Computed(value) => value.clone(),
        }
    }
}

/// The functions whose result for a constant is a constant.
pub(crate) const CONVERSIONS: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// The functions whose second argument is a pattern.
const SEARCHES: [&str; 3] = ["matches", "find", "findAll"];

impl Program {
    /// Plans an expression without types: names and functions are chosen by the values.
    #[must_use]
    pub fn unchecked(ast: &Ast, environment: &Arc<Environment>) -> Self {
        Self::plan(ast, None, environment)
    }

    /// Plans an expression whose types are known.
    #[must_use]
    pub fn checked(checked: &Checked, environment: &Arc<Environment>) -> Self {
        Self::plan(checked.ast(), Some(checked), environment)
    }

    /// Returns why upstream refuses to make a program of the expression, although its types are right. It can be
    /// evaluated, and fails where it comes to what is wrong.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn plan(ast: &Ast, checked: Option<&Checked>, environment: &Arc<Environment>) -> Self {
        let mut planner = Planner {
            ast,
            checked,
            environment,
            steps: Vec::new(),
            locals: Vec::new(),
            broken: None,
        };
        let root = planner.plan(ast.root());
        Self {
            steps: planner.steps,
            root,
            broken: planner.broken,
            environment: environment.clone(),
        }
    }
}

struct Planner<'a> {
    ast: &'a Ast,
    checked: Option<&'a Checked>,
    environment: &'a Arc<Environment>,
    steps: Vec<Step>,
    locals: Vec<Arc<str>>,
    /// See [`Program::broken`].
    broken: Option<Arc<str>>,
}

impl Planner<'_> {
    fn add(&mut self, step: Step) -> At {
        self.steps.push(step);
        self.steps.len() - 1
    }

    fn constant(&self, at: At) -> Option<&Constant> {
        match self.steps.get(at) {
            Some(Step::Constant(constant)) => Some(constant),
            _ => None,
        }
    }

    fn plan(&mut self, id: ExprId) -> At {
        let ast = self.ast;
        let step = match ast.expr(id) {
            Expr::Unspecified => Step::Broken("no such overload".into()),
            Expr::Literal(literal) => Step::Constant(Constant::Literal(literal.clone())),
            Expr::Ident(name) => self
                .name(&[name])
                .unwrap_or_else(|| Step::Broken(format!("no such attribute(s): {name}").into())),
            Expr::Select {
                operand,
                field,
                test_only,
            } => self.select(id, *operand, field, *test_only),
            Expr::Call {
                target,
                function,
                args,
            } => self.call(id, *target, function, args),
            Expr::List { elements, optional } => self.list(elements, optional),
            Expr::Map(entries) => self.map(entries),
            Expr::Struct { name, .. } => Step::Broken(format!("unknown type: {name}").into()),
            Expr::Comprehension(fold) => {
                let init = self.plan(fold.init);
                let range = self.plan(fold.range);
                let depth = self.locals.len();
                self.locals.push(fold.accumulator.clone());
                self.locals.push(fold.variable.clone());
                self.locals.extend(fold.second.clone());
                let condition = self.plan(fold.condition);
                let step = self.plan(fold.step);
                self.take_accumulator(step, depth);
                self.locals.truncate(depth + 1);
                let result = self.plan(fold.result);
                self.locals.truncate(depth);
                let always = match self.constant(condition) {
                    Some(Constant::Literal(Literal::Bool(value))) => Some(*value),
                    _ => None,
                };
                Step::Fold(Fold {
                    range,
                    two: fold.second.is_some(),
                    init,
                    condition,
                    step,
                    result,
                    always,
                })
            }
        };
        self.add(step)
    }

    /// Lets the step of a loop change the accumulator in place where only it uses it.
    fn take_accumulator(&mut self, step: At, depth: usize) {
        let step = match self.steps.get(step) {
            Some(Step::Condition { yes, .. }) => *yes,
            _ => step,
        };
        let Some(Step::Call(call)) = self.steps.get(step) else {
            return;
        };
        let Some((first, rest)) = call.args.split_first() else {
            return;
        };
        let first_is = matches!(self.steps.get(*first), Some(Step::Local(at)) if *at == depth);
        // The steps of the other arguments lie between the first one and the call.
        let others = self.steps.get(*first + 1..step).unwrap_or_default();
        let used = others
            .iter()
            .any(|step| matches!(step, Step::Local(at) if *at == depth));
        if first_is
            && !used
            && !rest.is_empty()
            && let Some(Step::Call(call)) = self.steps.get_mut(step)
        {
            call.takes_local = Some(depth);
        }
    }

    /// Looks up names between dots: a variable of a loop, of the environment, or a type.
    fn name(&self, parts: &[&str]) -> Option<Step> {
        let name = parts.join(".");
        if let [only] = parts
            && let Some(at) = self.locals.iter().rposition(|local| **local == **only)
        {
            return Some(Step::Local(at));
        }
        self.environment
            .candidates(&name)
            .iter()
            .find_map(|candidate| {
                if let Some(at) = self.environment.by_name.get(candidate.as_str()) {
                    return Some(Step::Variable(*at));
                }
                let found = self.environment.named_type(candidate)?;
                Some(Step::Constant(Constant::Type(found.name().into())))
            })
    }

    /// Returns the names between dots, if the expression is only that.
    fn qualified(&self, id: ExprId) -> Option<Vec<&str>> {
        match self.ast.expr(id) {
            Expr::Ident(name) => Some(vec![name]),
            Expr::Select {
                operand,
                field,
                test_only: false,
            } => {
                let mut parts = self.qualified(*operand)?;
                parts.push(field);
                Some(parts)
            }
            _ => None,
        }
    }

    fn select(&mut self, id: ExprId, operand: ExprId, field: &Arc<str>, test_only: bool) -> Step {
        if !test_only && let Some(parts) = self.qualified(id) {
            let is_local = self.locals.iter().any(|local| **local == *parts[0]);
            if !is_local && let Some(found) = self.name(&parts) {
                return found;
            }
        }
        let operand = self.plan(operand);
        let name = field.clone();
        if test_only {
            Step::Has { operand, name }
        } else {
            Step::Field { operand, name }
        }
    }

    fn call(
        &mut self,
        id: ExprId,
        target: Option<ExprId>,
        function: &Arc<str>,
        args: &[ExprId],
    ) -> Step {
        let mut function = function.clone();
        let mut all: Vec<ExprId> = Vec::with_capacity(args.len() + 1);
        if let Some(target) = target {
            match self.namespaced(target, &function) {
                Some(name) => function = name,
                None => all.push(target),
            }
        }
        all.extend(args);
        let mut args: Vec<At> = all.iter().map(|arg| self.plan(*arg)).collect();
        if let Some(step) = operator(&function, &args) {
            self.check_constant_index(&step);
            return step;
        }
        let found = self.environment.function(&function);
        let Some((name, found)) = found else {
            return Step::Broken(format!("no such overload: {function}").into());
        };
        let (name, run) = (name.clone(), found.run);
        if let ("or" | "orValue", [left, right]) = (&*name, args.as_slice()) {
            return Step::Otherwise {
                left: *left,
                right: *right,
                or_value: &*name == "orValue",
            };
        }
        let keeps_pattern = SEARCHES.contains(&&*name) && self.keep_pattern(&mut args);
        let overload = self.checked.and_then(|checked| checked.overload(id));
        if let (Some("in_list"), [element, list]) = (overload, args.as_slice())
            && let Some(constant) = self.constant(*list)
            && let Value::List(list) = constant.value()
        {
            // As upstream, what cannot be in the list is not evaluated.
            if list.is_empty() {
                return Step::Constant(Constant::Literal(Literal::Bool(false)));
            }
            if list.iter().all(|it| is_hashed(&it)) {
                return Step::InConstant {
                    element: *element,
                    list: constant.clone(),
                };
            }
        }
        // Upstream runs a search with a constant pattern without looking for an overload.
        let refusal = match keeps_pattern {
            true => Refusal::Code,
            false => Refusal::of(&name),
        };
        let call = Call {
            name: name.clone(),
            run,
            refusal,
            is_doubtful: all.iter().any(|arg| self.may_differ(*arg)),
            cost: CallCost::of(&name, overload),
            args: args.into(),
            takes_local: None,
        };
        if CONVERSIONS.contains(&&*name) {
            return self.folded(call);
        }
        Step::Call(call)
    }

    /// Notes that an index is a constant that nothing has an element for.
    fn check_constant_index(&mut self, step: &Step) {
        let (Step::Index { index, .. } | Step::OptionalIndex { index, .. }) = step else {
            return;
        };
        let constant = self.constant(*index);
        let wrong = constant.and_then(|constant| check_index(&constant.value()).err());
        if self.broken.is_none() {
            self.broken = wrong.map(Arc::from);
        }
    }

    /// Returns whether a value may turn out to be of another type than the expression's.
    fn may_differ(&self, id: ExprId) -> bool {
        let checked = self.checked;
        checked.is_none_or(|checked| may_differ(checked.type_of(id)))
    }

    /// Lets the second argument of a search keep its compiled form if it is a constant. Returns whether it is.
    fn keep_pattern(&mut self, args: &mut [At]) -> bool {
        let Some(pattern) = args.get_mut(1) else {
            return false;
        };
        let Some(Constant::Literal(Literal::String(text))) = self.constant(*pattern) else {
            return false;
        };
        let value = Value::Opaque(Arc::new(Compiled::new(text)));
        *pattern = self.add(Step::Constant(Constant::Computed(value)));
        true
    }

    /// Computes a conversion of a constant now.
    fn folded(&self, call: Call) -> Step {
        let constant = match *call.args {
            [only] => self.constant(only),
            _ => None,
        };
        let context = Context {
            environment: self.environment,
            budget: &WorkBudget::default(),
            accumulates: false,
        };
        if let (Some(constant), Some(run)) = (constant, call.run)
            && let Ok(value) = run(context, &mut [constant.owned()])
        {
            return Step::Constant(Constant::Computed(value));
        }
        Step::Call(call)
    }

    /// Returns the name of the function if what looks like a receiver is the function's namespace.
    fn namespaced(&self, target: ExprId, function: &str) -> Option<Arc<str>> {
        let mut parts = self.qualified(target)?;
        if self.locals.iter().any(|local| **local == *parts[0]) {
            return None;
        }
        parts.push(function);
        let (name, _) = self.environment.function(&parts.join("."))?;
        Some(name.clone())
    }

    fn list(&mut self, elements: &[ExprId], optional: &[u32]) -> Step {
        let optional: BTreeSet<usize> = optional.iter().map(|at| *at as usize).collect();
        let elements: Vec<(At, bool)> = elements
            .iter()
            .enumerate()
            .map(|(number, id)| (self.plan(*id), optional.contains(&number)))
            .collect();
        let constants: Option<Vec<Value<'static>>> = elements
            .iter()
            .map(|(at, optional)| {
                let constant = self.constant(*at).filter(|_| !optional);
                constant.map(Constant::owned)
            })
            .collect();
        match constants {
            Some(values) => Step::Constant(Constant::Computed(Value::list(values))),
            None => Step::List {
                elements: elements.into(),
            },
        }
    }

    fn map(&mut self, entries: &[Entry]) -> Step {
        let entries: Vec<(At, At, bool)> = entries
            .iter()
            .map(|entry| (self.plan(entry.key), self.plan(entry.value), entry.optional))
            .collect();
        let constants: Option<BTreeMap<_, _>> = entries
            .iter()
            .map(|(key, value, optional)| {
                let key = self.constant(*key).filter(|_| !optional)?.owned();
                let value = self.constant(*value)?.owned();
                let double = matches!(key, Value::Double(_));
                Some((Key::of(&key).filter(|_| !double)?, value))
            })
            .collect();
        match constants {
            Some(values) => Step::Constant(Constant::Computed(Value::map(values))),
            None => Step::Map {
                entries: entries.into(),
            },
        }
    }
}

/// Returns whether upstream looks a value up in a set, instead of comparing it with each element of a list.
fn is_hashed(element: &Value<'_>) -> bool {
    matches!(
        element,
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
    )
}

/// Returns the step of an operator that is not a function.
fn operator(function: &str, args: &[At]) -> Option<Step> {
    Some(match (function, args) {
        ("_&&_", [left, right]) => Step::And(*left, *right),
        ("_||_", [left, right]) => Step::Or(*left, *right),
        ("_?_:_", [test, yes, no]) => Step::Condition {
            test: *test,
            yes: *yes,
            no: *no,
        },
        ("_==_" | "_!=_", [left, right]) => Step::Equal {
            left: *left,
            right: *right,
            negated: function == "_!=_",
        },
        ("_[_]", [operand, index]) => Step::Index {
            operand: *operand,
            index: *index,
        },
        ("_[?_]" | "_?._", [operand, index]) => Step::OptionalIndex {
            operand: *operand,
            index: *index,
        },
        ("@not_strictly_false", [condition]) => Step::NotFalse(*condition),
        _ => return None,
    })
}
