//! Compiles an expression as upstream's callers do, with the texts that they put in front of complaints.

use crate::ast::{Ast, Expr, Literal};
use crate::budget::WorkBudget;
use crate::check::{Checked, check};
use crate::environment::{Environment, Function};
use crate::library::Context;
use crate::parse::{parse, parse_counted};
use crate::pattern;
use crate::plan::{CONVERSIONS, Constant};
use crate::refusal::refuse_types;
use crate::source::Issues;
use crate::value::{Fault, Value};

/// Parses an expression and checks its types. Look at its result first and then at
/// [`Checked::check_constants`], as upstream does.
///
/// # Errors
/// Returns upstream's text, with all complaints.
pub fn compile(text: &str, environment: &Environment) -> Result<Checked, String> {
    checked(parse(text, &environment.syntax), environment)
}

/// Units of work of a node of an expression, from its text to the estimate of its cost.
const NODE_WORK: u64 = 300;

/// Like [`compile`], with a budget that other expressions share.
///
/// # Errors
/// Returns upstream's text, with all complaints, or that the budget is spent.
pub fn compile_within(
    text: &str,
    environment: &Environment,
    budget: &WorkBudget,
) -> Result<Checked, String> {
    let (parsed, nodes) = parse_counted(text, &environment.syntax);
    let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
    let taken = budget.read(text.len());
    taken
        .and_then(|()| budget.work(NODE_WORK.saturating_mul(nodes)))
        .map_err(|spent| spent.to_string())?;
    checked(parsed, environment)
}

fn checked(parsed: Result<Ast, Issues>, environment: &Environment) -> Result<Checked, String> {
    let checked = parsed.and_then(|ast| check(ast, environment));
    checked.map_err(|issues| format!("compilation failed: {issues}"))
}

impl Checked {
    /// Checks what is constant: patterns that are searched for, and values that are converted. Patterns of
    /// `matches` are checked with the types.
    ///
    /// # Errors
    /// Returns upstream's text about the first constant that is wrong, also where it would never be needed.
    pub fn check_constants(&self, environment: &Environment) -> Result<(), String> {
        let ast = self.ast();
        let budget = WorkBudget::default();
        let context = Context {
            environment,
            budget: &budget,
            accumulates: false,
        };
        let mut open = vec![ast.root()];
        while let Some(id) = open.pop() {
            if let Some(name) = self.undefined(id) {
                let why = format!("reference to undefined type: {name}");
                return Err(format!("program instantiation failed: {why}"));
            }
            if let Expr::Call { function, args, .. } = ast.expr(id)
                && let [first, ..] = &args[..]
                && let Expr::Literal(literal) = ast.expr(*first)
            {
                let wrong = match (&**function, literal) {
                    ("find" | "findAll", Literal::String(pattern)) => {
                        let refused = pattern::check(pattern).err();
                        refused.map(|why| format!("error parsing regexp: {why}"))
                    }
                    (name, literal) if args.len() == 1 && CONVERSIONS.contains(&name) => {
                        let value = Constant::Literal(literal.clone()).owned();
                        let found = environment.function(name).map(|(_, found)| found);
                        let fault = found.and_then(|found| refused(name, found, context, value));
                        fault.map(|fault| fault.to_string())
                    }
                    _ => None,
                };
                if let Some(why) = wrong {
                    return Err(format!("program instantiation failed: {why}"));
                }
            }
            open.extend(ast.children(id));
        }
        Ok(())
    }
}

/// Returns why a function does not convert a constant.
fn refused(
    name: &str,
    function: &Function,
    context: Context<'_>,
    constant: Value<'static>,
) -> Option<Fault> {
    let mut args = [constant];
    let types = refuse_types(name, &function.overloads, &args);
    types.or_else(|| function.run.and_then(|run| run(context, &mut args).err()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Type;

    /// Returns what is wrong with an expression about `self`, whose type is that of strings.
    fn complaint(text: &str) -> Option<String> {
        let mut environment = Environment::kubernetes();
        environment.name_schema_types();
        environment.declare("self", Type::String);
        let checked = compile(text, &environment);
        let constants = checked.and_then(|checked| checked.check_constants(&environment));
        constants.err()
    }

    #[test]
    fn a_constant_that_no_overload_converts_is_refused_by_its_type() {
        let why = "program instantiation failed: no such overload: string(null_type)";
        assert_eq!(complaint("string(null).size() == 0").as_deref(), Some(why));
        assert_eq!(
            complaint("string(1) == dyn(null) || type('a') == string"),
            None
        );
    }

    #[test]
    fn names_of_types_that_only_schemas_know_have_a_type_and_no_value() {
        let why = "program instantiation failed: reference to undefined type: timestamp";
        let refused = complaint("type(self) == timestamp");
        assert_eq!(refused.as_deref(), Some(why));
        assert_eq!(complaint("[1].all(timestamp, timestamp > 0)"), None);
        assert_eq!(complaint("timestamp(self) > timestamp(self)"), None);
        let unknown = complaint("type(self) == quantity").expect("it is not declared");
        assert!(
            unknown.contains("undeclared reference to 'quantity'"),
            "{unknown}"
        );
        // What is wrong elsewhere is the only complaint.
        let calls = complaint("type(1, self) == timestamp").expect("there is no such overload");
        assert!(calls.contains("no matching overload for 'type'"), "{calls}");
        assert!(!calls.contains("undeclared"), "{calls}");
    }

    #[test]
    fn a_type_that_claims_all_fields_takes_values_of_no_known_type() {
        let mut environment = Environment::kubernetes();
        environment.declare_struct("Patch", [("op", Type::String)]);
        environment.claim_fields("Patch");
        let refusal = |text: &str| compile(text, &environment).err();
        assert_eq!(refusal("Patch{op: 'a', other: dyn(1)}"), None);
        let refused = refusal("Patch{other: 'a'}").expect("it fits nothing");
        let why = "expected type of field 'other' is '' but provided type is 'string'";
        assert!(refused.contains(why), "{refused}");
        let unknown = refusal("Patch{op: 'a'}.other == 1").expect("there is no such field");
        assert!(unknown.contains("undefined field 'other'"), "{unknown}");
    }

    #[test]
    fn fields_of_the_types_of_libraries_are_not_found() {
        for (text, of) in [
            ("url(self).host == 'a'", "kubernetes.URL"),
            ("has(quantity(self).sign)", "kubernetes.Quantity"),
        ] {
            let refused = complaint(text).expect("there is no such field");
            let why = format!("unexpected failed resolution of '{of}'");
            assert!(refused.contains(&why), "{refused}");
        }
        let opaque = complaint("ip(self).family == 4").expect("there is no such field");
        assert!(
            opaque.contains("does not support field selection"),
            "{opaque}"
        );
    }
}
