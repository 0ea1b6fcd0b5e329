//! The way of a write: from a prepared write to its acknowledgement.
//!
//! [`claim`] is what a caller hands in, [`key_queue`] orders callers that want the same key, [`sequencer`]
//! checks the claims and queues the write, [`committer`] sends the queues of many planes in one
//! transaction, [`settle`] publishes and answers. [`prober`] finds out when a store that refuses writes
//! takes them again. [`external`] and [`follow`] are about the keys that others write into the plane.

pub(crate) mod claim;
pub(crate) mod committer;
pub mod external;
pub(crate) mod follow;
pub(crate) mod key_queue;
pub(crate) mod prober;
pub(crate) mod sequencer;
pub(crate) mod settle;
