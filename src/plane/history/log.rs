//! The log of a plane: its published events, bounded in time and bytes, one list per resource so
//! that a watcher of one resource never scans another's.
//!
//! The log is the history. Any version inside it is the newest root with the later events undone.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::history::event::Event;
use crate::history::expired_cause::{ExpiredCause, Logged};
use crate::history::frames::Frames;
use crate::history::hub::{Floor, Hub};
use crate::history::pinned::{PinnedBytes, Pins};
use crate::history::watch::Ended;
use crate::key::{Prefix, resource_len};
use crate::memory::{Memory, Share, Sheds};
use crate::version::Version;

/// The share of a log's bytes that frames may take is one in this many. Frames can be built again,
/// dropped events cannot, so frames must not displace many events.
const FRAMES_PART: usize = 4;

/// The log of a large plane may have one in so many bytes of the plane's objects. With fewer, a client that
/// lists a large plane by pages loses its place while others write; with more, the logs of large planes
/// shed those of small ones.
const OBJECTS_PART: u64 = 8;

/// The bounds of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogBounds {
    /// Events older than this are dropped.
    pub age_max: Duration,
    /// The oldest events are dropped while the log has more bytes than this, and more than an eighth of
    /// the bytes of the plane's objects.
    pub bytes_max: usize,
}

impl LogBounds {
    /// Returns the bytes that the log of a plane may have, whose objects have so many.
    fn bytes_beside(self, object_bytes: u64) -> usize {
        let part = usize::try_from(object_bytes / OBJECTS_PART).unwrap_or(usize::MAX);
        self.bytes_max.max(part)
    }
}

impl Default for LogBounds {
    fn default() -> Self {
        Self {
            age_max: Duration::from_secs(300),
            bytes_max: 4 << 20,
        }
    }
}

/// The content of a log, without its watchers: what a hand-off carries.
#[derive(Debug)]
pub(crate) struct LogContents {
    /// The floor of resources that never had an event.
    pub(crate) floor: Version,
    /// The floor of each other resource.
    pub(crate) floors: BTreeMap<Arc<[u8]>, Version>,
    /// The events in version order, with their ages.
    pub(crate) events: Vec<(Duration, Arc<Event>)>,
}

/// The log of one plane.
#[derive(Debug)]
pub(crate) struct Log {
    inner: Arc<Mutex<Inner>>,
    bounds: LogBounds,
    /// The bytes that the log may have now.
    bytes_max: AtomicUsize,
    memory: Arc<Memory>,
    /// Every event up to this version is in the hubs.
    appended: AtomicU64,
    /// When an expired version was last reported in the process log, by cause.
    logged: Logged,
}

#[derive(Debug)]
pub(crate) struct Inner {
    hubs: BTreeMap<Arc<[u8]>, Arc<Hub>>,
    /// All events, oldest first.
    order: VecDeque<Ordered>,
    pinned: PinnedBytes,
    frames: Arc<Frames>,
    memory: Arc<Memory>,
    /// The part of `pinned` that is counted in the memory budget.
    counted_bytes: usize,
    replaced: u64,
    dropped: u64,
    /// The floor of hubs that never had an event.
    floor: Floor,
    ended: Option<Ended>,
}

/// An event in the order in which all events of the log were appended.
#[derive(Debug)]
struct Ordered {
    came: Instant,
    hub: Arc<Hub>,
    pins: Pins,
    /// The bytes of the object that it replaced; zero if the event was read from history.
    replaced: usize,
}

impl Log {
    /// Creates a log that begins after `head`. Older versions are refused until the history is
    /// read. A version that is still refused afterwards is refused because reading the history
    /// failed; the cause says so.
    pub(crate) fn new(head: Version, bounds: LogBounds, memory: &Arc<Memory>) -> Self {
        let floor = Floor::new(head, ExpiredCause::Unreadable);
        Self::beginning(floor, head, bounds, memory)
    }

    fn beginning(floor: Floor, head: Version, bounds: LogBounds, memory: &Arc<Memory>) -> Self {
        let inner = Arc::new(Mutex::new(Inner {
            hubs: BTreeMap::new(),
            order: VecDeque::new(),
            pinned: PinnedBytes::default(),
            frames: Frames::new(bounds.bytes_max / FRAMES_PART, memory),
            memory: Arc::clone(memory),
            counted_bytes: 0,
            replaced: 0,
            dropped: 0,
            floor,
            ended: None,
        }));
        let sheds: Arc<dyn Sheds> = Arc::clone(&inner) as _;
        memory.enrol(Arc::downgrade(&sheds));
        Self {
            inner,
            bounds,
            bytes_max: AtomicUsize::new(bounds.bytes_max),
            memory: Arc::clone(memory),
            appended: AtomicU64::new(head.raw()),
            logged: Logged::default(),
        }
    }

    /// Returns the log that the former owner handed over, up to `head`, of a plane whose objects have so many
    /// bytes.
    pub(crate) fn restore(
        contents: LogContents,
        head: Version,
        (bounds, object_bytes): (LogBounds, u64),
        memory: &Arc<Memory>,
    ) -> Self {
        let of_before = |floor| Floor::new(floor, ExpiredCause::HandedOver);
        let log = Self::beginning(of_before(contents.floor), head, bounds, memory);
        log.fit(object_bytes);
        let now = Instant::now();
        {
            let mut inner = log.inner.lock();
            for (resource, floor) in contents.floors {
                inner.hub(&resource).lower_floor(of_before(floor));
            }
            let pins = pins_of(contents.events.iter().map(|(_, event)| event));
            for ((age, event), pins) in contents.events.into_iter().zip(pins) {
                let came = now.checked_sub(age).unwrap_or(now);
                inner.push(event, came, pins);
            }
            inner.trim(now, log.bounds());
        }
        memory.shed_logs();
        log
    }

    /// Fits the log's bounds to a plane whose objects have so many bytes.
    pub(crate) fn fit(&self, object_bytes: u64) {
        let bytes_max = self.bounds.bytes_beside(object_bytes);
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns the content of the log, together with the root of the same moment.
    pub(crate) fn contents<R>(&self, root: impl FnOnce() -> R) -> (R, LogContents) {
        let now = Instant::now();
        let inner = self.inner.lock();
        let mut floors = BTreeMap::new();
        let mut events = Vec::with_capacity(inner.order.len());
        for (resource, hub) in &inner.hubs {
            // An export has one floor per resource. So after a hand-off, exact lists from before
            // the last change of a definition are refused as well.
            let (floor, of_hub) = hub.contents();
            floors.insert(Arc::clone(resource), floor);
            events.extend(of_hub);
        }
        // Versions grow in the order in which events were appended.
        events.sort_by_key(|event| event.version());
        let ages = inner.order.iter();
        let ages = ages.map(|ordered| now.saturating_duration_since(ordered.came));
        let contents = LogContents {
            floor: inner.floor.version,
            floors,
            events: ages.zip(events).collect(),
        };
        (root(), contents)
    }

    /// Appends the events of one part. `defined` names the resources whose definition these events
    /// change. `publish` runs under the same lock, so a reader with the lock sees the root and its
    /// events, or neither. The root is published before watches end: a watch that begins without
    /// the lock, and then finds an unchanged definition in the published root, is ended by any
    /// later change.
    pub(crate) fn append(
        &self,
        events: &[Arc<Event>],
        defined: &[(Prefix, Version)],
        head: Version,
        publish: impl FnOnce(),
    ) {
        let now = Instant::now();
        let mut woken: Vec<Arc<Hub>> = Vec::with_capacity(1);
        {
            let mut inner = self.inner.lock();
            publish();
            for event in events {
                let hub = inner.push(Arc::clone(event), now, Pins::Previous);
                if !woken.iter().any(|known| Arc::ptr_eq(known, &hub)) {
                    woken.push(hub);
                }
            }
            for (resource, version) in defined {
                inner.hub(resource.as_bytes()).new_era(*version);
            }
            inner.trim(now, self.bounds());
            self.appended.store(head.raw(), Ordering::Release);
        }
        for hub in woken {
            hub.wake().notify_waiters();
        }
        self.memory.shed_logs();
    }

    /// Returns the version of the oldest event in the log.
    pub(crate) fn oldest(&self) -> Option<Version> {
        let inner = self.inner.lock();
        let oldest = inner.order.front()?;
        oldest.hub.oldest()
    }

    /// Returns the version up to which every event is in the hubs.
    pub(crate) fn appended(&self) -> Version {
        Version::from_raw(self.appended.load(Ordering::Acquire))
    }

    /// Returns the same version as [`Self::appended`], after waiting for an append whose root is
    /// already published.
    pub(crate) fn appended_all(&self) -> Version {
        drop(self.inner.lock());
        self.appended()
    }

    pub(crate) fn hub(&self, prefix: &Prefix) -> Arc<Hub> {
        self.inner.lock().hub(prefix.as_bytes())
    }

    /// Returns whether a resource has all its events since the plane was opened, so that events from
    /// before that can be added. With others the log would have a gap, and to read them from the store,
    /// with everything that was written since, would be in vain.
    pub(crate) fn hub_is_whole(&self, hub: &Hub) -> bool {
        let opened_at = self.inner.lock().floor.version;
        hub.whole_since(opened_at)
    }

    /// Reads the newest root together with the events of a resource after a version, newest first.
    pub(crate) fn undo_list<R>(
        &self,
        prefix: &Prefix,
        version: Version,
        root: impl FnOnce() -> R,
    ) -> (R, Result<Vec<Arc<Event>>, ExpiredCause>) {
        let mut inner = self.inner.lock();
        let hub = inner.hub(prefix.as_bytes());
        (root(), hub.undo_list(version))
    }

    /// Adds events from before the plane was opened, oldest first. The log then begins after
    /// `floor`, or after `later` for the resource that it names, some of whose events are not there.
    /// Does nothing for a resource that has dropped newer events in the meantime, because its log would
    /// have a gap.
    pub(crate) fn prepend(
        &self,
        events: Vec<Arc<Event>>,
        defined: &[(Prefix, Version)],
        floor: Floor,
        later: Option<(Prefix, Floor)>,
    ) {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let loaded_at = inner.floor.version;
        let pins = pins_of(events.iter());
        for (event, pins) in events.into_iter().zip(pins).rev() {
            let hub = inner.hub(event.key().as_bytes());
            if hub.whole_since(loaded_at) {
                inner.push_front(event, now, hub, pins);
            }
        }
        // Created now, so that it does not get the floor of resources that never had an event.
        let later = later.map(|(resource, later)| (inner.hub(resource.as_bytes()), later));
        for hub in inner.hubs.values() {
            if hub.whole_since(loaded_at) {
                let is_later = |(of, _): &&(Arc<Hub>, Floor)| Arc::ptr_eq(of, hub);
                let later = later.as_ref().filter(is_later).map(|(_, later)| *later);
                hub.lower_floor(later.unwrap_or(floor));
            }
        }
        inner.floor = floor;
        for (resource, version) in defined {
            inner.hub(resource.as_bytes()).was_defined(*version);
        }
        inner.trim(now, self.bounds());
        drop(inner);
        self.memory.shed_logs();
    }

    /// Drops events that are too old. A periodic task of the process calls this; a plane has no
    /// timer of its own.
    pub(crate) fn sweep(&self, now: Instant) {
        self.inner.lock().trim(now, self.bounds());
    }

    /// Ends all open watches, and every watch that is opened later.
    pub(crate) fn end(&self, ended: Ended) {
        let mut inner = self.inner.lock();
        let ended = *inner.ended.get_or_insert(ended);
        for hub in inner.hubs.values() {
            hub.end(ended);
        }
    }

    /// Returns the total bytes of objects that were replaced since the log began.
    pub(crate) fn replaced(&self) -> u64 {
        self.inner.lock().replaced
    }

    /// Returns how many bytes of [`Self::replaced`] belong to events that the log has dropped,
    /// which are always the oldest ones.
    pub(crate) fn dropped(&self) -> u64 {
        self.inner.lock().dropped
    }

    pub(crate) fn bytes(&self) -> usize {
        self.inner.lock().bytes()
    }

    /// Returns whether a request for an expired version of this cause may be written to the process
    /// log now.
    pub(crate) fn logs(&self, cause: ExpiredCause) -> bool {
        self.logged.is_due(cause, Instant::now())
    }

    /// Returns the log's bounds as they are now.
    pub(crate) fn bounds(&self) -> LogBounds {
        LogBounds {
            bytes_max: self.bytes_max.load(Ordering::Relaxed),
            ..self.bounds
        }
    }
}

impl Inner {
    fn hub(&mut self, key: &[u8]) -> Arc<Hub> {
        let name = &key[..resource_len(key)];
        if let Some(hub) = self.hubs.get(name) {
            return Arc::clone(hub);
        }
        let hub = Hub::new(self.floor, self.ended);
        self.hubs.insert(name.into(), Arc::clone(&hub));
        hub
    }

    /// Returns the bytes of all events and frames in the log.
    fn bytes(&self) -> usize {
        self.pinned.bytes() + self.frames.bytes()
    }

    /// Appends an event to its hub and the order; returns the hub.
    fn push(&mut self, event: Arc<Event>, came: Instant, pins: Pins) -> Arc<Hub> {
        let hub = self.hub(event.key().as_bytes());
        let weight = self.pinned.add(&event, pins);
        let replaced = event.history_len();
        self.replaced += replaced as u64;
        event.weigh_frames(&self.frames);
        hub.push(event, weight);
        self.order.push_back(Ordered {
            came,
            hub: Arc::clone(&hub),
            pins,
            replaced,
        });
        hub
    }

    fn push_front(&mut self, event: Arc<Event>, came: Instant, hub: Arc<Hub>, pins: Pins) {
        self.pinned.add(&event, pins);
        event.weigh_frames(&self.frames);
        hub.push_front(event);
        let replaced = 0;
        self.order.push_front(Ordered {
            came,
            hub,
            pins,
            replaced,
        });
    }

    /// Drops events beyond the bounds, and updates the memory budget.
    fn trim(&mut self, now: Instant, bounds: LogBounds) {
        while let Some(oldest) = self.order.front() {
            let old = now.saturating_duration_since(oldest.came) > bounds.age_max;
            if !old && self.bytes() <= bounds.bytes_max {
                break;
            }
            self.pop(if old {
                ExpiredCause::Age
            } else {
                ExpiredCause::Bytes
            });
        }
        self.tell();
    }

    /// Drops the oldest event.
    fn pop(&mut self, cause: ExpiredCause) {
        if let Some(oldest) = self.order.pop_front()
            && let Some(event) = oldest.hub.pop(cause)
        {
            self.dropped += oldest.replaced as u64;
            let pins = oldest.pins;
            self.pinned.subtract(&event, pins);
            drop(event);
            self.frames.forget_gone();
        }
    }

    fn tell(&mut self) {
        let bytes = self.pinned.bytes();
        self.memory
            .correct(Share::Logs, &mut self.counted_bytes, bytes);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.memory.subtract(Share::Logs, self.counted_bytes);
    }
}

impl Sheds for Mutex<Inner> {
    fn bytes(&self) -> usize {
        self.lock().bytes()
    }

    fn shed_to(&self, bytes_max: usize) {
        let mut inner = self.lock();
        // Dropping frames first keeps more events: frames can be built again.
        inner.frames.clear();
        while inner.bytes() > bytes_max && !inner.order.is_empty() {
            inner.pop(ExpiredCause::Memory);
        }
        inner.tell();
    }
}

/// Returns the objects that each of these events, which were read from the store, pins in memory.
/// The newest event of each object pins its new object too: a copy of the one in the map.
fn pins_of<'a>(events: impl DoubleEndedIterator<Item = &'a Arc<Event>>) -> Vec<Pins> {
    let mut seen = HashSet::new();
    let pins = events.rev().map(|event| match seen.insert(event.key()) {
        true => Pins::Both,
        false => Pins::Previous,
    });
    let mut pins: Vec<Pins> = pins.collect();
    pins.reverse();
    pins
}
