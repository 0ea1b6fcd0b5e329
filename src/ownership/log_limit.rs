//! The pause between two lines of the log that say the same, so that a state which lasts does not
//! fill the log. Must not know what the lines say.

use polyplane_fencing::{Duration, Time};

/// The shortest time between two lines. With less, a replica that waits for somebody to act would
/// fill the log until then.
const PAUSE: Duration = Duration::from_millis(60_000);

/// The limit of one repeated line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogLimit {
    last: Option<Time>,
}

impl LogLimit {
    /// Returns whether a line is due now. If it is, the next one is due after the pause.
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        if self.last.is_some_and(|last| now.since(last) < PAUSE) {
            return false;
        }
        self.last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_due_at_once_and_the_next_after_the_pause() {
        let mut limit = LogLimit::default();
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let due = [0, 1, 59_999, 60_000, 60_001].map(|millis| limit.is_due(at(millis)));
        assert_eq!(due, [true, false, false, true, false]);
    }
}
