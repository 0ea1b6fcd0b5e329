//! Watches that reconnect by themselves, and histories.
//!
//! A watch of etcd ends if its connection breaks or its member loses the leader, and does not end
//! if the member hangs. A feed then opens a new one after the last revision that it has passed on.
//! It passes on whole revisions only, so nothing is lost or repeated in between.
//!
//! Only the revisions of events and of progress notices count as progress. The revision in the header
//! of a response with events does not: it is ahead of the events of a watch that is catching up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::proto::PbEvent;
use etcd_client::{WatchOptions, WatchStream};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::STALL_MAX;
use super::members::{Member, Members};
use super::reply::{self, Fault, fault};
use super::wire::{EtcdRange, Keys, number, revision};
use crate::store::{Revision, StoreEvent};
use crate::watch::{WatchEnd, WatchSender, batches, in_range};

/// Interval of progress requests. etcd ignores one while a watch is catching up, and a member that
/// lags behind replies with an old revision, so one request is not enough.
pub(super) const PROGRESS_RETRY: Duration = Duration::from_millis(25);
const RESUME_FIRST: Duration = Duration::from_millis(20);
const RESUME_MAX: Duration = Duration::from_secs(1);
/// The longest time that opening a watch may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// One message of a stream.
#[derive(Debug)]
pub(super) enum FeedUpdate {
    /// Events of whole revisions, in order.
    Events(Vec<StoreEvent>),
    /// All events up to this revision were sent.
    Progress(Revision),
    /// The wanted revision is compacted. This is the oldest one that can still be read.
    Compacted(Revision),
}

/// A range of keys `[start, end)` of the store, without etcd's prefix.
#[derive(Debug, Clone)]
pub(super) struct KeyRange {
    pub(super) start: Bytes,
    pub(super) end: Bytes,
}

impl KeyRange {
    fn outer(&self, keys: &Keys) -> EtcdRange {
        if !self.end.is_empty() && self.start >= self.end {
            // etcd refuses an empty range, so this watches one key, whose events `has` filters out.
            return keys.outer_range(&self.start, &[&self.start[..], &[0]].concat());
        }
        keys.outer_range(&self.start, &self.end)
    }

    fn has(&self, key: &[u8]) -> bool {
        in_range(key, &self.start, &self.end)
    }
}

/// One etcd watch on one connection.
pub(super) struct EventStream {
    stream: WatchStream,
    keys: Keys,
    range: KeyRange,
    /// Events of a response that was sent in several parts; they may end within a revision.
    pieces: Vec<PbEvent>,
}

impl EventStream {
    /// Opens a watch of all events after a revision.
    pub(super) async fn open(
        member: &Member,
        keys: &Keys,
        range: &KeyRange,
        after: Revision,
    ) -> Result<Self, Fault> {
        let outer = range.outer(keys);
        let options = WatchOptions::new()
            .with_range(outer.end)
            .with_start_revision(number(after).saturating_add(1))
            .with_prev_key()
            .with_progress_notify()
            .with_fragment();
        let mut watches = member.watches();
        let opened = tokio::time::timeout(OPEN_TIMEOUT, watches.watch(outer.key, Some(options)));
        let stream = match opened.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(fault(&error)),
            Err(_) => return Err(Fault::Unavailable("a watch did not open".to_owned())),
        };
        Ok(Self {
            stream,
            keys: keys.clone(),
            range: range.clone(),
            pieces: Vec::new(),
        })
    }

    /// Requests a progress notice.
    pub(super) async fn request_progress(&mut self) -> Result<(), Fault> {
        let asked = self.stream.request_progress().await;
        asked.map_err(|error| fault(&error))
    }

    /// Returns the next message of the stream.
    ///
    /// # Cancel safety
    /// A dropped call loses no message.
    pub(super) async fn next(&mut self) -> Result<FeedUpdate, Fault> {
        loop {
            let message = self.stream.message().await.map_err(|error| fault(&error))?;
            let Some(response) = message else {
                return Err(Fault::Unavailable("the watch was closed".to_owned()));
            };
            let response = response.0;
            if response.compact_revision > 0 {
                // The watch may resume only above the compaction revision.
                return Ok(FeedUpdate::Compacted(revision(
                    response.compact_revision + 1,
                )));
            }
            if response.canceled {
                return Err(reply::canceled(&response.cancel_reason));
            }
            if response.created {
                continue;
            }
            let progress = response.events.is_empty() && !response.fragment;
            self.pieces.extend(response.events);
            if let Some(update) = self.whole(response.fragment) {
                return Ok(update);
            }
            if progress {
                let at = response.header.map_or(0, |header| header.revision);
                return Ok(FeedUpdate::Progress(revision(at)));
            }
        }
    }

    /// Removes and returns the events of complete revisions.
    fn whole(&mut self, more: bool) -> Option<FeedUpdate> {
        let at = |event: &PbEvent| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let mut rest = Vec::new();
        if more {
            // The last revision may continue in the next part.
            let last = self.pieces.last().map_or(0, at);
            let cut = self.pieces.partition_point(|event| at(event) < last);
            rest = self.pieces.split_off(cut);
        }
        let pieces = std::mem::replace(&mut self.pieces, rest);
        if pieces.is_empty() {
            return None;
        }
        let mut events = Vec::with_capacity(pieces.len());
        for event in pieces {
            match self.keys.event(event) {
                Ok(event) if self.range.has(&event.key) => events.push(event),
                Ok(_) => {}
                Err(floor) => return Some(FeedUpdate::Compacted(floor)),
            }
        }
        Some(FeedUpdate::Events(events))
    }
}

/// A request to a feed to report its progress.
#[derive(Default)]
pub(super) struct ProgressRequest {
    progress: AtomicU64,
    wake: Notify,
}

impl ProgressRequest {
    /// Requests that the feed reports progress up to this revision.
    pub(super) fn progress(&self, through: Revision) {
        self.progress.fetch_max(through.0, Ordering::SeqCst);
        self.wake.notify_one();
    }
}

/// The reason why a stream ended.
enum StreamEnd {
    /// The watch has ended, so the stream is no longer needed.
    Over,
    /// The connection failed: another stream must be opened.
    Lost(Fault),
}

/// Feeds one watch until it is dropped.
pub(super) struct Feed {
    pub(super) members: Arc<Members>,
    pub(super) keys: Keys,
    pub(super) range: KeyRange,
    pub(super) sender: WatchSender,
    pub(super) asked: Arc<ProgressRequest>,
    pub(super) closed: watch::Receiver<bool>,
    pub(super) delivered: Revision,
    pub(super) raise_floor: Arc<dyn Fn(Revision) + Send + Sync>,
}

impl Feed {
    /// Feeds the watch until it has ended.
    pub(super) async fn run(mut self) {
        let mut wait = RESUME_FIRST;
        let mut closed = self.closed.clone();
        let gone = self.sender.gone();
        tokio::pin!(gone);
        loop {
            let member = self.members.current();
            let before = self.delivered;
            let sent = Instant::now();
            let end = tokio::select! {
                // The end of the watch is polled first: nothing else matters then.
                biased;
                () = &mut gone => return,
                () = super::closing(&mut closed) => {
                    self.sender.end(WatchEnd::Closed);
                    return;
                }
                end = self.stream(&member) => end,
            };
            match end {
                StreamEnd::Over => return,
                StreamEnd::Lost(fault) => {
                    tracing::debug!(endpoint = %member.endpoint, %fault, "a watch ended and is opened again");
                    if !self.members.log_in_again(&member, &fault, sent).await {
                        self.members.suspect(&member, &fault.to_string());
                    }
                }
            }
            if self.delivered > before {
                wait = RESUME_FIRST;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RESUME_MAX);
        }
    }

    /// Reads one stream, from the last revision passed on until the stream fails.
    async fn stream(&mut self, member: &Arc<Member>) -> StreamEnd {
        let opened = EventStream::open(member, &self.keys, &self.range, self.delivered).await;
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(fault) => return StreamEnd::Lost(fault),
        };
        let unfit = member.unfit();
        tokio::pin!(unfit);
        // Where the stream was when it was last found behind, and until when it may stay there.
        let mut stall: Option<(Revision, Instant)> = None;
        loop {
            let wanted = self.asked.progress.load(Ordering::SeqCst);
            let behind = wanted > self.delivered.0;
            let stalled = match stall {
                Some((at, until)) if at == self.delivered => until,
                Some(_) | None => Instant::now() + STALL_MAX,
            };
            stall = behind.then_some((self.delivered, stalled));
            let update = tokio::select! {
                // Messages are polled first: one may be the progress that would be requested below.
                biased;
                update = stream.next() => update,
                why = &mut unfit => return StreamEnd::Lost(Fault::Unavailable(why)),
                () = self.asked.wake.notified() => {
                    match stream.request_progress().await {
                        Ok(()) => continue,
                        Err(fault) => return StreamEnd::Lost(fault),
                    }
                }
                // A member that lags behind for good answers every request, with an old revision.
                () = tokio::time::sleep_until(stalled), if behind => {
                    let why = "a watch made no progress".to_owned();
                    return StreamEnd::Lost(Fault::Unavailable(why));
                }
                () = tokio::time::sleep(PROGRESS_RETRY), if behind => {
                    match stream.request_progress().await {
                        Ok(()) => continue,
                        Err(fault) => return StreamEnd::Lost(fault),
                    }
                }
            };
            match update {
                Ok(update) => {
                    if !self.forward(update) {
                        return StreamEnd::Over;
                    }
                }
                Err(fault) => return StreamEnd::Lost(fault),
            }
        }
    }

    /// Passes new events on to the watch. Returns false if the watch has ended.
    fn forward(&mut self, update: FeedUpdate) -> bool {
        match update {
            FeedUpdate::Events(events) => {
                for batch in batches(events) {
                    if batch.revision <= self.delivered {
                        continue;
                    }
                    self.delivered = batch.revision;
                    if !self.sender.send(batch) {
                        return false;
                    }
                }
                true
            }
            FeedUpdate::Progress(through) if through > self.delivered => {
                self.delivered = through;
                self.sender.send(crate::watch::WatchBatch {
                    revision: through,
                    events: Vec::new(),
                })
            }
            FeedUpdate::Progress(_) => true,
            FeedUpdate::Compacted(floor) => {
                (self.raise_floor)(floor);
                self.sender.end(WatchEnd::Compacted { floor });
                false
            }
        }
    }
}
