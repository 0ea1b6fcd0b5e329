//! What a request may take of the server: how long, and a seat among the requests in flight.

use std::sync::Arc;
use std::time::Duration;

use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::{DurationError, parse_duration};
use polyplane_registry::Verb;
use polyplane_registry::request::parameters::TIMEOUT;

use crate::answer::respond::Refusal;
use crate::pipeline::{Origin, Pipeline};
use crate::request::limits::{Seat, Seats, too_many};
use crate::request::request_info::{RequestInfo, ResourceInfo};
use crate::server_state::ServerState;

impl Pipeline<'_> {
    /// When the answer is of no use any more unless it has begun. A watch goes on for as long as
    /// its source does, but has to begin like everything else.
    pub(crate) fn deadline(&self) -> Result<tokio::time::Instant, Refusal> {
        let start = tokio::time::Instant::from_std(self.started);
        let longest = match self.caller.origin {
            Origin::Peer {
                time_left: Some(left),
            } => left.min(self.state.limits.request_time_max),
            Origin::Peer { time_left: None } | Origin::Client => self.state.limits.request_time_max,
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
                let asked = parse_timeout(text).map_err(|why| {
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
            ServerState::count(&self.state.metrics.rejected);
            too_many().into()
        })
    }

    /// The seats of which the request takes one; long-running ones and health need none.
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

/// A duration in Go's notation, `1m30s`. A negative one is zero, which stands for no time-out.
fn parse_timeout(text: &str) -> Result<Duration, DurationError> {
    let nanoseconds = parse_duration(text)?;
    Ok(Duration::from_nanos(
        u64::try_from(nanoseconds).unwrap_or(0),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_go_reads_them() {
        let good = [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("100ms", 100),
            ("0", 0),
            ("-5s", 0),
            ("+2s", 2000),
            (".5s", 500),
        ];
        for (text, millis) in good {
            assert_eq!(
                parse_timeout(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        let bad = [
            ("abc", r#"time: invalid duration "abc""#),
            ("", r#"time: invalid duration """#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5x", r#"time: unknown unit "x" in duration "5x""#),
            ("-", r#"time: invalid duration "-""#),
            ("99999999999h", r#"time: invalid duration "99999999999h""#),
        ];
        for (text, error) in bad {
            assert_eq!(
                parse_timeout(text).map_err(|error| error.to_string()),
                Err(error.to_owned()),
                "{text}"
            );
        }
    }
}
