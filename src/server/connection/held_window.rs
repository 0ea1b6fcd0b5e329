//! Bounds what a client of HTTP/2 can send of its bodies before the server knows who it is.
//!
//! A client may send as much as the window of its connection has room for, and the server keeps it until somebody
//! reads it: not before the request is proven. By the protocol a new connection has room for 64 KiB, and the library
//! gives it more at once, because uploads would otherwise wait for round trips. It cannot be made to do so later. So the
//! frames that give more room are held back here until a request of the connection is proven. Until then the client
//! gets back the room of what was read, of bodies that are read although they are refused, and no more. The library
//! expects more than the client may send, which does no harm: it counts what arrives.
//!
//! The windows of single streams are left alone: all of them together have the connection's room.
//!
//! Invariant: a frame that is held is sent once, whole or in parts, and between two other frames.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::open_connections::OpenConnection;

/// The length of the head of a frame.
const HEAD_BYTES: usize = 9;
/// The length of a frame that gives room.
const UPDATE_BYTES: usize = HEAD_BYTES + 4;
/// What such a frame begins with (RFC 9113, 6.9): its length, its type, no flags, and no stream, because it is for the
/// connection.
const UPDATE_HEAD: [u8; HEAD_BYTES] = [0, 0, 4, 8, 0, 0, 0, 0, 0];

/// A server's side of a connection that gives a stranger no more room than the protocol does.
pub(crate) struct HeldWindow<S> {
    stream: S,
    open: Arc<OpenConnection>,
    /// The room that is held; `None` once nothing is held any more.
    held: Option<u32>,
    /// The bytes to come of the frame that the library writes.
    left: usize,
    /// What is not written yet of a frame that gives room.
    update: Bytes,
}

impl<S> HeldWindow<S> {
    /// Holds the room of a new connection.
    pub(crate) fn new(stream: S, open: &Arc<OpenConnection>) -> Self {
        Self {
            stream,
            open: Arc::clone(open),
            held: Some(0),
            left: 0,
            update: Bytes::new(),
        }
    }

    /// Lets go of the room that the client may have now. Called between two frames only.
    fn release(&mut self, context: &Context<'_>) {
        let Some(held) = self.held else {
            return;
        };
        let room = self.open.room(held, context.waker());
        let is_over = room == held && self.open.is_proven();
        self.held = (!is_over).then(|| held - room);
        if room > 0 {
            let update = [&UPDATE_HEAD[..], &room.to_be_bytes()].concat();
            self.update = update.into();
        }
    }

    /// Decides what becomes of the first frame of these bytes of the library.
    ///
    /// # Errors
    /// Returns an error if a head is not whole, which the library never does.
    fn look_at(&mut self, bytes: &[u8]) -> io::Result<Next> {
        let Some(held) = &mut self.held else {
            return Ok(Next::Write(bytes.len()));
        };
        if self.left == 0 {
            let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            if *head == UPDATE_HEAD {
                let room = bytes[HEAD_BYTES..].first_chunk::<4>();
                let room = room.ok_or(io::ErrorKind::InvalidInput)?;
                *held = held.saturating_add(u32::from_be_bytes(*room));
                return Ok(Next::Held);
            }
            let [high, middle, low, ..] = *head;
            let length = u32::from_be_bytes([0, high, middle, low]);
            self.left = HEAD_BYTES + length as usize;
        }
        Ok(Next::Write(self.left.min(bytes.len())))
    }
}

/// What becomes of bytes of the library.
enum Next {
    /// This many are written, all of one frame as long as anything is held.
    Write(usize),
    /// A frame that gives room is held.
    Held,
}

impl<S: AsyncWrite + Unpin> HeldWindow<S> {
    /// Writes the rest of a frame that gives room.
    fn poll_update(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.update.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &self.update);
            let written = ready!(written)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.update.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeldWindow<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeldWindow<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_update(context))?;
        if self.held.is_none() {
            return Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        }
        let Some(bytes) = slices.iter().find(|slice| !slice.is_empty()) else {
            return Poll::Ready(Ok(0));
        };
        let count = match self.look_at(bytes)? {
            Next::Held => return Poll::Ready(Ok(UPDATE_BYTES)),
            Next::Write(count) => count,
        };
        let written = Pin::new(&mut self.stream).poll_write(context, &bytes[..count]);
        let written = ready!(written)?;
        self.left -= written;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The library flushes when it has written all its frames, each time that it is polled.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_update(context))?;
        if self.left == 0 {
            self.release(context);
            ready!(self.poll_update(context))?;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::connection::open_connections::OpenConnections;
    use crate::request::doorway::Source;

    const SETTINGS: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 16, 0, 0];
    const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 4, 8, 0, 0, 0, 0];

    /// Bytes of bodies that were read.
    const RETURNED: u32 = 20_000;

    fn update(room: u32) -> Vec<u8> {
        [&UPDATE_HEAD[..], &room.to_be_bytes()].concat()
    }

    fn connected() -> Arc<OpenConnection> {
        Arc::new(OpenConnections::new(1, 1).accept(Source::of(None)))
    }

    #[tokio::test]
    async fn a_client_gets_room_once_it_is_proven_and_before_that_what_was_read() {
        let open = connected();
        let (mut client, server) = duplex(1 << 10);
        let mut held = HeldWindow::new(server, &open);
        let first = [SETTINGS, &update(4_000_000), PING].concat();
        held.write_all(&first).await.expect("there is room");
        let mut expected = vec![[SETTINGS, PING].concat()];
        held.flush().await.expect("there is room");
        open.return_room(RETURNED as usize);
        held.flush().await.expect("there is room");
        expected.push(update(RETURNED));
        // The library gives room for what it has read, too.
        let second = [&update(500_000)[..], PING].concat();
        held.write_all(&second).await.expect("there is room");
        expected.push(PING.to_vec());
        assert!(open.mark_proven(None));
        held.flush().await.expect("there is room");
        expected.push(update(4_500_000 - RETURNED));
        held.write_all(&update(5)).await.expect("there is room");
        expected.push(update(5));
        drop(held);
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.expect("the end");
        assert_eq!(seen, expected.concat());
    }

    #[tokio::test]
    async fn frames_stay_whole_however_little_is_written_at_a_time() {
        let open = connected();
        let (mut client, server) = duplex(5);
        let writing = async {
            let mut held = HeldWindow::new(server, &open);
            let first = [SETTINGS, &update(70_000), PING].concat();
            held.write_all(&first).await.expect("there is room");
            open.return_room(RETURNED as usize);
            held.flush().await.expect("there is room");
            held.write_all(SETTINGS).await.expect("there is room");
            held.flush().await.expect("there is room");
        };
        let mut seen = Vec::new();
        let ((), read) = tokio::join!(writing, client.read_to_end(&mut seen));
        read.expect("the end");
        let expected = [SETTINGS, PING, &update(RETURNED), SETTINGS].concat();
        assert_eq!(seen, expected);
    }
}
