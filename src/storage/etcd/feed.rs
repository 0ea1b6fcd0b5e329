//! Watches that go on by themselves, and histories.
//!
//! etcd's watch ends with its connection, with its member's leader, or not at all when the member
//! hangs; a feed opens the next one after the last revision it has told. It tells whole revisions
//! only, so nothing is lost or told twice at the seam.
//!
//! Only events' own revisions and progress notices count as progress. The revision beside events
//! does not: of a watch that is catching up it is ahead of what was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd_client::proto::PbEvent;
use etcd_client::{WatchOptions, WatchStream};
use tokio::sync::{Notify, watch};

use super::members::{Member, Members};
use super::reply::{Fault, fault};
use super::wire::{EtcdRange, Keys, number, revision};
use crate::store::{Revision, StoreEvent};
use crate::watch::{WatchEnd, WatchSender, batches, in_range};

/// etcd leaves a request for progress without an answer while a watch is catching up, and a member
/// that lags answers with what it has. It is asked again after this time.
pub(super) const PROGRESS_RETRY: Duration = Duration::from_millis(25);
const RESUME_FIRST: Duration = Duration::from_millis(20);
const RESUME_MAX: Duration = Duration::from_secs(1);
/// How long opening a watch may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// What a stream tells.
#[derive(Debug)]
pub(super) enum FeedUpdate {
    /// Events of whole revisions, in order.
    Events(Vec<StoreEvent>),
    /// Everything up to here has been told.
    Progress(Revision),
    /// What was asked for is compacted; the oldest revision that still has an answer.
    Compacted(Revision),
}

/// Which part of the store, in our keys.
#[derive(Debug, Clone)]
pub(super) struct KeyRange {
    pub(super) start: Bytes,
    pub(super) end: Bytes,
}

impl KeyRange {
    fn outer(&self, keys: &Keys) -> EtcdRange {
        if !self.end.is_empty() && self.start >= self.end {
            // etcd refuses an empty range; what this one key would tell is left out below.
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
    /// Events of a response that came in pieces; they may end within a revision.
    pieces: Vec<PbEvent>,
}

impl EventStream {
    /// Opens a watch of everything after a revision.
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

    /// Asks for a progress notice.
    pub(super) async fn request_progress(&mut self) -> Result<(), Fault> {
        let asked = self.stream.request_progress().await;
        asked.map_err(|error| fault(&error))
    }

    /// What the stream tells next.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub(super) async fn next(&mut self) -> Result<FeedUpdate, Fault> {
        loop {
            let message = self.stream.message().await.map_err(|error| fault(&error))?;
            let Some(response) = message else {
                return Err(Fault::Unavailable("the watch was closed".to_owned()));
            };
            let response = response.0;
            if response.compact_revision > 0 {
                // Never at the compaction revision, always above it.
                return Ok(FeedUpdate::Compacted(revision(
                    response.compact_revision + 1,
                )));
            }
            if response.canceled {
                let why = response.cancel_reason;
                return Err(match why.contains("auth token") {
                    true => Fault::TokenInvalid,
                    false => Fault::Unavailable(format!("the watch was canceled: {why}")),
                });
            }
            if response.created {
                continue;
            }
            let progress = response.events.is_empty() && !response.fragment;
            self.pieces.extend(response.events);
            if let Some(told) = self.whole(response.fragment) {
                return Ok(told);
            }
            if progress {
                let at = response.header.map_or(0, |header| header.revision);
                return Ok(FeedUpdate::Progress(revision(at)));
            }
        }
    }

    /// Takes the events of whole revisions out of the pieces.
    fn whole(&mut self, more: bool) -> Option<FeedUpdate> {
        let at = |event: &PbEvent| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let mut rest = Vec::new();
        if more {
            // The last revision may go on in the next piece.
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

/// What others may ask of a feed.
#[derive(Default)]
pub(super) struct ProgressRequest {
    progress: AtomicU64,
    wake: Notify,
}

impl ProgressRequest {
    /// The feed is to tell progress up to this revision.
    pub(super) fn progress(&self, through: Revision) {
        self.progress.fetch_max(through.0, Ordering::SeqCst);
        self.wake.notify_one();
    }
}

/// Why a stream is left.
enum StreamEnd {
    /// The feed is over.
    Over,
    /// The next stream is to be opened.
    Lost(Fault),
}

/// Feeds one watch for as long as somebody reads it.
pub(super) struct Feed {
    pub(super) members: Arc<Members>,
    pub(super) keys: Keys,
    pub(super) range: KeyRange,
    pub(super) sender: WatchSender,
    pub(super) asked: Arc<ProgressRequest>,
    pub(super) closed: watch::Receiver<bool>,
    pub(super) told: Revision,
    pub(super) raise_floor: Arc<dyn Fn(Revision) + Send + Sync>,
}

impl Feed {
    /// Runs until the watch has ended.
    pub(super) async fn run(mut self) {
        let mut wait = RESUME_FIRST;
        let mut closed = self.closed.clone();
        let gone = self.sender.gone();
        tokio::pin!(gone);
        loop {
            let member = self.members.current();
            let before = self.told;
            let end = tokio::select! {
                // An ended watch first: nothing else matters then.
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
                    tracing::debug!(endpoint = %member.endpoint, %fault, "a watch is taken up again");
                    if fault == Fault::TokenInvalid {
                        self.members.log_in(&member).await;
                    } else {
                        self.members.suspect(&member, &fault.to_string());
                    }
                }
            }
            if self.told > before {
                wait = RESUME_FIRST;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RESUME_MAX);
        }
    }

    /// One stream, from the last revision told until it breaks.
    async fn stream(&mut self, member: &Arc<Member>) -> StreamEnd {
        let opened = EventStream::open(member, &self.keys, &self.range, self.told).await;
        let mut stream = match opened {
            Ok(stream) => stream,
            Err(fault) => return StreamEnd::Lost(fault),
        };
        let unfit = member.unfit();
        tokio::pin!(unfit);
        loop {
            let wanted = self.asked.progress.load(Ordering::SeqCst);
            let behind = wanted > self.told.0;
            let update = tokio::select! {
                // News before questions: they may be the answer.
                biased;
                update = stream.next() => update,
                why = &mut unfit => return StreamEnd::Lost(Fault::Unavailable(why)),
                () = self.asked.wake.notified() => {
                    match stream.request_progress().await {
                        Ok(()) => continue,
                        Err(fault) => return StreamEnd::Lost(fault),
                    }
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

    /// Passes on what is new. False if the watch has ended.
    fn forward(&mut self, update: FeedUpdate) -> bool {
        match update {
            FeedUpdate::Events(events) => {
                for batch in batches(events) {
                    if batch.revision <= self.told {
                        continue;
                    }
                    self.told = batch.revision;
                    if !self.sender.send(batch) {
                        return false;
                    }
                }
                true
            }
            FeedUpdate::Progress(through) if through > self.told => {
                self.told = through;
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
