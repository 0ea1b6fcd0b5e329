//! Whether a store is nearly full, so that its users should write only what needs hardly any room.
//!
//! A full store refuses deletions too, because they put records of their own. So the code that writes
//! for clients stops adding data a little earlier. The store itself still takes every transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a store must have had room before the log says so. A disk on which data comes and goes crosses
/// the limits again and again, and each time would be two lines.
const SETTLED: Duration = Duration::from_secs(60);

/// A flag that is set when less than a limit is left, and cleared when at least twice the limit is. It is also set
/// while a merge waits that has to be done soon.
#[derive(Debug, Default)]
pub(crate) struct NearlyFull {
    is_set: AtomicBool,
    logged: Mutex<Logged>,
}

/// What the log says about the flag.
#[derive(Debug, Default)]
struct Logged {
    /// True from the line that the store is nearly full to the line that it is not any more.
    is_set: bool,
    /// The time since which the flag is cleared and the log does not say so.
    cleared: Option<Instant>,
}

/// A merge of tables that waits for room, and that has to be done before the engine can take much more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingMerge {
    /// The free bytes for which it waits.
    pub(crate) wanted_bytes: u64,
    /// The bytes that are free.
    pub(crate) free_bytes: u64,
}

/// A line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Set,
    Cleared,
}

impl NearlyFull {
    pub(crate) fn get(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Returns whether somebody has to look at what is left from time to time, although nothing is written: the
    /// flag is set, or was cleared a moment ago and the log does not say so yet.
    pub(crate) fn is_watched(&self) -> bool {
        self.logged.lock().is_set
    }

    /// Notes how many bytes are left until the store is full. Not called concurrently.
    pub(crate) fn note(&self, left_bytes: u64, limit_bytes: u64) {
        match self.note_at(Instant::now(), left_bytes, limit_bytes) {
            Some(Line::Set) => tracing::warn!(
                left_bytes,
                limit_bytes,
                "the store is nearly full: clients' writes that add data are refused, deletions are not; \
                 make room before it is full, because then deletions are refused too"
            ),
            Some(Line::Cleared) => {
                tracing::info!(left_bytes, "the store is not nearly full any more");
            }
            None => {}
        }
    }

    /// Notes that a merge waits, whatever is left. Not called concurrently.
    pub(crate) fn note_merge(&self, merge: WaitingMerge) {
        if self.note_merge_at(Instant::now()) == Some(Line::Set) {
            let WaitingMerge {
                wanted_bytes,
                free_bytes,
            } = merge;
            tracing::warn!(
                wanted_bytes,
                free_bytes,
                "the store is nearly full: a merge of its tables, which frees the room of what was deleted, waits \
                 until wanted_bytes are free on the disk; clients' writes that add data are refused until then, \
                 deletions are not; make room on the disk, or delete what is not needed"
            );
        }
    }

    /// Sets or clears the flag, and returns what the log is to say.
    fn note_at(&self, now: Instant, left_bytes: u64, limit_bytes: u64) -> Option<Line> {
        let wanted_bytes = match self.get() {
            true => limit_bytes.saturating_mul(2),
            false => limit_bytes,
        };
        self.set_at(now, left_bytes < wanted_bytes)
    }

    /// Sets the flag, and returns what the log is to say.
    fn note_merge_at(&self, now: Instant) -> Option<Line> {
        self.set_at(now, true)
    }

    fn set_at(&self, now: Instant, is_set: bool) -> Option<Line> {
        self.is_set.store(is_set, Ordering::Relaxed);
        self.logged.lock().note(is_set, now)
    }
}

impl Logged {
    fn note(&mut self, is_set: bool, now: Instant) -> Option<Line> {
        if is_set {
            self.cleared = None;
            return (!std::mem::replace(&mut self.is_set, true)).then_some(Line::Set);
        }
        if !self.is_set {
            return None;
        }
        let cleared = *self.cleared.get_or_insert(now);
        if now.saturating_duration_since(cleared) < SETTLED {
            return None;
        }
        *self = Self::default();
        Some(Line::Cleared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_below_the_limit_and_ends_at_twice_the_limit() {
        let flag = NearlyFull::default();
        let after = |left_bytes| {
            flag.note(left_bytes, 100);
            flag.get()
        };
        assert!(!after(150));
        assert!(!after(100));
        assert!(after(99));
        assert!(after(100));
        assert!(after(199));
        assert!(!after(200));
        assert!(!after(100));
        assert!(after(0));
    }

    #[test]
    fn it_lasts_while_a_merge_waits_however_much_is_left() {
        let flag = NearlyFull::default();
        let began = Instant::now();
        assert_eq!(flag.note_at(began, 1000, 100), None);
        assert_eq!(flag.note_merge_at(began), Some(Line::Set));
        assert_eq!((flag.get(), flag.is_watched()), (true, true));
        assert_eq!(flag.note_merge_at(began), None);
        assert_eq!(flag.note_at(began, 1000, 100), None);
        assert!(!flag.get(), "the merge goes on");
    }

    #[test]
    fn the_log_has_one_line_for_a_time_in_which_the_flag_comes_and_goes() {
        let flag = NearlyFull::default();
        let began = Instant::now();
        let at = |seconds, left_bytes| {
            let line = flag.note_at(began + Duration::from_secs(seconds), left_bytes, 100);
            (line, flag.get())
        };
        assert_eq!(at(0, 500), (None, false));
        assert!(!flag.is_watched());
        assert_eq!(at(1, 50), (Some(Line::Set), true));
        for second in (2..300).step_by(30) {
            assert_eq!(at(second, 500), (None, false), "it has room at once");
            assert!(flag.is_watched(), "the log is to be completed");
            assert_eq!(at(second + 29, 50), (None, true));
        }
        assert_eq!(at(400, 500), (None, false));
        assert_eq!(at(459, 150), (None, false));
        assert_eq!(at(460, 500), (Some(Line::Cleared), false));
        assert!(!flag.is_watched());
        assert_eq!(at(461, 50), (Some(Line::Set), true));
    }
}
