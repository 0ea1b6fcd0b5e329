//! Answers as HTTP, whoever made them.
//!
//! `respond` chooses status, headers and form, `negotiate` reads what the client takes, `warnings`
//! writes `Warning` headers, `body` streams what was answered, and `guard` drops a body that its
//! client does not read. `finish` counts each reply and adds the headers that all replies have.

pub(crate) mod body;
pub(crate) mod finish;
pub(crate) mod guard;
pub(crate) mod negotiate;
pub(crate) mod respond;
pub(crate) mod warnings;
