//! The change feed: one bounded buffer for each watcher, filled by an engine, read by `StoreWatch`.
//!
//! A watcher that does not keep up is cut off; its buffer never grows without bound. Must not know
//! how an engine stores its history: the engine puts events from before the watch in front of the
//! buffer.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::ReadError;
use crate::store::{Revision, StoreEvent};

/// Number of events that may wait for a watcher before it is cut off.
const WATCH_EVENTS_MAX: usize = 65_536;
/// Bytes of keys and values that may wait for a watcher before it is cut off.
const WATCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One delivery to a watcher: the events of one revision or, without events, the fact that nothing
/// else happened in its range up to this revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    /// The revision up to which the watcher has everything in its range, once it has this batch.
    pub revision: Revision,
    /// The events of one revision, in the order of operations.
    pub events: Vec<StoreEvent>,
}

/// The reason why a watch ended. A new watch can resume after the revision of the last batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The watcher did not keep up.
    #[error("the watcher was too slow")]
    Slow,
    /// The connection to the store was lost, for a reason in the engine's words.
    #[error("the watch was cut: {0}")]
    Lost(String),
    /// The store no longer has the history that the watch needs.
    #[error("revisions below {floor} are compacted")]
    Compacted {
        /// The oldest revision that can still be read.
        floor: Revision,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

struct Feed {
    batches: VecDeque<WatchBatch>,
    events: usize,
    bytes: usize,
    progress: Revision,
    end: Option<WatchEnd>,
    /// Batches whose events are all of this key do not wake the watcher.
    quiet: Option<Bytes>,
}

impl Feed {
    /// Returns whether the watcher is woken for these events; progress always wakes it.
    fn wakes(&self, events: &[StoreEvent]) -> bool {
        let is_quiet = |event: &StoreEvent| self.quiet.as_ref() == Some(&event.key);
        events.is_empty() || !events.iter().all(is_quiet)
    }
}

struct WatchBuffer {
    feed: Mutex<Feed>,
    wake: Notify,
    gone: Arc<Notify>,
}

impl Drop for WatchBuffer {
    fn drop(&mut self) {
        self.gone.notify_waiters();
    }
}

/// A running watch. Dropping this ends the watch.
pub struct StoreWatch {
    shared: Arc<WatchBuffer>,
    delivered: Revision,
}

/// Waits for the batches of a watch that another task reads with [`StoreWatch::try_next`].
pub struct Arrivals(Arc<WatchBuffer>);

impl Arrivals {
    /// Completes when a batch or the end may have come since the last call completed.
    ///
    /// # Cancel safety
    /// A dropped call loses no arrival.
    pub async fn wait(&self) {
        self.0.wake.notified().await;
    }
}

/// The engine's side of a watch.
#[derive(Clone)]
pub struct WatchSender {
    shared: Weak<WatchBuffer>,
    gone: Arc<Notify>,
}

/// Returns a watch that begins after a revision, and its sender. For engines.
#[must_use]
pub fn store_watch(after: Revision) -> (WatchSender, StoreWatch) {
    let feed = Feed {
        batches: VecDeque::new(),
        events: 0,
        bytes: 0,
        progress: after,
        end: None,
        quiet: None,
    };
    let gone = Arc::new(Notify::new());
    let shared = Arc::new(WatchBuffer {
        feed: Mutex::new(feed),
        wake: Notify::new(),
        gone: Arc::clone(&gone),
    });
    (
        WatchSender {
            shared: Arc::downgrade(&shared),
            gone,
        },
        StoreWatch {
            shared,
            delivered: after,
        },
    )
}

impl StoreWatch {
    /// Returns the next batch. Revisions never fall; a batch without events only reports progress.
    ///
    /// # Errors
    /// Returns the reason why the watch ended, after all batches that were sent before; every later
    /// call returns it again.
    ///
    /// # Cancel safety
    /// A dropped call loses no batch.
    pub async fn next(&mut self) -> Result<WatchBatch, WatchEnd> {
        loop {
            // Registered before the check, so that a batch which is sent between check and wait
            // wakes this task.
            let shared = Arc::clone(&self.shared);
            let wake = shared.wake.notified();
            if let Some(next) = self.try_next() {
                return next;
            }
            wake.await;
        }
    }

    /// Returns a handle for a task that waits for batches and does not hold the watch meanwhile. It
    /// must be dropped together with the watch, which goes on while it exists.
    #[must_use]
    pub fn arrivals(&self) -> Arrivals {
        Arrivals(Arc::clone(&self.shared))
    }

    /// Sets a key whose events alone wake nobody: the caller takes them with [`Self::try_next`] at
    /// a time of its own choice. `None` ends that for batches that come afterwards, so a caller that
    /// wants to wait looks for batches once more.
    pub fn set_quiet(&self, key: Option<Bytes>) {
        self.shared.feed.lock().quiet = key;
    }

    /// Returns another sender of this watch, for decorators that end it.
    #[must_use]
    pub fn sender(&self) -> WatchSender {
        WatchSender {
            shared: Arc::downgrade(&self.shared),
            gone: Arc::clone(&self.shared.gone),
        }
    }

    /// Returns the next batch or the end, if there is one, without waiting.
    pub fn try_next(&mut self) -> Option<Result<WatchBatch, WatchEnd>> {
        let mut feed = self.shared.feed.lock();
        if let Some(batch) = feed.batches.pop_front() {
            feed.events = feed.events.saturating_sub(batch.events.len());
            feed.bytes = feed.bytes.saturating_sub(batch_bytes(&batch));
            self.delivered = batch.revision;
            return Some(Ok(batch));
        }
        if let Some(end) = &feed.end {
            return Some(Err(end.clone()));
        }
        if feed.progress > self.delivered {
            self.delivered = feed.progress;
            return Some(Ok(WatchBatch {
                revision: self.delivered,
                events: Vec::new(),
            }));
        }
        None
    }
}

impl WatchSender {
    /// Sends a batch. Returns false if the watch has ended.
    #[must_use]
    pub fn send(&self, batch: WatchBatch) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let mut feed = shared.feed.lock();
        if feed.end.is_some() {
            return false;
        }
        feed.progress = feed.progress.max(batch.revision);
        let wakes = feed.wakes(&batch.events);
        if !batch.events.is_empty() {
            feed.events += batch.events.len();
            feed.bytes += batch_bytes(&batch);
            if feed.events > WATCH_EVENTS_MAX || feed.bytes > WATCH_BYTES_MAX {
                feed.end = Some(WatchEnd::Slow);
            } else {
                feed.batches.push_back(batch);
            }
        }
        let open = feed.end.is_none();
        drop(feed);
        if wakes || !open {
            shared.wake.notify_one();
        }
        open
    }

    /// Puts batches from before the watch was registered in front of those that were sent since.
    /// They are not limited, because the history itself is.
    pub fn put_in_front(&self, batches: Vec<WatchBatch>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let mut feed = shared.feed.lock();
        for batch in batches.into_iter().rev() {
            feed.progress = feed.progress.max(batch.revision);
            feed.batches.push_front(batch);
        }
        drop(feed);
        shared.wake.notify_one();
    }

    /// Ends the watch after the batches that were sent.
    pub fn end(&self, end: WatchEnd) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        shared.feed.lock().end.get_or_insert(end);
        shared.wake.notify_one();
    }

    /// Completes when the watch is dropped.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let (shared, gone) = (Weak::clone(&self.shared), Arc::clone(&self.gone));
        async move {
            // Registered before the check, so that a drop between check and wait wakes this task.
            let ended = gone.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if shared.strong_count() > 0 {
                ended.await;
            }
        }
    }

    /// Returns whether the watch was dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.strong_count() == 0
    }
}

fn batch_bytes(batch: &WatchBatch) -> usize {
    batch.events.iter().map(StoreEvent::bytes).sum()
}

/// Returns the events of a history, one batch per revision.
pub(crate) fn batches(events: Vec<StoreEvent>) -> Vec<WatchBatch> {
    let mut batches: Vec<WatchBatch> = Vec::new();
    for event in events {
        match batches.last_mut() {
            Some(batch) if batch.revision == event.revision => batch.events.push(event),
            _ => batches.push(WatchBatch {
                revision: event.revision,
                events: vec![event],
            }),
        }
    }
    batches
}

/// Returns whether a key is in `[start, end)`; an empty `end` means no bound.
pub(crate) fn in_range(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    key >= start && (end.is_empty() || key < end)
}

struct Watcher {
    start: Bytes,
    end: Bytes,
    sender: WatchSender,
}

/// The watchers of an embedded engine.
#[derive(Default)]
pub(crate) struct Hub {
    watchers: Vec<Watcher>,
    closed: bool,
}

impl Hub {
    /// Adds a watcher that gets everything from the next call of [`Self::publish`] on.
    pub(crate) fn register(&mut self, start: Bytes, end: Bytes, sender: WatchSender) {
        if self.closed {
            sender.end(WatchEnd::Closed);
            return;
        }
        self.watchers.push(Watcher { start, end, sender });
    }

    /// Opens a watch after a revision that gets everything from the next `publish` on, which comes after
    /// `head`.
    pub(crate) fn open(
        &mut self,
        (start, end): (Bytes, Bytes),
        after: Revision,
        head: Revision,
    ) -> Result<(StoreWatch, WatchSender), ReadError> {
        if after > head {
            return Err(ReadError::Future { head });
        }
        let (sender, watch) = store_watch(after);
        self.register(start, end, sender.clone());
        Ok((watch, sender))
    }

    /// Sends the events of one revision to the watchers of their keys, and forgets watches that
    /// were dropped. Other watchers are not woken: a server has a watch for each plane that is
    /// awake, and these must not make every write more expensive.
    pub(crate) fn publish(&mut self, revision: Revision, events: &[StoreEvent]) {
        self.watchers.retain(|watcher| {
            let hits = events
                .iter()
                .filter(|event| in_range(&event.key, &watcher.start, &watcher.end));
            let events: Vec<StoreEvent> = hits.cloned().collect();
            match events.is_empty() {
                true => !watcher.sender.is_gone(),
                false => watcher.sender.send(WatchBatch { revision, events }),
            }
        });
    }

    /// Notifies all watchers that they have everything up to a revision, which is published.
    pub(crate) fn report_progress(&mut self, revision: Revision) {
        self.watchers.retain(|watcher| {
            let events = Vec::new();
            watcher.sender.send(WatchBatch { revision, events })
        });
    }

    /// Returns whether a key is watched.
    pub(crate) fn wants(&self, key: &[u8]) -> bool {
        self.watchers
            .iter()
            .any(|watcher| in_range(key, &watcher.start, &watcher.end))
    }

    /// Ends all present watches, because their events could not be determined.
    pub(crate) fn cut(&mut self, why: &str) {
        for watcher in self.watchers.drain(..) {
            watcher.sender.end(WatchEnd::Lost(why.to_owned()));
        }
    }

    /// Ends all watches. Later ones end at once.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for watcher in self.watchers.drain(..) {
            watcher.sender.end(WatchEnd::Closed);
        }
    }
}
