//! Seats limit the number of requests in flight. A request that finds none gets 429.

use std::sync::Arc;

use polyplane_registry::Verb;

use crate::answer::respond::Refusal;
use crate::pipeline::Pipeline;
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::request::seats::{Seat, Seats, too_many};
use crate::server_state::ServerState;

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
