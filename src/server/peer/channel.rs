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
//! Invariant: the send queue is bounded, except for heads and number frames, of which each stream
//! has few. A slow reader delays its own stream only ([`stream`]).

pub(super) mod answer_sender;
pub(super) mod frame;
mod keepalive;
pub(crate) mod stream;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_util::io::poll_read_buf;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::connection::coalesce::yield_to_ready_tasks;
use frame::{FrameHead, HEAD_BYTES, Kind, ReceivedValues, RequestHead, ResetReason, SentValues};
use keepalive::{Keepalive, KeepaliveAction};
use stream::{Broken, NoAnswer, RequestedStream, Stream};

/// Bytes in the send queue above which bodies wait. Without the limit, a slow peer would make the
/// queue use all memory.
const WAITING_BYTES_MAX: usize = 512 * 1024;
/// Capacity in bytes of the write buffer that an idle connection keeps. More would cost memory per
/// connection; less would allocate again for each burst.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes of one read of the socket. More is useless, because a TLS record holds no more.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of free room below which the connection allocates a new read buffer. With less room, reads
/// would become small and many.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Reads of the socket in one poll. Without the limit a busy connection would starve other tasks.
const READS_AT_ONCE: usize = 16;
/// Streams that one connection may open before it is replaced, so that their numbers never wrap.
const STREAMS_EVER_MAX: u32 = 1 << 31;

/// A stream that is open, and the task that answers it.
struct OpenStream {
    stream: Arc<Stream>,
    task: Option<AbortHandle>,
}

type Streams = HashMap<u32, OpenStream>;

/// A connection between replicas, shared by its task and its streams.
pub(super) struct Channel {
    out: Mutex<SendQueue>,
    streams: Mutex<Streams>,
    /// True if no new stream may begin; the connection then ends with the last open one.
    closing: AtomicBool,
}

/// The frames that wait to be sent, encoded.
struct SendQueue {
    bytes: Vec<u8>,
    /// The number of bytes that the task has removed from the queue since the connection began.
    taken: u64,
    /// Wakes the connection's task; `None` if the task is already awake.
    task: Option<Waker>,
    /// The tasks of bodies that wait for room.
    room_waiters: Vec<Waker>,
    sent_values: SentValues,
    next: u32,
    broken: Option<Broken>,
}

impl Channel {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            out: Mutex::new(SendQueue {
                bytes: Vec::new(),
                taken: 0,
                task: None,
                room_waiters: Vec::new(),
                sent_values: SentValues::default(),
                next: 0,
                broken: None,
            }),
            streams: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    /// Returns whether a stream can be opened.
    pub(super) fn is_open(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Returns the number of open streams.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.lock().len()
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.out.lock().bytes.len()
    }

    /// Sends the head of a request with the beginning of its body, or returns `None` if the
    /// connection accepts no more streams. Callers wait for [room](Self::poll_room) first.
    pub(super) fn open(
        self: &Arc<Self>,
        head: (&Method, &Uri, &HeaderMap),
        body: &[u8],
        is_last: bool,
    ) -> Option<RequestedStream> {
        let (stream, task) = {
            let mut out = self.out.lock();
            if out.broken.is_some() || !self.is_open() {
                return None;
            }
            let id = out.next;
            out.next += 1;
            if out.next >= STREAMS_EVER_MAX {
                self.closing.store(true, Ordering::Release);
            }
            let stream = Stream::new(id, out.taken + out.bytes.len() as u64);
            stream.spend(body.len());
            let entry = OpenStream {
                stream: Arc::clone(&stream),
                task: None,
            };
            self.streams.lock().insert(id, entry);
            let SendQueue {
                bytes, sent_values, ..
            } = &mut *out;
            frame::put_request(bytes, id, head, body, is_last, sent_values);
            (stream, out.task.take())
        };
        wake(task);
        Some(RequestedStream {
            channel: Arc::clone(self),
            stream,
        })
    }

    /// Appends to the send queue what `write` writes. Does nothing if the connection is broken.
    pub(super) fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let task = {
            let mut out = self.out.lock();
            if out.broken.is_none() {
                write(&mut out.bytes);
            }
            out.task.take()
        };
        wake(task);
    }

    /// Waits until the send queue has room for more of a body.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let mut out = self.out.lock();
        if let Some(why) = &out.broken {
            return Poll::Ready(Err(why.clone()));
        }
        if out.bytes.len() < WAITING_BYTES_MAX {
            return Poll::Ready(Ok(()));
        }
        out.room_waiters.push(context.waker().clone());
        Poll::Pending
    }

    /// Forgets a stream that has ended; returns false if it was forgotten before.
    pub(super) fn forget(&self, id: u32) -> bool {
        let (known, is_empty) = {
            let mut streams = self.streams.lock();
            (streams.remove(&id).is_some(), streams.is_empty())
        };
        if is_empty && !self.is_open() {
            self.wake();
        }
        known
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
        let room_waiters = {
            let mut out = self.out.lock();
            out.broken.get_or_insert_with(|| why.clone());
            out.bytes = Vec::new();
            std::mem::take(&mut out.room_waiters)
        };
        let streams = std::mem::take(&mut *self.streams.lock());
        for OpenStream { stream, task } in streams.into_values() {
            stream.broke(&if stream.begins_at < reached {
                NoAnswer::Broken(why.clone())
            } else {
                NoAnswer::Refused
            });
            if let Some(task) = task {
                task.abort();
            }
        }
        for waker in room_waiters {
            waker.wake();
        }
    }
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}

/// Answers the requests that the other side sends.
pub(super) trait RequestHandler: Send {
    /// Returns how many streams the other side may have open.
    fn streams_max(&self) -> usize;

    /// Spawns the task that answers a request. The connection aborts it if the other side resets
    /// the stream.
    fn answer(
        &self,
        channel: &Arc<Channel>,
        stream: &Arc<Stream>,
        head: RequestHead,
    ) -> AbortHandle;
}

/// The task of a connection.
pub(super) struct Driver<S> {
    channel: Arc<Channel>,
    socket: S,
    /// `None` at the side that connected and sends requests.
    handler: Option<Box<dyn RequestHandler>>,
    input: BytesMut,
    received_values: ReceivedValues,
    /// The number after the highest stream that the other side has opened.
    opened: u32,
    output: Vec<u8>,
    /// The number of bytes of `output` that the socket has accepted.
    written: usize,
    unflushed: bool,
    /// True if other ready tasks have run since the queue became non-empty.
    has_waited: bool,
    said_closing: bool,
    keepalive: Keepalive,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    pub(super) fn new(
        channel: &Arc<Channel>,
        socket: S,
        handler: Option<Box<dyn RequestHandler>>,
    ) -> Self {
        Self {
            channel: Arc::clone(channel),
            socket,
            handler,
            input: BytesMut::new(),
            received_values: ReceivedValues::default(),
            opened: 0,
            output: Vec::new(),
            written: 0,
            unflushed: false,
            has_waited: false,
            said_closing: false,
            keepalive: Keepalive::new(),
        }
    }

    /// Makes the connection end after `gone` resolves, which means that the peer has left the ring:
    /// no new stream begins, answers that are arriving are read to their end, and silence of the
    /// peer breaks the connection.
    pub(super) fn until(mut self, gone: WaitForCancellationFutureOwned) -> Self {
        self.keepalive.of_member_until(gone);
        self
    }

    /// Reads and writes until the connection ends.
    ///
    /// # Errors
    /// Returns the reason if the connection ended before its last stream did.
    ///
    /// # Cancel safety
    /// Polled again, the future continues. Dropped, it breaks all streams.
    pub(super) async fn run(&mut self) -> Result<(), Broken> {
        let ended = std::future::poll_fn(|context| self.poll(context)).await;
        let why = ended.clone().err().unwrap_or(Broken::Closed);
        self.lose(&why);
        ended
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let read = self.poll_read(context);
        // Before the queue is sent, because the frame that ends a stream is queued before the
        // stream is forgotten: read afterwards, `is_over` could be true with that frame unsent.
        let is_over = !self.channel.is_open() && self.channel.streams.lock().is_empty();
        match read {
            Poll::Ready(Broken::Closed) if is_over => return Poll::Ready(Ok(())),
            Poll::Ready(why) => return Poll::Ready(Err(why)),
            Poll::Pending => {}
        }
        self.poll_keepalive(context)?;
        self.say_closing();
        ready!(self.poll_write(context))?;
        // The answering side leaves the shutdown to the other side, which may have sent more
        // requests before it received `Closing`.
        if !is_over || self.has_waited || self.handler.is_some() {
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.socket).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }

    /// Reads the bytes that have arrived. Ready once the connection is broken or closed.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Broken> {
        for _ in 0..READS_AT_ONCE {
            if self.input.capacity() - self.input.len() < READ_BYTES_MIN {
                self.input.reserve(READ_BYTES);
            }
            let socket = Pin::new(&mut self.socket);
            match ready!(poll_read_buf(socket, context, &mut self.input)) {
                Ok(0) => return Poll::Ready(Broken::Closed),
                Ok(_) => {}
                Err(error) => return Poll::Ready(error.into()),
            }
            self.keepalive.received();
            if let Err(why) = self.take_frames() {
                return Poll::Ready(why);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_frames(&mut self) -> Result<(), Broken> {
        while let Some(head) = FrameHead::parse(&self.input)? {
            let length = HEAD_BYTES + head.length;
            if self.input.len() < length {
                self.input.reserve(length - self.input.len());
                break;
            }
            let payload = self.input.split_to(length).freeze().slice(HEAD_BYTES..);
            self.take_frame(head, payload)?;
        }
        Ok(())
    }

    fn take_frame(&mut self, head: FrameHead, mut payload: Bytes) -> Result<(), Broken> {
        match head.kind {
            Kind::Request => return self.take_request(head, payload),
            Kind::Answer => {
                let answer = frame::take_answer(&mut payload)?;
                if let Some(stream) = self.stream(head) {
                    stream.answered(answer, payload, head.is_last);
                }
            }
            Kind::Data => {
                if let Some(stream) = self.stream(head) {
                    stream.came(payload, head.is_last)?;
                }
            }
            Kind::Trailers => {
                let trailers = frame::take_trailers(&mut payload)?;
                if let Some(stream) = self.stream(head) {
                    stream.ended(trailers);
                }
            }
            Kind::Credit => {
                let bytes = frame::number(&payload)?;
                let streams = self.channel.streams.lock();
                if let Some(entry) = streams.get(&head.stream) {
                    entry.stream.credited(bytes);
                }
            }
            Kind::Reset => self.take_reset(head.stream, frame::reset_reason(&payload)?),
            Kind::Ping => {
                let number = frame::number(&payload)?;
                self.channel
                    .push(|out| frame::put_number(out, Kind::Pong, 0, number));
            }
            Kind::Pong => {}
            Kind::Closing => self.take_closing(frame::number(&payload)?),
        }
        Ok(())
    }

    /// Returns the stream of a frame. The requesting side forgets the stream with the last frame of
    /// the answer.
    fn stream(&self, head: FrameHead) -> Option<Arc<Stream>> {
        let mut streams = self.channel.streams.lock();
        if head.is_last && self.handler.is_none() {
            return streams.remove(&head.stream).map(|entry| entry.stream);
        }
        let entry = streams.get(&head.stream);
        entry.map(|entry| Arc::clone(&entry.stream))
    }

    fn take_request(&mut self, head: FrameHead, mut payload: Bytes) -> Result<(), Broken> {
        let request = frame::take_request(&mut payload, &mut self.received_values)?;
        let Some(handler) = &self.handler else {
            return Err(Broken::Protocol("only who connects may ask"));
        };
        if head.stream < self.opened {
            return Err(Broken::Protocol("a stream was opened twice"));
        }
        let id = head.stream;
        let stream = Stream::new(id, 0);
        {
            let mut streams = self.channel.streams.lock();
            let is_full = streams.len() >= handler.streams_max();
            if is_full || self.said_closing || !self.channel.is_open() {
                drop(streams);
                self.channel
                    .push(|out| frame::put_reset(out, id, ResetReason::Refused));
                return Ok(());
            }
            self.opened = id + 1;
            let entry = OpenStream {
                stream: Arc::clone(&stream),
                task: None,
            };
            streams.insert(id, entry);
        }
        stream.came(payload, head.is_last)?;
        let task = handler.answer(&self.channel, &stream, request);
        if let Some(entry) = self.channel.streams.lock().get_mut(&id) {
            entry.task = Some(task);
        }
        Ok(())
    }

    fn take_reset(&self, id: u32, why: ResetReason) {
        let Some(entry) = self.channel.streams.lock().remove(&id) else {
            return;
        };
        entry.stream.broke(&match why {
            ResetReason::Refused => NoAnswer::Refused,
            ResetReason::Cancelled | ResetReason::Broken => NoAnswer::Broken(Broken::Reset),
        });
        if let Some(task) = entry.task {
            task.abort();
        }
    }

    /// Handles `Closing`: the other side accepts only streams with numbers below `taken`.
    fn take_closing(&self, taken: u32) {
        {
            // Holds the lock so that nobody opens a stream now, which the other side would drop
            // without a reset.
            let _out = self.channel.out.lock();
            self.channel.closing.store(true, Ordering::Release);
        }
        let refused: Vec<OpenStream> = {
            let mut streams = self.channel.streams.lock();
            let refused = streams.extract_if(|id, _| *id >= taken);
            refused.map(|(_, entry)| entry).collect()
        };
        for entry in refused {
            entry.stream.broke(&NoAnswer::Refused);
        }
    }

    /// Sends `Closing` once, if this is the answering side and the connection is closing.
    fn say_closing(&mut self) {
        if self.handler.is_some() && !self.said_closing && !self.channel.is_open() {
            self.said_closing = true;
            let taken = self.opened;
            self.channel
                .push(|out| frame::put_number(out, Kind::Closing, 0, taken));
        }
    }

    /// Pings a silent peer, and fails if the peer stays silent.
    fn poll_keepalive(&mut self, context: &mut Context<'_>) -> Result<(), Broken> {
        while let Poll::Ready(due) = self.keepalive.poll(context) {
            match due? {
                KeepaliveAction::Ping => self
                    .channel
                    .push(|out| frame::put_number(out, Kind::Ping, 0, 0)),
                KeepaliveAction::Close => self.channel.close(),
            }
        }
        Ok(())
    }

    /// Sends the queue. Ready once the queue is empty; the next frame then wakes the task.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            while self.written < self.output.len() {
                let left = &self.output[self.written..];
                let count = ready!(Pin::new(&mut self.socket).poll_write(context, left))?;
                if count == 0 {
                    return Poll::Ready(Err(Broken::Closed));
                }
                self.written += count;
                self.unflushed = true;
            }
            if !self.take_output(context) {
                break;
            }
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns whether no other stream is open that could have something to send. On the answering
    /// side, an answer's own stream has ended by the time its last frame is queued.
    fn is_alone(&self) -> bool {
        let own = usize::from(self.handler.is_none());
        self.channel.open_streams() <= own
    }

    /// Moves the queue to the output; returns false if there is nothing to send yet.
    fn take_output(&mut self, context: &mut Context<'_>) -> bool {
        self.written = 0;
        self.output.clear();
        if self.output.capacity() > BUFFER_BYTES {
            self.output = Vec::new();
        }
        let mut out = self.channel.out.lock();
        let is_empty = out.bytes.is_empty();
        if is_empty {
            self.has_waited = false;
            match &mut out.task {
                Some(task) => task.clone_from(context.waker()),
                None => out.task = Some(context.waker().clone()),
            }
            return false;
        }
        if !self.has_waited && !self.is_alone() {
            // Wait for all ready tasks once, because they may have frames to send as well.
            self.has_waited = true;
            yield_to_ready_tasks(context);
            return false;
        }
        std::mem::swap(&mut out.bytes, &mut self.output);
        out.taken += self.output.len() as u64;
        let room_waiters = std::mem::take(&mut out.room_waiters);
        drop(out);
        for waker in room_waiters {
            waker.wake();
        }
        true
    }
}

impl<S> Driver<S> {
    fn lose(&self, why: &Broken) {
        let taken = self.channel.out.lock().taken;
        // The socket has accepted the output up to here, so the peer may have received it.
        let reached = taken - (self.output.len() - self.written) as u64;
        self.channel.broke(why, reached);
    }
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.lose(&Broken::Closed);
    }
}
