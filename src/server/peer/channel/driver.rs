//! The task of one connection: reads frames and hands them to their streams, and writes the send
//! queue. Owns the socket and its buffers; must not know what requests mean.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_util::io::poll_read_buf;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::connection::coalesce::yield_to_ready_tasks;
use crate::peer::channel::frame::{self, FrameHead, HEAD_BYTES, Kind, ReceivedValues, RequestHead};
use crate::peer::channel::frame::{ResetReason, memory_of};
use crate::peer::channel::keepalive::{Keepalive, KeepaliveAction};
use crate::peer::channel::received::copies_heads;
use crate::peer::channel::stream::{Broken, Lost, Stream};
use crate::peer::channel::{Channel, READ_BYTES, STREAMS_EVER_MAX};

/// Capacity in bytes of the write buffer that an idle connection keeps. More would cost memory per
/// connection; less would allocate again for each burst.
const BUFFER_BYTES: usize = 64 * 1024;
/// Bytes of free room below which the connection allocates a new read buffer. With less room, reads
/// would become small and many.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Reads of the socket in one poll. Without the limit a busy connection would starve other tasks.
const READS_AT_ONCE: usize = 16;

/// Answers the requests that the other side sends.
pub(in crate::peer) trait RequestHandler: Send {
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
pub(in crate::peer) struct Driver<S> {
    channel: Arc<Channel>,
    socket: S,
    /// `None` at the side that connected and sends requests.
    handler: Option<Box<dyn RequestHandler>>,
    input: BytesMut,
    /// The size in bytes of the memory of which `input` is the end.
    input_bytes: usize,
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
    pub(in crate::peer) fn new(
        channel: &Arc<Channel>,
        socket: S,
        handler: Option<Box<dyn RequestHandler>>,
    ) -> Self {
        Self {
            channel: Arc::clone(channel),
            socket,
            handler,
            input: BytesMut::new(),
            input_bytes: 0,
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
    pub(in crate::peer) fn until(mut self, gone: WaitForCancellationFutureOwned) -> Self {
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
    pub(in crate::peer) async fn run(&mut self) -> Result<(), Broken> {
        let ended = std::future::poll_fn(|context| self.poll(context)).await;
        let why = ended.clone().err().unwrap_or(Broken::Closed);
        self.lose(&why);
        ended
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let read = self.poll_read(context);
        // Before the queue is sent, because the frame that ends a stream is queued before the
        // stream is forgotten: read afterwards, `is_over` could be true with that frame unsent.
        let is_over = !self.channel.is_open() && self.channel.open_streams() == 0;
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
                self.make_room(READ_BYTES);
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
            if self.channel.out.lock().is_overfull {
                return Poll::Ready(Broken::Protocol("the peer does not read what it asks for"));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Makes room for `bytes` more bytes in the read buffer: in the same memory if nothing refers to
    /// it any more, else in a buffer just as large as needed. A small part of a body keeps the whole
    /// buffer in memory, so a buffer that was made for a long frame is not used again.
    fn make_room(&mut self, bytes: usize) {
        if self.input.capacity() - self.input.len() >= bytes {
            return;
        }
        let is_usual = self.input_bytes <= READ_BYTES + HEAD_BYTES;
        let needed = self.input.len() + bytes;
        if is_usual && needed <= self.input_bytes && self.input.try_reclaim(bytes) {
            return;
        }
        let mut fresh = BytesMut::with_capacity(needed.max(READ_BYTES));
        fresh.extend_from_slice(&self.input);
        self.input_bytes = fresh.capacity();
        self.input = fresh;
    }

    fn take_frames(&mut self) -> Result<(), Broken> {
        while let Some(head) = FrameHead::parse(&self.input)? {
            let length = HEAD_BYTES + head.length;
            if self.input.len() < length {
                // With some room to spare, or the end of the frame would need a buffer of its own.
                self.make_room(length - self.input.len() + READ_BYTES_MIN);
                break;
            }
            let payload = self.input.split_to(length).freeze().slice(HEAD_BYTES..);
            self.take_frame(head, payload)?;
        }
        Ok(())
    }

    fn take_frame(&mut self, head: FrameHead, mut payload: Bytes) -> Result<(), Broken> {
        self.check_side(head.kind)?;
        match head.kind {
            Kind::Request => self.take_request(head, payload)?,
            Kind::Answer => {
                let mut payload = self.head_payload(payload);
                let answer = frame::take_answer(&mut payload)?;
                if let Some(stream) = self.stream(head) {
                    stream.answered(answer, payload, head.is_last)?;
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
                    stream.ended(trailers)?;
                }
            }
            Kind::Credit => {
                let bytes = frame::number(&payload)?;
                let streams = self.channel.streams.lock();
                if let Some(entry) = streams.entries.get(&head.stream) {
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
        self.channel.end_unread(match self.handler {
            Some(_) => ResetReason::Broken,
            None => ResetReason::Cancelled,
        });
        if let Some(answers) = &self.channel.answers {
            answers.make_room();
        }
        Ok(())
    }

    /// Checks that the other side may send a frame of this kind.
    fn check_side(&self, kind: Kind) -> Result<(), Broken> {
        match (kind, &self.handler) {
            (Kind::Answer | Kind::Trailers | Kind::Closing, Some(_)) => Err(Broken::Protocol(
                "only who accepted the connection may answer",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the payload of a frame with a head, which the stream keeps in memory: a copy if there
    /// are so many streams that their heads would keep many read buffers.
    fn head_payload(&self, payload: Bytes) -> Bytes {
        match copies_heads(self.channel.open_streams()) && payload.len() < READ_BYTES {
            true => Bytes::copy_from_slice(&payload),
            false => payload,
        }
    }

    /// Returns the stream of a frame. At the requesting side the stream ends with the last frame of
    /// the answer.
    fn stream(&self, head: FrameHead) -> Option<Arc<Stream>> {
        let requests = self.handler.is_none();
        if requests {
            // Only streams of this side have somebody who pays.
            self.channel.note_frame(head.stream, head.length);
        }
        let mut streams = self.channel.streams.lock();
        if head.is_last && requests {
            return streams.end(head.stream);
        }
        let entry = streams.entries.get(&head.stream);
        entry.map(|entry| Arc::clone(&entry.stream))
    }

    fn take_request(&mut self, head: FrameHead, payload: Bytes) -> Result<(), Broken> {
        let mut payload = self.head_payload(payload);
        let request = frame::take_request(&mut payload, &mut self.received_values)?;
        let Some(handler) = &self.handler else {
            return Err(Broken::Protocol("only who connects may ask"));
        };
        let id = head.stream;
        if id < self.opened {
            return Err(Broken::Protocol("a stream was opened twice"));
        }
        if id >= STREAMS_EVER_MAX {
            return Err(Broken::Protocol("a stream has a number above all"));
        }
        let held = memory_of(&request.headers);
        let stream = Arc::new(Stream::accepted(id, held, &self.channel.received));
        {
            let mut streams = self.channel.streams.lock();
            // Many heads of requests in progress use up memory as many streams do.
            let is_full =
                streams.open() >= handler.streams_max() || self.channel.received.is_overfull();
            if is_full || self.said_closing || !self.channel.is_open() {
                drop(streams);
                self.channel
                    .push(|out| frame::put_reset(out, id, ResetReason::Refused));
                return Ok(());
            }
            self.opened = id + 1;
            streams.insert(Arc::clone(&stream), None);
        }
        stream.came(payload, head.is_last)?;
        let task = handler.answer(&self.channel, &stream, request);
        if let Some(entry) = self.channel.streams.lock().entries.get_mut(&id) {
            entry.task = Some(task);
        }
        Ok(())
    }

    fn take_reset(&self, id: u32, why: ResetReason) {
        let Some(entry) = self.channel.streams.lock().remove(id) else {
            return;
        };
        entry.stream.broke(&match why {
            ResetReason::Refused => Lost::Refused,
            ResetReason::Cancelled | ResetReason::Broken => Lost::Broken(Broken::Reset),
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
        let refused = self.channel.streams.lock().remove_from(taken);
        for entry in refused {
            entry.stream.broke(&Lost::Refused);
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
        drop(out);
        self.channel.room.notify_waiters();
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
