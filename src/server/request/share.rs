//! What a request may take of the server: how long, and a seat among the requests in flight.

use std::sync::Arc;

use polyplane_apimachinery::status::ApiError;
use polyplane_registry::Verb;
use polyplane_registry::parameters::TIMEOUT;

use crate::answer::respond::Refusal;
use crate::pipeline::{Origin, Pipeline};
use crate::request::limits::{Seat, Seats, parse_go_duration, too_many};
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::shared::Shared;

impl Pipeline<'_> {
    /// When the answer is of no use any more unless it has begun. A watch goes on for as long as
    /// its source does, but has to begin like everything else.
    pub(crate) fn deadline(&self) -> Result<tokio::time::Instant, Refusal> {
        let start = tokio::time::Instant::from_std(self.started);
        let longest = match self.caller.origin {
            Origin::Peer {
                time_left: Some(left),
            } => left.min(self.shared.limits.request_time_max),
            Origin::Peer { time_left: None } | Origin::Client => {
                self.shared.limits.request_time_max
            }
        };
        if let RequestInfo::Resource(info) = self.info
            && info.is_long_running()
        {
            // Upstream does not look at `timeout` here.
            return Ok(start + longest);
        }
        let time = match TIMEOUT.read(self.query) {
            "" => longest,
            text => {
                let asked = parse_go_duration(text).map_err(|why| {
                    let message = format!("invalid timeout specified in the request URL - {why}");
                    ApiError::bad_request(message)
                })?;
                if asked.is_zero() {
                    longest
                } else {
                    asked.min(longest)
                }
            }
        };
        Ok(start + time)
    }

    /// A seat among the requests in flight.
    pub(crate) fn take_seat(&self) -> Result<Option<Seat>, Refusal> {
        let Some(seats) = self.seats() else {
            return Ok(None);
        };
        seats.take().map(Some).ok_or_else(|| {
            Shared::count(&self.shared.metrics.rejected);
            too_many().into()
        })
    }

    /// The seats of which the request takes one; long-running ones and health need none.
    pub(crate) fn seats(&self) -> Option<&Arc<Seats>> {
        match self.info {
            RequestInfo::Path(_) => None,
            RequestInfo::Resource(info) if info.is_long_running() => None,
            RequestInfo::Resource(ResourceInfo { verb, .. }) => Some(match verb {
                Some(Verb::Get | Verb::List | Verb::Watch) => &self.shared.metrics.reads,
                _ => &self.shared.metrics.writes,
            }),
        }
    }
}
