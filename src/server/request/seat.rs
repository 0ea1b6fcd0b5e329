//! Seats limit the number of requests in flight. A request that finds none gets 429, and so does one
//! of a plane that has taken so many that others would find none.

use std::sync::Arc;

use polyplane_fairness::InFlight;
use polyplane_registry::Verb;

use crate::answer::respond::Refusal;
use crate::backend::PlaneRecord;
use crate::pipeline::Pipeline;
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::request::seats::{Seat, Seats, too_many};
use crate::server_state::ServerState;

/// A seat, which also counts among those of its plane.
pub(crate) struct PlaneSeat {
    _seat: Seat,
    _of_plane: InFlight,
}

impl Pipeline<'_> {
    /// Takes a seat, if the request needs one.
    pub(crate) fn take_seat(&self, record: &dyn PlaneRecord) -> Result<Option<PlaneSeat>, Refusal> {
        let Some(seats) = self.seats() else {
            return Ok(None);
        };
        self.seat_among(seats, record).map(Some)
    }

    /// Takes one of these seats for a request to a plane.
    ///
    /// # Errors
    /// Returns 429 if no seat is free, or the plane has too many of them.
    pub(crate) fn seat_among(
        &self,
        seats: &Arc<Seats>,
        record: &dyn PlaneRecord,
    ) -> Result<PlaneSeat, Refusal> {
        let seat = seats.take().ok_or_else(|| {
            ServerState::count(&self.state.metrics.rejected);
            Refusal::from(too_many())
        })?;
        let of_plane = self.share_of(record.meter(), seats)?;
        Ok(PlaneSeat {
            _seat: seat,
            _of_plane: of_plane,
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
