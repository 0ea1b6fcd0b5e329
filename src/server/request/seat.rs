//! Seats limit the number of requests in flight. A request that finds none gets 429.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use polyplane_apimachinery::status::ApiError;
use polyplane_registry::Verb;

use crate::answer::respond::Refusal;
use crate::pipeline::Pipeline;
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::server_state::ServerState;

/// Limits how many requests, or connections, there are at a time.
#[derive(Debug)]
pub(crate) struct Seats {
    taken: AtomicUsize,
    seats_max: usize,
    /// The number of requests that released their seat while they wait for others, such as
    /// webhooks. It is limited too.
    waiting: AtomicUsize,
}

/// One seat; released when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
}

impl Seats {
    pub(crate) fn new(seats_max: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            seats_max,
            waiting: AtomicUsize::new(0),
        })
    }

    /// Takes a seat, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Seat> {
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Seat {
            seats: Arc::clone(self),
        })
    }

    /// Takes a seat, even above the limit.
    pub(crate) fn take_anyway(self: &Arc<Self>) -> Seat {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Seat {
            seats: Arc::clone(self),
        }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl polyplane_registry::Seats for Seats {
    fn leave(&self) -> Result<(), ApiError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.seats_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many());
        }
        self.taken.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn return_to(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the refusal of a request for which there is no seat.
pub(crate) fn too_many() -> ApiError {
    ApiError::too_many_requests("Too many requests, please try again later.", 1)
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pipeline<'_> {
    /// Takes a seat, if the request needs one.
    pub(crate) fn take_seat(&self) -> Result<Option<Seat>, Refusal> {
        let Some(seats) = self.seats() else {
            return Ok(None);
        };
        seats.take().map(Some).ok_or_else(|| {
            ServerState::count(&self.state.metrics.rejected);
            too_many().into()
        })
    }

    /// Returns the seats of which the request takes one. Long-running requests and paths such as
    /// health take none: the former would hold a seat for hours, the latter must be answered by a
    /// full server.
    pub(crate) fn seats(&self) -> Option<&Arc<Seats>> {
        match self.info {
            RequestInfo::Path(_) => None,
            RequestInfo::Resource(info) if info.is_long_running() => None,
            RequestInfo::Resource(ResourceInfo { verb, .. }) => Some(match verb {
                Some(Verb::Get | Verb::List | Verb::Watch) => &self.state.metrics.reads,
                _ => &self.state.metrics.writes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_for_others_leaves_its_seat_to_one_more() {
        use polyplane_registry::Seats as _;

        let seats = Seats::new(1);
        let waiter = seats.take().expect("it is free");
        assert!(seats.take().is_none());
        seats.leave().expect("nobody waits yet");
        let asked = seats.take().expect("the waiter has left it");
        assert!(seats.leave().is_err(), "as many may wait as may sit");
        drop(asked);
        seats.return_to();
        assert_eq!(seats.taken(), 1);
        drop(waiter);
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn seats_are_given_back() {
        let seats = Seats::new(1);
        let first = seats.take();
        assert!(first.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
        assert_eq!(seats.taken(), 0);
    }
}
