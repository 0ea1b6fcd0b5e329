//! Compiles an expression as upstream's callers do, with the texts that they put in front of complaints.

use crate::ast::{Ast, Expr, Literal};
use crate::budget::WorkBudget;
use crate::check::{Checked, check};
use crate::environment::Environment;
use crate::library::Context;
use crate::parse::{parse, parse_counted};
use crate::pattern;
use crate::plan::{CONVERSIONS, Constant};
use crate::source::Issues;

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
                        let run = environment.function(name).and_then(|(_, found)| found.run);
                        let fault = run.and_then(|run| run(context, &mut [value]).err());
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
