//! Coalesces what HTTP/2 writes frame by frame into few large writes.
//!
//! HTTP/2 writes and flushes each frame separately, which costs a TLS record and a system call for
//! each answer and for each event of each watch. [`CoalescedWrites`] buffers frames until the
//! connection's task has nothing more to do at the moment. While requests of the connection are in
//! flight, the task first lets every other task run that is ready: the runtime runs the task that
//! was woken last first, so a connection would otherwise send the first of many answers before the
//! second one is made. Callers poll the connection through [`WriteFlusher::poll_and_flush`], which
//! then sends the buffer. There is no timer, and a lone request never waits. This module does not
//! know what a frame is.
//!
//! A write of a TLS record's length or more is encrypted at once, whole records at a time, and only
//! the records wait for the end of the turn: a long list is not copied into the buffer first.
//!
//! A turn of a connection reads and encrypts a bounded number of bytes. If there is more to do, the other
//! tasks that are ready go first.
//!
//! Invariant: when `poll_and_flush` returns, either the socket has accepted the whole buffer and all
//! records, or the task is polled again: once the socket has room, or once the ready tasks have run. Both
//! are bounded; an idle connection has none.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::request::seats::Seats;

/// Largest number of bytes in the buffer; a write beyond it sends the buffer first. More would cost
/// memory on each busy connection.
const BUFFERED_BYTES_MAX: usize = 64 * 1024;
/// Bytes for which the buffer is first allocated, so that a few answers need one allocation.
const BUFFERED_BYTES_FIRST: usize = 8 * 1024;

/// Bytes that one turn of a connection decrypts, and bytes that it encrypts: a third of a millisecond of
/// work. With more, a client with large bodies would hold up a worker thread; with less, more of the time
/// would go into turns.
const TURN_BYTES_MAX: usize = 256 * 1024;

/// Largest number of bytes that a TLS record carries.
const RECORD_BYTES: usize = 16 * 1024;
/// Bytes that the TLS session may hold encrypted: as many records as the buffer has, and what TLS
/// adds to each of them. With less room than that, each flush would end in a record cut short.
const HELD_BYTES_MAX: usize = BUFFERED_BYTES_MAX + BUFFERED_BYTES_MAX / RECORD_BYTES * 256;

/// A stream that can encrypt without sending.
pub(crate) trait Encrypt: AsyncWrite + Unpin {
    /// Sets how many bytes may be encrypted and not sent.
    fn limit(&mut self, bytes: usize);

    /// Encrypts the beginning of `slices`, as much as the limit allows. Flushing the stream sends
    /// it. Returns the number of bytes encrypted, which is 0 if the stream must be flushed first.
    ///
    /// # Errors
    /// Returns an error if the session is broken.
    fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Encrypt for TlsStream<S> {
    fn limit(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }

    fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        io::Write::write_vectored(&mut self.get_mut().1.writer(), slices)
    }
}

/// A stream whose writes are buffered until [`WriteFlusher::poll_and_flush`] sends them.
pub(crate) struct CoalescedWrites<S>(Arc<Mutex<WriteBuffer<S>>>);

/// Sends the bytes that its [`CoalescedWrites`] has buffered.
pub(crate) struct WriteFlusher<S>(Arc<Mutex<WriteBuffer<S>>>);

struct WriteBuffer<S> {
    stream: S,
    bytes: Vec<u8>,
    /// The number of `bytes` that the stream has accepted.
    taken: usize,
    unsent: Unsent,
    /// The number of bytes that this turn has read, and that it has encrypted.
    read: usize,
    encrypted: usize,
}

/// What the stream has accepted since it was flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsent {
    Nothing,
    /// Bytes, which the stream has sent as far as the socket had room.
    Written,
    /// Records, none of which is sent.
    Records,
    /// A flush has begun. Until it ends nothing is encrypted: the socket opens a little room at a
    /// time, and each little would become a record.
    Flushing,
}

/// Schedules the task to be polled again after all ready tasks have run and ready sockets have been
/// read. Waking the waker at once would have that effect too, but would also wake another worker
/// thread.
pub(crate) fn yield_to_ready_tasks(context: &mut Context<'_>) {
    // One poll schedules the task; the future is not needed any more.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Returns `Pending` once a turn has done its share, and lets the ready tasks run before the next turn.
fn poll_share(done: usize, context: &mut Context<'_>) -> Poll<()> {
    if done < TURN_BYTES_MAX {
        return Poll::Ready(());
    }
    yield_to_ready_tasks(context);
    Poll::Pending
}

/// Splits a stream into the side that is written to and the side that sends.
pub(crate) fn coalesce<S: Encrypt>(mut stream: S) -> (CoalescedWrites<S>, WriteFlusher<S>) {
    stream.limit(HELD_BYTES_MAX);
    let buffer = Arc::new(Mutex::new(WriteBuffer {
        stream,
        bytes: Vec::new(),
        taken: 0,
        unsent: Unsent::Nothing,
        read: 0,
        encrypted: 0,
    }));
    (CoalescedWrites(Arc::clone(&buffer)), WriteFlusher(buffer))
}

impl<S: Encrypt> WriteFlusher<S> {
    /// Polls `connection`, which writes to the stream, and each time it is pending sends what it
    /// has written. While requests are `under_way`, other ready tasks run first.
    ///
    /// # Errors
    /// Returns the error of the stream, after which the connection cannot be used any more.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the next call continues.
    pub(crate) async fn poll_and_flush<F: Future>(
        &self,
        mut connection: Pin<&mut F>,
        under_way: &Seats,
    ) -> io::Result<F::Output> {
        let mut is_last = false;
        poll_fn(|context| {
            self.0.lock().begin_turn();
            let done = connection.as_mut().poll(context);
            if done.is_pending() && !is_last && under_way.taken() > 0 && self.0.lock().has_pending()
            {
                is_last = true;
                yield_to_ready_tasks(context);
                return Poll::Pending;
            }
            is_last = false;
            let sent = self.0.lock().poll_send(context);
            match (done, sent) {
                // The connection has shut the stream down, which sends the buffer first.
                (Poll::Ready(output), _) => Poll::Ready(Ok(output)),
                (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (Poll::Pending, Poll::Ready(Ok(())) | Poll::Pending) => Poll::Pending,
            }
        })
        .await
    }
}

impl<S: Encrypt> WriteBuffer<S> {
    fn begin_turn(&mut self) {
        self.read = 0;
        self.encrypted = 0;
    }

    fn has_pending(&self) -> bool {
        matches!(self.unsent, Unsent::Records | Unsent::Flushing) || self.taken < self.bytes.len()
    }

    /// Writes the buffer to the stream and flushes the stream.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken < self.bytes.len() {
            let left = &self.bytes[self.taken..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, left))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.taken += count;
            if self.unsent == Unsent::Nothing {
                self.unsent = Unsent::Written;
            }
        }
        self.bytes = Vec::new();
        self.taken = 0;
        self.poll_flush(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unsent != Unsent::Nothing {
            self.unsent = Unsent::Flushing;
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unsent = Unsent::Nothing;
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts the buffer and the beginning of `slices`, which are `count` bytes, as whole
    /// records. What is less than a record stays in the buffer. Returns the number of bytes taken
    /// from `slices`.
    fn poll_encrypt(
        &mut self,
        slices: &[IoSlice<'_>],
        count: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(poll_share(self.encrypted, context));
        loop {
            if self.unsent == Unsent::Flushing {
                ready!(self.poll_flush(context))?;
            }
            let buffered = self.bytes.len() - self.taken;
            let mut left = (buffered + count) / RECORD_BYTES * RECORD_BYTES;
            let own = IoSlice::new(&self.bytes[self.taken..]);
            let whole: Vec<IoSlice<'_>> = std::iter::once(&own)
                .chain(slices)
                .map(|slice| {
                    let length = slice.len().min(left);
                    left -= length;
                    IoSlice::new(&slice[..length])
                })
                .filter(|slice| !slice.is_empty())
                .collect();
            let offered: usize = whole.iter().map(|slice| slice.len()).sum();
            let encrypted = self.stream.encrypt(&whole)?;
            match (encrypted, self.unsent) {
                (0, Unsent::Nothing) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                (0, _) => {}
                (1.., _) => self.unsent = Unsent::Records,
            }
            if encrypted <= buffered {
                self.taken += encrypted;
                ready!(self.poll_flush(context))?;
                continue;
            }
            self.bytes.clear();
            self.taken = 0;
            self.encrypted += encrypted;
            let mut taken = encrypted - buffered;
            if encrypted == offered {
                let mut skipped = taken;
                for slice in slices {
                    let skip = skipped.min(slice.len());
                    skipped -= skip;
                    self.bytes.extend_from_slice(&slice[skip..]);
                }
                taken = count;
            }
            return Poll::Ready(Ok(taken));
        }
    }

    /// Makes room for `bytes` bytes, which are less than a record.
    fn poll_room(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.bytes.len() + bytes > BUFFERED_BYTES_MAX {
            ready!(poll_share(self.encrypted, context));
            self.encrypted += self.bytes.len() - self.taken;
            ready!(self.poll_send(context))?;
        }
        let needed = self.bytes.len() + bytes;
        if needed > self.bytes.capacity() {
            // Growing in two steps moves less than doubling would.
            let capacity = if needed <= BUFFERED_BYTES_FIRST {
                BUFFERED_BYTES_FIRST
            } else {
                BUFFERED_BYTES_MAX
            };
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedWrites<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        ready!(poll_share(inner.read, context));
        let before = buffer.filled().len();
        let polled = Pin::new(&mut inner.stream).poll_read(context, buffer);
        inner.read += buffer.filled().len() - before;
        polled
    }
}

impl<S: Encrypt> AsyncWrite for CoalescedWrites<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = self.0.lock();
        let count = slices.iter().map(|slice| slice.len()).sum();
        if count >= RECORD_BYTES {
            return buffer.poll_encrypt(slices, count, context);
        }
        ready!(buffer.poll_room(count, context))?;
        for slice in slices {
            buffer.bytes.extend_from_slice(slice);
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Returns at once, because [`WriteFlusher::poll_and_flush`] flushes.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = self.0.lock();
        ready!(buffer.poll_send(context))?;
        Pin::new(&mut buffer.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    /// Counts the writes that reach the other side's stream.
    struct Counted {
        stream: DuplexStream,
        writes: usize,
        /// What is "encrypted" and not sent, and how much that may be.
        held: Vec<u8>,
        held_max: usize,
        records: Vec<usize>,
    }

    impl Encrypt for Counted {
        fn limit(&mut self, bytes: usize) {
            // What TLS adds to each record.
            self.held_max = bytes - BUFFERED_BYTES_MAX / RECORD_BYTES * 256;
        }

        fn encrypt(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let taken = all.len().min(self.held_max - self.held.len());
            self.held.extend_from_slice(&all[..taken]);
            self.records.push(taken);
            Ok(taken)
        }
    }

    impl AsyncRead for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes += 1;
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            while !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                let sent = Pin::new(&mut self.stream).poll_write(context, &held);
                let count = if let Poll::Ready(Ok(count)) = &sent {
                    *count
                } else {
                    0
                };
                self.held = held[count..].to_vec();
                ready!(sent)?;
            }
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }

    fn counted(
        pipe_bytes: usize,
    ) -> (
        CoalescedWrites<Counted>,
        WriteFlusher<Counted>,
        DuplexStream,
    ) {
        let (near, far) = duplex(pipe_bytes);
        let (written, flusher) = coalesce(Counted {
            stream: near,
            writes: 0,
            held: Vec::new(),
            held_max: 0,
            records: Vec::new(),
        });
        (written, flusher, far)
    }

    #[tokio::test]
    async fn frames_of_one_turn_are_one_write_at_its_end() {
        let (mut written, flusher, mut far) = counted(BUFFERED_BYTES_MAX);
        let connection = async move {
            for frame in ["one ", "two ", "three"] {
                written.write_all(frame.as_bytes()).await.expect("buffered");
                written.flush().await.expect("buffered");
            }
            std::future::pending::<()>().await;
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let mut got = [0; 13];
        tokio::select! {
            biased;
            _ = flusher.poll_and_flush(connection.as_mut(), &alone) => panic!("the connection never ends"),
            read = far.read_exact(&mut got) => assert_eq!(read.expect("read"), 13),
        }
        assert_eq!(&got, b"one two three");
        let buffer = flusher.0.lock();
        assert_eq!(buffer.stream.writes, 1);
        assert_eq!(buffer.bytes.capacity(), 0);
    }

    /// While requests are in flight, the connection waits for every ready task that has something
    /// to send; otherwise it sends at once.
    #[tokio::test]
    async fn what_is_ready_travels_together_while_others_are_at_work() {
        for (others_work, writes) in [(true, 1), (false, 2)] {
            let (mut written, flusher, mut far) = counted(1000);
            let (sender, mut frames) = tokio::sync::mpsc::channel::<&[u8]>(8);
            let second = sender.clone();
            sender.try_send(b"first ").expect("heard");
            let connection = async move {
                while let Some(frame) = frames.recv().await {
                    written.write_all(frame).await.expect("buffered");
                }
                std::future::pending::<()>().await;
            };
            let ready = tokio::spawn(async move { second.send(b"second").await.expect("heard") });
            let under_way = Seats::new(usize::MAX);
            let _worked = others_work.then(|| under_way.take());
            let mut connection = pin!(connection);
            let mut got = [0; 12];
            tokio::select! {
                biased;
                _ = flusher.poll_and_flush(connection.as_mut(), &under_way) => panic!("it never ends"),
                read = far.read_exact(&mut got) => assert_eq!(read.expect("read"), 12),
            }
            assert_eq!(&got, b"first second");
            assert_eq!(flusher.0.lock().stream.writes, writes);
            ready.await.expect("no panic");
            drop(sender);
        }
    }

    #[tokio::test]
    async fn a_full_socket_holds_the_writer_back_and_loses_nothing() {
        const FRAMES: usize = 300;
        let frame = |number: usize| {
            // Each tenth is as long as a frame of HTTP/2 with its head.
            let length = if number.is_multiple_of(10) {
                RECORD_BYTES + 9
            } else {
                1 + number * 7
            };
            vec![u8::try_from(number % 251).expect("small"); length]
        };
        let (mut written, flusher, mut far) = counted(1000);
        let connection = async move {
            for number in 0..FRAMES {
                written.write_all(&frame(number)).await.expect("written");
                assert!(written.0.lock().bytes.len() <= BUFFERED_BYTES_MAX);
            }
            let large = vec![b'L'; BUFFERED_BYTES_MAX * 2];
            written.write_all(&large).await.expect("written");
            written.shutdown().await.expect("shut down");
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let mut got = Vec::new();
        let (served, read) = tokio::join!(
            flusher.poll_and_flush(connection.as_mut(), &alone),
            far.read_to_end(&mut got)
        );
        served.expect("the stream is whole");
        read.expect("read");
        let expected: Vec<u8> = (0..FRAMES)
            .flat_map(frame)
            .chain(vec![b'L'; BUFFERED_BYTES_MAX * 2])
            .collect();
        assert_eq!(got, expected);
        let records = &flusher.0.lock().stream.records;
        let cut = |count: &&usize| !count.is_multiple_of(RECORD_BYTES);
        assert!(records.iter().filter(|count| **count > 0).count() > FRAMES / 10);
        assert_eq!(
            records.iter().filter(cut).collect::<Vec<_>>(),
            Vec::<&usize>::new()
        );
    }

    #[tokio::test]
    async fn a_broken_socket_ends_the_turn() {
        let (mut written, flusher, far) = counted(1000);
        drop(far);
        let connection = async move {
            written.write_all(b"frame").await.expect("buffered");
            std::future::pending::<()>().await;
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let ended = flusher.poll_and_flush(connection.as_mut(), &alone).await;
        assert_eq!(ended.expect_err("broken").kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_turn_reads_and_encrypts_its_share_and_lets_others_run() {
        const ALL: usize = 8 * TURN_BYTES_MAX;
        let (mut written, flusher, mut far) = counted(2 * ALL);
        far.write_all(&vec![b'r'; ALL]).await.expect("room");
        let turns = Arc::new(Mutex::new(0));
        let others = {
            let turns = Arc::clone(&turns);
            // Runs once in each turn that the connection leaves to others.
            tokio::spawn(async move {
                loop {
                    *turns.lock() += 1;
                    tokio::task::yield_now().await;
                }
            })
        };
        let connection = async move {
            // As TLS reads: a record at a time.
            let mut record = vec![0; RECORD_BYTES];
            for _ in 0..ALL / RECORD_BYTES {
                written.read_exact(&mut record).await.expect("read");
            }
            let large = vec![b'L'; TURN_BYTES_MAX];
            for _ in 0..8 {
                written.write_all(&large).await.expect("written");
            }
            written.shutdown().await.expect("shut down");
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let served = flusher.poll_and_flush(connection.as_mut(), &alone).await;
        served.expect("the stream is whole");
        others.abort();
        let turns = *turns.lock();
        assert!(turns >= 14, "{turns} turns");
    }
}
