//! The Common Expression Language as Kubernetes 1.37 uses it.
//!
//! [`parse`](fn@parse) makes an [`Ast`] of a text, [`check`](fn@check) finds its types in an
//! [`Environment`], [`compile`](fn@compile) does both, [`Program`] evaluates it on [`Value`]s that borrow the caller's trees, counts
//! the cost as upstream does and stops beyond a budget, of cost or of the work that it really is ([`WorkBudget`]); [`estimate`](fn@estimate) bounds that cost
//! before. An evaluation that lacks an answer of the authorizer stops with [`Fault::Need`]; the caller
//! asks and evaluates again. [`print`](fn@print) writes a tree back. The texts of
//! errors are those of upstream's compiler, because clients see them.
//!
//! Invariant: everything here is a pure function of its arguments. Nothing does I/O, reads a clock,
//! panics on any input, or recurses without a limit: the parser's is [`Syntax::depth_max`], and a tree has
//! some thousand levels at most. The crate depends on
//! `strconv` alone of the workspace and does not know what an object is.

mod ast;
mod budget;
mod check;
mod compile;
mod cost;
mod environment;
mod estimate;
mod eval;
mod format;
mod library;
mod limits;
mod parse;
mod pattern;
mod plan;
mod print;
mod refusal;
mod source;
mod time;
mod types;
mod value;

pub use ast::{Ast, Comprehension, Entry, Expr, ExprId, Field, Literal};
pub use budget::{TooMuchWork, WorkBudget};
pub use check::{Checked, check};
pub use compile::{compile, compile_within};
pub use environment::{Environment, Overload};
pub use estimate::{Range, Sizes, estimate};
pub use eval::Evaluated;
pub use library::{
    Context, Decision, Decisions, Library, Question, Run, authorizer, is_request_uri,
    resource_authorizer,
};
pub use parse::{Macros, RESERVED, Syntax, is_reserved, parse};
pub use pattern::{
    Engine as PatternEngine, Failed as SearchFailed, Pattern, Refused, check as check_pattern,
    compile as compile_pattern, translate as translate_pattern,
};
pub use plan::Program;
pub use print::print;
pub use source::{Issue, Issues, Source};
pub use time::{Civil, Timestamp};
pub use types::Type;
pub use value::{
    Blob, Elements, Fault, Fields, Key, List, Map, Node, Opaque, Outcome, Relation, Text, Value,
};
