//! Gathers what HTTP/2 writes frame by frame into few large writes.
//!
//! HTTP/2 hands over every frame by itself and asks for a flush behind it: a TLS record and a
//! system call for each answer and for each event of each watch. Here frames are kept until the
//! connection's task has nothing more to do at the moment. While requests of the connection are
//! being worked on, every task that is ready to run has its turn first: the runtime runs whoever was
//! woken last first, so a connection would send the first of many answers before the second is
//! made. Whoever polls the connection does so through [`Outlet::turn`], which then sends what was
//! kept. No timer, and a request that is alone waits for nobody. Knows nothing of frames.
//!
//! Invariant: when a turn ends, everything kept is with the socket, or the socket is full and wakes
//! the task when it is not. What is kept is bounded; an idle connection keeps nothing.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::request::limits::Seats;

/// Bytes that are kept at most; more is sent before the end of the turn.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Room that is made for the first bytes of a turn.
const KEPT_BYTES_FIRST: usize = 8 * 1024;

/// A stream whose writes are kept until the end of the turn.
pub(crate) struct Gather<S>(Arc<Mutex<Kept<S>>>);

/// Sends what a [`Gather`] has kept.
pub(crate) struct Outlet<S>(Arc<Mutex<Kept<S>>>);

struct Kept<S> {
    stream: S,
    bytes: Vec<u8>,
    /// How many of `bytes` the stream has taken.
    taken: usize,
    /// The stream has taken bytes since it was flushed.
    unflushed: bool,
}

/// Has the task polled again once those that are ready to run have run, and the sockets that are
/// ready were looked at. Waking it here would do too, and would wake another worker for it.
pub(crate) fn let_others_run(context: &mut Context<'_>) {
    // The first poll arranges it, and there is no need for a second one.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// Parts a stream into the side that is written to and the side that sends.
pub(crate) fn gather<S>(stream: S) -> (Gather<S>, Outlet<S>) {
    let kept = Arc::new(Mutex::new(Kept {
        stream,
        bytes: Vec::new(),
        taken: 0,
        unflushed: false,
    }));
    (Gather(Arc::clone(&kept)), Outlet(kept))
}

impl<S: AsyncWrite + Unpin> Outlet<S> {
    /// Polls a connection over the stream, and at the end of each turn sends what it has written.
    /// While requests are `under_way`, others have their turn first.
    ///
    /// # Errors
    /// What the stream said; the connection is of no use then.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; another one goes on.
    pub(crate) async fn turn<F: Future>(
        &self,
        mut connection: Pin<&mut F>,
        under_way: &Seats,
    ) -> io::Result<F::Output> {
        let mut is_last = false;
        poll_fn(|context| {
            let done = connection.as_mut().poll(context);
            if done.is_pending() && !is_last && under_way.taken() > 0 && self.0.lock().has_kept() {
                is_last = true;
                let_others_run(context);
                return Poll::Pending;
            }
            is_last = false;
            let sent = self.0.lock().poll_send(context);
            match (done, sent) {
                // It has shut the stream down, which sends everything first.
                (Poll::Ready(output), _) => Poll::Ready(Ok(output)),
                (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (Poll::Pending, Poll::Ready(Ok(())) | Poll::Pending) => Poll::Pending,
            }
        })
        .await
    }
}

impl<S: AsyncWrite + Unpin> Kept<S> {
    fn has_kept(&self) -> bool {
        self.taken < self.bytes.len()
    }

    /// Gives everything to the stream, and has the stream give it to the socket.
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

    /// Makes room for so many bytes; false if they are too many to be kept at all.
    fn poll_room(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.bytes.len() + bytes > KEPT_BYTES_MAX {
            ready!(self.poll_send(context))?;
        }
        let fits = bytes <= KEPT_BYTES_MAX;
        if fits && self.bytes.capacity() == 0 {
            self.bytes.reserve(bytes.max(KEPT_BYTES_FIRST));
        }
        Poll::Ready(Ok(fits))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
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
        let mut kept = self.0.lock();
        let count = slices.iter().map(|slice| slice.len()).sum();
        if !ready!(kept.poll_room(count, context))? {
            kept.unflushed = true;
            return Pin::new(&mut kept.stream).poll_write_vectored(context, slices);
        }
        for slice in slices {
            kept.bytes.extend_from_slice(slice);
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Says yes: what is kept goes at the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut kept = self.0.lock();
        ready!(kept.poll_send(context))?;
        Pin::new(&mut kept.stream).poll_shutdown(context)
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

    fn counted(pipe_bytes: usize) -> (Gather<Counted>, Outlet<Counted>, DuplexStream) {
        let (near, far) = duplex(pipe_bytes);
        let (written, outlet) = gather(Counted {
            stream: near,
            writes: 0,
        });
        (written, outlet, far)
    }

    #[tokio::test]
    async fn frames_of_one_turn_are_one_write_at_its_end() {
        let (mut written, outlet, mut far) = counted(KEPT_BYTES_MAX);
        let connection = async move {
            for frame in ["one ", "two ", "three"] {
                written.write_all(frame.as_bytes()).await.expect("kept");
                written.flush().await.expect("kept");
            }
            std::future::pending::<()>().await;
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let mut got = [0; 13];
        tokio::select! {
            biased;
            _ = outlet.turn(connection.as_mut(), &alone) => panic!("the connection never ends"),
            read = far.read_exact(&mut got) => assert_eq!(read.expect("read"), 13),
        }
        assert_eq!(&got, b"one two three");
        let kept = outlet.0.lock();
        assert_eq!(kept.stream.writes, 1);
        assert_eq!(kept.bytes.capacity(), 0);
    }

    /// Whoever is ready to run and has something to send is waited for while requests are under
    /// way, and only then.
    #[tokio::test]
    async fn what_is_ready_travels_together_while_others_are_at_work() {
        for (others_work, writes) in [(true, 1), (false, 2)] {
            let (mut written, outlet, mut far) = counted(1000);
            let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<&[u8]>();
            let second = tell.clone();
            tell.send(b"first ").expect("heard");
            let connection = async move {
                while let Some(frame) = told.recv().await {
                    written.write_all(frame).await.expect("kept");
                }
                std::future::pending::<()>().await;
            };
            let ready = tokio::spawn(async move { second.send(b"second").expect("heard") });
            let under_way = Seats::new(usize::MAX);
            let _worked = others_work.then(|| under_way.take());
            let mut connection = pin!(connection);
            let mut got = [0; 12];
            tokio::select! {
                biased;
                _ = outlet.turn(connection.as_mut(), &under_way) => panic!("it never ends"),
                read = far.read_exact(&mut got) => assert_eq!(read.expect("read"), 12),
            }
            assert_eq!(&got, b"first second");
            assert_eq!(outlet.0.lock().stream.writes, writes);
            ready.await.expect("no panic");
            drop(tell);
        }
    }

    #[tokio::test]
    async fn a_full_socket_holds_the_writer_back_and_loses_nothing() {
        const FRAMES: usize = 300;
        let (mut written, outlet, mut far) = counted(1000);
        let connection = async move {
            for number in 0..FRAMES {
                let frame = vec![u8::try_from(number % 251).expect("small"); 1 + number * 7];
                written.write_all(&frame).await.expect("written");
                assert!(written.0.lock().bytes.len() <= KEPT_BYTES_MAX);
            }
            let large = vec![b'L'; KEPT_BYTES_MAX * 2];
            written.write_all(&large).await.expect("written");
            written.shutdown().await.expect("shut down");
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let mut got = Vec::new();
        let (served, read) = tokio::join!(
            outlet.turn(connection.as_mut(), &alone),
            far.read_to_end(&mut got)
        );
        served.expect("the stream is whole");
        read.expect("read");
        let expected: Vec<u8> = (0..FRAMES)
            .flat_map(|number| vec![u8::try_from(number % 251).expect("small"); 1 + number * 7])
            .chain(vec![b'L'; KEPT_BYTES_MAX * 2])
            .collect();
        assert_eq!(got, expected);
    }

    #[tokio::test]
    async fn a_broken_socket_ends_the_turn() {
        let (mut written, outlet, far) = counted(1000);
        drop(far);
        let connection = async move {
            written.write_all(b"frame").await.expect("kept");
            std::future::pending::<()>().await;
        };
        let (mut connection, alone) = (pin!(connection), Seats::new(usize::MAX));
        let ended = outlet.turn(connection.as_mut(), &alone).await;
        assert_eq!(ended.expect_err("broken").kind(), io::ErrorKind::BrokenPipe);
    }
}
