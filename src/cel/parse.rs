//! Parses an expression by upstream's grammar, limits and texts.
//!
//! Behind one token too many, or one that is missing, parsing goes on as upstream's does. Behind any
//! other syntax error it stops, where upstream often complains about what follows from that error.

mod grammar;
mod lex;
mod literal;
mod macros;

use std::collections::BTreeMap;

use crate::ast::{Ast, Expr, ExprId};
use crate::source::{Issue, Issues, Source};

/// Which macros there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Macros {
    /// `all`, `exists` and the like with two variables, `transformList`, `transformMap`.
    pub two_variables: bool,
    /// `optMap` and `optFlatMap`.
    pub optional: bool,
    /// `sortBy`.
    pub sort_by: bool,
    /// `cel.bind`.
    pub bind: bool,
    /// `math.least` and `math.greatest`.
    pub math: bool,
}

/// The names that nothing may have.
pub const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// The names that the grammar reads as values or as an operator.
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Returns whether an expression cannot have this as the name of a variable or of a field.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || WORDS.contains(&name)
}

/// Most levels of the tree of an expression. Balanced chains of `&&`, negations, lists and macros make more levels
/// than the text nests, and whatever walks the tree recurses once for each.
const TREE_DEPTH_MAX: usize = 1_100;

/// What the grammar accepts, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syntax {
    /// The macros beyond the standard ones.
    pub macros: Macros,
    /// Whether `a.?b`, `a[?b]` and `[?a]` are accepted.
    pub optionals: bool,
    /// Most characters of an expression.
    pub letters_max: usize,
    /// Most levels of nesting in the text. The parser recurses that deep.
    pub depth_max: usize,
}

impl Syntax {
    /// Returns the syntax of Kubernetes 1.37.
    #[must_use]
    pub const fn kubernetes() -> Self {
        Self {
            macros: Macros {
                two_variables: true,
                optional: true,
                sort_by: true,
                bind: false,
                math: false,
            },
            optionals: true,
            letters_max: 100_000,
            depth_max: 250,
        }
    }

    /// Returns the syntax with every macro that this crate knows.
    #[must_use]
    pub const fn full() -> Self {
        let mut syntax = Self::kubernetes();
        syntax.macros.bind = true;
        syntax.macros.math = true;
        syntax
    }
}

/// Parses an expression and expands its macros.
///
/// # Errors
/// Returns the complaints, each with its position.
pub fn parse(text: &str, syntax: &Syntax) -> Result<Ast, Issues> {
    parse_counted(text, syntax).0
}

/// Like [`parse`]. Also returns how many nodes the expression has with those that its macros make, even if there are
/// complaints about it.
pub(crate) fn parse_counted(text: &str, syntax: &Syntax) -> (Result<Ast, Issues>, usize) {
    let source = Source::new(text);
    if source.letters().len() > syntax.letters_max {
        let issue = Issue::whole(format!(
            "expression code point size exceeds limit: size: {}, limit {}",
            source.letters().len(),
            syntax.letters_max
        ));
        return (Err(Issues::new(source, vec![issue])), 0);
    }
    let (tokens, issues) = lex::tokens(source.letters());
    let mut builder = Builder {
        // The ids begin at 1, as upstream's do.
        nodes: vec![Expr::Unspecified],
        positions: vec![0],
        macro_calls: BTreeMap::new(),
        issues,
        macros: syntax.macros,
    };
    let root = grammar::parse(source.letters(), &tokens, syntax, &mut builder);
    let count = builder.nodes.len();
    if !builder.issues.is_empty() {
        return (Err(Issues::new(source, builder.issues)), count);
    }
    let made = Ast {
        source,
        nodes: builder.nodes,
        positions: builder.positions,
        root,
        macro_calls: builder.macro_calls,
    };
    if is_too_deep(&made) {
        let issue = Issue::whole("max recursion depth exceeded");
        return (Err(Issues::new(made.source, vec![issue])), count);
    }
    (Ok(made), count)
}

/// Returns whether a tree has more levels than what walks it may recurse. Does not recurse itself.
fn is_too_deep(ast: &Ast) -> bool {
    let mut open = vec![(ast.root, 1)];
    while let Some((id, depth)) = open.pop() {
        if depth > TREE_DEPTH_MAX {
            return true;
        }
        open.extend(ast.children(id).into_iter().map(|child| (child, depth + 1)));
    }
    false
}

/// The tree while it grows.
struct Builder {
    nodes: Vec<Expr>,
    positions: Vec<u32>,
    macro_calls: BTreeMap<ExprId, Expr>,
    issues: Vec<Issue>,
    macros: Macros,
}

impl Builder {
    /// Takes the next id for what begins at `at`.
    fn id(&mut self, at: usize) -> ExprId {
        let id = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(Expr::Unspecified);
        self.positions.push(u32::try_from(at).unwrap_or(u32::MAX));
        ExprId(id)
    }

    fn set(&mut self, id: ExprId, expr: Expr) -> ExprId {
        if let Some(node) = self.nodes.get_mut(id.index()) {
            *node = expr;
        }
        id
    }

    fn add(&mut self, at: usize, expr: Expr) -> ExprId {
        let id = self.id(at);
        self.set(id, expr)
    }

    fn expr(&self, id: ExprId) -> &Expr {
        self.nodes.get(id.index()).unwrap_or(&Expr::Unspecified)
    }

    fn position(&self, id: ExprId) -> usize {
        self.positions.get(id.index()).map_or(0, |at| *at as usize)
    }

    /// Reports a complaint and takes an id for what could not be parsed.
    fn complain(&mut self, at: usize, text: impl Into<String>) -> ExprId {
        self.issues.push(Issue::at(at, text));
        self.id(at)
    }

    fn call(&mut self, id: ExprId, function: &str, args: Vec<ExprId>) -> ExprId {
        self.call_or_macro(id, function, None, args)
    }

    fn call_or_macro(
        &mut self,
        id: ExprId,
        function: &str,
        target: Option<ExprId>,
        args: Vec<ExprId>,
    ) -> ExprId {
        match macros::expand(self, id, function, target, &args) {
            macros::Expanded::Into(made) => {
                let call = Expr::Call {
                    target,
                    function: function.into(),
                    args: args.into(),
                };
                self.macro_calls.insert(made, call);
                made
            }
            macros::Expanded::Failed(at, text) => self.complain(at, text),
            macros::Expanded::NoMacro => self.set(
                id,
                Expr::Call {
                    target,
                    function: function.into(),
                    args: args.into(),
                },
            ),
        }
    }
}
