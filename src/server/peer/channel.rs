//! One connection between replicas: many streams, one task that reads and writes.
//!
//! The replica that connects sends requests, the other one answers them. A sender appends its frame
//! to the send queue and wakes the connection's task once. While several streams are open, the task
//! first lets other ready tasks run and then sends the whole queue, so that under load one TLS
//! record and one system call carry many requests. There is no timer, and a lone stream never
//! waits.
//!
//! If the connection breaks, all its streams end at once. Each stream reports whether its request
//! may have arrived: a request that this side had not begun to write has not.
//!
//! Invariant: a slow reader delays its own stream only ([`stream`]). Whatever the other side sends or
//! does not read, a connection holds at most [`QUEUE_BYTES_MAX`] that wait to be sent, as much that
//! is being sent, one frame that has not arrived to its end, and [`received::RECEIVED_BYTES_MAX`] for
//! readers. `PROTOCOL.md` gives the sum, and `measured.rs` measures it. What all connections together
//! hold of answers for clients is in the memory budget of the process ([`answer_memory`]).

pub(crate) mod answer_memory;
pub(super) mod answer_sender;
pub(super) mod driver;
pub(super) mod frame;
mod keepalive;
pub(super) mod received;
pub(crate) mod stream;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use polyplane_fairness::PlaneMeter;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::connection::cost::Shares;
use answer_memory::{Account, AnswerMemory, HeldAnswer, HoldingStream};
use frame::{HeadTooLong, ResetReason, SentValues};
use received::{RECEIVED_BYTES_MAX, Received};
use stream::{Broken, Lost, RequestedStream, Stream};

/// Bytes in the send queue above which requests, answers and bodies wait. Without the limit, a slow
/// peer would make the queue use all memory.
const WAITING_BYTES_MAX: usize = 512 * 1024;
/// Bytes in the send queue above which the connection ends: more than bodies ever queue, and half a
/// megabyte of the small frames that do not wait. Without the limit, a peer that sends pings or
/// requests and reads nothing would make the queue use all memory.
pub(super) const QUEUE_BYTES_MAX: usize = WAITING_BYTES_MAX + frame::PAYLOAD_BYTES_MAX + 512 * 1024;
/// Bytes of one read of the socket. More is useless, because a TLS record holds no more.
pub(super) const READ_BYTES: usize = 16 * 1024;
/// Bytes whose sending costs about what a frame costs beside its bytes: a part of a record and of a system call, and
/// waking who waits for it.
const FRAME_WORTH: usize = 2048;
/// Streams that one connection may open before it is replaced, so that their numbers never wrap.
const STREAMS_EVER_MAX: u32 = 1 << 31;

/// A stream, and the task that answers it.
struct StreamEntry {
    stream: Arc<Stream>,
    task: Option<AbortHandle>,
    /// Who pays for the stream's part of the connection; `None` at the side that answers.
    payer: Option<Arc<PlaneMeter>>,
    /// True if the last frame of the answer has arrived and its reader has not read to the end.
    is_ended: bool,
}

/// The streams of a connection, by number.
#[derive(Default)]
struct Streams {
    entries: HashMap<u32, StreamEntry>,
    /// The number of entries that have ended.
    ended: usize,
}

impl Streams {
    /// Returns the number of streams that have not ended.
    fn open(&self) -> usize {
        self.entries.len() - self.ended
    }

    fn insert(&mut self, stream: Arc<Stream>, payer: Option<Arc<PlaneMeter>>) {
        let entry = StreamEntry {
            stream: Arc::clone(&stream),
            task: None,
            payer,
            is_ended: false,
        };
        self.entries.insert(stream.id, entry);
    }

    /// Marks a stream as ended, and returns it. It stays known for what its reader has not read.
    fn end(&mut self, id: u32) -> Option<Arc<Stream>> {
        let entry = self.entries.get_mut(&id)?;
        if !entry.is_ended {
            entry.is_ended = true;
            self.ended += 1;
        }
        Some(Arc::clone(&entry.stream))
    }

    fn remove(&mut self, id: u32) -> Option<StreamEntry> {
        let entry = self.entries.remove(&id)?;
        self.ended -= usize::from(entry.is_ended);
        Some(entry)
    }

    /// Removes the open streams whose numbers are `from` or higher.
    fn remove_from(&mut self, from: u32) -> Vec<StreamEntry> {
        let is_refused = |id: &u32, entry: &mut StreamEntry| *id >= from && !entry.is_ended;
        let refused = self.entries.extract_if(is_refused);
        refused.map(|(_, entry)| entry).collect()
    }
}

/// A connection between replicas, shared by its task and its streams.
pub(super) struct Channel {
    out: Mutex<SendQueue>,
    streams: Mutex<Streams>,
    received: Arc<Received>,
    /// Where answers for clients count; `None` if the connection brings none.
    answers: Option<Arc<AnswerMemory>>,
    /// Wakes what waits for room in the send queue.
    room: Notify,
    /// True if no new stream may begin; the connection then ends with the last open one.
    closing: AtomicBool,
    /// What the connection has to do for planes.
    shares: Arc<Shares>,
    /// The account of what replicas tell each other, for which no plane pays.
    own: Arc<PlaneMeter>,
}

/// The frames that wait to be sent, encoded.
struct SendQueue {
    bytes: Vec<u8>,
    /// The number of bytes that the task has removed from the queue since the connection began.
    taken: u64,
    /// Wakes the connection's task; `None` if the task is already awake.
    task: Option<Waker>,
    /// True if a frame found no room below [`QUEUE_BYTES_MAX`]; the connection then ends.
    is_overfull: bool,
    sent_values: SentValues,
    next: u32,
    broken: Option<Broken>,
}

impl Channel {
    pub(super) fn new() -> Arc<Self> {
        Self::limited(RECEIVED_BYTES_MAX)
    }

    /// Creates a channel whose streams hold at most so many bytes for their readers.
    pub(super) fn limited(received_bytes_max: usize) -> Arc<Self> {
        Self::counted(received_bytes_max, None)
    }

    /// Creates a channel over which answers for clients come.
    pub(super) fn of_answers(answers: &Arc<AnswerMemory>) -> Arc<Self> {
        let channel = Self::counted(RECEIVED_BYTES_MAX, Some(Arc::clone(answers)));
        answers.add_channel(&channel);
        channel
    }

    fn counted(received_bytes_max: usize, answers: Option<Arc<AnswerMemory>>) -> Arc<Self> {
        Arc::new(Self {
            out: Mutex::new(SendQueue {
                bytes: Vec::new(),
                taken: 0,
                task: None,
                is_overfull: false,
                sent_values: SentValues::default(),
                next: 0,
                broken: None,
            }),
            streams: Mutex::default(),
            received: Arc::new(Received::new(received_bytes_max)),
            answers,
            room: Notify::new(),
            closing: AtomicBool::new(false),
            shares: Arc::default(),
            own: Arc::default(),
        })
    }

    /// Returns what the connection has to do for planes.
    pub(super) fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// Notes that a frame of a stream with so many bytes is to be sent or has arrived.
    fn note_frame(&self, id: u32, bytes: usize) {
        let streams = self.streams.lock();
        let entry = streams.entries.get(&id);
        if let Some(payer) = entry.and_then(|entry| entry.payer.as_ref()) {
            self.shares.add(payer, (FRAME_WORTH + bytes) as u64);
        }
    }

    /// Returns whether a stream can be opened.
    pub(super) fn is_open(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Returns the number of open streams.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.lock().open()
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.out.lock().bytes.len()
    }

    /// Returns the number of bytes that wait for readers.
    #[cfg(test)]
    pub(super) fn received_bytes(&self) -> usize {
        self.received.bytes()
    }

    /// Sends the head of a request with the beginning of its body, if there is room. `payer` is the plane for which it
    /// is sent; `None` if for the replicas themselves.
    pub(super) fn open(
        self: &Arc<Self>,
        head: (&Method, &Uri, &HeaderMap),
        body: &[u8],
        is_last: bool,
        payer: Option<&Arc<PlaneMeter>>,
    ) -> Opened {
        let (stream, task) = {
            let mut out = self.out.lock();
            if out.broken.is_some() || !self.is_open() {
                return Opened::Closed;
            }
            if out.bytes.len() >= WAITING_BYTES_MAX {
                return Opened::NoRoom;
            }
            let id = out.next;
            let begins_at = out.taken + out.bytes.len() as u64;
            let SendQueue {
                bytes, sent_values, ..
            } = &mut *out;
            if let Err(why) = frame::put_request(bytes, id, head, body, is_last, sent_values) {
                return Opened::TooLong(why);
            }
            out.next += 1;
            if out.next >= STREAMS_EVER_MAX {
                self.closing.store(true, Ordering::Release);
            }
            let counted = self.answers.as_ref().zip(payer);
            let account = Account {
                connection: Arc::clone(&self.received),
                answer: counted.map(|(all, payer)| Arc::new(HeldAnswer::new(all, payer))),
            };
            let stream = Arc::new(Stream::requested(id, begins_at, account));
            stream.spend(body.len());
            let payer = Arc::clone(payer.unwrap_or(&self.own));
            // Under the lock of the queue, so that the stream is known before its answer arrives.
            self.streams.lock().insert(Arc::clone(&stream), Some(payer));
            (stream, out.task.take())
        };
        self.note_frame(stream.id, body.len());
        wake(task);
        Opened::Stream(RequestedStream {
            channel: Arc::clone(self),
            stream,
        })
    }

    /// Appends to the send queue what `write` writes: a small frame that does not wait for room.
    /// Does nothing if the connection is broken, and breaks it if the queue is full of such frames.
    pub(super) fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let task = {
            let mut out = self.out.lock();
            if out.bytes.len() >= QUEUE_BYTES_MAX {
                out.is_overfull = true;
            } else if out.broken.is_none() {
                write(&mut out.bytes);
            }
            out.task.take()
        };
        wake(task);
    }

    /// Appends to the send queue what `write` writes, as soon as there is room.
    ///
    /// # Errors
    /// Returns the reason if the connection is broken.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was written.
    pub(super) async fn push_when_room<T>(
        &self,
        write: impl FnOnce(&mut Vec<u8>) -> T,
    ) -> Result<T, Broken> {
        loop {
            // Before the queue is looked at, so that no wake-up is missed.
            let room = self.room.notified();
            {
                let mut out = self.out.lock();
                if let Some(why) = &out.broken {
                    return Err(why.clone());
                }
                if out.bytes.len() < WAITING_BYTES_MAX {
                    let written = write(&mut out.bytes);
                    let task = out.task.take();
                    drop(out);
                    wake(task);
                    return Ok(written);
                }
            }
            room.await;
        }
    }

    /// Sends a part of a body, as fast as the other side's credit and the send queue allow.
    ///
    /// # Errors
    /// Returns the reason if the stream or the connection is broken.
    ///
    /// # Cancel safety
    /// If the future is dropped, any number of the bytes may have been sent.
    pub(super) async fn send_data(
        &self,
        stream: &Stream,
        mut data: Bytes,
        is_last: bool,
    ) -> Result<(), Broken> {
        loop {
            let granted = std::future::poll_fn(|context| stream.poll_credit(data.len(), context));
            let piece = data.split_to(granted.await?);
            let ends = is_last && data.is_empty();
            self.push_when_room(|out| frame::put_data(out, stream.id, &piece, ends))
                .await?;
            self.note_frame(stream.id, piece.len());
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits until the send queue has room.
    ///
    /// # Errors
    /// Returns the reason if the connection is broken.
    pub(super) async fn room(&self) -> Result<(), Broken> {
        loop {
            let room = self.room.notified();
            {
                let out = self.out.lock();
                if let Some(why) = &out.broken {
                    return Err(why.clone());
                }
                if out.bytes.len() < WAITING_BYTES_MAX {
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Forgets a stream; returns whether it was open.
    pub(super) fn forget(&self, id: u32) -> bool {
        let (removed, none_is_open) = {
            let mut streams = self.streams.lock();
            (streams.remove(id), streams.open() == 0)
        };
        if none_is_open && !self.is_open() {
            self.wake();
        }
        removed.is_some_and(|entry| !entry.is_ended)
    }

    /// Stops opening new streams; the connection ends with the last open one.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let task = self.out.lock().task.take();
        wake(task);
    }

    /// Ends all streams of a broken connection: bytes before the offset `reached` may have arrived,
    /// later ones have not.
    fn broke(&self, why: &Broken, reached: u64) {
        self.closing.store(true, Ordering::Release);
        {
            let mut out = self.out.lock();
            out.broken.get_or_insert_with(|| why.clone());
            out.bytes = Vec::new();
        }
        let streams = std::mem::take(&mut *self.streams.lock());
        for StreamEntry { stream, task, .. } in streams.entries.into_values() {
            stream.broke(&if stream.begins_at < reached {
                Lost::Broken(why.clone())
            } else {
                Lost::Refused
            });
            if let Some(task) = task {
                task.abort();
            }
        }
        self.room.notify_waiters();
    }

    /// Ends the streams that hold the most, until the others fit the connection's budget.
    fn end_unread(&self, as_who: ResetReason) {
        while self.received.is_overfull() {
            let entry = {
                let mut streams = self.streams.lock();
                let entries = streams.entries.iter();
                let held = entries.map(|(id, entry)| (entry.stream.held_bytes(), *id));
                // Without one, the bytes are being given back at this moment.
                let Some((1.., id)) = held.max() else {
                    return;
                };
                streams.remove(id)
            };
            let Some(entry) = entry else { return };
            self.end_entry(entry, as_who);
        }
    }

    /// Ends a stream for which the process has no memory.
    fn end_forwarded(&self, id: u32) {
        let entry = self.streams.lock().remove(id);
        if let Some(entry) = entry {
            self.end_entry(entry, ResetReason::Cancelled);
        }
    }

    /// Ends a stream that was removed, and drops what its reader has not taken.
    fn end_entry(&self, entry: StreamEntry, as_who: ResetReason) {
        tracing::debug!(
            stream = entry.stream.id,
            "a stream of a peer was not read and ends"
        );
        entry.stream.drop_unread();
        if !entry.is_ended {
            self.push(|out| frame::put_reset(out, entry.stream.id, as_who));
        }
        if let Some(task) = entry.task {
            task.abort();
        }
    }

    /// Returns the streams whose answers hold memory of the process.
    fn holding_streams(self: &Arc<Self>) -> Vec<HoldingStream> {
        let streams = self.streams.lock();
        let holding = streams.entries.values().filter_map(|entry| {
            let answer = entry.stream.held_answer()?;
            let bytes = answer.bytes();
            (bytes > 0).then(|| HoldingStream {
                channel: Arc::clone(self),
                id: entry.stream.id,
                answer: Arc::clone(answer),
                bytes,
                is_read: entry.stream.is_read() && !answer.is_unread(),
            })
        });
        holding.collect()
    }
}

/// The outcome of opening a stream.
pub(super) enum Opened {
    /// The request was queued.
    Stream(RequestedStream),
    /// The send queue is full; the caller waits for [room](Channel::room).
    NoRoom,
    /// The connection accepts no more streams.
    Closed,
    /// The head of the request does not fit a frame.
    TooLong(HeadTooLong),
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
