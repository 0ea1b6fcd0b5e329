//! Answers as HTTP, whether this replica or another one made them.
//!
//! `respond` chooses status, headers and media type, `negotiate` reads which media types the client
//! accepts, `warnings` writes `Warning` headers, `body` streams the answer, `inflated` one that is kept
//! compressed, `forwarded` one of another replica, and `guard` drops a body that its client does not read. `finish` counts each reply and adds the headers that all
//! replies have; `browsers` adds those that only browsers want.

pub(crate) mod body;
pub(crate) mod browsers;
pub(crate) mod finish;
pub(crate) mod forwarded;
pub(crate) mod guard;
pub(crate) mod inflated;
pub(crate) mod negotiate;
pub(crate) mod respond;
pub(crate) mod warnings;
