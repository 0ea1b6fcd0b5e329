//! Compiles an expression as upstream's callers do, with the texts that they put in front of complaints.

use crate::ast::{Expr, Literal};
use crate::check::{Checked, check};
use crate::environment::Environment;
use crate::parse::parse;
use crate::pattern::compile as compile_pattern;

/// Parses an expression and checks its types. Look at its result first and then at
/// [`Checked::check_patterns`], as upstream does.
///
/// # Errors
/// Returns upstream's text, with all complaints.
pub fn compile(text: &str, environment: &Environment) -> Result<Checked, String> {
    let checked = parse(text, &environment.syntax).and_then(|ast| check(ast, environment));
    checked.map_err(|issues| format!("compilation failed: {issues}"))
}

impl Checked {
    /// Checks the constant patterns that are searched for. Those of `matches` are checked with the types.
    ///
    /// # Errors
    /// Returns upstream's text about a pattern that cannot be read.
    pub fn check_patterns(&self) -> Result<(), String> {
        let ast = self.ast();
        let mut open = vec![ast.root()];
        while let Some(id) = open.pop() {
            if let Expr::Call { function, args, .. } = ast.expr(id)
                && matches!(&**function, "find" | "findAll")
                && let Some(pattern) = args.first()
                && let Expr::Literal(Literal::String(pattern)) = ast.expr(*pattern)
                && let Err(why) = compile_pattern(pattern)
            {
                return Err(format!(
                    "program instantiation failed: error parsing regexp: {why}"
                ));
            }
            open.extend(ast.children(id));
        }
        Ok(())
    }
}
