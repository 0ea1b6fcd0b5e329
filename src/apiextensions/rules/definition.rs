//! The check of the rules of a definition: they compile, and cannot cost too much.

use super::declaration::{Declaration, REQUEST_BYTES_MAX, escape, type_name};
use super::{Compiler, DEPTH_MAX, SELF_TYPE, cost_of, count_schemas, has_rules, uses_old};
use crate::complaints;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Map, Str, Value, json};
use polyplane_cel::{Type, WorkBudget};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The greatest estimated cost of one expression.
const EXPRESSION_COST_MAX: u64 = 10_000_000;
/// The greatest estimated cost of all expressions of a schema.
const SCHEMA_COST_MAX: u64 = 100_000_000;
/// The number of expressions that are blamed for the cost of a schema.
const BLAMED_MAX: usize = 4;
/// Units of work for a schema that is declared apart. Its declaration also takes memory until the check ends.
const DECLARATION_WORK: u64 = 2_000;
/// What is said of a schema that was not checked to its end.
pub(crate) const TOO_MUCH_WORK: &str = "the validation rules and defaults of this definition take too much work to check, so not all of them were checked: use fewer and shorter ones, or divide the kind into several definitions";
/// What is said of a schema about whose rules there is too much to say.
const TOO_MANY_ERRORS: &str = "there are too many complaints about the validation rules of this schema, so not all of them were checked: correct these and try again";

/// What estimated costs of expressions are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The limit of one expression, and that of the schema.
    EachRule,
    /// Only the limit of the schema, for one that is stored already.
    Schema,
}

/// The expressions of a stored definition. They may use functions that servers of the release before do not know.
#[derive(Clone, Debug, Default)]
pub struct StoredExpressions {
    rules: BTreeSet<Str>,
    messages: BTreeSet<Str>,
}

impl StoredExpressions {
    /// Adds the expressions of a schema, without those below it.
    pub fn add(&mut self, schema: &Value) {
        for rule in schema.items_at(&["x-kubernetes-validations"]) {
            self.rules.insert(rule.str_at(&["rule"]).into());
            let message = rule.str_at(&["messageExpression"]);
            self.messages.insert(message.into());
        }
    }
}

/// Returns the complaints about the rules of a structural schema. Those are left out that would be
/// blamed for what is wrong with the schema: `unsound` names the fields of other complaints.
/// `stored` are the expressions of the stored definition, `budget` is that of the new one.
pub fn validate(
    schema: &Value,
    path: &Path<'_>,
    unsound: &[String],
    (charge, stored): (Charge, &StoredExpressions),
    budget: &WorkBudget,
) -> Complaints {
    if !has_rules(schema, 0) {
        return Complaints::default();
    }
    let Some(declaration) = Declaration::of(schema, true, SELF_TYPE) else {
        return Complaints::default();
    };
    let mut unsound: Vec<&str> = unsound.iter().map(String::as_str).collect();
    unsound.sort_unstable();
    let mut walk = Walk {
        compiler: Compiler::new(Some(budget)),
        budget,
        errors: Complaints::default(),
        unsound: &unsound,
        charge,
        stored,
        total: 0,
        expensive: Vec::new(),
    };
    declaration.declare(&mut walk.compiler.environment);
    let root = Place {
        cardinality: Some(1),
        uncorrelatable: None,
        depth: 0,
    };
    walk.node(schema, &declaration, &root, path);
    // In front: an answer that is full ends before its last complaint.
    if budget.is_spent() {
        let error = FieldError::forbidden(path, TOO_MUCH_WORK);
        walk.errors.push_front(error);
    } else if walk.errors.is_full() {
        let error = FieldError::forbidden(path, TOO_MANY_ERRORS);
        walk.errors.push_front(error);
    }
    if walk.total > SCHEMA_COST_MAX {
        for (_, field) in &walk.expensive {
            let text = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            walk.errors.push(FieldError {
                field: field.clone(),
                ..FieldError::forbidden(&Path::NIL, text)
            });
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let text = beyond(what, walk.total, SCHEMA_COST_MAX);
        walk.errors.push(FieldError::forbidden(path, text));
    }
    walk.errors
}

struct Walk<'a> {
    compiler: Compiler<'a>,
    /// What the check may still take.
    budget: &'a WorkBudget,
    /// The fields of other complaints, sorted.
    unsound: &'a [&'a str],
    charge: Charge,
    stored: &'a StoredExpressions,
    /// Each shows its expression and its place.
    errors: Complaints,
    total: u64,
    /// The most expensive expressions, with their fields.
    expensive: Vec<(u64, String)>,
}

/// What a position has from the ones around it.
#[derive(Clone)]
struct Place {
    /// How many values there can be at the position; `None` if nothing limits them.
    cardinality: Option<u64>,
    /// The list or map around the position whose parts have no counterpart in an older one.
    uncorrelatable: Option<Arc<str>>,
    depth: usize,
}

impl Place {
    /// Returns the place of what is below a schema.
    fn below(&self, schema: &Value) -> Self {
        let limit = |name: &str| {
            let limit = schema.int_at(&[name])?;
            u64::try_from(limit.max(0)).ok()
        };
        let factor = match schema.str_at(&["type"]) {
            "object" if schema.get("additionalProperties").is_some() => limit("maxProperties"),
            "array" => limit("maxItems"),
            _ => Some(1),
        };
        let cardinality = self.cardinality.zip(factor);
        Self {
            cardinality: cardinality
                .map(|(cardinality, factor)| cardinality.saturating_mul(factor)),
            uncorrelatable: self.uncorrelatable.clone(),
            depth: self.depth + 1,
        }
    }
}

impl Walk<'_> {
    fn node(&mut self, schema: &Value, declaration: &Declaration, place: &Place, path: &Path<'_>) {
        if place.depth > DEPTH_MAX || self.ends() {
            return;
        }
        let below = place.below(schema);
        if let (values @ Value::Object(_), Some(of)) =
            (&schema["additionalProperties"], declaration.element())
        {
            self.node(values, of, &below, &path.child("additionalProperties"));
        }
        let mut inner = below.clone();
        let map = schema["x-kubernetes-map-type"].as_str();
        if map.is_some_and(|map| !matches!(map, "granular" | "atomic")) {
            inner
                .uncorrelatable
                .get_or_insert_with(|| shown(path).into());
        }
        let properties = schema["properties"].as_object().into_iter();
        for (at, (name, property)) in properties.flat_map(Map::iter).enumerate() {
            let properties = path.child("properties");
            let step = complaints::step(name);
            let path = properties.key(&step);
            let known = escape(name).and_then(|_| declaration.property(name));
            if let Some(of) = known {
                self.node(property, of, &inner, &path);
            } else if has_rules(property, 0) {
                let declared = count_schemas(property, 0) as u64;
                let work = DECLARATION_WORK.saturating_mul(declared);
                if self.budget.work(work).is_err() {
                    return;
                }
                let embedded = property.bool_at(&["x-kubernetes-embedded-resource"]);
                let name = type_name(&format!("{SELF_TYPE}.{}", place.depth), name, at);
                if let Some(own) = Declaration::of(property, embedded, &name) {
                    own.declare(&mut self.compiler.environment);
                    self.node(property, &own, &inner, &path);
                }
            }
        }
        if let (items @ Value::Object(_), Some(of)) = (&schema["items"], declaration.element()) {
            let mut below = below;
            if schema.str_at(&["x-kubernetes-list-type"]) != "map" {
                below
                    .uncorrelatable
                    .get_or_insert_with(|| shown(path).into());
            }
            self.node(items, of, &below, &path.child("items"));
        }
        let rules = schema.items_at(&["x-kubernetes-validations"]);
        if rules.is_empty() || self.is_unsound(path) {
            return;
        }
        let list = path.child("x-kubernetes-validations");
        for (at, rule) in rules.iter().enumerate() {
            if self.ends() {
                return;
            }
            self.rule(rule, declaration, place, &list.index(at));
        }
    }

    /// Returns whether the check ends here, because it has taken or said too much.
    fn ends(&self) -> bool {
        self.budget.is_spent() || self.errors.is_full()
    }

    /// Returns whether there is another complaint about a field or what is below it.
    fn is_unsound(&self, path: &Path<'_>) -> bool {
        let own = path.to_string();
        // Below long names each path takes long to write; what is not looked at is not checked.
        if self.budget.read(own.len()).is_err() {
            return true;
        }
        let at = self.unsound.partition_point(|field| *field < own.as_str());
        let next = self.unsound.get(at);
        next.is_some_and(|field| field.starts_with(&own))
    }

    /// Complains about an expression of a rule.
    fn refuse(&mut self, path: &Path<'_>, rule: &Value, why: String) {
        let bad = Bad::Shown(shown_rule(rule).into());
        self.errors.push(FieldError::invalid(path, bad, why));
    }

    fn rule(&mut self, rule: &Value, declaration: &Declaration, place: &Place, path: &Path<'_>) {
        let text = rule.str_at(&["rule"]);
        if text.trim().is_empty() {
            return;
        }
        let estimate = self.compiler.estimate(rule, declaration, self.stored);
        if self.budget.is_spent() {
            // That is said once, of the whole schema.
            return;
        }
        match estimate.rule {
            Ok(cost) => {
                let times = place.cardinality.unwrap_or(estimate.times_max);
                let cost = cost.saturating_mul(times);
                self.charge("estimated rule cost", cost, &path.child("rule"));
            }
            Err(why) => self.refuse(&path.child("rule"), rule, why),
        }
        let message = path.child("messageExpression");
        match estimate.message {
            None => {}
            Some(Ok(cost)) => self.charge("estimated messageExpression cost", cost, &message),
            Some(Err(why)) => self.refuse(&message, rule, why),
        }
        if estimate.uses_old {
            if let Some(list) = &place.uncorrelatable {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                self.errors
                    .push(FieldError::invalid(&path.child("rule"), text, why));
            }
        } else if let Some(set) = rule.get("optionalOldSelf") {
            let why = "may not be set if oldSelf is not used in rule";
            let place = path.child("optionalOldSelf");
            self.errors
                .push(FieldError::invalid(&place, set.clone(), why));
        }
    }

    fn charge(&mut self, what: &str, cost: u64, path: &Path<'_>) {
        if self.charge == Charge::EachRule && cost > EXPRESSION_COST_MAX {
            let text = beyond(what, cost, EXPRESSION_COST_MAX);
            self.errors.push(FieldError::forbidden(path, text));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_COST_MAX / 100 {
            self.expensive.push((cost, shown(path)));
            self.expensive
                .sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.expensive.truncate(BLAMED_MAX);
        }
    }
}

/// What is known about a rule before it is ever evaluated.
#[derive(Debug)]
pub(crate) struct Estimate {
    /// The greatest cost of one evaluation, or why it cannot be compiled.
    pub rule: Result<u64, String>,
    /// The same of the expression that makes the message, if the rule has one.
    pub message: Option<Result<u64, String>>,
    /// Whether it uses the old value.
    pub uses_old: bool,
    /// How many values there can be where nothing limits them.
    pub times_max: u64,
}

impl Compiler<'_> {
    fn estimate(
        &mut self,
        rule: &Value,
        declaration: &Declaration,
        stored: &StoredExpressions,
    ) -> Estimate {
        self.declare(declaration, rule.bool_at(&["optionalOldSelf"]));
        let least = u64::try_from(declaration.min_bytes.max(0) + 1).unwrap_or(1);
        let text = rule.str_at(&["rule"]);
        self.environment.admit_latest(stored.rules.contains(text));
        let compiled = self.expression(text, &Type::Bool);
        let message = match rule.str_at(&["messageExpression"]) {
            "" => None,
            _ if compiled.is_err() => None,
            text => {
                let admits = stored.messages.contains(text);
                self.environment.admit_latest(admits);
                Some(self.expression(text, &Type::String))
            }
        };
        let message = message.map(|message| {
            let cost = message.map(|message| cost_of(&message, declaration));
            cost.map_err(|refused| {
                // Upstream names the expression in place of the program.
                let why = refused.why.trim_start_matches("program ");
                format!("messageExpression {why}")
            })
        });
        Estimate {
            uses_old: match &compiled {
                Ok(rule) => uses_old(&rule.checked),
                Err(refused) => refused.uses_old,
            },
            rule: compiled
                .map(|rule| cost_of(&rule, declaration))
                .map_err(|refused| refused.why),
            message,
            times_max: u64::try_from(REQUEST_BYTES_MAX).unwrap_or(0) / least,
        }
    }
}

/// Returns what is known about the rules of a schema, without those below it.
#[cfg(test)]
pub(crate) fn estimates(schema: &Value, is_root: bool) -> Vec<Estimate> {
    let Some(declaration) = Declaration::of(schema, is_root, SELF_TYPE) else {
        return Vec::new();
    };
    let mut compiler = Compiler::new(None);
    declaration.declare(&mut compiler.environment);
    let rules = schema.items_at(&["x-kubernetes-validations"]).iter();
    rules
        .map(|rule| match rule.str_at(&["rule"]).trim() {
            "" => Estimate {
                rule: Ok(0),
                message: None,
                uses_old: false,
                times_max: 0,
            },
            _ => compiler.estimate(rule, &declaration, &StoredExpressions::default()),
        })
        .collect()
}

/// Returns a rule as upstream's internal type shows it in JSON.
pub fn shown_rule(rule: &Value) -> String {
    let text = |name: &str| json::to_string(&Value::string(rule.str_at(&[name])));
    let or_null = |name: &str| rule.get(name).map_or("null".to_owned(), json::to_string);
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        or_null("reason"),
        text("fieldPath"),
        or_null("optionalOldSelf")
    )
}

/// Returns a path as complaints show it.
fn shown(path: &Path<'_>) -> String {
    complaints::path(path.to_string())
}

/// Returns upstream's text about a cost beyond a limit.
fn beyond(what: &str, cost: u64, max: u64) -> String {
    let factor = cost as f64 / max as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn complaints(schema: &Value) -> Vec<String> {
        let path = Path::new("schema");
        let found = validate(
            schema,
            &path,
            &[],
            (Charge::EachRule, &StoredExpressions::default()),
            &WorkBudget::for_definition(),
        );
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_old_value_of_a_rule_with_a_bad_constant_is_used() {
        let rule = |text: &str| {
            json!({
                "type": "string",
                "maxLength": 10i64,
                "x-kubernetes-validations": [{"rule": text, "optionalOldSelf": true}]
            })
        };
        let bad = complaints(&rule("self.find('(') == '' || oldSelf.hasValue()"));
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].contains("program instantiation failed"), "{bad:?}");
        let unused = complaints(&rule("self.find('(') == ''"));
        assert_eq!(unused.len(), 2, "{unused:?}");
    }

    #[test]
    fn a_message_expression_with_a_bad_constant_is_named_in_place_of_the_program() {
        let bad = complaints(&json!({
            "type": "string",
            "maxLength": 10i64,
            "x-kubernetes-validations": [{"rule": "true", "messageExpression": "self.find('(')"}]
        }));
        let why = ": messageExpression instantiation failed: error parsing regexp";
        assert!(bad.iter().any(|text| text.contains(why)), "{bad:?}");
    }

    #[test]
    fn a_constant_index_that_nothing_has_an_element_for_is_refused() {
        let rules = json!([{"rule": "{0: 1}[dyn(b'')] == 1 || true"}]);
        let bad = complaints(&json!({"type": "object", "x-kubernetes-validations": rules}));
        let why = "program instantiation failed: invalid qualifier type: types.Bytes";
        assert!(bad.iter().any(|text| text.contains(why)), "{bad:?}");
    }

    fn object_with(rule: &str, count: usize) -> Value {
        let property = |at: usize| {
            let rules = json!([{"rule": rule}]);
            let schema = json!({"type": "integer", "x-kubernetes-validations": rules});
            (format!("p{at}"), schema)
        };
        let mut schema = json!({"type": "object"});
        for (name, property) in (0..count).map(property) {
            schema.set(&["properties", name.as_str()], property);
        }
        schema
    }

    #[test]
    fn rules_that_would_take_minutes_to_check_end_with_one_complaint() {
        // Each copies what is before it.
        let chain = format!("optional.of(self){}.hasValue()", ".optMap(x, x)".repeat(20));
        let found = complaints(&object_with(&chain, 1_000));
        assert!(found.len() < 30, "{}", found.len());
        let is_told: Vec<bool> = found
            .iter()
            .map(|text| text.contains("too much work"))
            .collect();
        assert_eq!(is_told.iter().filter(|told| **told).count(), 1);
        assert_eq!(is_told.first(), Some(&true));
    }

    #[test]
    fn many_ordinary_rules_are_checked_to_their_end() {
        let rule = "self > 0 && (!(self in [1, 2, 3]) || string(self).startsWith('1'))";
        assert!(complaints(&object_with(rule, 2_000)).is_empty());
    }

    #[test]
    fn complaints_about_rules_have_a_bound() {
        let long = format!("self == '{}'", "x".repeat(20_000));
        let found = complaints(&object_with(&long, 200));
        let bytes: usize = found.iter().map(String::len).sum();
        assert!(bytes < 3 << 20, "{bytes}");
        let is_told = found
            .iter()
            .any(|text| text.contains("too many complaints"));
        assert!(is_told, "{}", found.len());
    }

    #[test]
    fn long_names_do_not_multiply_in_the_complaints_about_rules() {
        let mut schema = object_with("unknown", 1_000);
        for letter in ["a", "b", "c"] {
            let name = letter.repeat(200_000);
            let mut above = json!({"type": "object"});
            above.set(&["properties", name.as_str()], schema);
            schema = above;
        }
        let found = complaints(&schema);
        let bytes: usize = found.iter().map(String::len).sum();
        assert!(found.len() > 1 && bytes < 3 << 20, "{bytes}");
    }

    #[test]
    fn names_of_types_in_complaints_are_short() {
        let rules = json!([{"rule": "self == 1"}]);
        let mut schema = json!({"type": "object", "x-kubernetes-validations": rules});
        let name = "n".repeat(1_000_000);
        let mut above = json!({"type": "object"});
        schema.set(&["properties", "x"], json!({"type": "string"}));
        above.set(&["properties", name.as_str()], schema);
        let found = complaints(&above);
        let longest = found.iter().map(String::len).max();
        assert!(
            longest.is_some_and(|longest| longest < 20_000),
            "{longest:?}"
        );
        assert!(
            found[0].contains("no matching overload for '_==_'"),
            "{found:?}"
        );
    }
}
