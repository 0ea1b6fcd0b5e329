//! A bound on the lines of the log about what clients, or a lack of resources, can repeat at any rate.

use std::time::Duration;

use tokio::time::Instant;

/// Pause between two lines about one matter. With less, a process that is out of file descriptors would
/// fill its log at twenty lines a second, and a stranger at any rate.
const PAUSE: Duration = Duration::from_secs(60);

/// Lets a matter be logged once a minute.
#[derive(Debug, Default)]
pub struct LogPause(Option<Instant>);

impl LogPause {
    /// Returns whether the matter is to be logged. If it is, the next line comes after the pause.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if self.0.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return false;
        }
        self.0 = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_logged_once_a_minute() {
        let (mut logged, began) = (LogPause::default(), Instant::now());
        let due = [0, 1, 59, 60, 61].map(|second| {
            let now = began + Duration::from_secs(second);
            logged.is_due(now)
        });
        assert_eq!(due, [true, false, false, true, false]);
    }
}
