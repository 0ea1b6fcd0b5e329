//! The path of a write, from its preparation to its acknowledgement.
//!
//! [`claim`] has the form in which a caller submits a write, [`key_queue`] orders callers that want
//! the same key, [`queueing`] packs bodies and refuses what is too large, [`sequencer`] checks the
//! claims and queues the write, [`committer`] sends the queues of many planes in one transaction,
//! which [`ready`] divides between them, [`settle`] publishes and answers. [`prober`] finds out
//! when a store that refuses writes accepts them again. [`external`] and [`follow`] publish the
//! keys that other replicas write into the plane.

pub(crate) mod committer;
pub(crate) mod delete_range;
pub mod external;
pub(crate) mod follow;
pub(crate) mod key_queue;
pub(crate) mod prepared_write;
pub(crate) mod prober;
pub(crate) mod queueing;
pub(crate) mod ready;
pub(crate) mod sequencer;
pub(crate) mod settle;
