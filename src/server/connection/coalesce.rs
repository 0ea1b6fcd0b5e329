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
//! Invariant: when `poll_and_flush` returns, either the socket has accepted the whole buffer, or
//! the socket is full and wakes the task once it has room. The buffer is bounded; an idle
//! connection has none.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::request::seats::Seats;

/// Largest number of bytes in the buffer; a write beyond it sends the buffer first. More would cost
/// memory on each busy connection.
const BUFFERED_BYTES_MAX: usize = 64 * 1024;
/// Bytes for which the buffer is first allocated, so that a few answers need one allocation.
const BUFFERED_BYTES_FIRST: usize = 8 * 1024;

/// A stream whose writes are buffered until [`WriteFlusher::poll_and_flush`] sends them.
pub(crate) struct CoalescedWrites<S>(Arc<Mutex<WriteBuffer<S>>>);

/// Sends the bytes that its [`CoalescedWrites`] has buffered.
pub(crate) struct WriteFlusher<S>(Arc<Mutex<WriteBuffer<S>>>);

struct WriteBuffer<S> {
    stream: S,
    bytes: Vec<u8>,
    /// The number of `bytes` that the stream has accepted.
    taken: usize,
    /// True if the stream has accepted bytes since it was flushed.
    unflushed: bool,
}

/// Schedules the task to be polled again after all ready tasks have run and ready sockets have been
/// read. Waking the waker at once would have that effect too, but would also wake another worker
/// thread.
pub(crate) fn yield_to_ready_tasks(context: &mut Context<'_>) {
    // One poll schedules the task; the future is not needed any more.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Splits a stream into the side that is written to and the side that sends.
pub(crate) fn coalesce<S>(stream: S) -> (CoalescedWrites<S>, WriteFlusher<S>) {
    let buffer = Arc::new(Mutex::new(WriteBuffer {
        stream,
        bytes: Vec::new(),
        taken: 0,
        unflushed: false,
    }));
    (CoalescedWrites(Arc::clone(&buffer)), WriteFlusher(buffer))
}

impl<S: AsyncWrite + Unpin> WriteFlusher<S> {
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

impl<S: AsyncWrite + Unpin> WriteBuffer<S> {
    fn has_pending(&self) -> bool {
        self.taken < self.bytes.len()
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
            self.unflushed = true;
        }
        self.bytes = Vec::new();
        self.taken = 0;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for `bytes` bytes; returns false if the buffer could never hold them.
    fn poll_room(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.bytes.len() + bytes > BUFFERED_BYTES_MAX {
            ready!(self.poll_send(context))?;
        }
        let fits = bytes <= BUFFERED_BYTES_MAX;
        if fits && self.bytes.capacity() == 0 {
            self.bytes.reserve(bytes.max(BUFFERED_BYTES_FIRST));
        }
        Poll::Ready(Ok(fits))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedWrites<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<S> {
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
        if !ready!(buffer.poll_room(count, context))? {
            buffer.unflushed = true;
            return Pin::new(&mut buffer.stream).poll_write_vectored(context, slices);
        }
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
        let (mut written, flusher, mut far) = counted(1000);
        let connection = async move {
            for number in 0..FRAMES {
                let frame = vec![u8::try_from(number % 251).expect("small"); 1 + number * 7];
                written.write_all(&frame).await.expect("written");
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
            .flat_map(|number| vec![u8::try_from(number % 251).expect("small"); 1 + number * 7])
            .chain(vec![b'L'; BUFFERED_BYTES_MAX * 2])
            .collect();
        assert_eq!(got, expected);
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
}
