//! The engine without a disk: a sorted map of versions, a log, and a thread that ends leases.
//!
//! For tests and `--store memory`. It follows every rule of the trait except durability, and is the
//! model that the other engines are tested against. One lock guards everything and is never held
//! across a wait.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{CommitError, LeaseError, ReadError, Rejection};
use crate::lease::{Clock, LeaseTable, SystemClock, first_lease_id};
use crate::store::{
    Committed, Fields, HISTORY_BYTES_MAX, Health, History, KeyValue, LeaseId, Limits, Op,
    RangeReply, RangeRequest, Revision, Store, StoreEvent, StoreStatus, Txn,
};
use crate::txn::{EMBEDDED_LIMITS, Stamp, check, holds};
use crate::watch::{Hub, StoreWatch, batches, in_range, store_watch};

/// Bytes beyond which a page of a range read ends.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest sleep of the lease thread while leases exist. The thread is not notified when a test
/// moves the clock.
const LEASE_POLL: Duration = Duration::from_millis(20);

/// The options of a [`MemoryStore`].
#[derive(Clone)]
pub struct MemoryOptions {
    /// Events are kept for at least this time, unless they exceed `history_bytes_max`.
    pub history_window: Duration,
    /// Bytes of keys and values of past events beyond which the oldest events are dropped.
    pub history_bytes_max: usize,
    /// The clock of leases and the history.
    pub clock: Arc<dyn Clock>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            history_window: Duration::from_secs(300),
            history_bytes_max: 64 * 1024 * 1024,
            clock: Arc::new(SystemClock),
        }
    }
}

struct Version {
    created: Revision,
    modified: Revision,
    /// The value; `None` for a deletion.
    value: Option<Bytes>,
    lease: Option<LeaseId>,
}

struct Logged {
    at: Duration,
    bytes: usize,
    event: StoreEvent,
}

struct State {
    head: Revision,
    floor: Revision,
    /// The versions of each key, oldest first; never empty.
    keys: BTreeMap<Bytes, VecDeque<Version>>,
    log: VecDeque<Logged>,
    log_bytes: usize,
    live_bytes: usize,
    leases: LeaseTable,
    hub: Hub,
    closed: bool,
}

struct Inner {
    options: MemoryOptions,
    state: Mutex<State>,
    /// Wakes the lease thread when a lease was granted or the store was closed.
    leases_changed: Condvar,
}

/// A store that lives in the memory of the process.
pub struct MemoryStore {
    inner: Arc<Inner>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new(options: MemoryOptions) -> Self {
        let state = State {
            head: Revision(0),
            floor: Revision(0),
            keys: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            live_bytes: 0,
            leases: LeaseTable::new(first_lease_id()),
            hub: Hub::default(),
            closed: false,
        };
        let inner = Arc::new(Inner {
            options,
            state: Mutex::new(state),
            leases_changed: Condvar::new(),
        });
        let weak = Arc::downgrade(&inner);
        // The thread ends by itself when the store is closed or dropped.
        let spawned = std::thread::Builder::new()
            .name("memory-leases".to_owned())
            .spawn(move || end_leases(&weak));
        if let Err(error) = spawned {
            // Without the thread, leases end with the next operation of any kind.
            tracing::warn!(%error, "no thread for the leases of the memory store");
        }
        Self { inner }
    }

    /// Returns the state after ending all leases that are past their deadline.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.inner.state.lock();
        state.expire(&self.inner.options);
        state
    }

    fn open_state(&self) -> Result<MutexGuard<'_, State>, ReadError> {
        let state = self.state();
        if state.closed {
            Err(ReadError::Closed)
        } else {
            Ok(state)
        }
    }

    fn lease_state(&self) -> Result<MutexGuard<'_, State>, LeaseError> {
        let state = self.state();
        if state.closed {
            Err(LeaseError::Closed)
        } else {
            Ok(state)
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.inner.state.lock().close();
        self.inner.leases_changed.notify_all();
    }
}

/// Runs the lease thread: it sleeps while there are no leases, else until the next deadline.
fn end_leases(weak: &Weak<Inner>) {
    while let Some(inner) = weak.upgrade() {
        let mut state = inner.state.lock();
        if state.closed {
            return;
        }
        state.expire(&inner.options);
        match state.leases.next_deadline() {
            None => inner.leases_changed.wait(&mut state),
            Some(deadline) => {
                let left = deadline.saturating_sub(inner.options.clock.now());
                let wait = left.clamp(Duration::from_millis(1), LEASE_POLL);
                inner.leases_changed.wait_for(&mut state, wait);
            }
        }
    }
}

/// Finds the version of a key at a revision: the last one that is no younger.
fn latest(versions: &VecDeque<Version>, at: Revision) -> Option<&Version> {
    let newest = versions.back()?;
    if newest.modified <= at {
        return Some(newest);
    }
    let older = versions.partition_point(|version| version.modified <= at);
    older.checked_sub(1).and_then(|index| versions.get(index))
}

impl State {
    fn newest(&self, key: &[u8]) -> Option<&Version> {
        self.keys
            .get(key)?
            .back()
            .filter(|version| version.value.is_some())
    }

    fn find(&self, key: &[u8]) -> Option<KeyValue> {
        let version = self.newest(key)?;
        Some(KeyValue {
            key: Bytes::copy_from_slice(key),
            value: version.value.clone().unwrap_or_default(),
            created: version.created,
            modified: version.modified,
            lease: version.lease,
        })
    }

    fn stamp(&self, key: &[u8]) -> Option<Stamp> {
        let version = self.newest(key)?;
        Some(Stamp {
            created: version.created,
            modified: version.modified,
        })
    }

    fn commit(&mut self, txn: &Txn, options: &MemoryOptions) -> Result<Committed, CommitError> {
        let tested = txn.compares.iter().enumerate();
        let failed: Vec<usize> = tested
            .filter(|(_, compare)| !holds(compare, self.stamp(compare.key())))
            .map(|(index, _)| index)
            .collect();
        if !failed.is_empty() {
            let found = txn.compares.iter().map(|compare| self.find(compare.key()));
            return Err(CommitError::Refused {
                failed,
                at: self.head,
                found: found.collect(),
            });
        }
        self.leases.check(txn, &[])?;
        self.apply(&txn.ops, options);
        Ok(Committed {
            revision: self.head,
        })
    }

    fn apply(&mut self, ops: &[Op], options: &MemoryOptions) {
        let revision = Revision(self.head.0 + 1);
        let mut events = Vec::with_capacity(ops.len());
        for op in ops {
            let previous = self.newest(op.key());
            let created = previous.map_or(revision, |version| version.created);
            let previous = previous.and_then(|version| version.value.clone());
            let (key, value, lease) = match op {
                Op::Put { key, value, lease } => (key, Some(value.clone()), *lease),
                Op::Delete { key } if previous.is_some() => (key, None, None),
                Op::Delete { .. } => continue,
            };
            self.leases.attach(key, lease);
            self.live_bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            let version = Version {
                created,
                modified: revision,
                value: value.clone(),
                lease,
            };
            self.keys.entry(key.clone()).or_default().push_back(version);
            events.push(StoreEvent {
                revision,
                key: key.clone(),
                value,
                previous,
            });
        }
        if events.is_empty() {
            return;
        }
        self.head = revision;
        let at = options.clock.now();
        self.hub.publish(revision, &events);
        for event in events {
            let bytes = event.key.len() + event.previous.as_ref().map_or(0, Bytes::len);
            self.log_bytes += bytes;
            self.log.push_back(Logged { at, bytes, event });
        }
        self.trim_window(at, options);
    }

    fn trim_window(&mut self, now: Duration, options: &MemoryOptions) {
        while let Some(oldest) = self.log.front() {
            let old = now.saturating_sub(oldest.at) > options.history_window;
            if !old && self.log_bytes <= options.history_bytes_max {
                return;
            }
            // All events of a revision are dropped together; even the newest revision, if it alone
            // is too large.
            let floor = oldest.event.revision;
            self.raise_floor(floor);
        }
    }

    /// Forgets the events up to `floor`, and the versions they replaced.
    fn raise_floor(&mut self, floor: Revision) {
        self.floor = self.floor.max(floor);
        while let Some(oldest) = self.log.front() {
            if oldest.event.revision > self.floor {
                return;
            }
            let Some(Logged { bytes, event, .. }) = self.log.pop_front() else {
                return;
            };
            self.log_bytes -= bytes;
            let Some(versions) = self.keys.get_mut(&event.key) else {
                continue;
            };
            let older = versions.partition_point(|version| version.modified <= floor);
            for gone in versions.drain(..older.saturating_sub(1)) {
                self.live_bytes -= event.key.len() + gone.value.map_or(0, |value| value.len());
            }
            if versions.len() == 1 && versions[0].value.is_none() && versions[0].modified <= floor {
                self.live_bytes -= event.key.len();
                self.keys.remove(&event.key);
            }
        }
    }

    fn expire(&mut self, options: &MemoryOptions) {
        if self.closed {
            return;
        }
        for id in self.leases.expired(options.clock.now()) {
            self.end_lease(id, options);
        }
    }

    fn end_lease(&mut self, id: LeaseId, options: &MemoryOptions) {
        let keys = self.leases.keys(id).unwrap_or_default();
        let ops: Vec<Op> = keys.into_iter().map(|key| Op::Delete { key }).collect();
        self.apply(&ops, options);
        self.leases.remove(id);
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeReply, ReadError> {
        let at = request.at.unwrap_or(self.head);
        self.check_at(at)?;
        let mut items = Vec::new();
        let mut bytes = 0;
        let limit = if request.limit == 0 {
            usize::MAX
        } else {
            request.limit
        };
        let mut more = false;
        let from = (Bound::Included(request.start.clone()), Bound::Unbounded);
        for (key, versions) in self.keys.range(from) {
            if !in_range(key, &request.start, &request.end) {
                break;
            }
            let version = latest(versions, at);
            let Some(Version {
                created,
                modified,
                value: Some(value),
                lease,
            }) = version
            else {
                continue;
            };
            if request
                .modified_after
                .is_some_and(|after| *modified <= after)
            {
                continue;
            }
            if items.len() == limit || bytes > PAGE_BYTES_MAX {
                more = true;
                break;
            }
            let value = match request.fields {
                Fields::All => value.clone(),
                Fields::KeysOnly => Bytes::new(),
            };
            bytes += key.len() + value.len();
            let (created, modified, lease) = (*created, *modified, *lease);
            items.push(KeyValue {
                key: key.clone(),
                value,
                created,
                modified,
                lease,
            });
        }
        Ok(RangeReply {
            revision: at,
            items,
            more,
        })
    }

    fn history(&self, start: &[u8], end: &[u8], after: Revision) -> Result<History, ReadError> {
        self.check_at(after)?;
        let from = self
            .log
            .partition_point(|logged| logged.event.revision <= after);
        let events = self.log.range(from..).map(|logged| &logged.event);
        let events = events
            .filter(|event| in_range(&event.key, start, end))
            .cloned()
            .collect();
        Ok(History {
            revision: self.head,
            events,
        })
    }

    fn check_at(&self, at: Revision) -> Result<(), ReadError> {
        if at < self.floor {
            return Err(ReadError::Compacted { floor: self.floor });
        }
        if at > self.head {
            return Err(ReadError::Future { head: self.head });
        }
        Ok(())
    }

    fn close(&mut self) {
        self.closed = true;
        self.hub.close();
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        check(&txn, &EMBEDDED_LIMITS).map_err(CommitError::Rejected)?;
        let mut state = self.state();
        if state.closed {
            return Err(CommitError::Rejected(Rejection::Closed));
        }
        state.commit(&txn, &self.inner.options)
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        self.open_state()?.range(&request)
    }

    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let state = self.open_state()?;
        Ok((state.head, state.find(key)))
    }

    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError> {
        let history = self.open_state()?.history(&start, &end, after)?;
        history.within(HISTORY_BYTES_MAX)
    }

    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError> {
        let mut state = self.open_state()?;
        let missed = state.history(&start, &end, after)?;
        let (sender, watch) = store_watch(after);
        sender.put_in_front(batches(missed.events));
        state.hub.register(start, end, sender);
        Ok(watch)
    }

    async fn request_progress(&self) -> Result<(), ReadError> {
        let mut state = self.open_state()?;
        let head = state.head;
        state.hub.report_progress(head);
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, ReadError> {
        Ok(self.open_state()?.head)
    }

    async fn compact(&self, below: Revision) -> Result<(), ReadError> {
        let mut state = self.open_state()?;
        if below > state.head {
            return Err(ReadError::Future { head: state.head });
        }
        state.raise_floor(below);
        Ok(())
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        let now = self.inner.options.clock.now();
        let id = self.lease_state()?.leases.grant(ttl, now);
        self.inner.leases_changed.notify_all();
        Ok(id)
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError> {
        let now = self.inner.options.clock.now();
        match self.lease_state()?.leases.keep_alive(lease, now) {
            true => Ok(()),
            false => Err(LeaseError::NotFound),
        }
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        let mut state = self.lease_state()?;
        if !state.leases.has(lease) {
            return Err(LeaseError::NotFound);
        }
        state.end_lease(lease, &self.inner.options);
        Ok(())
    }

    fn opened_at(&self) -> Option<Revision> {
        Some(Revision(0))
    }

    fn limits(&self) -> Limits {
        EMBEDDED_LIMITS
    }

    fn status(&self) -> StoreStatus {
        let state = self.inner.state.lock();
        let health = match state.closed {
            true => Health::Failed {
                reason: "the store is closed".to_owned(),
            },
            false => Health::Ok,
        };
        let used_bytes = u64::try_from(state.live_bytes).unwrap_or(u64::MAX);
        StoreStatus {
            health,
            used_bytes,
            floor: state.floor,
        }
    }

    async fn close(&self) {
        self.inner.state.lock().close();
        self.inner.leases_changed.notify_all();
    }
}
