//! The events of one resource in the log, where they begin, and the cursors of readers among them.
//!
//! Owns the numbers by which a watcher finds its position again. It must not know how much of the log
//! is kept: [`crate::history::log`] decides that.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::history::event::Event;
use crate::history::expired_cause::ExpiredCause;
use crate::history::watch::Ended;
use crate::version::Version;

/// The number of the first event that is appended to a hub. It is not zero, because history that is
/// read later is numbered backwards from it.
const FIRST: u64 = 1 << 32;

/// The events of one resource, and the watchers that wait for more.
#[derive(Debug)]
pub(crate) struct Hub {
    state: RwLock<HubState>,
    wake: Notify,
}

#[derive(Debug)]
struct HubState {
    /// The number of the oldest event.
    first: u64,
    events: VecDeque<Arc<Event>>,
    /// The point from which on `events` is complete.
    floor: Floor,
    /// The version at which the resource got its present definition. A watch that resumes from
    /// before it would mix events of two definitions, so it is refused. An exact list is not: it
    /// shows one moment.
    defined: Version,
    /// Total bytes of all events that were ever appended.
    passed: u64,
    /// Increased when all watches of the resource end because its kind has changed.
    era: u64,
    ended: Option<Ended>,
}

impl HubState {
    fn resumable_from(&self) -> Version {
        self.floor.version.max(self.defined)
    }
}

/// The beginning of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// The log has every event after this version.
    pub(crate) version: Version,
    /// The reason why it has no earlier events.
    pub(crate) cause: ExpiredCause,
}

impl Floor {
    pub(crate) fn new(version: Version, cause: ExpiredCause) -> Self {
        Self { version, cause }
    }

    fn check(self, version: Version) -> Result<(), ExpiredCause> {
        if version < self.version {
            return Err(self.cause);
        }
        Ok(())
    }
}

/// The position of a watcher in a hub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    pub(crate) next: u64,
    pub(crate) era: u64,
    pub(crate) passed: u64,
}

/// The result of reading at a cursor.
#[derive(Debug)]
pub(crate) enum CursorRead {
    Events {
        events: Vec<Arc<Event>>,
        cursor: Cursor,
    },
    Lagged,
    Ended(Ended),
}

impl Hub {
    pub(crate) fn new(floor: Floor, ended: Option<Ended>) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(HubState {
                first: FIRST,
                events: VecDeque::new(),
                floor,
                defined: Version::ZERO,
                passed: 0,
                era: 0,
                ended,
            }),
            wake: Notify::new(),
        })
    }

    pub(crate) fn wake(&self) -> &Notify {
        &self.wake
    }

    /// Returns a cursor at the first event after a version, or the reason why some of these events
    /// are gone.
    pub(crate) fn cursor_after(&self, version: Version) -> Result<Cursor, ExpiredCause> {
        let state = self.state.read();
        state.floor.check(version)?;
        Floor::new(state.defined, ExpiredCause::KindChanged).check(version)?;
        let at = state.events.partition_point(|e| e.version() <= version);
        Ok(Cursor {
            next: state.first + at as u64,
            era: state.era,
            passed: state.passed,
        })
    }

    /// Returns the events from a cursor on, up to about `bytes_max` bytes of events that are
    /// `wanted`.
    pub(crate) fn read(
        &self,
        cursor: Cursor,
        bytes_max: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> CursorRead {
        let state = self.state.read();
        if cursor.era != state.era {
            return CursorRead::Ended(Ended::KindChanged);
        }
        if cursor.next < state.first {
            return CursorRead::Lagged;
        }
        let mut next = cursor.next;
        let mut bytes = 0;
        let mut events = Vec::new();
        let skipped = usize::try_from(cursor.next - state.first).unwrap_or(usize::MAX);
        for event in state.events.iter().skip(skipped) {
            if bytes >= bytes_max {
                break;
            }
            next += 1;
            if wanted(event) {
                bytes += event.sent_len();
                events.push(Arc::clone(event));
            }
        }
        match &state.ended {
            Some(ended) if events.is_empty() => CursorRead::Ended(*ended),
            _ => CursorRead::Events {
                events,
                cursor: Cursor {
                    next,
                    era: state.era,
                    passed: state.passed,
                },
            },
        }
    }

    /// Returns the events after a version, newest first, or the reason why some of them are gone.
    pub(crate) fn undo_list(&self, version: Version) -> Result<Vec<Arc<Event>>, ExpiredCause> {
        let state = self.state.read();
        state.floor.check(version)?;
        let newest = |event: &&Arc<Event>| event.version() > version;
        let newest = state.events.iter().rev().take_while(newest);
        Ok(newest.cloned().collect())
    }

    /// Returns the hub's events, and the version after which they are complete and of one
    /// definition.
    pub(crate) fn contents(&self) -> (Version, Vec<Arc<Event>>) {
        let state = self.state.read();
        let floor = state.resumable_from();
        (floor, state.events.iter().cloned().collect())
    }

    /// Returns the oldest version from which a watch may resume.
    pub(crate) fn resumable_from(&self) -> Version {
        self.state.read().resumable_from()
    }

    /// Returns the version of the oldest event.
    pub(crate) fn oldest(&self) -> Option<Version> {
        let state = self.state.read();
        state.events.front().map(|event| event.version())
    }

    pub(crate) fn push(&self, event: Arc<Event>, weight: usize) {
        let mut state = self.state.write();
        state.passed += weight as u64;
        state.events.push_back(event);
    }

    /// Removes and returns the oldest event.
    pub(crate) fn pop(&self, cause: ExpiredCause) -> Option<Arc<Event>> {
        let mut state = self.state.write();
        let event = state.events.pop_front()?;
        state.first += 1;
        if event.version() >= state.floor.version {
            state.floor = Floor::new(event.version(), cause);
        }
        if state.events.is_empty() {
            state.events.shrink_to_fit();
        }
        Some(event)
    }

    /// Returns whether the hub's log begins at this version and has dropped no event since.
    pub(crate) fn whole_since(&self, version: Version) -> bool {
        self.state.read().floor.version <= version
    }

    pub(crate) fn push_front(&self, event: Arc<Event>) {
        let mut state = self.state.write();
        state.first -= 1;
        state.events.push_front(event);
    }

    pub(crate) fn lower_floor(&self, floor: Floor) {
        self.state.write().floor = floor;
    }

    /// Ends all watches, because the resource gets another definition at a version.
    pub(crate) fn new_era(&self, defined: Version) {
        let mut state = self.state.write();
        state.era += 1;
        state.defined = state.defined.max(defined);
        drop(state);
        self.wake.notify_waiters();
    }

    /// Records that the resource got another definition at a version, as history that was read
    /// later shows.
    pub(crate) fn was_defined(&self, defined: Version) {
        let mut state = self.state.write();
        state.defined = state.defined.max(defined);
    }

    pub(crate) fn end(&self, ended: Ended) {
        self.state.write().ended = Some(ended);
        self.wake.notify_waiters();
    }
}
