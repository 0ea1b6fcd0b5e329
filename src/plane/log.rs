//! The log of a plane: its published events, bounded in time and bytes, one list per resource so
//! that a watcher of one resource never scans another's.
//!
//! The log is the history. Any version inside it is the newest root with the later events undone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::entry::ObjectRef;
use crate::forgotten::{Forgotten, Logged};
use crate::key::{Key, Prefix, resource_len};
use crate::version::Version;
use crate::watch::Ended;

/// Where the numbers of a resource's events begin: history found later goes before it.
const FIRST: u64 = 1 << 32;
/// Views whose frames one event keeps; a further one is built each time it is asked for.
const FRAMES_MAX: usize = 8;
/// Bytes of an event beside its object.
const EVENT_BYTES: usize = 128;

/// One change of one object, shared by everyone who watches.
#[derive(Debug)]
pub struct Event {
    version: Version,
    key: Key,
    previous: Option<ObjectRef>,
    current: Option<ObjectRef>,
    frames: Mutex<Vec<(u32, Bytes)>>,
}

impl Event {
    pub(crate) fn new(
        version: Version,
        key: Key,
        previous: Option<ObjectRef>,
        current: Option<ObjectRef>,
    ) -> Arc<Self> {
        Arc::new(Self {
            version,
            key,
            previous,
            current,
            frames: Mutex::default(),
        })
    }

    /// The version of the event; that of the new object if there is one.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What was there before; `None` if nothing was.
    #[must_use]
    pub fn previous(&self) -> Option<&ObjectRef> {
        self.previous.as_ref()
    }

    /// What is there now; `None` if it was deleted.
    #[must_use]
    pub fn current(&self) -> Option<&ObjectRef> {
        self.current.as_ref()
    }

    /// The frame of this event in one view, built once for all watchers. `view` is a small number
    /// that whoever builds frames gives to each form they have.
    pub fn frame(&self, view: u32, build: impl FnOnce(&Self) -> Bytes) -> Bytes {
        if let Some((_, frame)) = self.frames.lock().iter().find(|(known, _)| *known == view) {
            return frame.clone();
        }
        let frame = build(self);
        let mut frames = self.frames.lock();
        if let Some((_, other)) = frames.iter().find(|(known, _)| *known == view) {
            return other.clone();
        }
        if frames.len() < FRAMES_MAX {
            frames.push((view, frame.clone()));
        }
        frame
    }

    pub(crate) fn weight(&self) -> usize {
        let body = self.current.as_ref().or(self.previous.as_ref());
        EVENT_BYTES + self.key.as_bytes().len() + body.map_or(0, ObjectRef::body_len)
    }
}

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
pub struct LogBounds {
    /// Events older than this go.
    pub age_max: Duration,
    /// Beyond this many bytes the oldest go.
    pub bytes_max: usize,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self {
            age_max: Duration::from_secs(300),
            bytes_max: 4 << 20,
        }
    }
}

/// The events of one resource, and who waits for more.
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
    /// The newest version that is not told by `events`.
    floor: Floor,
    /// Bytes of all events that were ever appended.
    passed: u64,
    /// Grows when all watches of the resource end because its kind has changed.
    era: u64,
    ended: Option<Ended>,
}

/// Where a log begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// Everything after this version is told.
    pub(crate) version: Version,
    /// Why nothing before it is.
    pub(crate) cause: Forgotten,
}

impl Floor {
    pub(crate) fn new(version: Version, cause: Forgotten) -> Self {
        Self { version, cause }
    }

    fn check(self, version: Version) -> Result<(), Forgotten> {
        if version < self.version {
            return Err(self.cause);
        }
        Ok(())
    }
}

/// Where a watcher stands in a hub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) next: u64,
    pub(crate) era: u64,
    pub(crate) passed: u64,
}

/// What a reader finds at its place in a hub.
#[derive(Debug)]
pub(crate) enum Found {
    Events {
        events: Vec<Arc<Event>>,
        place: Place,
    },
    Lagged,
    Ended(Ended),
}

impl Hub {
    fn new(floor: Floor, ended: Option<Ended>) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(HubState {
                first: FIRST,
                events: VecDeque::new(),
                floor,
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

    /// The place of the first event after a version, or why some of them are gone.
    pub(crate) fn place_after(&self, version: Version) -> Result<Place, Forgotten> {
        let state = self.state.read();
        state.floor.check(version)?;
        let at = state.events.partition_point(|e| e.version <= version);
        Ok(Place {
            next: state.first + at as u64,
            era: state.era,
            passed: state.passed,
        })
    }

    /// Events from a place on, up to about `bytes_max` of those that are `wanted`.
    pub(crate) fn read(
        &self,
        place: Place,
        bytes_max: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Found {
        let state = self.state.read();
        if place.era != state.era {
            return Found::Ended(Ended::KindChanged);
        }
        if place.next < state.first {
            return Found::Lagged;
        }
        let mut next = place.next;
        let mut bytes = 0;
        let mut events = Vec::new();
        let skipped = usize::try_from(place.next - state.first).unwrap_or(usize::MAX);
        for event in state.events.iter().skip(skipped) {
            if bytes >= bytes_max {
                break;
            }
            next += 1;
            if wanted(event) {
                bytes += event.weight();
                events.push(Arc::clone(event));
            }
        }
        match &state.ended {
            Some(ended) if events.is_empty() => Found::Ended(*ended),
            _ => Found::Events {
                events,
                place: Place {
                    next,
                    era: state.era,
                    passed: state.passed,
                },
            },
        }
    }

    /// Events after a version, newest first, or why some of them are gone.
    fn undo_list(&self, version: Version) -> Result<Vec<Arc<Event>>, Forgotten> {
        let state = self.state.read();
        state.floor.check(version)?;
        let newest = |event: &&Arc<Event>| event.version > version;
        let newest = state.events.iter().rev().take_while(newest);
        Ok(newest.cloned().collect())
    }

    fn push(&self, event: Arc<Event>) {
        let mut state = self.state.write();
        state.passed += event.weight() as u64;
        state.events.push_back(event);
    }

    /// Drops the oldest event; returns its version.
    fn pop(&self, cause: Forgotten) -> Option<Version> {
        let mut state = self.state.write();
        let event = state.events.pop_front()?;
        state.first += 1;
        if event.version >= state.floor.version {
            state.floor = Floor::new(event.version, cause);
        }
        if state.events.is_empty() {
            state.events.shrink_to_fit();
        }
        Some(event.version)
    }

    /// Whether nothing was dropped since the log began at this version.
    fn whole_since(&self, version: Version) -> bool {
        self.state.read().floor.version <= version
    }

    fn push_front(&self, event: Arc<Event>) {
        let mut state = self.state.write();
        state.first -= 1;
        state.events.push_front(event);
    }

    fn lower_floor(&self, floor: Floor) {
        self.state.write().floor = floor;
    }

    fn new_era(&self) {
        self.state.write().era += 1;
        self.wake.notify_waiters();
    }

    fn end(&self, ended: Ended) {
        self.state.write().ended = Some(ended);
        self.wake.notify_waiters();
    }
}

/// The content of a log, apart from who waits for more.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The floor of resources that never had an event.
    pub(crate) floor: Version,
    /// The floor of each other resource.
    pub(crate) floors: BTreeMap<Arc<[u8]>, Version>,
    /// In version order, with their ages.
    pub(crate) events: Vec<(Duration, Arc<Event>)>,
}

/// The log of one plane.
#[derive(Debug)]
pub(crate) struct Log {
    inner: Mutex<Inner>,
    bounds: LogBounds,
    /// The version up to which everything published stands in the hubs.
    appended: AtomicU64,
    /// When it was last logged that a version is gone.
    logged: Logged,
}

#[derive(Debug)]
struct Inner {
    hubs: BTreeMap<Arc<[u8]>, Arc<Hub>>,
    /// All events, oldest first: when they came, whose they are, what they weigh.
    order: VecDeque<(Instant, Arc<Hub>, usize)>,
    bytes: usize,
    /// The floor of hubs that never had an event.
    floor: Floor,
    ended: Option<Ended>,
}

impl Log {
    /// A log that begins after `head`. What was before it is not told until the history is read,
    /// so whoever is refused although it was read is refused because that failed.
    pub(crate) fn new(head: Version, bounds: LogBounds) -> Self {
        Self::beginning(Floor::new(head, Forgotten::Unreadable), head, bounds)
    }

    fn beginning(floor: Floor, head: Version, bounds: LogBounds) -> Self {
        Self {
            inner: Mutex::new(Inner {
                hubs: BTreeMap::new(),
                order: VecDeque::new(),
                bytes: 0,
                floor,
                ended: None,
            }),
            bounds,
            appended: AtomicU64::new(head.raw()),
            logged: Logged::default(),
        }
    }

    /// The log that another one was, up to `head`.
    pub(crate) fn restore(kept: Kept, head: Version, bounds: LogBounds) -> Self {
        let of_before = |floor| Floor::new(floor, Forgotten::HandedOver);
        let log = Self::beginning(of_before(kept.floor), head, bounds);
        let now = Instant::now();
        {
            let mut inner = log.inner.lock();
            for (resource, floor) in kept.floors {
                inner.hub(&resource).lower_floor(of_before(floor));
            }
            for (age, event) in kept.events {
                let hub = inner.hub(event.key.as_bytes());
                let weight = event.weight();
                hub.push(event);
                inner.bytes += weight;
                let came = now.checked_sub(age).unwrap_or(now);
                inner.order.push_back((came, hub, weight));
            }
            inner.trim(now, bounds);
        }
        log
    }

    /// Everything that is kept, together with the root of the same moment.
    pub(crate) fn kept<R>(&self, root: impl FnOnce() -> R) -> (R, Kept) {
        let now = Instant::now();
        let inner = self.inner.lock();
        let mut floors = BTreeMap::new();
        let mut events = Vec::with_capacity(inner.order.len());
        for (resource, hub) in &inner.hubs {
            let state = hub.state.read();
            floors.insert(Arc::clone(resource), state.floor.version);
            events.extend(state.events.iter().cloned());
        }
        // Versions rise in the order in which events were appended.
        events.sort_by_key(|event| event.version);
        let ages = inner.order.iter();
        let ages = ages.map(|(came, _, _)| now.saturating_duration_since(*came));
        let kept = Kept {
            floor: inner.floor.version,
            floors,
            events: ages.zip(events).collect(),
        };
        (root(), kept)
    }

    /// Appends the events of one part. `publish` runs under the same lock, so that whoever holds it
    /// sees the root and the events of it, or neither.
    pub(crate) fn append(&self, events: &[Arc<Event>], head: Version, publish: impl FnOnce()) {
        let now = Instant::now();
        let mut woken: Vec<Arc<Hub>> = Vec::with_capacity(1);
        {
            let mut inner = self.inner.lock();
            publish();
            for event in events {
                let hub = inner.hub(event.key.as_bytes());
                let weight = event.weight();
                hub.push(Arc::clone(event));
                inner.bytes += weight;
                inner.order.push_back((now, Arc::clone(&hub), weight));
                if !woken.iter().any(|known| Arc::ptr_eq(known, &hub)) {
                    woken.push(hub);
                }
            }
            inner.trim(now, self.bounds);
            self.appended.store(head.raw(), Ordering::Release);
        }
        for hub in woken {
            hub.wake.notify_waiters();
        }
    }

    /// Everything up to this version stands in the hubs.
    pub(crate) fn appended(&self) -> Version {
        Version::from_raw(self.appended.load(Ordering::Acquire))
    }

    /// The same once every append that has published its root is complete.
    pub(crate) fn appended_all(&self) -> Version {
        drop(self.inner.lock());
        self.appended()
    }

    pub(crate) fn hub(&self, prefix: &Prefix) -> Arc<Hub> {
        self.inner.lock().hub(prefix.as_bytes())
    }

    /// Reads the newest root together with the events of a resource after a version, newest first.
    pub(crate) fn undo_list<R>(
        &self,
        prefix: &Prefix,
        version: Version,
        root: impl FnOnce() -> R,
    ) -> (R, Result<Vec<Arc<Event>>, Forgotten>) {
        let mut inner = self.inner.lock();
        let hub = inner.hub(prefix.as_bytes());
        (root(), hub.undo_list(version))
    }

    /// Takes in what happened before the plane was opened, oldest first; from now on the log
    /// begins after `floor`. Resources that have dropped newer events since stay as they are.
    pub(crate) fn prepend(&self, events: Vec<Arc<Event>>, floor: Floor) {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let loaded_at = inner.floor.version;
        for event in events.into_iter().rev() {
            let hub = inner.hub(event.key.as_bytes());
            if hub.whole_since(loaded_at) {
                let weight = event.weight();
                hub.push_front(event);
                inner.bytes += weight;
                inner.order.push_front((now, hub, weight));
            }
        }
        for hub in inner.hubs.values() {
            if hub.whole_since(loaded_at) {
                hub.lower_floor(floor);
            }
        }
        inner.floor = floor;
        inner.trim(now, self.bounds);
    }

    /// Drops what is too old. Called now and then by whoever has a clock running.
    pub(crate) fn sweep(&self, now: Instant) {
        self.inner.lock().trim(now, self.bounds);
    }

    /// Ends all watches, now and to come.
    pub(crate) fn end(&self, ended: Ended) {
        let mut inner = self.inner.lock();
        let ended = *inner.ended.get_or_insert(ended);
        for hub in inner.hubs.values() {
            hub.end(ended);
        }
    }

    /// Ends the watches of one resource, after which new ones may begin: its kind has changed.
    pub(crate) fn end_resource(&self, prefix: &Prefix) {
        if let Some(hub) = self.inner.lock().hubs.get(prefix.of_resource()) {
            hub.new_era();
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.inner.lock().bytes
    }

    /// Whether it is to be logged that a version is gone for a cause.
    pub(crate) fn logs(&self, cause: Forgotten) -> bool {
        self.logged.is_due(cause, Instant::now())
    }

    pub(crate) fn bounds(&self) -> LogBounds {
        self.bounds
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

    fn trim(&mut self, now: Instant, bounds: LogBounds) {
        while let Some((at, hub, weight)) = self.order.front() {
            let old = now.saturating_duration_since(*at) > bounds.age_max;
            if !old && self.bytes <= bounds.bytes_max {
                break;
            }
            hub.pop(if old {
                Forgotten::Age
            } else {
                Forgotten::Bytes
            });
            self.bytes -= weight;
            self.order.pop_front();
        }
    }
}
