//! The events of a plane, and the watchers and lists that read them.
//!
//! [`log`] keeps the newest [`event`]s in one [`hub`] per resource and bounds them in time and
//! bytes; [`pinned`] and [`frames`] weigh what they keep in memory. [`watch`] has the cursors of
//! watchers. [`past`] answers from older versions, and [`from_store`] reads back what the log does
//! not have. [`expired_cause`] has the causes of every 410.

pub(crate) mod event;
pub(crate) mod expired_cause;
pub(crate) mod frames;
pub(crate) mod from_store;
pub(crate) mod hub;
pub(crate) mod log;
pub(crate) mod past;
pub(crate) mod pinned;
pub(crate) mod replaced;
pub(crate) mod watch;
