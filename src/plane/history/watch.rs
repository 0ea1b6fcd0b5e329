//! Watchers: cursors into the log. Nothing is buffered for anybody; who falls behind the log is cut
//! off.

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

/// Bytes of events that a watcher takes at once, about.
const TAKE_BYTES_MAX: usize = 64 << 10;
/// A watcher gets a bookmark at least so often.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// What is watched.
#[derive(Debug, Clone)]
pub enum WatchScope {
    /// A resource, or one namespace of it.
    Prefix(Prefix),
    /// One object.
    Object(Key),
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the next event.
    Now,
    /// With the first event after a version.
    After(Version),
}

/// Why a watch cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The events after this version are not all in the log any more.
    #[error("the version is older than the log: {0}")]
    Expired(ExpiredCause),
    /// The version is beyond everything this plane can have told.
    #[error("the version is in the future of {current}")]
    Future {
        /// The newest version the plane can have told.
        current: Version,
    },
    /// The store does not tell for now whether the events after this version are there.
    #[error("the history of the control plane cannot be read for now")]
    Unavailable,
    /// The plane is not served here any more.
    #[error("the control plane is not served here any more")]
    Ended(Ended),
}

/// Why an exact version cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtError {
    /// The events after this version are not all in the log any more.
    #[error("the version is older than the log: {0}")]
    Expired(ExpiredCause),
    /// The store does not tell for now whether they are.
    #[error("the history of the control plane cannot be read for now")]
    Unavailable,
    /// The version is beyond everything this plane can have told.
    #[error("the version is in the future of {current}")]
    Future {
        /// The newest version the plane can have told.
        current: Version,
    },
}

/// Why watches end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The plane goes to sleep or the server stops.
    Closed,
    /// This replica has lost the plane; the watch goes on at whoever owns it then.
    Lost,
    /// The plane was handed over; the watch goes on at the successor, after what was told.
    Moved,
    /// The plane is deleted.
    Deleted,
    /// The kind was changed; a new watch sees its new form.
    KindChanged,
}

/// What a watcher sees next.
#[derive(Debug)]
pub enum Next {
    /// Events in version order, at least one.
    Events(Vec<Arc<Event>>),
    /// Everything up to this version was told.
    Bookmark(Version),
    /// The watcher fell behind the log: it is over.
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
    /// Everything up to here was told.
    told: Version,
    /// Comes when the next bookmark is due. Kept from event to event: setting a timer costs more
    /// than looking at one.
    bookmark_due: Pin<Box<Sleep>>,
    /// What had passed at the last bookmark.
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
        told: Version,
    ) -> Result<Self, ExpiredCause> {
        let cursor = hub.cursor_after(told)?;
        let quarter = plane.log().bounds().bytes_max / 4;
        plane.watcher_came();
        Ok(Self {
            plane,
            hub,
            scope,
            cursor,
            told,
            bookmark_due: Box::pin(sleep(BOOKMARK_EVERY)),
            bookmark_passed: cursor.passed,
            bookmark_every_bytes: quarter as u64,
        })
    }

    /// What comes next; waits for it. After `Lagged` or `Closed` nothing comes any more.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Next {
        let hub = Arc::clone(&self.hub);
        loop {
            let woken = hub.wake().notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Some(next) = self.take() {
                return next;
            }
            tokio::select! {
                // Both are looked at again.
                biased;
                () = woken => {}
                () = self.bookmark_due.as_mut() => {}
            }
        }
    }

    /// A bookmark at the newest version that everything was told of, right now; `None` while
    /// events wait to be taken.
    pub fn bookmark(&mut self) -> Option<Version> {
        // The version is taken first: what is appended after it is beyond it.
        let version = self.plane.bookmark_version();
        match self.read() {
            CursorRead::Events { events, cursor } if events.is_empty() => {
                self.cursor = cursor;
                self.told = self.told.max(version);
                let due = Instant::now() + BOOKMARK_EVERY;
                self.bookmark_due.as_mut().reset(due);
                self.bookmark_passed = cursor.passed;
                Some(self.told)
            }
            CursorRead::Events { .. } | CursorRead::Lagged | CursorRead::Ended(_) => None,
        }
    }

    /// Everything up to this version was told.
    #[must_use]
    pub fn told(&self) -> Version {
        self.told
    }

    fn read(&self) -> CursorRead {
        self.hub.read(self.cursor, TAKE_BYTES_MAX, |event| {
            event.version() > self.told && self.scope.wants(event.key())
        })
    }

    fn take(&mut self) -> Option<Next> {
        match self.read() {
            CursorRead::Lagged => Some(Next::Lagged),
            CursorRead::Ended(ended) => Some(Next::Closed(ended)),
            CursorRead::Events { events, cursor } => {
                self.cursor = cursor;
                if let Some(last) = events.last() {
                    self.told = last.version();
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
