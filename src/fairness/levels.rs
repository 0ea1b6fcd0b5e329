//! Priority levels: how the requests of one plane share the plane's seats.
//!
//! A plane has a number of seats. Its [`Levels`] divide them by shares; a level lends a part of its
//! seats to others while it does not need them. A level without a free seat refuses a request, or puts it
//! into one of its queues. [`Dispatcher`] has the state of one plane and exists only while the plane has
//! requests in flight: it has no timer, and what a level may borrow is computed when a request comes or
//! goes.
//!
//! Inside a level queues are fair by seats and time: a queue that has had more than the others waits.
//! Each flow is dealt a few of the queues, its hand, and joins the shortest of them, so that a flow
//! that floods fills its own hand and two flows rarely have the same.

mod dispatcher;
mod dump;
mod hand;
mod level;
mod queues;
mod retry_after;

pub use dispatcher::{Arrival, Dispatcher, Left, Rejection, RejectionReason, Ticket};
pub use dump::{LevelUse, QueueUse, RequestView};
pub use level::{Level, LevelKind, Levels, Queueing, SeatLimits};

#[cfg(test)]
mod tests;
