//! The Common Expression Language as Kubernetes 1.37 uses it.
//!
//! Owns the language: [`parse`](fn@parse) makes an [`Ast`] of a text, [`print`](fn@print) writes it back.
//! The texts of errors are those of upstream's compiler, because clients see them.
//!
//! Invariant: everything here is a pure function of its arguments. Nothing does I/O, reads a clock,
//! panics on any input, or recurses deeper than [`Syntax::depth_max`] allows. The crate depends on no
//! other crate of the workspace and does not know what an object is.

mod ast;
mod parse;
mod print;
mod source;

pub use ast::{Ast, Comprehension, Entry, Expr, ExprId, Field, Literal};
pub use parse::{Macros, Syntax, parse};
pub use print::print;
pub use source::{Issue, Issues, Source};
