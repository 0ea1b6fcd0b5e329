//! The causes for which a plane no longer has the events after a version: every 410 has one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Shortest time between two log lines about one cause in one plane. Without it thousands of
/// watchers that expire in one second would write thousands of lines.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// The reason why the events after a version are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExpiredCause {
    /// The log dropped events for their age.
    #[error("the log of the control plane does not keep changes for that long")]
    Age,
    /// The log dropped events for its size.
    #[error("more changes have come since than the log of the control plane holds")]
    Bytes,
    /// The logs of all control planes had filled their share of the memory budget.
    #[error("the memory budget of the server has no room for changes that old")]
    Memory,
    /// The store has compacted its history. A store that was restored from a copy, with later revisions,
    /// looks the same to versions that it gave out after the copy was made.
    #[error("the store has compacted its history since, or was restored without it from a copy")]
    Compacted,
    /// The version is from before the plane was created, restored or moved to this store.
    #[error(
        "it is from before the control plane was created, restored or moved to its store, and the \
         history from before that is gone"
    )]
    BeforeBirth,
    /// The former owner had dropped the events before it handed the plane over.
    #[error("the former owner of the control plane had dropped it before the hand-over")]
    HandedOver,
    /// The history could not be read from the store: it is damaged or compacted, or a record or
    /// layer in it is missing or cannot be decoded.
    #[error("the history of the control plane cannot be read")]
    Unreadable,
    /// A page token was made longer ago than the log keeps events.
    #[error("the page token was made longer ago than the log of the control plane keeps events")]
    TokenAge,
    /// The kind's definition has changed since that version. A client that resumed would miss the
    /// effect of the change.
    #[error("the definition of the kind has changed since")]
    KindChanged,
    /// The history up to some later version is sealed under a data key that the plane has given up: it
    /// keeps two, so two rotations in a row leave nothing that opens older records.
    #[error("changes that old are sealed under a data key that was replaced twice since")]
    KeyGone,
}

impl ExpiredCause {
    /// All causes, in the order of their numbers.
    pub(crate) const ALL: [Self; 10] = [
        Self::Age,
        Self::Bytes,
        Self::Memory,
        Self::Compacted,
        Self::BeforeBirth,
        Self::HandedOver,
        Self::Unreadable,
        Self::TokenAge,
        Self::KindChanged,
        Self::KeyGone,
    ];

    /// Returns the cause's name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Bytes => "bytes",
            Self::Memory => "memory",
            Self::Compacted => "compacted",
            Self::BeforeBirth => "before_birth",
            Self::HandedOver => "handed_over",
            Self::Unreadable => "unreadable",
            Self::TokenAge => "token_age",
            Self::KindChanged => "kind_changed",
            Self::KeyGone => "key_gone",
        }
    }
}

/// The time at which each cause was last logged.
#[derive(Debug, Default)]
pub(crate) struct Logged([Mutex<Option<Instant>>; ExpiredCause::ALL.len()]);

impl Logged {
    /// Returns whether a cause may be logged now.
    pub(crate) fn is_due(&self, cause: ExpiredCause, now: Instant) -> bool {
        let mut last = self.0[cause as usize].lock();
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= LOG_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_logged_now_and_then() {
        let (logged, now) = (Logged::default(), Instant::now());
        for (at, cause) in ExpiredCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            assert!(logged.is_due(cause, now));
            assert!(!logged.is_due(cause, now + LOG_EVERY / 2));
            assert!(logged.is_due(cause, now + LOG_EVERY));
        }
    }
}
