//! The deadline of a request: 504 if the answer has not begun by then.

use std::time::Duration;

use futures_util::FutureExt as _;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::{DurationError, parse_duration};
use polyplane_registry::request::parameters::TIMEOUT;

use crate::answer::respond::{Refusal, Reply};
use crate::pipeline::Pipeline;
use crate::request::caller::Origin;
use crate::request::request_info::RequestInfo;

impl Pipeline<'_> {
    /// Returns the time by which the answer has to begin. The rest of a watch has no deadline.
    pub(crate) fn deadline(&self) -> Result<tokio::time::Instant, Refusal> {
        let start = tokio::time::Instant::from_std(self.started);
        let longest = match self.caller.origin {
            Origin::Peer {
                time_left: Some(left),
                ..
            } => left.min(self.state.limits.request_time_max),
            Origin::Peer {
                time_left: None, ..
            }
            | Origin::Client => self.state.limits.request_time_max,
        };
        if let RequestInfo::Resource(info) = self.info
            && info.is_long_running()
        {
            // Upstream ignores `timeout` for these requests.
            return Ok(start + longest);
        }
        let time = match TIMEOUT.read(self.query) {
            "" => longest,
            text => {
                let requested = parse_timeout(text).map_err(|why| {
                    let message = format!("invalid timeout specified in the request URL - {why}");
                    ApiError::bad_request(message)
                })?;
                if requested.is_zero() {
                    longest
                } else {
                    requested.min(longest)
                }
            }
        };
        Ok(start + time)
    }
}

/// Waits for the head of the answer, at most until the deadline.
pub(crate) fn within(
    deadline: tokio::time::Instant,
    work: impl Future<Output = Result<Reply, Refusal>>,
) -> impl Future<Output = Result<Reply, Refusal>> {
    // No async block, which would need the memory of `work` twice.
    tokio::time::timeout_at(deadline, work).map(|done| {
        done.unwrap_or_else(|_| {
            let message = "request did not complete within the allotted timeout";
            Err(ApiError::timeout(message, 0).into())
        })
    })
}

/// Parses a duration in Go's notation, `1m30s`. A negative one counts as zero, which means no
/// time-out.
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
