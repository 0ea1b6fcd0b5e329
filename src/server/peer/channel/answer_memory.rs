//! The memory that answers of other replicas take here on their way to clients, and the end of those that their
//! clients do not read.
//!
//! At the owner, unread watches share the events. Here each of them has its own copy, so that thousands of them would
//! fill any memory. Therefore the body of each answer counts in the process's share of answers, from its arrival until
//! the client's connection has written it, and for the plane whose answer it is. All these bodies may have as much as
//! one greedy plane may have of the share. Above half of that, streams get little credit. Above all of it, answers of
//! the planes that hold the most end: those that nobody reads first, and of them those that hold the most.
//!
//! Invariant: no plane loses an answer while it holds less than each plane could have if all had equally much. What an
//! ended answer leaves in its client's connection counts for its plane until the connection has dropped it.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_fairness::{PlaneMeter, TIMES_FREE, fair_limit};
use polyplane_plane::{Memory, Share};

use crate::connection::unread::Sending;
use crate::peer::channel::Channel;
use crate::peer::channel::received::Received;

/// When there is too much, answers end until this many sixteenths of the room are in use. With more, each further frame
/// would look at all streams again.
const KEPT_SIXTEENTHS: usize = 15;
/// Part of the room by which the bytes must grow before streams are looked at again, if what was ended has not freed
/// enough yet. With less, each frame that arrives until then would look at all streams.
const GROWTH_PART: usize = 64;

/// The bodies of all answers of other replicas that are in memory.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    /// The budget in which they count. It is set before the first request is forwarded.
    memory: OnceLock<Arc<Memory>>,
    bytes: AtomicUsize,
    /// The bytes above which streams are looked at again.
    looks_above: AtomicUsize,
    /// The connections whose answers count.
    channels: Mutex<Vec<Weak<Channel>>>,
}

impl AnswerMemory {
    /// Sets the budget in which the answers count. A process has one: later calls do nothing.
    pub(crate) fn count_in(&self, memory: Arc<Memory>) {
        drop(self.memory.set(memory));
    }

    fn memory(&self) -> &Arc<Memory> {
        self.memory.get_or_init(Arc::default)
    }

    /// Adds a connection whose answers count.
    pub(super) fn add_channel(&self, channel: &Arc<Channel>) {
        let mut channels = self.channels.lock();
        channels.retain(|known| known.strong_count() > 0);
        channels.push(Arc::downgrade(channel));
    }

    /// Returns the bytes in memory.
    pub(in crate::peer) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many bytes may be in memory: as many as one plane may have of what other answers leave. A ninth of
    /// the share is always for these bodies, or many answers of this replica's own planes would end them all.
    pub(in crate::peer) fn bytes_max(&self) -> usize {
        let memory = self.memory();
        let (used, limit) = (memory.used(Share::Answers), memory.limit(Share::Answers));
        let left = limit.saturating_sub(used.saturating_sub(self.bytes()));
        let times = TIMES_FREE as usize;
        (left / (times + 1) * times).max(limit / (times + 1))
    }

    /// Returns whether streams get little credit.
    fn is_short(&self) -> bool {
        self.bytes() > self.bytes_max() / 2
    }

    fn add(&self, payer: &PlaneMeter, bytes: usize) {
        payer.add_forwarded(bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory().add(Share::Answers, bytes);
    }

    fn remove(&self, payer: &PlaneMeter, bytes: usize) {
        payer.remove_forwarded(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory().subtract(Share::Answers, bytes);
    }

    /// Ends answers if there is too much of them. Called for each frame that arrives, with nothing locked.
    pub(super) fn make_room(&self) {
        let bytes_max = self.bytes_max();
        if self.bytes() <= bytes_max {
            if self.looks_above.load(Ordering::Relaxed) > 0 {
                self.looks_above.store(0, Ordering::Relaxed);
            }
            return;
        }
        if self.bytes() <= self.looks_above.load(Ordering::Relaxed) {
            return;
        }
        // One at a time: a second one would end the same streams.
        let Some(channels) = self.channels.try_lock() else {
            return;
        };
        self.memory().was_full(Share::Answers);
        let mut planes = HashMap::<usize, Vec<HoldingStream>>::new();
        for channel in channels.iter().filter_map(Weak::upgrade) {
            for stream in channel.holding_streams() {
                let plane = Arc::as_ptr(&stream.answer.payer).addr();
                planes.entry(plane).or_default().push(stream);
            }
        }
        let held = planes.values().filter_map(|streams| streams.first());
        let mut held: Vec<usize> = held.map(|one| one.answer.payer.forwarded_bytes()).collect();
        let level = fair_limit(&mut held, bytes_max / 16 * KEPT_SIXTEENTHS);
        for streams in planes.into_values() {
            end_down_to(streams, level);
        }
        let looks_above = self.bytes() + bytes_max / GROWTH_PART;
        self.looks_above.store(looks_above, Ordering::Relaxed);
    }
}

/// A stream whose answer holds memory.
pub(super) struct HoldingStream {
    pub channel: Arc<Channel>,
    pub id: u32,
    pub answer: Arc<HeldAnswer>,
    pub bytes: usize,
    /// True if its reader has read all that has arrived and waits for more, and the client's connection keeps little.
    pub is_read: bool,
}

/// Ends streams of one plane until the others hold at most `level` bytes. Of streams that are read, the youngest end: the
/// older ones can then complete what they read, and those that hold the most are the nearest to that.
fn end_down_to(mut streams: Vec<HoldingStream>, level: usize) {
    streams.sort_unstable_by_key(|stream| {
        let rank = match stream.is_read {
            true => stream.id as usize,
            false => stream.bytes,
        };
        (stream.is_read, Reverse(rank))
    });
    let held = streams
        .first()
        .map(|one| one.answer.payer.forwarded_bytes());
    let mut held = held.unwrap_or(0);
    for stream in streams {
        if held <= level {
            return;
        }
        held = held.saturating_sub(stream.bytes);
        stream.channel.end_forwarded(stream.id);
        if !stream.is_read {
            stream.answer.cut();
        }
    }
}

/// The memory of one answer of another replica: what its reader has not taken, and what the reader and the client's
/// connection keep of the rest.
pub(in crate::peer) struct HeldAnswer {
    all: Arc<AnswerMemory>,
    payer: Arc<PlaneMeter>,
    bytes: AtomicUsize,
    /// How the answer is sent to its client; `None` before and after that.
    sending: Mutex<Option<Arc<Sending>>>,
}

impl HeldAnswer {
    pub(super) fn new(all: &Arc<AnswerMemory>, payer: &Arc<PlaneMeter>) -> Self {
        Self {
            all: Arc::clone(all),
            payer: Arc::clone(payer),
            bytes: AtomicUsize::new(0),
            sending: Mutex::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the client's connection keeps some of the answer.
    pub(super) fn is_unread(&self) -> bool {
        let sending = self.sending.lock();
        sending.as_ref().is_some_and(|sending| sending.is_unread())
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.add(&self.payer, bytes);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.remove(&self.payer, bytes);
    }

    /// Ends the answer at its client, so that the client's connection drops what it keeps.
    fn cut(&self) {
        // Locked, because over HTTP/1.1 the next answer has the same `Sending`.
        if let Some(sending) = &*self.sending.lock() {
            sending.cut();
        }
    }
}

/// Where the memory of one stream counts.
pub(in crate::peer) struct Account {
    pub connection: Arc<Received>,
    /// `None` if the stream is not an answer to a client.
    pub answer: Option<Arc<HeldAnswer>>,
}

impl Account {
    pub(super) fn add_body(&self, bytes: usize) {
        self.connection.add(bytes);
        if let Some(answer) = &self.answer {
            answer.add(bytes);
        }
    }

    pub(super) fn remove_body(&self, bytes: usize) {
        self.connection.remove(bytes);
        if let Some(answer) = &self.answer {
            answer.remove(bytes);
        }
    }

    /// Returns whether the stream gets little credit.
    pub(super) fn is_short(&self) -> bool {
        self.answer
            .as_ref()
            .is_some_and(|answer| answer.all.is_short())
    }

    /// Sets how the answer is sent to its client.
    pub(super) fn set_sending(&self, sending: Option<Arc<Sending>>) {
        if let Some(answer) = &self.answer {
            *answer.sending.lock() = sending;
        }
    }
}

/// Bytes that the reader of an answer keeps; they count until this is dropped.
pub(crate) struct Kept {
    answer: Option<Arc<HeldAnswer>>,
    bytes: usize,
}

impl Kept {
    pub(super) fn empty(account: &Account) -> Self {
        Self {
            answer: account.answer.clone(),
            bytes: 0,
        }
    }

    pub(crate) fn resize(&mut self, bytes: usize) {
        if let Some(answer) = &self.answer {
            if bytes > self.bytes {
                answer.add(bytes - self.bytes);
            } else {
                answer.remove(self.bytes - bytes);
            }
        }
        self.bytes = bytes;
    }

    pub(crate) fn grow(&mut self, bytes: usize) {
        self.resize(self.bytes + bytes);
    }

    /// Ties bytes to the answer's memory: they count until the last handle to them is dropped. As many fewer count
    /// here.
    pub(crate) fn hand_over(&mut self, bytes: Bytes) -> Bytes {
        let Some(answer) = &self.answer else {
            return bytes;
        };
        let mut kept = Self {
            answer: Some(Arc::clone(answer)),
            bytes: 0,
        };
        kept.grow(bytes.len());
        self.resize(self.bytes.saturating_sub(bytes.len()));
        Bytes::from_owner(KeptBytes { bytes, _kept: kept })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.resize(0);
    }
}

struct KeptBytes {
    bytes: Bytes,
    _kept: Kept,
}

impl AsRef<[u8]> for KeptBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
