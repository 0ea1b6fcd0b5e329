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

pub use field_path::{FoundField, Steps, find_field, normalized};
pub use polyplane_cel::{RESERVED, check_pattern, is_reserved};

use declaration::{Declaration, escape, type_name};
pub use evaluation::{Findings, Limits, Write};

use crate::complaints;
use crate::validation::Schema;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_cel::{
    Checked, Environment, Program, Type, WorkBudget, compile, compile_within, estimate,
};
use std::sync::{Arc, LazyLock};

/// Cost beyond which one evaluation stops. Upstream's limits are constants, so that a rule that one
/// server accepts is accepted by all.
pub const CALL_COST_MAX: u64 = 1_000_000;
/// Cost beyond which no further rule of an object is evaluated.
pub const OBJECT_COST_MAX: u64 = 10_000_000;
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
    /// Further rules for the same values, from `allOf`.
    all: Vec<RuleNode>,
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
    message: Option<Message>,
    uses_old: bool,
    /// Whether the rule is evaluated without an old value too, which it then sees as optional.
    optional_old: bool,
    /// The text of the rule or its message, as complaints show it.
    shown: String,
    detail: String,
    reason: Option<Str>,
    field: Option<String>,
}

/// The expression that makes the message of a broken rule.
#[derive(Debug)]
struct Message {
    program: Program,
    /// The expression, which the complaint about its cost shows.
    source: Str,
    uses_old: bool,
}

impl Rules {
    /// Compiles the rules of a whole object's schema. A rule that cannot be compiled fails whenever
    /// it would be evaluated.
    pub fn compile(schema: &Value) -> Self {
        Self::compiled(schema, true, None)
    }

    /// Compiles the rules of a schema. `is_root` says whether it is that of a whole object, in which
    /// rules see kind and name even if it does not have them. The work is taken from `budget`; a rule for which
    /// nothing is left is one that cannot be compiled.
    pub fn compile_part(schema: &Value, is_root: bool, budget: &WorkBudget) -> Self {
        Self::compiled(schema, is_root, Some(budget))
    }

    fn compiled(schema: &Value, is_root: bool, budget: Option<&WorkBudget>) -> Self {
        if !has_rules(schema, 0) {
            return Self::default();
        }
        let declaration = Declaration::of(schema, is_root, SELF_TYPE);
        let mut compiler = Compiler::new(budget);
        if let Some(declaration) = &declaration {
            declaration.declare(&mut compiler.environment);
        }
        let root = compiler.node(schema, schema, declaration.as_ref(), 0);
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
        let declaration = self.declaration.as_ref().map_or(0, |of| of.bytes());
        declaration + self.root.as_ref().map_or(0, RuleNode::bytes)
    }

    /// Returns what the rules say about a whole object that replaces another one or is new.
    /// The work is taken from `budget`.
    pub fn check(
        &self,
        schema: &Schema,
        new: &Value,
        old: Option<&Value>,
        budget: &WorkBudget,
    ) -> Findings {
        let write = Write {
            new,
            old,
            keeps_unchanged: true,
        };
        self.check_within(schema, write, Limits::default(), &Path::NIL, budget)
    }

    /// Like [`Self::check`], with other limits, for a value at a place.
    pub fn check_within(
        &self,
        schema: &Schema,
        write: Write<'_>,
        limits: Limits,
        place: &Path<'_>,
        budget: &WorkBudget,
    ) -> Findings {
        let (Some(root), Some(declaration)) = (&self.root, &self.declaration) else {
            return Findings::none(limits);
        };
        let compiled = (root, &**declaration, schema);
        evaluation::evaluate(compiled, write, limits, place, budget)
    }
}

impl RuleNode {
    /// Returns the node of a property. The properties have the order of the schema's members.
    fn property(&self, name: &str) -> Option<&Self> {
        let found = self
            .properties
            .binary_search_by(|(known, _)| known.as_str().cmp(name));
        found.ok().map(|at| &self.properties[at].1)
    }

    fn bytes(&self) -> usize {
        let rules: usize = self.rules.iter().map(Rule::bytes).sum();
        let keys = self.keys.iter().flat_map(|keys| keys.iter());
        let keys: usize = keys.map(|key| size_of::<Str>() + key.len()).sum();
        let properties = self.properties.iter();
        let properties: usize = properties
            .map(|(name, node)| size_of::<Str>() + name.len() + node.bytes())
            .sum();
        let below = self.values.iter().chain(&self.items);
        let below = below.map(|node| &**node).chain(&self.all);
        let below: usize = below.map(Self::bytes).sum();
        let own = self.own.as_ref().map_or(0, |own| own.bytes());
        size_of::<Self>() + self.of.len() + rules + keys + properties + below + own
    }
}

impl Rule {
    fn bytes(&self) -> usize {
        let program = self
            .program
            .as_ref()
            .map_or_else(String::len, Program::bytes);
        let message = self
            .message
            .as_ref()
            .map_or(0, |message| message.program.bytes() + message.source.len());
        let reason = self.reason.as_ref().map_or(0, Str::len);
        let field = self.field.as_ref().map_or(0, String::len);
        let texts = self.shown.len() + self.detail.len() + reason + field;
        size_of::<Self>() + program + message + texts
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
        || (schema.items_at(&["allOf"]).iter()).any(|nested| has_rules(nested, depth + 1))
        || properties.any(|(_, property)| has_rules(property, depth + 1))
        || ["items", "additionalProperties"]
            .iter()
            .any(|name| has_rules(&schema[*name], depth + 1))
}

/// Returns the number of schemas in a schema, itself included.
pub(crate) fn count_schemas(schema: &Value, depth: usize) -> usize {
    if depth > DEPTH_MAX || schema.as_object().is_none() {
        return 0;
    }
    let properties = schema["properties"].as_object().into_iter();
    let parts = ["items", "additionalProperties"].map(|name| &schema[name]);
    let below = properties.flat_map(Map::iter).map(|(_, part)| part);
    let below = below
        .chain(parts)
        .map(|part| count_schemas(part, depth + 1));
    1 + below.sum::<usize>()
}

/// Compiles the rules of one schema.
struct Compiler<'b> {
    environment: Environment,
    /// What the compilation may take; `None` for a schema that was checked before it was stored.
    budget: Option<&'b WorkBudget>,
}

/// An expression that was compiled.
struct Compiled {
    checked: Checked,
    program: Program,
}

/// Why an expression cannot be compiled.
struct Refused {
    why: String,
    /// Whether it is known to use the old value: its types are sound, but not its constants.
    uses_old: bool,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        let uses_old = false;
        Self { why, uses_old }
    }
}

impl<'b> Compiler<'b> {
    fn new(budget: Option<&'b WorkBudget>) -> Self {
        let mut environment = Environment::kubernetes();
        environment.name_schema_types();
        environment.declare("self", Type::Dyn);
        environment.declare("oldSelf", Type::Dyn);
        Self {
            environment,
            budget,
        }
    }

    /// Compiles an expression.
    ///
    /// # Errors
    /// Returns upstream's text.
    fn expression(&self, text: &str, wanted: &Type) -> Result<Compiled, Refused> {
        let checked = match self.budget {
            Some(budget) => compile_within(text, &self.environment, budget)?,
            None => compile(text, &self.environment)?,
        };
        if checked.result() != wanted {
            let why = match wanted {
                Type::Bool => "cel expression must evaluate to a bool",
                _ => "must evaluate to a string",
            };
            return Err(why.to_owned().into());
        }
        let constants = checked.check_constants(&RUNTIME);
        constants.map_err(|why| Refused {
            uses_old: uses_old(&checked),
            why,
        })?;
        let program = Program::checked(&checked, &RUNTIME);
        // A rule that was stored before goes on as it did.
        if let (Some(why), Some(_)) = (program.broken(), self.budget) {
            return Err(Refused {
                uses_old: uses_old(&checked),
                why: format!("program instantiation failed: {why}"),
            });
        }
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

    /// Compiles the rules that `rules`, which is `schema` or a part of its `allOf`, has at a position
    /// and below it; `None` if there are none.
    fn node(
        &mut self,
        rules: &Value,
        schema: &Value,
        declaration: Option<&Declaration>,
        depth: usize,
    ) -> Option<RuleNode> {
        let declaration = declaration.filter(|_| depth <= DEPTH_MAX)?;
        let own = rules.items_at(&["x-kubernetes-validations"]).iter();
        let own: Vec<Rule> = own
            .filter(|rule| !rule.str_at(&["rule"]).trim().is_empty())
            .map(|rule| self.rule(rule, schema, declaration))
            .collect();
        let below = declaration.element();
        let mut at = |name: &str| self.node(&rules[name], &schema[name], below, depth + 1);
        let (items, values) = (at("items"), at("additionalProperties"));
        let properties = self.properties(rules, schema, declaration, depth);
        let all = rules.items_at(&["allOf"]).iter();
        let all: Vec<RuleNode> = all
            .filter_map(|nested| self.node(nested, schema, Some(declaration), depth + 1))
            .collect();
        let is_empty = own.is_empty() && properties.is_empty() && all.is_empty();
        if is_empty && items.is_none() && values.is_none() {
            return None;
        }
        let is_map = schema.str_at(&["x-kubernetes-list-type"]) == "map";
        let keys = schema.items_at(&["x-kubernetes-list-map-keys"]).iter();
        let keys = keys.filter_map(Value::as_str).map(Str::from);
        Some(RuleNode {
            of: schema.str_at(&["type"]).into(),
            rules: own,
            properties,
            values: values.map(Box::new),
            items: items.map(Box::new),
            all,
            keys: is_map.then(|| keys.collect()),
            own: None,
        })
    }

    fn properties(
        &mut self,
        rules: &Value,
        schema: &Value,
        declaration: &Declaration,
        depth: usize,
    ) -> Vec<(Str, RuleNode)> {
        let mut nodes = Vec::new();
        let properties = rules["properties"].as_object().into_iter();
        for (at, (name, rules)) in properties.flat_map(Map::iter).enumerate() {
            let property = &schema["properties"][name];
            if escape(name).is_some() {
                let below = declaration.property(name);
                let node = self.node(rules, property, below, depth + 1);
                nodes.extend(node.map(|node| (name.into(), node)));
            } else if has_rules(rules, depth) {
                // Expressions around it cannot see it, but it can have expressions.
                let embedded = property.bool_at(&["x-kubernetes-embedded-resource"]);
                let of = type_name(&format!("{SELF_TYPE}.{depth}"), name, at);
                let Some(own) = Declaration::of(property, embedded, &of) else {
                    continue;
                };
                own.declare(&mut self.environment);
                let node = self.node(rules, property, Some(&own), depth + 1);
                nodes.extend(node.map(|node| {
                    let own = Some(Arc::new(own));
                    (name.into(), RuleNode { own, ..node })
                }));
            }
        }
        nodes
    }

    fn rule(&mut self, rule: &Value, schema: &Value, declaration: &Declaration) -> Rule {
        let text = |name: &str| rule.str_at(&[name]);
        let optional_old = rule.bool_at(&["optionalOldSelf"]);
        self.declare(declaration, optional_old);
        let compiled = self.expression(text("rule"), &Type::Bool);
        let message = match text("messageExpression") {
            "" => None,
            expression => self
                .expression(expression, &Type::String)
                .ok()
                .map(|message| Message {
                    uses_old: uses_old(&message.checked),
                    program: message.program,
                    source: expression.into(),
                }),
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
            path => normalized(path, schema).map(complaints::path),
        };
        Rule {
            uses_old: compiled.as_ref().is_ok_and(|rule| uses_old(&rule.checked)),
            program: compiled
                .map(|rule| rule.program)
                .map_err(|refused| refused.why),
            message,
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
