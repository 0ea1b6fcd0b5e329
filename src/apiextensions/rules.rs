//! The rules of a schema: expressions that compare the values of an object with each other, and
//! with those that they replace.
//!
//! A rule is compiled with its unit. A check has a budget for the whole object and one for each
//! evaluation; texts and order are upstream's. [`definition`] checks the rules of a definition
//! before it is stored.

mod declaration;
pub mod definition;
mod evaluation;
mod field_path;
mod view;

pub use field_path::normalized;
pub use polyplane_cel::is_reserved;

use declaration::{Declaration, escape};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_cel::{Checked, Environment, Program, Type, check, estimate, parse};
use std::sync::{Arc, LazyLock};

/// Cost beyond which one evaluation stops. Upstream's limits are constants, so that a rule that one
/// server accepts is accepted by all.
const CALL_COST_MAX: u64 = 1_000_000;
/// Cost beyond which no further rule of an object is evaluated.
const OBJECT_COST_MAX: u64 = 10_000_000;
/// Depth of nested schemas. Each level is a stack frame of a recursive walk.
const DEPTH_MAX: usize = 128;
/// The name of the type of a whole object.
const SELF_TYPE: &str = "selfType";

/// The environment in which programs run: the two variables, in this order, of any type.
static RUNTIME: LazyLock<Arc<Environment>> = LazyLock::new(|| {
    let mut environment = Environment::kubernetes();
    environment.declare("self", Type::Dyn);
    environment.declare("oldSelf", Type::Dyn);
    Arc::new(environment)
});

/// The rules of a schema.
#[derive(Debug, Default)]
pub struct Rules {
    root: Option<RuleNode>,
    declaration: Option<Arc<Declaration>>,
}

/// A position in a schema below which there are rules.
#[derive(Debug, Default)]
struct RuleNode {
    /// The type in the schema, which complaints show instead of a value.
    of: Str,
    rules: Vec<Rule>,
    properties: Vec<(Str, RuleNode)>,
    values: Option<Box<RuleNode>>,
    items: Option<Box<RuleNode>>,
    /// The members by which items are found in an older list.
    keys: Option<Box<[Str]>>,
    /// The declaration of values here, if that of the whole object does not lead to it because of a
    /// name that expressions cannot spell.
    own: Option<Arc<Declaration>>,
}

/// A rule.
#[derive(Debug)]
struct Rule {
    program: Result<Program, String>,
    message: Option<Program>,
    uses_old: bool,
    /// Whether the rule is evaluated without an old value too, which it then sees as optional.
    optional_old: bool,
    /// The text of the rule or its message, as complaints show it.
    shown: String,
    detail: String,
    reason: Option<Str>,
    field: Option<String>,
}

impl Rules {
    /// Compiles the rules of a schema. A rule that cannot be compiled fails whenever it would be
    /// evaluated.
    pub fn compile(schema: &Value) -> Self {
        if !has_rules(schema, 0) {
            return Self::default();
        }
        let declaration = Declaration::of(schema, true, SELF_TYPE);
        let mut compiler = Compiler::default();
        if let Some(declaration) = &declaration {
            declaration.declare(&mut compiler.environment);
        }
        let root = compiler.node(schema, declaration.as_ref(), 0);
        Self {
            root,
            declaration: declaration.map(Arc::new),
        }
    }

    /// Returns true if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns the bytes of memory that the rules take, approximately.
    pub fn bytes(&self) -> usize {
        self.root.as_ref().map_or(0, RuleNode::bytes)
    }

    /// Returns the complaints about a whole object that replaces another one or is new, and the
    /// warnings about rules that it breaks as the old one did.
    pub fn check(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let (Some(root), Some(declaration)) = (&self.root, &self.declaration) else {
            return Vec::new();
        };
        evaluation::evaluate(root, declaration, new, old)
    }
}

impl RuleNode {
    fn bytes(&self) -> usize {
        // A program takes some kilobytes.
        let own = size_of::<Self>() + self.rules.len() * (4 << 10);
        let properties: usize = self.properties.iter().map(|(_, node)| node.bytes()).sum();
        let below = self.values.iter().chain(&self.items);
        own + properties + below.map(|node| node.bytes()).sum::<usize>()
    }
}

/// Returns whether there are rules in a schema or below it.
fn has_rules(schema: &Value, depth: usize) -> bool {
    if depth > DEPTH_MAX || schema.as_object().is_none() {
        return false;
    }
    let mut properties = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(Map::iter);
    !schema.items_at(&["x-kubernetes-validations"]).is_empty()
        || properties.any(|(_, property)| has_rules(property, depth + 1))
        || ["items", "additionalProperties"]
            .iter()
            .any(|name| has_rules(&schema[*name], depth + 1))
}

/// Compiles the rules of one schema.
struct Compiler {
    environment: Environment,
}

impl Default for Compiler {
    fn default() -> Self {
        let mut environment = Environment::kubernetes();
        environment.declare("self", Type::Dyn);
        environment.declare("oldSelf", Type::Dyn);
        Self { environment }
    }
}

/// An expression that was compiled.
struct Compiled {
    checked: Checked,
    program: Program,
}

impl Compiler {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Returns upstream's text.
    fn expression(&self, text: &str, wanted: &Type) -> Result<Compiled, String> {
        let environment = &self.environment;
        let checked = parse(text, &environment.syntax).and_then(|ast| check(ast, environment));
        let checked = checked.map_err(|issues| format!("compilation failed: {issues}"))?;
        if checked.result() != wanted {
            return Err(match wanted {
                Type::Bool => "cel expression must evaluate to a bool".to_owned(),
                _ => "must evaluate to a string".to_owned(),
            });
        }
        let program = Program::checked(&checked, &RUNTIME);
        Ok(Compiled { checked, program })
    }

    /// Declares the variables for a rule about values of a declaration.
    fn declare(&mut self, declaration: &Declaration, is_optional: bool) {
        let of = declaration.of.clone();
        let old = match is_optional {
            true => Type::optional(of.clone()),
            false => of.clone(),
        };
        self.environment.declare("self", of);
        self.environment.declare("oldSelf", old);
    }

    /// Compiles the rules at a position and below it; `None` if there are none.
    fn node(
        &mut self,
        schema: &Value,
        declaration: Option<&Declaration>,
        depth: usize,
    ) -> Option<RuleNode> {
        let declaration = declaration.filter(|_| depth <= DEPTH_MAX)?;
        let rules = schema.items_at(&["x-kubernetes-validations"]).iter();
        let rules: Vec<Rule> = rules
            .filter(|rule| !rule.str_at(&["rule"]).trim().is_empty())
            .map(|rule| self.rule(rule, schema, declaration))
            .collect();
        let below = declaration.element();
        let items = self.node(&schema["items"], below, depth + 1);
        let values = self.node(&schema["additionalProperties"], below, depth + 1);
        let mut properties = Vec::new();
        for (name, property) in schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(Map::iter)
        {
            if escape(name).is_some() {
                let below = declaration.property(name);
                let node = self.node(property, below, depth + 1);
                properties.extend(node.map(|node| (name.into(), node)));
            } else if has_rules(property, depth) {
                // Expressions around it cannot see it, but it can have expressions.
                let embedded = property.bool_at(&["x-kubernetes-embedded-resource"]);
                let own =
                    Declaration::of(property, embedded, &format!("{SELF_TYPE}.{depth}.{name}"));
                let Some(own) = own else { continue };
                own.declare(&mut self.environment);
                let node = self.node(property, Some(&own), depth + 1);
                properties.extend(node.map(|node| {
                    let own = Some(Arc::new(own));
                    (name.into(), RuleNode { own, ..node })
                }));
            }
        }
        if rules.is_empty() && items.is_none() && values.is_none() && properties.is_empty() {
            return None;
        }
        let is_map = schema.str_at(&["x-kubernetes-list-type"]) == "map";
        let keys = schema.items_at(&["x-kubernetes-list-map-keys"]).iter();
        let keys = keys.filter_map(Value::as_str).map(Str::from);
        Some(RuleNode {
            of: schema.str_at(&["type"]).into(),
            rules,
            properties,
            values: values.map(Box::new),
            items: items.map(Box::new),
            keys: is_map.then(|| keys.collect()),
            own: None,
        })
    }

    fn rule(&mut self, rule: &Value, schema: &Value, declaration: &Declaration) -> Rule {
        let text = |name: &str| rule.str_at(&[name]);
        let optional_old = rule.bool_at(&["optionalOldSelf"]);
        self.declare(declaration, optional_old);
        let compiled = self.expression(text("rule"), &Type::Bool);
        let message = match text("messageExpression") {
            "" => None,
            expression => self.expression(expression, &Type::String).ok(),
        };
        let shown = match text("message") {
            "" => text("rule").trim(),
            message => message.trim(),
        };
        let detail = match text("message") {
            "" => format!("failed rule: {shown}"),
            message => message.trim().to_owned(),
        };
        let field = match text("fieldPath") {
            "" => None,
            path => normalized(path, schema),
        };
        Rule {
            uses_old: compiled.as_ref().is_ok_and(|rule| uses_old(&rule.checked)),
            program: compiled.map(|rule| rule.program),
            message: message.map(|message| message.program),
            optional_old,
            shown: shown.to_owned(),
            detail,
            reason: rule["reason"].as_str().map(Str::from),
            field,
        }
    }
}

/// Returns whether an expression uses the old value.
fn uses_old(checked: &Checked) -> bool {
    checked.ast().mentions("oldSelf")
}

/// Returns the complaint that a reason stands for.
fn complaint(
    place: &Path<'_>,
    bad: polyplane_apimachinery::field_error::Bad,
    rule: &Rule,
    detail: String,
) -> FieldError {
    match rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(place, detail),
        Some("FieldValueRequired") => FieldError::required(place, detail),
        Some("FieldValueDuplicate") => FieldError::duplicate(place, bad),
        _ => FieldError::invalid(place, bad, detail),
    }
}

/// Returns the estimated cost of an expression.
fn cost_of(compiled: &Compiled, declaration: &Declaration) -> u64 {
    estimate(&compiled.checked, declaration, 0).max
}
