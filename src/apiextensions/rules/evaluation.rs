//! The evaluation of rules on an object.

use super::declaration::{Declaration, escape};
use super::view::View;
use super::{CALL_COST_MAX, Message, OBJECT_COST_MAX, Rule, RuleNode, complaint};
use crate::complaints;
use crate::validation::{ByKeys, Counterparts, Schema};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::{Room, STEP_BYTES_MAX, shortened};
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::quote::quote;
use polyplane_cel::{Fault, Value as CelValue, WorkBudget};
use std::cell::Cell;

/// Bytes of the longest message that an expression may make.
const MESSAGE_BYTES_MAX: usize = 5 << 10;
/// Bytes of a warning: more than the 4096 characters from which on clients get the beginning of each warning. With
/// more, one about a long text would leave no room for those after it.
const WARNING_BYTES_MAX: usize = 16 << 10;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The limits of an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Cost beyond which one evaluation stops.
    pub call: u64,
    /// Cost beyond which no further rule is evaluated.
    pub object: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call: CALL_COST_MAX,
            object: OBJECT_COST_MAX,
        }
    }
}

/// The value that is checked.
#[derive(Clone, Copy, Debug)]
pub struct Write<'v> {
    /// The value.
    pub new: &'v Value,
    /// The value that it replaces.
    pub old: Option<&'v Value>,
    /// Whether what has not changed may break rules, which only warnings tell then.
    pub keeps_unchanged: bool,
}

/// What rules say about a value.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The complaints.
    pub errors: Vec<FieldError>,
    /// The complaints about what has not changed.
    pub warnings: Vec<String>,
    /// What is left of the limit on the cost; `None` if rules were not evaluated because of it.
    pub left: Option<u64>,
}

impl Findings {
    pub(super) fn none(limits: Limits) -> Self {
        Self {
            errors: Vec::new(),
            warnings: Vec::new(),
            left: Some(limits.object),
        }
    }
}

/// Evaluates the rules below a position on an object.
pub(super) fn evaluate(
    (root, declaration, schema): (&RuleNode, &Declaration, &Schema),
    write: Write<'_>,
    limits: Limits,
    place: &Path<'_>,
    budget: &WorkBudget,
) -> Findings {
    let Write { new, old, .. } = write;
    let view = View::of(new, declaration);
    let old_view = old.map(|old| View::of(old, declaration));
    let mut evaluation = Evaluation {
        limits,
        findings: Findings::none(limits),
        said: Room::default(),
        budget,
    };
    let answer = Cell::new(None);
    let counterpart = old.filter(|_| write.keeps_unchanged).map(|old| Pair {
        new,
        old,
        schema,
        answer: &answer,
    });
    let spot = Spot {
        new,
        old,
        view: Some(&view),
        old_view: old_view.as_ref(),
        ratchet: Ratchet {
            counterpart,
            parent: None,
        },
    };
    if evaluation.node(root, declaration, spot, place).is_err() {
        evaluation.findings.left = None;
    }
    evaluation.findings
}

/// A value with the one that it replaces, and both as expressions see them.
#[derive(Clone, Copy)]
struct Spot<'v> {
    new: &'v Value,
    old: Option<&'v Value>,
    view: Option<&'v View<'v>>,
    old_view: Option<&'v View<'v>>,
    ratchet: Ratchet<'v>,
}

/// A value, the old one in its place, and the schema that says which parts correspond.
#[derive(Clone, Copy)]
struct Pair<'v> {
    new: &'v Value,
    old: &'v Value,
    schema: &'v Schema,
    /// Whether the two are the same, once that was asked. All items of a list that have no counterpart ask it of the
    /// list.
    answer: &'v Cell<Option<bool>>,
}

impl<'v> Pair<'v> {
    fn member(self, name: &str, answer: &'v Cell<Option<bool>>) -> Option<Self> {
        Some(Self {
            new: self.new.get(name)?,
            old: self.old.get(name)?,
            schema: self.schema.member(name)?,
            answer,
        })
    }

    fn is_unchanged(self) -> bool {
        let known = self.answer.get();
        let same = known.unwrap_or_else(|| self.schema.is_unchanged(self.new, self.old));
        self.answer.set(Some(same));
        same
    }

    /// Returns the items of the older list that have keys.
    fn items(self) -> Option<Counterparts<'v>> {
        self.schema.counterparts(self.old.as_array()?)
    }
}

/// Whether a complaint about a value is about something that a write has changed.
#[derive(Clone, Copy)]
struct Ratchet<'v> {
    /// The value and the old one in its place, if there is one that corresponds.
    counterpart: Option<Pair<'v>>,
    /// The nearest values around it that correspond.
    parent: Option<Pair<'v>>,
}

impl<'v> Ratchet<'v> {
    fn is_unchanged(self) -> bool {
        let pair = self.counterpart.or(self.parent);
        pair.is_some_and(Pair::is_unchanged)
    }

    fn below(self, find: impl FnOnce(Pair<'v>) -> Option<Pair<'v>>) -> Self {
        match self.counterpart {
            None => self,
            Some(here) => Self {
                counterpart: find(here),
                parent: self.counterpart,
            },
        }
    }

    /// Returns the same without a value that corresponds: what `allOf` says may not stay broken.
    fn around(self) -> Self {
        Self {
            counterpart: None,
            ..self
        }
    }
}

/// The budget is used up, there is too much to say, or a rule has cost too much: nothing more is evaluated.
struct Stopped;

struct Evaluation<'s> {
    limits: Limits,
    findings: Findings,
    /// Counts the errors and the warnings.
    said: Room,
    budget: &'s WorkBudget,
}

impl Evaluation<'_> {
    fn add(&mut self, error: FieldError) {
        let field = complaints::path(error.field);
        let error = FieldError { field, ..error };
        self.said.take(error.bytes());
        self.findings.errors.push(error);
    }

    /// Adds the complaint about a value that may stay as it is.
    fn warn(&mut self, error: FieldError) {
        let field = complaints::path(error.field);
        let text = FieldError { field, ..error }.to_string();
        let text = shortened(&text, WARNING_BYTES_MAX).into_owned();
        self.said.take(text.len());
        self.findings.warnings.push(text);
    }

    /// Checks that more can be said. The object is refused already; a million of parts would each say it again.
    ///
    /// # Errors
    /// Returns an error if not.
    fn room(&self) -> Result<(), Stopped> {
        match self.said.is_full() {
            true => Err(Stopped),
            false => Ok(()),
        }
    }

    /// Takes the work of going through the parts of a value, which each rule's node does.
    ///
    /// # Errors
    /// Returns an error if less is left, which the findings say.
    fn walk(&mut self, node: &RuleNode, parts: usize, path: &Path<'_>) -> Result<(), Stopped> {
        if self.budget.parts(parts).is_err() {
            self.add(FieldError::invalid(path, node.of.as_str(), OUT_OF_BUDGET));
            return Err(Stopped);
        }
        Ok(())
    }

    /// Takes a cost from what is left.
    ///
    /// # Errors
    /// Returns an error if less is left.
    fn charge(&mut self, cost: u64) -> Result<(), Stopped> {
        let left = self.findings.left.unwrap_or(0).checked_sub(cost);
        self.findings.left = Some(left.ok_or(Stopped)?);
        Ok(())
    }

    fn node(
        &mut self,
        node: &RuleNode,
        declaration: &Declaration,
        spot: Spot<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        if spot.new.is_null() {
            return Ok(());
        }
        if !node.rules.is_empty() {
            if self.findings.left == Some(0) {
                self.add(FieldError::invalid(path, node.of.as_str(), OUT_OF_BUDGET));
                return Err(Stopped);
            }
            for rule in &node.rules {
                self.rule(node, rule, spot, path)?;
            }
        }
        for nested in &node.all {
            let spot = Spot {
                ratchet: spot.ratchet.around(),
                ..spot
            };
            self.node(nested, declaration, spot, path)?;
        }
        match spot.new {
            Value::Array(items) if node.items.is_some() => {
                self.walk(node, items.len(), path)?;
                self.items(node, declaration, spot, items, path)
            }
            Value::Object(members) if node.values.is_some() || !node.properties.is_empty() => {
                self.walk(node, members.len(), path)?;
                self.members(node, declaration, spot, path)
            }
            _ => Ok(()),
        }
    }

    fn members(
        &mut self,
        node: &RuleNode,
        declaration: &Declaration,
        spot: Spot<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let members = spot
            .new
            .as_object()
            .into_iter()
            .flat_map(|members| members.iter());
        for (name, new) in members {
            let old = spot.old.and_then(|old| old.get(name));
            let answer = Cell::new(None);
            let is_meta = spot.ratchet.counterpart.is_some()
                && spot.ratchet.parent.is_none()
                && matches!(name, "apiVersion" | "kind");
            let ratchet = match is_meta {
                true => Ratchet {
                    counterpart: None,
                    parent: None,
                },
                false => spot.ratchet.below(|pair| pair.member(name, &answer)),
            };
            let own = node.property(name);
            let step = complaints::step(name);
            let below = match (&node.values, own) {
                (Some(values), _) => declaration
                    .element()
                    .map(|of| (&**values, of, name.to_owned())),
                (None, Some(below)) => match (&below.own, escape(name)) {
                    (Some(own), _) => {
                        self.alone(below, own, (new, old, ratchet), &path.child(&step))?;
                        None
                    }
                    (None, Some(escaped)) => {
                        declaration.property(name).map(|of| (below, of, escaped))
                    }
                    (None, None) => None,
                },
                (None, None) => None,
            };
            let Some((below, of, seen)) = below else {
                continue;
            };
            let spot = Spot {
                new,
                old,
                view: spot.view.and_then(|view| view.member(&seen)),
                old_view: spot.old_view.and_then(|view| view.member(&seen)),
                ratchet,
            };
            match node.values.is_some() {
                true => self.node(below, of, spot, &path.key(&step))?,
                false => self.node(below, of, spot, &path.child(&step))?,
            }
        }
        Ok(())
    }

    /// Evaluates the rules of a property that expressions around it cannot see.
    fn alone<'v>(
        &mut self,
        node: &RuleNode,
        declaration: &Declaration,
        (new, old, ratchet): (&'v Value, Option<&'v Value>, Ratchet<'v>),
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let view = View::of(new, declaration);
        let old_view = old.map(|old| View::of(old, declaration));
        let spot = Spot {
            new,
            old,
            view: Some(&view),
            old_view: old_view.as_ref(),
            ratchet,
        };
        self.node(node, declaration, spot, path)
    }

    fn items(
        &mut self,
        node: &RuleNode,
        declaration: &Declaration,
        spot: Spot<'_>,
        items: &[Value],
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let (Some(below), Some(of)) = (&node.items, declaration.element()) else {
            return Ok(());
        };
        let olds = spot.old.and_then(Value::as_array).unwrap_or_default();
        let keys = node.keys.as_deref();
        let by_keys = keys.map(|keys| ByKeys::new(keys, olds));
        let counterparts = spot.ratchet.counterpart.and_then(Pair::items);
        for (at, new) in items.iter().enumerate() {
            let place = by_keys.as_ref().and_then(|olds| olds.place(new));
            let old = place.map(|place| &olds[place]);
            let answer = Cell::new(None);
            let spot = Spot {
                new,
                old,
                view: spot.view.and_then(|view| view.item(at)),
                old_view: place.and_then(|place| spot.old_view?.item(place)),
                ratchet: spot.ratchet.below(|_| {
                    let (old, schema) = counterparts.as_ref()?.of(new)?;
                    Some(Pair {
                        new,
                        old,
                        schema,
                        answer: &answer,
                    })
                }),
            };
            self.node(below, of, spot, &path.index(at))?;
        }
        Ok(())
    }

    fn rule(
        &mut self,
        node: &RuleNode,
        rule: &Rule,
        spot: Spot<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let of = node.of.as_str();
        let program = match &rule.program {
            Ok(program) => program,
            Err(why) => {
                let text = format!("rule compile error: {why}");
                self.add(FieldError::invalid(path, of, text));
                return self.room();
            }
        };
        if rule.uses_old && spot.old.is_none() && !rule.optional_old {
            return Ok(());
        }
        let Some(view) = spot.view else { return Ok(()) };
        let old = match (rule.optional_old, spot.old_view) {
            (false, None) => CelValue::Null,
            (false, Some(old)) => CelValue::from(old.node()),
            (true, None) => CelValue::Optional(None),
            (true, Some(old)) => CelValue::some(CelValue::from(old.node())),
        };
        let variables = [CelValue::from(view.node()), old];
        let evaluated = program.evaluate_within(&variables, self.limits.call, self.budget);
        if self.charge(evaluated.cost).is_err() {
            self.add(FieldError::invalid(path, of, OUT_OF_BUDGET));
            return Err(Stopped);
        }
        let shown = &rule.shown;
        match evaluated.outcome {
            Ok(CelValue::Bool(true)) => Ok(()),
            Ok(_) => self.broken(node, rule, spot, &variables, path),
            Err(Fault::Budget) => {
                let text = format!(
                    "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}",
                    Fault::Budget
                );
                self.add(FieldError::invalid(path, of, text));
                Err(Stopped)
            }
            Err(fault) => {
                let why = fault.to_string();
                let text = match why.starts_with("no such overload") {
                    true => format!(
                        "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                    ),
                    false => format!("{why} evaluating rule: {shown}"),
                };
                self.add(FieldError::invalid(path, of, text));
                self.room()
            }
        }
    }

    /// Adds the complaint about a rule that does not hold.
    fn broken(
        &mut self,
        node: &RuleNode,
        rule: &Rule,
        spot: Spot<'_>,
        variables: &[CelValue<'_>],
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        // An update cannot be refused for it, and nobody reads megabytes of warnings.
        let warns = !rule.uses_old && spot.ratchet.is_unchanged();
        if warns && self.said.is_full() {
            return Ok(());
        }
        let message = match &rule.message {
            None => Ok(None),
            Some(message) => self.message(message, rule, variables),
        };
        let bad = match &*node.of {
            "object" | "array" => Bad::Omitted,
            _ => Bad::from(spot.new.clone()),
        };
        let (error, outcome) = match message {
            Ok(detail) => {
                let detail = detail.unwrap_or_else(|| rule.detail.clone());
                (complaint(path, bad, rule, detail), Ok(()))
            }
            Err(why) => (
                FieldError::invalid(path, node.of.as_str(), why),
                Err(Stopped),
            ),
        };
        let error = match &rule.field {
            None => error,
            Some(field) => FieldError {
                // A path is not shortened as a step is.
                field: match field.len() > STEP_BYTES_MAX {
                    true if is_root(path) => field.clone(),
                    true => format!("{path}.{field}"),
                    false => path.child(field).to_string(),
                },
                ..error
            },
        };
        if warns {
            self.warn(error);
            if outcome.is_err() && self.budget.is_spent() {
                // The rules that are left are not checked, for a reason that upstream does not have.
                self.add(FieldError::invalid(path, node.of.as_str(), OUT_OF_BUDGET));
            }
            return outcome;
        }
        self.add(error);
        self.room().and(outcome)
    }

    /// Evaluates the expression of a message; `None` if it makes none that can be shown.
    ///
    /// # Errors
    /// Returns the complaint if it costs too much.
    fn message(
        &mut self,
        message: &Message,
        rule: &Rule,
        variables: &[CelValue<'_>],
    ) -> Result<Option<String>, String> {
        if message.uses_old && rule.optional_old {
            // Upstream gives messages an old value that is not optional, which they cannot use.
            return Ok(None);
        }
        let evaluated = message
            .program
            .evaluate_within(variables, self.limits.call, self.budget);
        if self.charge(evaluated.cost).is_err() {
            return Err("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run".to_owned());
        }
        let text = match evaluated.outcome {
            Err(Fault::Budget) => {
                return Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                    quote(&message.source)
                ));
            }
            Ok(CelValue::String(text)) => Some(text.trim().to_owned()),
            Ok(_) | Err(_) => None,
        };
        Ok(text.filter(|text| {
            !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n')
        }))
    }
}

/// Returns whether a path is that of the object itself, which has no part in the paths below it.
fn is_root(path: &Path<'_>) -> bool {
    path.to_string() == Path::NIL.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Rules;
    use super::*;
    use crate::complaints::{BYTES_MAX, PATH_BYTES_MAX, below_long_names};
    use polyplane_apimachinery::json;

    fn of(schema: &Value, new: &Value, old: Option<&Value>) -> Findings {
        let known = Schema::compile(schema).expect("it is shallow");
        let rules = Rules::compile(schema);
        rules.check(&known, new, old, &WorkBudget::default())
    }

    fn bytes(found: &Findings) -> usize {
        let errors = found.errors.iter().map(|error| error.to_string().len());
        errors.sum::<usize>() + found.warnings.iter().map(String::len).sum::<usize>()
    }

    fn list_with(rule: &str, message: &str) -> Value {
        let rules = json!([{"rule": rule, "message": message}]);
        let items = json!({"type": "integer", "x-kubernetes-validations": rules});
        json!({"type": "array", "items": items})
    }

    fn numbers(count: i64) -> Value {
        Value::Array((0..count).map(Value::Int).collect())
    }

    #[test]
    fn complaints_of_rules_have_a_bound_in_bytes() {
        let long = "x".repeat(10_000);
        let bound = 2 * BYTES_MAX;
        // Broken, failing, and not to be compiled.
        for rule in ["self < 0", "1 / (self - self) == 1", "unknown"] {
            let schema = list_with(rule, &long);
            let found = of(&schema, &numbers(5_000), None);
            assert!(!found.errors.is_empty(), "{rule}");
            assert!(bytes(&found) < bound, "{rule}: {}", bytes(&found));
        }
        let (schema, same) = (list_with("self < 0", &long), numbers(5_000));
        let found = of(&schema, &same, Some(&same));
        assert!(found.errors.is_empty() && !found.warnings.is_empty());
        assert!(bytes(&found) < bound, "{}", bytes(&found));
    }

    #[test]
    fn a_warning_about_a_long_text_leaves_room_for_the_next() {
        let rules = json!([{"rule": "self.size() < 0"}]);
        let items = json!({"type": "string", "x-kubernetes-validations": rules});
        let schema = json!({"type": "array", "items": items});
        let same = json!([("x".repeat(2 * BYTES_MAX)), "b"]);
        let found = of(&schema, &same, Some(&same));
        assert!(found.errors.is_empty());
        let lengths: Vec<usize> = found.warnings.iter().map(String::len).collect();
        assert_eq!(lengths.len(), 2);
        assert!((4096..2 * WARNING_BYTES_MAX).contains(&lengths[0]));
    }

    #[test]
    fn long_names_do_not_multiply_in_the_complaints_of_rules() {
        let schema = list_with("self < 0", "");
        let (schema, object) = below_long_names(schema, numbers(1_000), 200_000);
        let found = of(&schema, &object, None);
        assert!(!found.errors.is_empty());
        let longest = found.errors.iter().map(|error| error.field.len()).max();
        assert!(longest < Some(PATH_BYTES_MAX + 4), "{longest:?}");
        assert!(bytes(&found) < 2 * BYTES_MAX, "{}", bytes(&found));
    }

    /// Upstream would have gone on with the rules that are left.
    #[test]
    fn rules_that_are_left_out_refuse_an_object_though_the_last_one_only_warns() {
        let schema = json!({
            "type": "array",
            "items": {"type": "integer"},
            "x-kubernetes-validations": [
                {"rule": "self[0] < 0", "messageExpression": "string(self.all(x, x >= 0))"},
            ],
        });
        let known = Schema::compile(&schema).expect("it is shallow");
        let (rules, same, budget) = (
            Rules::compile(&schema),
            numbers(5_000),
            WorkBudget::default(),
        );
        let check = |budget: &WorkBudget| rules.check(&known, &same, Some(&same), budget);
        let found = check(&budget);
        assert_eq!((found.errors.len(), found.warnings.len()), (0, 1));
        let budget = WorkBudget::default();
        budget.work(100_000_000 - 10_000).expect("there is as much");
        let found = check(&budget);
        assert_eq!((found.errors.len(), found.warnings.len()), (1, 1));
        assert!(budget.is_spent());
    }

    #[test]
    fn the_field_of_a_rule_is_below_its_object_however_long_its_path_is() {
        for length in [1, 2_000] {
            let name = "n".repeat(length);
            let path = format!(".{name}");
            let mut schema = json!({
                "type": "object",
                "x-kubernetes-validations": [{"rule": "false", "fieldPath": (path.as_str())}],
            });
            schema.set(&["properties", name.as_str()], json!({"type": "string"}));
            let found = of(&schema, &Value::object(), None);
            assert_eq!(found.errors.len(), 1);
            assert!(
                found.errors[0].field.ends_with(&name),
                "{}",
                found.errors[0].field
            );
            assert!(!found.errors[0].field.contains("<nil>"), "{length}");
        }
    }

    #[test]
    fn a_pair_of_values_is_compared_once() {
        let schema = Schema::compile(&json!({"type": "integer"})).expect("it is shallow");
        let (one, two) = (Value::Int(1), Value::Int(2));
        let answer = Cell::new(None);
        let pair = |new, old| Pair {
            new,
            old,
            schema: &schema,
            answer: &answer,
        };
        assert!(pair(&one, &one).is_unchanged());
        assert_eq!(answer.get(), Some(true));
        // It remembers, and does not look again.
        assert!(pair(&one, &two).is_unchanged());
    }

    #[test]
    fn items_without_counterparts_share_the_answer_of_their_list() {
        let schema = list_with("self < 0", "negative");
        let same = numbers(3);
        let found = of(&schema, &same, Some(&same));
        assert_eq!((found.errors.len(), found.warnings.len()), (0, 3));
        let found = of(&schema, &numbers(4), Some(&same));
        assert_eq!((found.errors.len(), found.warnings.len()), (4, 0));
    }
}
