//! Watchers: cursors into the log. Nothing is buffered for a watcher; one that falls behind the log is
//! cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::history::event::Event;
use crate::history::expired_cause::ExpiredCause;
use crate::history::hub::{Cursor, CursorRead, Hub};
use crate::key::{Key, Prefix};
use crate::plane::Plane;
use crate::version::Version;

/// Approximate bytes of events that a watcher gets in one read.
const TAKE_BYTES_MAX: usize = 64 << 10;
/// Longest time between two bookmarks of a watcher. Without them an idle watcher could not resume.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// The objects that a watch covers.
#[derive(Debug, Clone)]
pub enum WatchScope {
    /// All objects of a resource, or of one namespace of it.
    Prefix(Prefix),
    /// One object.
    Object(Key),
}

/// The point at which a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// The next event.
    Now,
    /// The first event after a version.
    After(Version),
}

/// The reason why a watch cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The events after this version are not all in the log any more.
    #[error("the version is older than the log: {0}")]
    Expired(ExpiredCause),
    /// The version is newer than any that this plane has sent.
    #[error("the version is in the future of {current}")]
    Future {
        /// The newest version that the plane can have sent.
        current: Version,
    },
    /// The store is unavailable, so it is not known whether it has the events after this version.
    #[error("the history of the control plane cannot be read for now")]
    Unavailable,
    /// The plane is not served here any more.
    #[error("the control plane is not served here any more")]
    Ended(Ended),
}

/// The reason why an exact version cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtError {
    /// The events after this version are not all in the log any more.
    #[error("the version is older than the log: {0}")]
    Expired(ExpiredCause),
    /// The store is unavailable, so it is not known whether it has the events after this version.
    #[error("the history of the control plane cannot be read for now")]
    Unavailable,
    /// The version is newer than any that this plane has sent.
    #[error("the version is in the future of {current}")]
    Future {
        /// The newest version that the plane can have sent.
        current: Version,
    },
}

/// The reason why watches end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The plane goes to sleep or the server stops.
    Closed,
    /// This replica has lost the plane. The watch can resume at the next owner.
    Lost,
    /// The plane was handed over. The watch can resume at the successor, after the last event sent.
    Moved,
    /// The plane is deleted.
    Deleted,
    /// The kind was changed. A new watch shows the objects in their new form.
    KindChanged,
}

/// The next item of a watch.
#[derive(Debug)]
pub enum Next {
    /// One or more events, in version order.
    Events(Vec<Arc<Event>>),
    /// The watcher has every event up to this version.
    Bookmark(Version),
    /// The watcher fell behind the log. The watch is over.
    Lagged,
    /// The watch is over.
    Closed(Ended),
}

/// One watch: a cursor into the log of its resource.
#[derive(Debug)]
pub struct Watcher {
    plane: Arc<Plane>,
    hub: Arc<Hub>,
    scope: WatchScope,
    cursor: Cursor,
    /// The watcher has every event up to this version.
    sent_up_to: Version,
    /// Elapses when the next bookmark is due. Not reset by events: setting a timer costs more than
    /// checking one.
    bookmark_due: Pin<Box<Sleep>>,
    /// [`Cursor::passed`] at the last bookmark.
    bookmark_passed: u64,
    bookmark_every_bytes: u64,
}

impl WatchScope {
    pub(crate) fn resource(&self) -> Prefix {
        match self {
            Self::Prefix(prefix) => prefix.resource_prefix(),
            Self::Object(key) => key.resource_prefix(),
        }
    }

    fn wants(&self, key: &Key) -> bool {
        match self {
            Self::Prefix(prefix) => prefix.contains(key),
            Self::Object(object) => object == key,
        }
    }
}

impl Watcher {
    pub(crate) fn new(
        plane: Arc<Plane>,
        scope: WatchScope,
        hub: Arc<Hub>,
        sent_up_to: Version,
    ) -> Result<Self, ExpiredCause> {
        let cursor = hub.cursor_after(sent_up_to)?;
        let quarter = plane.log().bounds().bytes_max / 4;
        plane.watcher_came();
        Ok(Self {
            plane,
            hub,
            scope,
            cursor,
            sent_up_to,
            bookmark_due: Box::pin(sleep(BOOKMARK_EVERY)),
            bookmark_passed: cursor.passed,
            bookmark_every_bytes: quarter as u64,
        })
    }

    /// Waits for the next events or bookmark. After `Lagged` or `Closed` the watch is over.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Next {
        let hub = Arc::clone(&self.hub);
        loop {
            // Misses no notification from here on, also before it is polled, because the hub uses only
            // `notify_waiters`.
            let woken = hub.wake().notified();
            if let Some(next) = self.take() {
                return next;
            }
            tokio::select! {
                // The loop checks both again, so the order does not matter.
                biased;
                () = woken => {}
                () = self.bookmark_due.as_mut() => {}
            }
        }
    }

    /// Returns a bookmark at the newest version that a bookmark may name now; `None` while events
    /// are ready to be read.
    pub fn bookmark(&mut self) -> Option<Version> {
        // Read before the events: an event that is appended in between is newer than this version.
        let version = self.plane.bookmark_version();
        match self.read() {
            CursorRead::Events { events, cursor } if events.is_empty() => {
                self.cursor = cursor;
                self.sent_up_to = self.sent_up_to.max(version);
                let due = Instant::now() + BOOKMARK_EVERY;
                self.bookmark_due.as_mut().reset(due);
                self.bookmark_passed = cursor.passed;
                Some(self.sent_up_to)
            }
            CursorRead::Events { .. } | CursorRead::Lagged | CursorRead::Ended(_) => None,
        }
    }

    /// Returns the version up to which the watcher has every event.
    #[must_use]
    pub fn sent_up_to(&self) -> Version {
        self.sent_up_to
    }

    fn read(&self) -> CursorRead {
        self.hub.read(self.cursor, TAKE_BYTES_MAX, |event| {
            event.version() > self.sent_up_to && self.scope.wants(event.key())
        })
    }

    fn take(&mut self) -> Option<Next> {
        match self.read() {
            CursorRead::Lagged => Some(Next::Lagged),
            CursorRead::Ended(ended) => Some(Next::Closed(ended)),
            CursorRead::Events { events, cursor } => {
                self.cursor = cursor;
                if let Some(last) = events.last() {
                    self.sent_up_to = last.version();
                    return Some(Next::Events(events));
                }
                let passed = cursor.passed - self.bookmark_passed >= self.bookmark_every_bytes;
                if passed || self.bookmark_due.is_elapsed() {
                    return self.bookmark().map(Next::Bookmark);
                }
                None
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.plane.watcher_went();
    }
}
